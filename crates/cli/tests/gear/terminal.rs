//! What gears say is shown as text: it moves no cursor, turns no line and hides nothing.

use serde_json::json;

use crate::world::{Up, World};

/// Clears a screen, sets a title, is a C1 sequence, turns the direction, hides, and is long.
fn hostile() -> String {
    let begin = "a\u{1b}[2Jb\u{1b}]0;owned\u{7}c\u{9b}31m\u{202e}d\re\nf\tg\u{200b}\u{7f}\u{e0041}";
    format!("{begin}{}", "x".repeat(10 << 10))
}

fn is_plain(words: &[&str], bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        assert_eq!(semel_core::shown::shown(line), line, "{words:?}");
    }
}

#[test]
fn a_trial_shows_text() {
    let world = World::new();
    for fails in [false, true] {
        let params = json!({"text": hostile(), "fails": fails}).to_string();
        let words = ["gear", "test", "hostile", "--action", "shouts", "--params", &params];
        let output = world.semel(&words, "");
        assert_eq!(output.status.success(), !fails, "{output:?}");
        is_plain(&words[..5], &output.stdout);
        is_plain(&words[..5], &output.stderr);
        assert!(String::from_utf8_lossy(&output.stderr).contains("\\u{1b}[2J"), "it is shown");
    }
}

#[test]
fn jobs_show_text() {
    let world = World::new();
    let up = Up::start(&world);
    world.succeeds(&["gear", "install", "hostile"], "");
    for fails in [false, true] {
        let params = json!({"text": hostile(), "fails": fails});
        let steps =
            json!([{"id": "loud", "gear": "hostile", "action": "shouts", "params": params}]);
        let plan = json!({"steps": steps}).to_string();
        let submit =
            ["job", "submit", "--plan", "-", "--wait", "--conversation", "c\u{9b}31m\u{202e}"];
        let waited = world.semel(&submit, &plan);
        is_plain(&submit, &waited.stdout);
        is_plain(&submit, &waited.stderr);
        let id = up.submit(&steps);
        up.ended(&id);
        for words in [
            &["job", "show", &id][..],
            &["job", "watch", &id],
            &["job", "list"],
            &["job", "patterns"],
            &["events", "--help"],
        ] {
            let output = world.semel(words, "");
            is_plain(words, &output.stdout);
            is_plain(words, &output.stderr);
        }
    }
}
