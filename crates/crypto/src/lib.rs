//! Who said it, to whom, and when: keys ([`keys`]), the signature that opens a connection
//! ([`hello`]), the one on each HTTP request ([`request`]) and the one that allows an effect
//! ([`grant`]). Pure: randomness and time are arguments.

mod signed;

pub mod keys;

pub mod grant;
pub mod hello;
pub mod request;

pub mod clock;
