//! What is refused, in which words, and that the documentation is true.

use std::fs;

use super::*;
use crate::home::MeshSlug;

const DOCUMENT: &str = include_str!("../../../../docs/config.md");

/// The document's one TOML block.
fn documented() -> &'static str {
    let (_, rest) = DOCUMENT.split_once("```toml\n").expect("a TOML block");
    rest.split_once("```").expect("its end").0
}

/// A key that has no default is in the document behind a `# `.
fn uncommented() -> String {
    let line = |line: &'static str| line.strip_prefix("# ").unwrap_or(line);
    documented().lines().map(line).collect::<Vec<_>>().join("\n")
}

fn refused(text: &str) -> String {
    Config::parse(text).expect_err(text).to_string()
}

#[test]
fn the_documented_file_is_the_default() {
    assert_eq!(Config::parse(documented()).unwrap(), Config::default());
    assert_eq!(Config::parse("").unwrap(), Config::default());
}

#[test]
fn the_document_shows_every_key() {
    let shown = serde_json::to_value(Config::parse(&uncommented()).unwrap()).unwrap();
    let default = serde_json::to_value(Config::default()).unwrap();
    let table: Table = toml::from_str(documented()).unwrap();
    let sections = shown.as_object().unwrap();
    assert_eq!(sections.len(), 5);
    for (section, keys) in sections {
        for (key, value) in keys.as_object().unwrap() {
            assert!(!value.is_null(), "{section}.{key} is not in the document");
            let has_default = !default[section][key].is_null();
            let shown = table.get(section).is_some_and(|section| section.get(key).is_some());
            assert_eq!(shown, has_default, "{section}.{key}");
        }
    }
}

#[test]
fn the_document_says_every_range() {
    let mut section = "";
    let mut said = Vec::new();
    for line in documented().lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let Some((left, range)) = line.split_once(" # ") else { continue };
        let Some((min, max)) = range.split_once(" to ") else { continue };
        let key = left.trim_start_matches("# ").split(' ').next().unwrap();
        let number = |text: &str| text.replace('_', "").parse::<i64>().expect(line);
        said.push((section, key, number(min), number(max)));
    }
    assert_eq!(said, RANGES);
}

#[test]
fn every_number_has_a_range() {
    let shown = serde_json::to_value(Config::parse(&uncommented()).unwrap()).unwrap();
    for (section, keys) in shown.as_object().unwrap() {
        for (key, value) in keys.as_object().unwrap() {
            let ranged =
                RANGES.iter().any(|(s, k, ..)| (s, k) == (&section.as_str(), &key.as_str()));
            assert_eq!(value.is_number(), ranged, "{section}.{key}");
        }
    }
}

#[test]
fn numbers_are_held_to_their_ranges() {
    for (section, key, min, max) in RANGES {
        let text = |value: i64| format!("[{section}]\n{key} = {value}\n");
        for good in [min, max] {
            Config::parse(&text(*good)).expect(key);
        }
        for bad in [min - 1, max + 1, -1, i64::MIN, i64::MAX] {
            let said = refused(&text(bad));
            let expected = format!("{section}.{key} is {bad}; allowed are {min} to {max}");
            assert_eq!(said, expected);
        }
    }
}

#[test]
fn unknown_keys_are_named() {
    let said = refused("[outbox]\nwindow = 1\nwindw = 2\n");
    assert!(said.starts_with("line 3 (windw = 2): unknown field `windw`, expected"), "{said}");
    // What nothing reads is no key.
    for gone in ["crypto", "hooks", "clone", "fleet", "capabilities"] {
        let said = refused(&format!("[{gone}]\n"));
        assert!(said.contains(&format!("unknown field `{gone}`")), "{said}");
    }
    let said = refused("[outbx]\n");
    assert!(said.contains("unknown field `outbx`") && said.contains("`outbox`"), "{said}");
    let sections = toml::to_string(&Config::default()).unwrap();
    for line in sections.lines().filter(|line| line.starts_with('[')) {
        let said = refused(&format!("{line}\nno_such_key = 1\n"));
        assert!(said.contains("no_such_key"), "{line}: {said}");
    }
}

#[test]
fn values_of_another_kind_are_refused() {
    for (text, expected) in [
        ("[ipc]\nmax_inflight = \"many\"\n", "line 2 (max_inflight = \"many\"): invalid type"),
        ("[ipc]\nmax_inflight = 1.5\n", "line 2"),
        ("[features]\nrequire = [\"magic\"]\n", "features.require has \"magic\"; allowed are"),
        ("[ipc]\norigin_allowlist = [\"*\"]\n", "ipc.origin_allowlist has \"*\""),
        ("[ipc]\norigin_allowlist = [\"https://a/\"]\n", "ipc.origin_allowlist has"),
        ("[ipc]\norigin_allowlist = [\"https://\"]\n", "ipc.origin_allowlist has"),
        ("[ipc]\n[ipc]\n", "line 2 ([ipc])"),
        ("[ipc\n", "line 1 ([ipc)"),
        ("ipc = 3\n", "line 1 (ipc = 3)"),
    ] {
        let said = refused(text);
        assert!(said.contains(expected), "{text:?}: {said}");
        assert!(!said.contains('\n'), "{said}");
    }
    let many = format!("[ipc]\norigin_allowlist = [{}]\n", "\"https://a\", ".repeat(33));
    assert!(refused(&many).contains("32 origins"));
    let origins = "[ipc]\norigin_allowlist = [\"https://a.b:8443\", \"http://[::1]\"]\n";
    assert_eq!(Config::parse(origins).unwrap().ipc.origin_allowlist.len(), 2);
}

#[test]
fn a_feature_may_be_required_that_is_optional_by_itself() {
    let config = Config::parse("[features]\nrequire = [\"max_payload\"]\n").unwrap();
    assert_eq!(config.features.require, ["max_payload"]);
    assert_eq!(config.features.optional, Config::default().features.optional);
}

#[test]
fn what_is_optional_is_narrowed() {
    for (text, expected) in [("[]", &[][..]), ("[\"max_payload\"]", &["max_payload"])] {
        let config = Config::parse(&format!("[features]\noptional = {text}\n")).unwrap();
        assert_eq!(config.features.optional, expected);
    }
}

#[test]
fn the_file_is_read_from_the_folder() {
    let root = tempfile::tempdir().unwrap();
    let home = Home::at(root.path(), &MeshSlug::parse("local").unwrap());
    assert_eq!(Config::read(&home).unwrap(), Config::default());
    fs::create_dir_all(home.folder()).unwrap();
    let path = home.path(HomeFile::Config);
    fs::write(&path, "[outbox]\nwindow = 7\n").unwrap();
    assert_eq!(Config::read(&home).unwrap().outbox.window, 7);
    fs::write(&path, "[outbox]\nwindow = 0\n").unwrap();
    let said = Config::read(&home).expect_err("out of range").to_string();
    assert_eq!(said, format!("{}: outbox.window is 0; allowed are 1 to 4096", path.display()));
    fs::write(&path, b"[outbox]\n# \xff\n").unwrap();
    let said = Config::read(&home).expect_err("not text").to_string();
    assert!(said.ends_with("line 2 (…): not UTF-8"), "{said}");
}
