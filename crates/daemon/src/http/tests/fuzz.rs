//! Requests made from the document: see [`semel_testkit::openapi`].

use semel_testkit::dice::Dice;
use semel_testkit::openapi::{Fuzz, fuzz};
use serde_json::{Value, json};

use super::support::served;

const REQUESTS: u32 = 2400;

fn hint(dice: &mut Dice, name: &str) -> Option<Value> {
    match name {
        "to" => {
            let key = "ab".repeat(32);
            Some(json!(dice.pick(&["#builds", "@ada", "queue:work", &key as &str])))
        }
        "kinds" => Some(json!("message,peer_join")),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_comes_is_answered_as_documented() {
    let served = served().await;
    served.arrive(1, &["hello", "builds", "a"]).await;
    let document = served.get("/v1/openapi.json").await.json();
    let asked = Fuzz {
        seed: 0x9e37_79b9_7f4a_7c15,
        requests: REQUESTS,
        // Sends most often: there is most to go wrong.
        often: ("post", "/v1/send"),
        // A stream has no end; its refusals are in its own tests.
        asks: |path| path != "/v1/events",
        hint: &hint,
    };
    let fuzzed = fuzz(&document, &asked, async || served.connect().await).await;
    assert!(fuzzed.judged > 2000, "only {} reached a call", fuzzed.judged);
    assert!(fuzzed.well > REQUESTS / 10, "only {} were valid: it is blunt", fuzzed.well);
    served.stop().await;
}
