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
}

impl Events {
    pub(crate) fn new(body: Incoming, driving: JoinHandle<()>) -> Self {
        Self { body, driving, text: Vec::new() }
    }

    /// The next event; nothing when the stream has ended. Go on with the id of the last one.
    pub async fn next(&mut self) -> Result<Option<Event>, ClientError> {
        let broken = |what: String| ClientError::Broken(what);
        loop {
            if let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
                let block: Vec<u8> = self.text.drain(..end + 2).collect();
                if let Some(event) = parse(&String::from_utf8_lossy(&block)) {
                    return Ok(Some(event));
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

/// A block of lines; a comment is no event.
fn parse(block: &str) -> Option<Event> {
    let (mut id, mut kind, mut data) = (None, "message".to_owned(), String::new());
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = value.parse().ok(),
            "event" => kind = value.to_owned(),
            "data" => {
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            _ => {}
        }
    }
    let data = serde_json::from_str(&data).unwrap_or(Value::Null);
    Some(Event { id: id?, kind, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_an_event_and_a_comment_is_none() {
        let block = "id: 7\nevent: message\ndata: {\"body\":\ndata: \"hi\"}\n\n";
        let data = serde_json::json!({"body": "hi"});
        assert_eq!(parse(block), Some(Event { id: 7, kind: "message".to_owned(), data }));
        assert_eq!(parse(": still here\n\n"), None);
    }
}
