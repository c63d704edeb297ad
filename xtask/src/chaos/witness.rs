//! Listens to what brokers say to daemons, between the two: which sends were answered `5xx`, and
//! how many `429`. A message may be overtaken only if the first is on the record.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// An answer is much shorter; what is longer is a push, and skipped.
const FRAME_BYTES_MAX: usize = 16 << 10;
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEAD_END: &[u8] = b"\r\n\r\n";
const UPGRADED: &[u8] = b"HTTP/1.1 101 ";

/// What was heard on all connections.
#[derive(Debug, Default, Clone)]
pub(crate) struct Record(Arc<Mutex<Heard>>);

#[derive(Debug, Default)]
struct Heard {
    /// How often each send was answered `5xx`, by its key.
    undone: HashMap<String, u64>,
    /// Answers that said `429`.
    told_to_wait: u64,
}

impl Record {
    pub(crate) fn undone(&self, key: &str) -> u64 {
        self.heard().undone.get(key).copied().unwrap_or(0)
    }

    pub(crate) fn told_to_wait(&self) -> u64 {
        self.heard().told_to_wait
    }

    /// Answers that said `5xx`, and sends.
    pub(crate) fn counts(&self) -> (u64, usize) {
        let heard = self.heard();
        (heard.undone.values().sum(), heard.undone.len())
    }

    fn note(&self, frame: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Value>(frame) else { return };
        if said["type"] != "send_result" {
            return;
        }
        match (said["status"].as_u64(), said["client_message_id"].as_str()) {
            (Some(429), _) => self.heard().told_to_wait += 1,
            (Some(500..), Some(key)) => {
                *self.heard().undone.entry(key.to_owned()).or_insert(0) += 1;
            }
            _ => {}
        }
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads one connection's bytes from a broker, piece by piece as they come.
pub(crate) struct Witness {
    record: Record,
    state: State,
    buffer: Vec<u8>,
}

enum State {
    /// The answer to the upgrade is still to come.
    Head,
    Frames,
    /// The rest of a long frame.
    Skipping(usize),
    /// It is no WebSocket.
    Deaf,
}

impl Witness {
    pub(crate) fn new(record: Record) -> Self {
        Self { record, state: State::Head, buffer: Vec::new() }
    }

    pub(crate) fn hear(&mut self, piece: &[u8]) {
        if matches!(self.state, State::Deaf) {
            return;
        }
        self.buffer.extend_from_slice(piece);
        while self.step() {}
    }

    /// `true` if there may be more in what has come.
    fn step(&mut self) -> bool {
        match self.state {
            State::Deaf => false,
            State::Head => {
                let mut windows = self.buffer.windows(HEAD_END.len());
                let Some(end) = windows.position(|window| window == HEAD_END) else {
                    if self.buffer.len() > HEAD_BYTES_MAX {
                        self.state = State::Deaf;
                    }
                    return false;
                };
                let upgraded = self.buffer.starts_with(UPGRADED);
                self.buffer.drain(..end + HEAD_END.len());
                self.state = if upgraded { State::Frames } else { State::Deaf };
                upgraded
            }
            State::Skipping(left) => {
                let gone = left.min(self.buffer.len());
                self.buffer.drain(..gone);
                self.state =
                    if gone == left { State::Frames } else { State::Skipping(left - gone) };
                gone == left
            }
            State::Frames => {
                let Some((head, length)) = frame(&self.buffer) else { return false };
                if length > FRAME_BYTES_MAX {
                    self.buffer.drain(..head);
                    self.state = State::Skipping(length);
                    return true;
                }
                if self.buffer.len() < head + length {
                    return false;
                }
                self.record.note(&self.buffer[head..head + length]);
                self.buffer.drain(..head + length);
                true
            }
        }
    }
}

/// The lengths of a server's frame (RFC 6455 §5.2): of its head, and of what it carries.
fn frame(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes.get(1)? & 0x7f {
        126 => {
            let length = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
            Some((4, usize::from(length)))
        }
        127 => {
            let length = u64::from_be_bytes(bytes.get(2..10)?.try_into().ok()?);
            Some((10, usize::try_from(length).unwrap_or(usize::MAX)))
        }
        length => Some((2, usize::from(length))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";

    fn text(said: &str) -> Vec<u8> {
        let mut frame = vec![0x81];
        match said.len() {
            length @ 0..126 => frame.push(u8::try_from(length).unwrap()),
            length => {
                frame.push(127);
                frame.extend(u64::try_from(length).unwrap().to_be_bytes());
            }
        }
        frame.extend(said.as_bytes());
        frame
    }

    fn answer(key: &str, status: u16) -> Vec<u8> {
        let (kind, id) = ("send_result", key);
        text(&format!("{{\"type\":\"{kind}\",\"client_message_id\":\"{id}\",\"status\":{status}}}"))
    }

    #[test]
    fn what_was_answered_5xx_is_on_the_record_however_the_bytes_come() {
        let push = text(&format!("{{\"type\":\"push\",\"status\":\"{}\"}}", "x".repeat(40_000)));
        let (told, busy) = (answer("a", 201), answer("a", 429));
        let failed = [answer("b", 503), push, answer("b", 503), answer("c", 500)].concat();
        let frames = [busy, told, failed];
        let bytes = [HEAD.as_bytes(), &frames.concat()].concat();
        for size in [1, 7, 1000, bytes.len()] {
            let record = Record::default();
            let mut witness = Witness::new(record.clone());
            bytes.chunks(size).for_each(|piece| witness.hear(piece));
            let seen = ["a", "b", "c"].map(|key| record.undone(key));
            assert_eq!((seen, record.counts()), ([0, 2, 1], (3, 2)), "in pieces of {size}");
            assert_eq!(record.told_to_wait(), 1);
        }
    }

    #[test]
    fn what_is_no_websocket_says_nothing() {
        let record = Record::default();
        let mut witness = Witness::new(record.clone());
        witness.hear(b"HTTP/1.1 200 OK\r\n\r\n");
        witness.hear(&answer("a", 503));
        assert_eq!(record.counts(), (0, 0));
    }
}
