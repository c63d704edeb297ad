//! A stream of events: what the daemon sends as `text/event-stream`, one event at a time.

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::ClientError;

/// Bytes of one event: a message and its surroundings.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// Streams resume after it.
    pub id: u64,
    /// What happened.
    pub kind: String,
    /// About what.
    pub data: Value,
}

/// What happens, as it happens.
pub struct Events {
    body: Incoming,
    driving: JoinHandle<()>,
    text: Vec<u8>,
    seen: Option<u64>,
}

impl Events {
    pub(crate) fn new(body: Incoming, driving: JoinHandle<()>) -> Self {
        Self { body, driving, text: Vec::new(), seen: None }
    }

    /// Where another stream goes on after this one: after its last event, or where it began.
    pub fn seen(&self) -> Option<u64> {
        self.seen
    }

    /// The next event; nothing when the stream has ended. Go on after what was [`Events::seen`].
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let broken = |what: String| ClientError::Broken(what);
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                let (id, event) = parse(&String::from_utf8_lossy(&block));
                self.seen = id.or(self.seen);
                if event.is_some() {
                    return Ok(event);
                }
                continue;
            }
            if self.text.len() > EVENT_BYTES_MAX {
                return Err(broken("an event is too large".to_owned()));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.text.extend_from_slice(data);
                    }
                }
                Some(Err(error)) => return Err(broken(error.to_string())),
                None => return Ok(None),
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.driving.abort();
    }
}

/// A block of lines: its id, and its event. A comment is none, and what has no data neither.
fn parse(block: &str) -> (Option<u64>, Option<Event>) {
    let (mut id, mut kind, mut data) = (None, "message".to_owned(), None::<String>);
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut data) {
            ("id", _) => id = value.parse().ok(),
            ("event", _) => kind = value.to_owned(),
            ("data", None) => data = Some(value.to_owned()),
            ("data", Some(data)) => {
                data.push('\n');
                data.push_str(value);
            }
            (_, _) => {}
        }
    }
    let event = id.zip(data).map(|(id, data)| {
        let data = serde_json::from_str(&data).unwrap_or(Value::Null);
        Event { id, kind, data }
    });
    (id, event)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_an_event_and_a_comment_is_none() {
        let block = "id: 7\nevent: message\ndata: {\"body\":\ndata: \"hi\"}\n\n";
        let data = serde_json::json!({"body": "hi"});
        let event = Event { id: 7, kind: "message".to_owned(), data };
        assert_eq!(parse(block), (Some(7), Some(event)));
        assert_eq!(parse(": still here\n\n"), (None, None));
        assert_eq!(parse("id: 6\nretry: 1000\n\n"), (Some(6), None), "where it begins");
    }
}
