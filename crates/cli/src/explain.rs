//! `semel explain`: the page of an error code.

use semel_core::code::Code;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Form};
use crate::print;

#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// A code such as `duplicate_key`; without one, all codes are listed
    code: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let form = Form::of_flag(arguments.json);
    match &arguments.code {
        None => print(&match form {
            Form::Text => Code::ALL.iter().map(|code| format!("{code}\n")).collect(),
            Form::Json => {
                let item = |code: &Code| json!({"code": code.as_str(), "http": code.http()});
                let items: Vec<Value> = Code::ALL.iter().map(item).collect();
                format!("{}\n", json!({"items": items}))
            }
        }),
        Some(name) => match Code::parse(name) {
            Some(code) => print(&match form {
                Form::Text => code.page().to_owned(),
                Form::Json => {
                    let page = code.page();
                    let page = json!({"code": code.as_str(), "http": code.http(), "page": page});
                    format!("{page}\n")
                }
            }),
            None => Err(Failure::new(
                Exit::NotFound,
                format!("error: there is no code {name:?}\nto see them all: semel explain"),
            )),
        },
    }
}
