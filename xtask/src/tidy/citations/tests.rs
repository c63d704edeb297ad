//! Small trees with citations that resolve and that do not.

use crate::tidy::tests::broken;

const MESH: &str = "# The mesh\n\n## 1. Names\n\nSee §2.\n\n## 2. Order\n\n### 2.1 Late\n";
const BROKER: &str = "# The broker\n\n## Push\n\n## When it stops\n";
const TRAPS: &str = "# Traps\n\n1. One.\n2. Two.\n";

/// What is wrong in one more file of a small repository.
fn found(path: &str, text: &str) -> Vec<String> {
    let tree = [
        ("README.md", "# A\n"),
        ("docs/broker.md", "# Use\n"),
        ("docs/design/broker.md", BROKER),
        ("docs/design/mesh.md", MESH),
        ("docs/design/traps.md", TRAPS),
        ("docs/decisions/003-full.md", "# 003\n"),
        ("docs/picture.svg", "<svg/>"),
        (path, text),
    ];
    broken("citations", &tree)
}

fn of_comment(line: &str) -> Vec<String> {
    found("crates/core/src/a.rs", &format!("//! A.\n// {line}\n"))
}

#[test]
fn sections_and_titles() {
    for line in [
        "mesh.md §1",
        "(mesh.md §2.1).",
        "`mesh.md` §1, §2",
        "mesh.md §1–§2 and §2.1",
        "broker.md, \"Push\"",
        "docs/design/broker.md \"When it\"",
        "mesh.md \"Order\"",
        "RFC 1 §9",
    ] {
        assert!(of_comment(line).is_empty(), "{line}");
    }
    for line in [
        "mesh.md §3",
        "mesh.md §2.2",
        "mesh.md §1, §7",
        "mesh.md §1 and §3",
        "jobs.md §1",
        "broker.md, \"Pull\"",
        "broker.md §1",
    ] {
        assert_eq!(of_comment(line), ["crates/core/src/a.rs:2"], "{line}");
    }
}

#[test]
fn a_citation_may_go_over_the_end_of_a_line() {
    let broken = "//! What it does (mesh.md\n//! §9), and more.\n";
    assert_eq!(found("crates/core/src/a.rs", broken), ["crates/core/src/a.rs:1"]);
    let whole = "//! What it does (broker.md, \"When\n//! it stops\"), and more.\n";
    assert!(found("crates/core/src/a.rs", whole).is_empty());
}

#[test]
fn pages_by_name_and_by_path() {
    for line in ["mesh.md says so", "README.md", "docs/design/mesh.md", "docs/errors/<code>.md"] {
        assert!(of_comment(line).is_empty(), "{line}");
    }
    for line in ["plan.md says so", "docs/mesh.md", "docs/design/plan.md"] {
        assert_eq!(of_comment(line), ["crates/core/src/a.rs:2"], "{line}");
    }
}

#[test]
fn sections_of_the_page_itself() {
    let page = |line: &str| found("docs/design/jobs.md", &format!("## 1. A\n\n{line}\n"));
    assert!(page("See §1, and mesh.md §2.").is_empty());
    assert_eq!(page("See §2."), ["docs/design/jobs.md:3"]);
    assert!(found("docs/design/plain.md", "# A\n\nRFC 6455 §5.2\n").is_empty());
}

#[test]
fn traps_and_decisions() {
    for line in ["trap 1", "traps 1 and 2", "traps.md 2", "a trap", "decision 003", "entrap 9"] {
        assert!(of_comment(line).is_empty(), "{line}");
    }
    for line in ["trap 3", "traps 1, 9", "traps.md 70", "decision 004", "docs/decisions/005"] {
        assert_eq!(of_comment(line), ["crates/core/src/a.rs:2"], "{line}");
    }
    assert!(of_comment("decision 12 of 20").is_empty(), "decisions have three digits");
}

#[test]
fn links() {
    for target in [
        "design/mesh.md",
        "design/",
        "picture.svg",
        "../README.md",
        "https://a.example/b",
        "design/broker.md#when-it-stops",
        "#a-title",
        "design/mesh.md#21-late",
    ] {
        let page = format!("# A title\n\nSee [this]({target}).\n");
        assert!(found("docs/a.md", &page).is_empty(), "{target}");
    }
    for target in ["mesh.html", "design/plans", "../../README", "design/broker.md#pull", "#other"] {
        let page = format!("# A title\n\nSee [this]({target}).\n");
        assert_eq!(found("docs/a.md", &page), ["docs/a.md:3"], "{target}");
    }
    assert!(found("docs/a.md", "# A\n\n```\n[x](y)\n```\n").is_empty(), "an example");
}
