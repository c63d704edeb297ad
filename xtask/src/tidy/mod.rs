//! `cargo xtask tidy`: the rules of the repository that the compiler does not hold.
//!
//! `check` is a pure function of the files, so every rule is tested with a small tree of its own.
//! Paths are relative to the repository and written with `/`.

mod citations;
mod edges;
mod growth;
mod habits;
mod migrations;
mod places;
mod sizes;
mod source;
mod syntax;
mod words;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};

use crate::repo;
use source::SourceFile;
use syntax::Syntax;

/// Where a rule is broken, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Violation {
    fn new(file: &SourceFile, line: usize, rule: &'static str, message: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line, rule, message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// Prints what it finds; failure is one violation or more.
pub(crate) fn run() -> Result<ExitCode> {
    let violations = check(&files(&repo::root())?);
    for violation in &violations {
        println!("{violation}");
    }
    Ok(if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every violation, in the order of paths and lines.
fn check(files: &[SourceFile]) -> Vec<Violation> {
    let mut found = Vec::new();
    for file in files {
        words::check(file, &mut found);
        if file.is_rust() {
            sizes::check_text(file, &mut found);
            match Syntax::parse(file) {
                Ok(syntax) => {
                    sizes::check_syntax(file, &syntax, &mut found);
                    places::check(file, &syntax, &mut found);
                    habits::check(file, &syntax, &mut found);
                }
                Err((line, message)) => found.push(Violation::new(file, line, "syntax", message)),
            }
        }
    }
    citations::check(files, &mut found);
    edges::check(files, &mut found);
    migrations::check(files, &mut found);
    growth::check(files, &mut found);
    found.sort();
    found.dedup();
    found
}

/// The text files that belong to the repository: known to git or new, but not ignored.
fn files(root: &Path) -> Result<Vec<SourceFile>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("cannot run git")?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git ls-files: {}", problem.trim());
    let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
    // A set, because git lists a file with a merge conflict once for each side.
    let paths: BTreeSet<&str> = names.split('\0').filter(|path| !path.is_empty()).collect();
    let mut files = Vec::new();
    for path in paths {
        let full = root.join(path);
        // Deleted but not yet committed files are still listed; links have their own target.
        if !fs::symlink_metadata(&full).is_ok_and(|metadata| metadata.is_file()) {
            continue;
        }
        let bytes = fs::read(&full).with_context(|| format!("cannot read {path}"))?;
        if let Ok(text) = String::from_utf8(bytes) {
            files.push(SourceFile::new(path, text));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `check` finds under one rule in a tree of (path, text).
    pub(super) fn broken(rule: &str, tree: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = tree.iter().map(|(path, text)| SourceFile::new(path, *text)).collect();
        let found = check(&files).into_iter().filter(|violation| violation.rule == rule);
        found.map(|violation| format!("{}:{}", violation.path, violation.line)).collect()
    }

    #[test]
    fn repository_is_tidy() {
        let violations = check(&files(&repo::root()).unwrap());
        let report: Vec<_> = violations.iter().map(ToString::to_string).collect();
        assert!(report.is_empty(), "\n{}", report.join("\n"));
    }

    #[test]
    fn a_file_that_does_not_parse_is_reported() {
        let tree = [("crates/core/src/a.rs", "//! A.\nfn f( {}\n")];
        assert_eq!(broken("syntax", &tree).len(), 1);
        assert!(broken("syntax", &[("crates/core/src/a.rs", "//! A.\nfn f() {}\n")]).is_empty());
    }

    #[test]
    fn a_violation_reads_like_a_compiler_message() {
        let file = SourceFile::new("a/b.rs", "");
        let violation = Violation::new(&file, 7, "some-rule", "what to do");
        assert_eq!(violation.to_string(), "a/b.rs:7: some-rule: what to do");
    }
}
