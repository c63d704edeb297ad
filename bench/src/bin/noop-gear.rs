//! A gear that does nothing: what a step costs that has a process.

use semel_gear::worker::{Broken, Worker};
use serde_json::json;

fn main() -> Result<(), Broken> {
    Worker::new().action("noop", |_| Ok(json!({}).into())).run()
}
