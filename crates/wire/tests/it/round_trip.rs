//! What is written is read back, in one spelling; what is cut or is not a frame is refused, and
//! nothing panics.

use proptest::prelude::*;
use semel_wire::limits::{INLINE_BYTES_DEFAULT, frame_bytes_max};
use semel_wire::{FromBroker, FromDaemon};

use crate::{examples, strategies};

const BYTES_MAX: usize = frame_bytes_max(INLINE_BYTES_DEFAULT);

proptest! {
    #[test]
    fn every_daemon_frame_comes_back(frame in strategies::from_daemon()) {
        let text = frame.encode();
        let read = FromDaemon::decode(text.as_bytes(), BYTES_MAX);
        prop_assert_eq!(read.as_ref(), Ok(&frame), "{}", text);
    }

    #[test]
    fn every_broker_frame_comes_back(frame in strategies::from_broker()) {
        let text = frame.encode();
        let read = FromBroker::decode(text.as_bytes(), BYTES_MAX);
        prop_assert_eq!(read.as_ref(), Ok(&frame), "{}", text);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(FromDaemon::decode(&bytes, BYTES_MAX).is_err());
        prop_assert!(FromBroker::decode(&bytes, BYTES_MAX).is_err());
    }

    /// Nearly a frame is where a decoder would stumble: one byte changed. What is still accepted
    /// must be a frame in every respect, so it comes back from its own text.
    #[test]
    fn a_changed_byte_never_panics(
        frame in strategies::from_daemon(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut text = frame.encode().into_bytes();
        let at = at.index(text.len());
        text[at] = byte;
        if let Ok(read) = FromDaemon::decode(&text, BYTES_MAX) {
            let again = FromDaemon::decode(read.encode().as_bytes(), BYTES_MAX);
            prop_assert_eq!(again, Ok(read));
        }
    }
}

#[test]
fn every_truncation_is_refused() {
    for text in examples::from_daemon().iter().map(FromDaemon::encode) {
        for length in 0..text.len() {
            assert!(FromDaemon::decode(&text.as_bytes()[..length], BYTES_MAX).is_err());
        }
        assert!(FromDaemon::decode(text.as_bytes(), text.len()).is_ok());
        assert!(FromDaemon::decode(text.as_bytes(), text.len() - 1).is_err());
    }
    for text in examples::from_broker().iter().map(FromBroker::encode) {
        for length in 0..text.len() {
            assert!(FromBroker::decode(&text.as_bytes()[..length], BYTES_MAX).is_err());
        }
        assert!(FromBroker::decode(text.as_bytes(), text.len()).is_ok());
        assert!(FromBroker::decode(text.as_bytes(), text.len() - 1).is_err());
    }
}
