//! The registrar: an authorisation is used once (registrar.md).
//!
//! Reading order: what is asked ([`envelope`]) and what it is called ([`key`]), who allows it
//! ([`grant`]), what is decided ([`decide`]), where it is kept ([`store`]) and how that is proved
//! fit ([`fitness`]), how an attempt goes ([`registrar`]) and how it is asked for: at the broker's
//! door ([`http`]) or on the local API ([`local`]).

mod document;

pub mod envelope;
pub mod key;

pub mod grant;

pub mod decide;

pub mod fitness;
pub mod store;

mod calls;
pub mod http;
pub mod local;
pub mod registrar;

pub mod limits;
