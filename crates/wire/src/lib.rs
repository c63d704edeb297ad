//! What a daemon and a broker say to each other (`docs/protocol.md`): one JSON text frame is one
//! message. Reading is strict and complete: a frame that was decoded holds only values that its
//! field can have, and a refusal names the field by JSON pointer. Nothing here waits or does I/O.
//!
//! Reading order: the two directions ([`frame`]), what a broker offers ([`features`]), how a
//! conversation ends ([`close`]), what a frame may cost ([`limits`]); and beside frames, the bodies
//! of the broker's HTTP API ([`http`], [`path`]), where a broker is ([`place`]) and the link of an
//! invite ([`link`]).

mod codec;

pub mod frame;

pub mod http;
pub mod link;
pub mod path;
pub mod place;

pub mod close;
pub mod features;
pub mod limits;

pub use frame::{FromBroker, FromDaemon};
