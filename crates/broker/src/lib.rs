//! The broker: one transaction decides whether a message is sent (mesh.md §7, broker.md).
//!
//! Reading order: what is decided ([`accept`]), where it is kept ([`store`]), who may send how much
//! ([`limiter`]), how sends become batches ([`pipeline`]), who is connected ([`hub`]), what waits
//! for them (`deliverer`), how brokers hear of each other's commits ([`hints`]), what a connection
//! says ([`connection`]), which of them still may ([`sessions`]) and in which life of the store
//! ([`life`]), who is there ([`roster`]), how it all is reached ([`server`]), what members and
//! operators ask over HTTP ([`http`]), what is done at night ([`housekeeping`]), and what an
//! operator sees of it all ([`metrics`]).

pub mod accept;
pub mod connection;
mod deliverer;
pub mod hints;
pub mod housekeeping;
pub mod http;
pub mod hub;
pub mod life;
pub mod limiter;
pub mod limits;
pub mod meshes;
pub mod metrics;
pub mod pipeline;
pub mod present;
mod readiness;
pub mod roster;
pub mod server;
pub mod sessions;
pub mod store;
