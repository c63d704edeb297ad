//! Who said it, to whom, and when: keys ([`keys`]), the signature that opens a connection
//! ([`hello`]) and the one on each HTTP request ([`request`]). Pure: randomness and time are
//! arguments.

mod signed;

pub mod keys;

pub mod hello;
pub mod request;

pub mod clock;
