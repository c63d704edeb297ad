//! Who and what is in the mesh. Peers are known here; the rest is asked of the broker.

use std::collections::BTreeMap;

use semel_api::json::Object;
use semel_api::limits::PAGE_DEFAULT;
use semel_api::page::{Next, Page};
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::code::Code;
use semel_core::id::MemberId;
use semel_core::refusal::Refusal;
use semel_core::rfc3339;
use semel_wire::frame::FromBroker;
use semel_wire::limits::PRESENCE_MEMBERS_MAX;
use serde_json::{Map, Value, json};

use super::Daemon;
use crate::link::{Ask, Asked};
use crate::remote::{Anyway, Profile, Queue, Remote, RemoteError, Topic};
use crate::store::peer::Peer;

/// Statuses that a broker's refusal may have here; what else it says is its own trouble.
pub(super) const REFUSALS: &[Code] = match REFUSALS_OR_FULL.split_last() {
    Some((_full, refusals)) => refusals,
    None => &[],
};

/// The same where what the broker says is written down here; last, that there is no room for it.
pub(super) const REFUSALS_OR_FULL: &[Code] = &[
    Code::InvalidField,
    Code::MemberInactive,
    Code::TopicNotFound,
    Code::AmbiguousName,
    Code::PayloadTooLarge,
    Code::RateLimited,
    Code::BrokerUnavailable,
    Code::InsufficientStorage,
];

/// What a broker's code means for a caller.
pub(super) fn broker_refused(code: &str, detail: String) -> Problem {
    match Code::parse(code) {
        Some(code) if REFUSALS.iter().any(|known| known.http() == code.http()) => {
            Problem::new(code, detail)
        }
        _ => Problem::new(Code::BrokerUnavailable, format!("the broker answered {code}: {detail}")),
    }
}

fn remote(daemon: &Daemon) -> Result<&dyn Remote, Problem> {
    let remote = daemon.remote.as_deref();
    remote.ok_or_else(|| Problem::new(Code::BrokerUnavailable, "no broker is configured"))
}

impl From<RemoteError> for Problem {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Unavailable(detail) => Self::new(Code::BrokerUnavailable, detail),
            RemoteError::Refused(Refusal { code, detail, .. }) => {
                broker_refused(code.as_str(), detail)
            }
        }
    }
}

/// `GET /v1/peers`.
pub(super) async fn peers(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let after = match call.query.text("after") {
        None => None,
        Some(text) => Some(
            MemberId::parse(&text)
                .ok_or_else(|| Problem::new(Code::InvalidField, "after must be a member_id"))?,
        ),
    };
    let limit = call.query.number("limit").unwrap_or(PAGE_DEFAULT);
    let known = call.state.engine.outbox.peers(after, limit + 1).await?;
    let full = i64::try_from(known.len()).is_ok_and(|found| found > limit);
    let last = known.last().map(|peer| peer.member_id).filter(|_| full);
    let mut everybody: BTreeMap<MemberId, (Option<Peer>, bool)> =
        known.into_iter().map(|peer| (peer.member_id, (Some(peer), false))).collect();
    let mut online = call.state.engine.link.roster().online();
    if call.state.engine.link.roster().only_counted().is_some() {
        online.clear();
        for id in asked_online(&call.state, everybody.keys().copied().collect()).await {
            everybody.entry(id).and_modify(|(_, is_online)| *is_online = true);
        }
    }
    for id in online.keys().filter(|id| Some(**id) > after && last.is_none_or(|last| **id <= last))
    {
        everybody.entry(*id).or_insert((None, true)).1 = true;
    }
    let mut page = Page::new(limit, call.api().response_bytes_max());
    let mut reached = after;
    for (id, (peer, is_online)) in &everybody {
        let online = online.get(id);
        if !page.add(|out| {
            let name = peer.as_ref().map(|peer| &peer.name).or(online.map(|o| &o.name));
            let pubkey = peer.as_ref().map(|peer| &peer.pubkey).or(online.map(|o| &o.pubkey));
            let profile = peer.as_ref().map_or("", |peer| peer.profile.as_str());
            let mut object = Object::open(out);
            object.plain("member_id", &id.to_string());
            object.maybe_text("name", name.map(String::as_str));
            object.maybe_text("pubkey", pubkey.map(String::as_str));
            object.maybe_text("role", peer.as_ref().map(|peer| peer.role.as_str()));
            // What another member says of itself goes into our answer as it is: if it is JSON.
            let is_object = serde_json::from_str::<Map<String, Value>>(profile).is_ok();
            object.raw("profile", if is_object { profile } else { "{}" });
            object.flag("online", *is_online);
            object.close();
        }) {
            break;
        }
        reached = Some(*id);
    }
    let next = || {
        let reached = reached.map(|id| id.to_string()).unwrap_or_default();
        Next::new("/v1/peers", &reached).with("limit", Some(&limit.to_string())).address()
    };
    Ok(page.finish(next))
}

/// Which of these are online, as the broker says; nobody while it is away.
async fn asked_online(daemon: &Daemon, members: Vec<MemberId>) -> Vec<MemberId> {
    let mut online = Vec::new();
    for members in members.chunks(PRESENCE_MEMBERS_MAX) {
        let ask = Ask::Presence { members: members.to_vec() };
        match daemon.engine.link.ask(ask).await {
            Asked::Answered(FromBroker::PresenceResult(result)) => online.extend(result.online),
            Asked::Answered(_) | Asked::Unanswered | Asked::Away => break,
        }
    }
    online
}

