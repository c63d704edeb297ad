//! Gears in the sandbox of the built binary: what a hostile one tries from inside, what it says
//! that is not to be believed, and what is left of it.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it has measured"
)]

mod asked;
mod author;
mod bounds;
mod inside;
mod left;
mod lines;
mod raced;
mod rust;
mod shell;
mod terminal;
mod unsure;
mod warm;
mod world;
