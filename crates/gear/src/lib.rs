//! What a gear and its host say to each other (jobs.md §8), and the kit that gears are written
//! with.
//!
//! Reading order: a [`line`] proves who said what when, a [`message`] is what was said, a
//! [`worker`] is the author's side.
//!
//! ```no_run
//! use semel_gear::worker::{Problem, Worker};
//! use serde_json::json;
//!
//! fn main() -> Result<(), semel_gear::worker::Broken> {
//!     Worker::new()
//!         .action("greet", |context| {
//!             let name = context.params["name"].as_str();
//!             let name = name.ok_or_else(|| Problem::user_error("no_name", "say a name"))?;
//!             Ok(json!({"text": format!("hello {name}")}).into())
//!         })
//!         .run()
//! }
//! ```

pub mod limits;
pub mod line;
pub mod message;
pub mod worker;
