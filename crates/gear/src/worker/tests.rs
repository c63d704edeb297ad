//! A worker beside a host that is played here.

use serde_json::json;
use std::io::{PipeReader, PipeWriter, pipe};
use std::thread::JoinHandle;

use super::*;

struct Host {
    signer: Signer,
    verifier: Verifier,
    to: Option<PipeWriter>,
    from: BufReader<PipeReader>,
    /// What would have ended the process.
    unsure: Receiver<String>,
    worker: JoinHandle<Result<(), Broken>>,
}

impl Host {
    fn of(worker: Worker) -> Self {
        let key = [9; 32];
        let secrets = [("token".to_owned(), "s3cret".to_owned())].into();
        let handover = Handover { key: Hex(key).to_string(), secrets };
        let (input, to) = pipe().expect("a pipe");
        let (from, output) = pipe().expect("a pipe");
        let (ended, unsure) = channel();
        let end = Box::new(move |why: &str| ended.send(why.to_owned()).expect("a host"));
        let serve = move || worker.serve(handover, BufReader::new(input), Box::new(output), end);
        Self {
            signer: Signer::new(Key::new(key), Direction::ToGear),
            verifier: Verifier::new(Key::new(key), Direction::FromGear),
            to: Some(to),
            from: BufReader::new(from),
            unsure,
            worker: thread::spawn(serve),
        }
    }

    fn say(&mut self, message: &ToGear) {
        let document = serde_json::to_string(message).expect("a document");
        let line = self.signer.line(&document).expect("a line");
        self.to.as_mut().expect("open").write_all(&line).expect("a reader");
    }

    fn execute(&mut self, action: &str, params: Value) {
        let (execution_id, action) = ("job:step".to_owned(), action.to_owned());
        self.say(&ToGear::Execute { execution_id, attempt: 1, action, params });
    }

    fn hear(&mut self) -> FromGear {
        let line = read_line(&mut self.from).expect("a pipe").expect("a line").expect("whole");
        let document = self.verifier.document(&line).expect("signed");
        serde_json::from_str(document).expect("a message")
    }

    fn end(mut self) -> Result<(), Broken> {
        drop(self.to.take());
        self.worker.join().expect("no panic")
    }
}

fn code(message: &FromGear) -> &str {
    let FromGear::Error { code, .. } = message else { panic!("{message:?}") };
    code
}

#[test]
fn an_action_reports_and_gives() {
    let worker = Worker::new().action("greet", |context| {
        context.log("begun");
        context.side_effect("made");
        context.progress(50, None);
        let secret = context.secret("token").map(str::len);
        Ok(json!({"id": context.execution_id, "secret": secret, "got": context.params}).into())
    });
    let mut host = Host::of(worker);
    host.execute("greet", json!({"a": 1}));
    let log = |message: &str, side_effect| FromGear::Log { message: message.into(), side_effect };
    assert_eq!(host.hear(), log("begun", false));
    assert_eq!(host.hear(), log("made", true));
    assert_eq!(host.hear(), FromGear::Progress { percent: 50, message: None });
    let value = json!({"id": "job:step", "secret": 6, "got": {"a": 1}});
    assert_eq!(host.hear(), FromGear::Result { value, artifact: None });
    assert!(host.end().is_ok());
}

#[test]
fn only_a_problem_is_definite() {
    let worker = Worker::new()
        .action("break", |_| panic!("broken"))
        .action("flood", |_| Ok(Value::from("x".repeat(crate::limits::DOCUMENT_BYTES_MAX)).into()));
    let mut host = Host::of(worker);
    // What was never begun has done nothing.
    host.execute("nothing", json!({}));
    assert_eq!(code(&host.hear()), "no_such_action");
    for (action, expected) in [("break", "panicked"), ("flood", "more than 1 MB")] {
        host.execute(action, json!({}));
        let why = host.unsure.recv().expect("an end");
        assert!(why.contains(expected), "{action}: {why}");
    }
    drop(host.to.take());
    let rest = read_line(&mut host.from).expect("a pipe");
    assert!(rest.is_none(), "nothing is said of what nobody can tell: {rest:?}");
    assert!(host.end().is_ok());
}

#[test]
fn a_resolver_with_too_much_to_say_knows_nothing() {
    let much = |_: &Context| {
        Resolved::Done(Value::from("x".repeat(crate::limits::DOCUMENT_BYTES_MAX)).into())
    };
    let worker = Worker::new().resolver("flood", much).resolver("break", |_| panic!("broken"));
    let mut host = Host::of(worker);
    for action in ["flood", "break"] {
        let (execution_id, action) = ("job:step".to_owned(), action.to_owned());
        host.say(&ToGear::Resolve { execution_id, action, params: json!({}) });
        let state = ResolvedState::Unknown;
        assert_eq!(host.hear(), FromGear::Resolved { state, value: Value::Null, artifact: None });
    }
    assert!(host.end().is_ok());
}

#[test]
fn a_cancel_is_heard_and_a_sub_job_is_waited_for() {
    let worker = Worker::new()
        .action("wait", |context| {
            while !context.is_cancelled() {
                thread::yield_now();
            }
            Err(Problem::transient("cancelled", "as asked"))
        })
        .action("ask", |context| Ok(context.sub_job(json!("look"))?.into()))
        .resolver("ask", |_| Resolved::NotDone);
    let mut host = Host::of(worker);
    host.execute("wait", json!({}));
    host.say(&ToGear::Cancel { reason: "time".to_owned() });
    assert_eq!(code(&host.hear()), "cancelled");
    host.execute("ask", json!({}));
    assert_eq!(host.hear(), FromGear::CreateSubJob { number: 0, asked: json!("look") });
    host.say(&ToGear::SubJobEnded { number: 0, value: Some(json!(7)), error: None });
    assert_eq!(host.hear(), FromGear::Result { value: json!(7), artifact: None });
    let (execution_id, action) = ("job:step".to_owned(), "ask".to_owned());
    host.say(&ToGear::Resolve { execution_id, action, params: json!({}) });
    let state = ResolvedState::NotDone;
    assert_eq!(host.hear(), FromGear::Resolved { state, value: Value::Null, artifact: None });
    assert!(host.end().is_ok());
}

#[test]
fn a_host_that_is_not_to_be_believed_is_left() {
    let mut host = Host::of(Worker::new());
    host.to.as_mut().expect("open").write_all(b"0 00 {}\n").expect("a reader");
    assert!(matches!(host.end(), Err(Broken::Breach(_))));
}
