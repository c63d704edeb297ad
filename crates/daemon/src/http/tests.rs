//! The local API over its real doors: a socket file and loopback TCP, with a client that speaks
//! plain HTTP and so can also speak it wrongly.

mod access;
mod events;
mod fuzz;
mod limits;
mod lists;
mod openapi;
mod remote;
mod send;
mod support;
