//! Manifests as they should be, and as they should not.

use super::*;

const SMALL: &str = r#"
id = "greeter"
version = "0.1.0"
command = ["{package}/greet"]
[actions.greet]
"#;

fn with(more: &str) -> Result<Document, Invalid> {
    Document::parse(&format!("{SMALL}\n{more}"))
}

#[test]
fn a_small_manifest_has_defaults() {
    let document = Document::parse(SMALL).expect("a manifest");
    let action = &document.manifest.actions["greet"];
    assert_eq!((action.risk, action.recovery), (Risk::Medium, Recovery::Ask));
    assert_eq!(action.timeout, STEP_TIMEOUT);
    assert_eq!(document.limits.memory_bytes, 1 << 30);
    assert_eq!(document.permissions, Permissions::default());
    assert!(!document.warm && !document.has_network());
}

#[test]
fn what_has_an_effect_asks_unless_it_says_otherwise() {
    for (lines, recovery) in [
        ("risk = \"low\"", Recovery::Idempotent),
        ("risk = \"low\"\neffect = true", Recovery::Ask),
        ("risk = \"high\"", Recovery::Ask),
        ("effect = true\nrecovery = \"idempotent\"", Recovery::Idempotent),
        ("recovery = \"resolve\"", Recovery::Resolve),
    ] {
        let document = with(lines).expect(lines);
        assert_eq!(document.manifest.actions["greet"].recovery, recovery, "{lines}");
    }
}

#[test]
fn a_whole_manifest() {
    let document = with(
        r#"
        about = "Says hello"
        params = {type = "object", required = ["name"]}
        result = {type = "string"}
        [permissions]
        read = ["/srv/data/**", "/etc/hosts"]
        network = ["api.example.com", "*.example.org", "[::1]:80"]
        secrets = ["token"]
        environment = ["TZ"]
        [limits]
        memory_mb = 64
        "#,
    );
    let document = document.expect("a manifest");
    let expected = ["/srv/data", "/etc/hosts"].map(PathBuf::from);
    assert_eq!(document.permissions.read, expected);
    assert!(document.has_network());
    assert_eq!(document.limits.memory_bytes, 64 << 20);
    assert_eq!(document.asks_for(&Ok(Vec::new())).len(), 5);
}

#[test]
fn a_folder_to_read_may_hold_one_to_write() {
    let lines = "[permissions]\nread = [\"/data/**\", \"/database\"]\nwrite = [\"/data/out/**\"]";
    assert!(with(lines).is_ok());
}

#[test]
fn what_is_refused() {
    for lines in [
        "unknown = 1",
        "risk = \"none\"",
        "recovery = \"hope\"",
        "timeout_ms = 0",
        "params = {type = 3}",
        "[actions.\"Bad Name\"]",
        "[permissions]\nread = [\"relative/**\"]",
        "[permissions]\nread = [\"/a/*/b\"]",
        "[permissions]\nread = [\"/a/../b\"]",
        "[permissions]\nread = [\"/**\"]",
        "[permissions]\nwrite = [\"/\"]",
        "[permissions]\nwrite = [\"/data/**\"]\nread = [\"/data/cache/**\"]",
        "[permissions]\nwrite = [\"/data/**\", \"/data/cache\"]",
        "[permissions]\nwrite = [\"/data/**\", \"/data/**\"]",
        "[permissions]\nwrite = [\"/data\"]\nread = [\"/data\"]",
        "[permissions]\nnetwork = [\"http://a/\"]",
        "[permissions]\nnetwork = [\"*\"]",
        "[permissions]\nenvironment = [\"LD_PRELOAD\"]",
        "[permissions]\nsecrets = [\"../x\"]",
        "[permissions]\nsub_jobs = [\"http\"]",
        "[permissions]\nsub_jobs = [\"*.request\"]",
        "[permissions]\nsub_jobs = [\"a.b.c\"]",
        "[permissions]\npublish = [\"news\"]",
        "[permissions]\npublish = [\"\"]",
        "[permissions]\nroot = true",
        "[limits]\nmemory_mb = 0",
        "[limits]\nmemory_mb = -1",
        "[limits]\nprocesses = 99999999",
    ] {
        assert!(with(lines).is_err(), "{lines}");
    }
    for (from, to) in [
        ("greeter", "../greeter"),
        ("greeter", ""),
        ("greeter", "-a"),
        ("{package}/greet", "{package}/../greet"),
        ("{package}/greet", "bin/greet"),
        ("{package}/greet", ""),
        ("0.1.0", "a b"),
    ] {
        assert!(Document::parse(&SMALL.replace(from, to)).is_err(), "{to}");
    }
    assert!(Document::parse(&"#".repeat(MANIFEST_BYTES_MAX + 1)).is_err());
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_the_reader(text in "\\PC{0,400}") {
        let _ = Document::parse(&text);
    }

    #[test]
    fn no_change_of_one_byte_breaks_the_reader(at in 0_usize..400, byte in 0_u8..128) {
        let mut bytes = format!("{SMALL}params = {{type = \"object\"}}\n[limits]\ncpu_s = 3\n")
            .into_bytes();
        let at = at % bytes.len();
        bytes[at] = byte;
        if let Ok(text) = String::from_utf8(bytes)
            && let Ok(document) = Document::parse(&text)
        {
            // Whatever was read is within its limits.
            assert!(document.manifest.id.len() <= 64 && !document.manifest.id.contains('/'));
            assert!((1..=86_400).contains(&document.limits.cpu_s));
        }
    }
}
