//! The job engine: a step takes effect once (docs/design/jobs.md).
//!
//! Reading order: what is to be done ([`plan`]) and by what ([`gear`]); a job's life ([`life`]),
//! what is done with a step ([`dispatch`]), who may stop it ([`policy`], [`breaker`]); where all of
//! it is kept ([`store`]); what a job does next ([`course`]); who does it ([`engine`]) and how it
//! is asked for ([`http`]); what a backup is worth ([`restore`]).

pub mod plan;

pub mod gear;

pub mod breaker;
pub mod dispatch;
pub mod life;
pub mod policy;

pub mod store;

pub mod course;
pub mod planner;

pub mod config;
pub mod engine;
pub mod restore;

pub mod http;
pub mod view;

pub mod limits;