/// `POST /v1/peers/refresh`.
pub(super) async fn peers_refresh(call: Call<Daemon>) -> Result<Reply, Problem> {
    let members = remote(&call.state)?.members().await?;
    let count = members.len();
    call.state.engine.outbox.peers_replace(members).await?;
    Ok(Reply::value(&json!({"members": count})))
}

/// `POST /v1/profile`.
pub(super) async fn profile(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let profile = Profile { summary: call.body.text("summary"), status: call.body.text("status") };
    remote(&call.state)?.profile_set(profile).await?;
    Ok(Reply::value(&json!({"status": "ok"})))
}

/// `POST /v1/topic/create`.
pub(super) async fn topic_create(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let name = topic_name(&mut call)?;
    Ok(Reply::value(&topic(&remote(&call.state)?.topic_create(name).await?)))
}

/// `POST /v1/topic/subscribe`.
pub(super) async fn topic_subscribe(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let name = topic_name(&mut call)?;
    Ok(Reply::value(&topic(&remote(&call.state)?.topic_subscribe(name).await?)))
}

/// `POST /v1/topic/unsubscribe`.
pub(super) async fn topic_unsubscribe(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let name = topic_name(&mut call)?;
    Ok(Reply::value(&topic(&remote(&call.state)?.topic_unsubscribe(name).await?)))
}

/// `POST /v1/topic/delete`.
pub(super) async fn topic_delete(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (name, anyway) = (topic_name(&mut call)?, anyway(&call, "confirm"));
    remote(&call.state)?.topic_delete(name, anyway).await?;
    Ok(Reply::value(&json!({"status": "ok"})))
}

/// `GET /v1/topic/list`.
pub(super) async fn topic_list(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (after, limit) = (call.query.text("after"), call.query.number("limit"));
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    let topics = remote(&call.state)?.topic_list(after, limit + 1).await?;
    let items = topics.into_iter().map(|item| (item.name.clone(), topic(&item)));
    Ok(named_list("/v1/topic/list", limit, call.api().response_bytes_max(), items))
}

/// `POST /v1/queue/create`.
pub(super) async fn queue_create(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let name = call.body.text("queue").unwrap_or_default();
    Ok(Reply::value(&queue(&remote(&call.state)?.queue_create(name).await?)))
}

/// `POST /v1/queue/delete`.
pub(super) async fn queue_delete(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (name, anyway) = (call.body.text("queue").unwrap_or_default(), anyway(&call, "discard"));
    remote(&call.state)?.queue_delete(name, anyway).await?;
    Ok(Reply::value(&json!({"status": "ok"})))
}

/// `GET /v1/queue/list`.
pub(super) async fn queue_list(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let (after, limit) = (call.query.text("after"), call.query.number("limit"));
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    let queues = remote(&call.state)?.queue_list(after, limit + 1).await?;
    let items = queues.into_iter().map(|item| (item.name.clone(), queue(&item)));
    Ok(named_list("/v1/queue/list", limit, call.api().response_bytes_max(), items))
}

/// `POST /v1/mesh/invite`.
pub(super) async fn invite(call: Call<Daemon>) -> Result<Reply, Problem> {
    let number = |name, default| {
        call.body.number(name).and_then(|number| u64::try_from(number).ok()).unwrap_or(default)
    };
    let (uses, ttl_s) = (number("uses", 1), number("ttl_s", 24 * 60 * 60));
    let invite = remote(&call.state)?.invite_create(uses, ttl_s).await?;
    Ok(Reply::value(&json!({
        "invite": invite.invite,
        "uses": invite.uses,
        "expires_at": rfc3339::format(invite.expires_at),
    })))
}

/// `POST /v1/mesh/leave`.
pub(super) async fn leave(call: Call<Daemon>) -> Result<Reply, Problem> {
    remote(&call.state)?.leave().await?;
    Ok(Reply::value(&json!({"status": "ok"})))
}

/// `POST /v1/member/revoke`.
pub(super) async fn revoke(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let pubkey = call.body.text("pubkey").unwrap_or_default();
    remote(&call.state)?.member_revoke(pubkey).await?;
    Ok(Reply::value(&json!({"status": "ok"})))
}

fn anyway(call: &Call<Daemon>, flag: &str) -> Anyway {
    if call.body.flag(flag) { Anyway::Yes } else { Anyway::No }
}

fn topic_name(call: &mut Call<Daemon>) -> Result<String, Problem> {
    let given = call.body.text("topic").unwrap_or_default();
    match given.strip_prefix('#').unwrap_or(&given) {
        "" => Err(Refusal::at(Code::InvalidField, "/topic", "must not be empty").into()),
        name => Ok(name.to_owned()),
    }
}

fn topic(topic: &Topic) -> Value {
    let created_at = topic.created_at.map(rfc3339::format);
    json!({"name": topic.name, "subscribed": topic.subscribed, "created_at": created_at})
}

fn queue(queue: &Queue) -> Value {
    json!({"name": queue.name, "waiting": queue.waiting})
}

fn named_list(
    path: &str,
    limit: i64,
    bytes_max: usize,
    items: impl Iterator<Item = (String, Value)>,
) -> Reply {
    let mut page = Page::new(limit, bytes_max);
    let mut reached = String::new();
    for (name, item) in items {
        if !page.add(|out| out.extend_from_slice(item.to_string().as_bytes())) {
            break;
        }
        reached = name;
    }
    page.finish(|| Next::new(path, &reached).with("limit", Some(&limit.to_string())).address())
}
