//! A gear written with the kit, for the tests of the sandbox: it is what `semel gear new --lang
//! rust` begins with, and a little more.

#![expect(clippy::print_stdout, reason = "what a gear prints is not for its host")]

use std::time::Duration;

use semel_gear::worker::{Broken, Problem, Resolved, Worker};
use serde_json::json;

fn main() -> Result<(), Broken> {
    Worker::new()
        .action("greet", |context| {
            let name = context.params["name"].as_str().unwrap_or_default();
            if name.is_empty() {
                return Err(Problem::user_error("no_name", "say a name"));
            }
            context.log(format!("greeting {name}"));
            context.progress(100, None);
            let known = context.secret("token").map(str::len);
            Ok(json!({"text": format!("hello {name}"), "known": known}).into())
        })
        .action("wait", |context| {
            context.log("ready");
            let (_keep, never) = std::sync::mpsc::channel::<()>();
            while !context.is_cancelled() {
                // Nobody sends; it is a pause.
                let _ = never.recv_timeout(Duration::from_millis(10));
            }
            Err(Problem::transient("cancelled", "nothing was done"))
        })
        .action("panic", |context| {
            let bytes = context.execution_id.as_bytes();
            Ok(json!(bytes[bytes.len()]).into())
        })
        .action("print", |_| {
            println!("not for the host");
            let mut read = String::new();
            // What there is to read is not for a gear.
            let _ = std::io::stdin().read_line(&mut read);
            Ok(json!({"read": read}).into())
        })
        .action("flood", |_| Ok(json!("x".repeat(2 << 20)).into()))
        .resolver("greet", |_| Resolved::NotDone)
        .run()
}
