//! A host's daemon: what it has accepted is on disk, is sent once, and what arrives is kept.
//!
//! Reading order: its folder and what it is called ([`home`], [`identity`], [`token`]), how it is
//! set up ([`config`], [`environment`], [`logfile`]), the tables ([`store`]), how sends are
//! accepted ([`outbox`]) and messages kept ([`inbox`]), the way to the broker ([`dial`]), the
//! connection to it ([`link`]), what else is asked of it ([`remote`], [`broker_api`]), all of it
//! together ([`engine`]), how it is reached ([`http`]), and how an ephemeral member ends
//! ([`farewell`]).

pub mod home;
pub mod identity;
pub mod token;

pub mod config;
pub mod environment;
pub mod logfile;

pub mod broker_api;
pub mod dial;
mod directory;
pub mod engine;
pub mod farewell;
pub mod http;
pub mod inbox;
pub mod link;
mod marks;
pub mod outbox;
mod pressure;
pub mod recover;
pub mod remote;
pub mod store;
mod supervise;
mod upkeep;

pub mod limits;
