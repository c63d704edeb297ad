//! What tests share: time that stands still ([`clock`]), state tables checked against documents
//! and databases ([`tables`]), statements checked against a schema ([`sql`]) and large tables
//! ([`explain`], [`growth`]), processes killed at every statement ([`crash`]), disks that are full
//! ([`disk`]), every fault at every request to a PostgreSQL server ([`faults`]), one suite for two
//! stores ([`conformance`]), real servers ([`servers`]), power that is cut ([`powerloss`]), a
//! network that fails ([`proxy`]), HTTP spoken plainly ([`http`]) or as an OpenAPI document allows
//! it, and a little worse ([`openapi`]), models of which every state is visited ([`explore`]), and
//! chance that is the same again ([`dice`]).
//!
//! Everything here fails loudly: a test without its server panics, it does not pass.

#![expect(clippy::panic, clippy::expect_used, reason = "a test helper fails by panicking")]

pub mod clock;
pub mod conformance;
pub mod crash;
pub mod dice;
pub mod disk;
pub mod explain;
pub mod explore;
pub mod faults;
pub mod growth;
pub mod http;
pub mod openapi;
pub mod powerloss;
pub mod proxy;
pub mod servers;
pub mod sql;
pub mod sqlite;
pub mod tables;
