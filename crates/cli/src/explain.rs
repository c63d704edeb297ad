//! `semel explain`: the page of an error code.

use semel_core::code::Code;

use crate::exit::{Exit, Failure};
use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A code such as `duplicate_key`; without one, all codes are listed
    code: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.code {
        None => print(&Code::ALL.iter().map(|code| format!("{code}\n")).collect::<String>()),
        Some(name) => match Code::parse(name) {
            Some(code) => print(code.page()),
            None => Err(Failure::new(
                Exit::NotFound,
                format!("error: there is no code {name:?}\nto see them all: semel explain"),
            )),
        },
    }
}
