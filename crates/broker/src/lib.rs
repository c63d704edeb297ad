//! The broker: one transaction decides whether a message is sent (mesh.md §7, broker.md).
//!
//! Reading order: what is decided ([`accept`]), where it is kept ([`store`]).

pub mod accept;
pub mod limits;
pub mod store;
