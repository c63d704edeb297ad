//! The steps of the tour: what is done, and what must be true afterwards.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::process::{Running, World, until};

/// Messages of the step in which it is killed, and how many are accepted before that.
const MESSAGES: usize = 50;
const BEFORE_THE_KILL: usize = 20;

/// Sends at a time: some of them are under way when it is killed.
const AT_ONCE: usize = 4;

pub(super) async fn start(world: &mut World) -> Result<String, String> {
    world.start().await?;
    Ok(format!("semel up --home {}", world.home().display()))
}

pub(super) async fn send(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    expect("a send", me.send(&me.pubkey, "hello", "first").await?.status, 202)?;
    arrived(me, "hello").await?;
    Ok("semel send @me 'hello' --key first: it was on disk, then in the inbox".to_owned())
}

pub(super) async fn repeat(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    // The broker's answer may still be on its way.
    let answer = until("the broker's answer", async || {
        let answer = me.send(&me.pubkey, "hello", "first").await?;
        Ok((answer.status != 202).then_some(answer))
    });
    let answer = answer.await?;
    expect("the same send again", answer.status, 200)?;
    if answer.body.get("duplicate") != Some(&Value::Bool(true)) {
        return Err(format!("it was not taken for a duplicate: {}", answer.body));
    }
    once(me, "hello").await?;
    Ok("it was sent before: still once in the inbox".to_owned())
}

pub(super) async fn reuse(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    let answer = me.send(&me.pubkey, "goodbye", "first").await?;
    expect("another body under the same key", answer.status, 409)?;
    let code = answer.code().unwrap_or_default();
    if code != "idempotency_key_reused" {
        return Err(format!("it was refused as {code:?}"));
    }
    Ok(format!("refused: {code} (semel explain {code})"))
}

pub(super) async fn kill(world: &mut World) -> Result<String, String> {
    let me = world.up.take().ok_or("nothing runs")?;
    let accepted = cut_off(me).await;
    world.start().await?;
    let me = world.me()?;
    for text in &accepted {
        arrived(me, text).await?;
    }
    // A caller that heard nothing sends again under the same key: that is safe.
    for text in (0..MESSAGES).map(message) {
        let answer = me.send(&me.pubkey, &text, &text).await?;
        if !answer.is_success() {
            return Err(format!("{text} again answers {}: {}", answer.status, answer.detail()));
        }
    }
    for text in (0..MESSAGES).map(message) {
        arrived(me, &text).await?;
    }
    let count = accepted.len();
    Ok(format!(
        "killed after {count} were accepted: after the restart all of these arrived; all \
         {MESSAGES} were sent again, and each is there once"
    ))
}

fn message(number: usize) -> String {
    format!("message-{number}")
}

/// Sends until enough were accepted, then kills it; what was accepted.
async fn cut_off(me: Running) -> BTreeSet<String> {
    let (mut sends, mut accepted) = (JoinSet::new(), BTreeSet::new());
    let (mut me, mut next) = (Some(me), 0);
    loop {
        while let Some(me) = me.as_ref().filter(|_| next < MESSAGES && sends.len() < AT_ONCE) {
            let (client, to, text) = (me.client.clone(), me.pubkey.clone(), message(next));
            sends.spawn(async move {
                let body = json!({"to": to, "message": text});
                let answer = client.post("/v1/send", &body, Some(&text)).await;
                answer.is_ok_and(|answer| answer.is_success()).then_some(text)
            });
            next += 1;
        }
        match sends.join_next().await {
            None => return accepted,
            Some(answered) => accepted.extend(answered.ok().flatten()),
        }
        if accepted.len() >= BEFORE_THE_KILL
            && let Some(me) = me.take()
        {
            me.kill().await;
        }
    }
}

