//! What Semel decides, as pure functions and tables: no I/O, no waiting, time and randomness are
//! arguments (the one reader of the machine's clock is [`clock::SystemClock`], which nothing in
//! this crate calls).
//!
//! Reading order: what a request *is* ([`envelope`], [`json`], [`canonical`], [`fingerprint`]),
//! what it is *called* ([`id`], [`mint`]), what *becomes of it* ([`outbox`], [`backoff`],
//! [`max_age`]), how a refusal is said ([`code`], [`refusal`]), and which time a sweep may go by
//! ([`plausible`]). How strange text is printed: [`shown`].

mod status;

pub mod envelope;
pub mod json;

pub mod canonical;
pub mod fingerprint;

pub mod id;
pub mod mint;

pub mod backoff;
pub mod max_age;
pub mod outbox;

pub mod clock;
pub mod code;
pub mod hex;
pub mod limits;
pub mod plausible;
pub mod refusal;
pub mod rfc3339;
pub mod shown;