pub(super) async fn invite(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    let invite = me.client.post("/v1/mesh/invite", &json!({"uses": 1, "ttl_s": 600}), None).await;
    let invite = invite.map_err(|error| error.to_string())?;
    let link = invite.body.get("invite").and_then(Value::as_str).unwrap_or_default().to_owned();
    let join = ["mesh", "join", &link, "--name", "friend"];
    world.run(&world.friends_home(), &join).await?;
    world.start_friend().await?;
    let friend = world.friend.as_ref().ok_or("nobody has joined")?;
    let answer = world.me()?.send(&friend.pubkey, "hello friend", "to-friend").await?;
    expect("a send to the friend", answer.status, 202)?;
    arrived(friend, "hello friend").await?;
    Ok("semel mesh invite, semel mesh join, semel send @friend: it has arrived there once".into())
}

pub(super) async fn job(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    let plan = json!({"steps": [
        {"id": "write", "gear": "files", "action": "write",
         "params": {"path": "note.txt", "text": "hello"}},
        {"id": "pause", "gear": "wait", "action": "sleep", "params": {"ms": 1500}},
        {"id": "tell", "gear": "mesh", "action": "send",
         "params": {"to": me.pubkey, "message": "the note is written"}},
    ]});
    let made = me.client.post("/v1/jobs", &json!({"plan": plan}), Some("demo-job")).await;
    let made = made.map_err(|error| error.to_string())?;
    expect("a job", made.status, 201)?;
    let id = made.body.get("id").and_then(Value::as_str).unwrap_or_default();
    let path = format!("/v1/jobs/{}", semel_wire::path::encode(id));
    let before = until("the pause of the job", async || {
        let job = me.get(&path).await?;
        Ok((attempts(&job, "pause") > 0).then_some(job))
    });
    let before = before.await?;
    if let Some(me) = world.up.take() {
        me.kill().await;
    }
    world.start().await?;
    let me = world.me()?;
    let job = until("the end of the job", async || {
        let job = me.get(&path).await?;
        let status = job.get("status").and_then(Value::as_str).unwrap_or_default();
        let ended = ["completed", "failed", "cancelled", "awaiting_approval"].contains(&status);
        Ok(ended.then_some(job))
    });
    let job = job.await?;
    if job.get("status") != Some(&json!("completed")) {
        return Err(format!("the job is {}: {}", job["status"], job["error"]));
    }
    // What was recorded before the kill is not run again. What was not may be, under the same id:
    // the message must still come once.
    let (then, now) = (attempts(&before, "write"), attempts(&job, "write"));
    expect("attempts of the step that was done", now, then)?;
    arrived(me, "the note is written").await?;
    let pauses = attempts(&job, "pause");
    Ok(format!(
        "killed during its pause: the completed step was not repeated, the pause began {pauses} \
         times, the message came once"
    ))
}

fn attempts(job: &Value, id: &str) -> u64 {
    let steps = job.get("steps").and_then(Value::as_array).into_iter().flatten();
    let step = steps.into_iter().find(|step| step.get("id").and_then(Value::as_str) == Some(id));
    step.and_then(|step| step.get("attempts")?.as_u64()).unwrap_or(0)
}

/// Counts everything a last time: what came twice may have come late.
pub(super) async fn stop(world: &mut World) -> Result<String, String> {
    let me = world.me()?;
    let sent = (0..MESSAGES).map(message).chain(["hello", "the note is written"].map(Into::into));
    let mut sent: Vec<String> = sent.collect();
    let mut found = me.bodies().await?;
    sent.sort();
    found.sort();
    expect("everything in the inbox", found, sent)?;
    for running in [world.friend.take(), world.up.take()].into_iter().flatten() {
        expect("the exit code", running.stop().await?, Some(0))?;
    }
    Ok(format!("{} messages in the inbox, each once; SIGTERM: both ended with 0", MESSAGES + 2))
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, found: T, wanted: T) -> Result<(), String> {
    match found == wanted {
        true => Ok(()),
        false => Err(format!("{what}: {found:?} instead of {wanted:?}")),
    }
}

/// Waits until it is in the inbox; it must be there once.
async fn arrived(who: &Running, text: &str) -> Result<(), String> {
    until(text, async || Ok(who.bodies().await?.iter().any(|body| body == text).then_some(())))
        .await?;
    once(who, text).await
}

async fn once(who: &Running, text: &str) -> Result<(), String> {
    let count = who.bodies().await?.iter().filter(|body| *body == text).count();
    expect(&format!("{text:?} in the inbox"), count, 1)
}
