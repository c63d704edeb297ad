//! `cargo xtask gen`: rewrites what is generated, or says what is stale.

mod accepted;
mod error_table;
mod metas;
mod numbers;
mod refused;
mod vectors;

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{bench, repo};

type Generator = fn() -> Result<String>;

/// Every generated file, relative to the root, and what writes it.
const GENERATED: &[(&str, Generator)] = &[
    ("conformance/fingerprint.json", vectors::generate),
    ("docs/errors/README.md", error_table::generate),
    (bench::PICTURE, bench::generate_picture),
    (bench::PAGE, bench::generate_page),
    (bench::README, bench::generate_readme),
];

/// With `check` nothing is written and stale output is an error.
pub(crate) fn run(check: bool) -> Result<()> {
    let stale = stale(&repo::root(), GENERATED)?;
    if !check {
        stale.iter().try_for_each(|(path, text)| {
            println!("gen: {path}");
            let file = repo::root().join(path);
            fs::write(file, text).with_context(|| format!("cannot write {path}"))
        })?;
        return golden();
    }
    if stale.is_empty() {
        return Ok(());
    }
    let paths: Vec<&str> = stale.iter().map(|(path, _)| *path).collect();
    bail!("not current: {}; run cargo xtask gen", paths.join(", "))
}

/// What the command line prints is written by the test that compares it.
fn golden() -> Result<()> {
    let mut test = repo::cargo(&["test", "-p", "semel", "--test", "words", "golden"]);
    repo::succeed(test.env("SEMEL_GOLDEN_REWRITE", "1")).context("cannot write the golden files")
}

/// The files that are not what their generator writes, and what they should be.
fn stale(
    root: &Path,
    generated: &[(&'static str, Generator)],
) -> Result<Vec<(&'static str, String)>> {
    let mut stale = Vec::new();
    for (path, generate) in generated {
        let wanted = generate().with_context(|| format!("cannot generate {path}"))?;
        match fs::read(root.join(path)) {
            Ok(found) if found == wanted.as_bytes() => {}
            Ok(_) => stale.push((*path, wanted)),
            Err(error) if error.kind() == ErrorKind::NotFound => stale.push((*path, wanted)),
            Err(error) => return Err(error).with_context(|| format!("cannot read {path}")),
        }
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_files_are_current() {
        if let Err(error) = run(true) {
            panic!("{error:#}");
        }
    }

    #[test]
    fn a_file_that_differs_or_is_missing_is_stale() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("same"), "a\n").unwrap();
        fs::write(root.path().join("other"), "a\r\n").unwrap();
        let generate: Generator = || Ok("a\n".to_owned());
        let generated = [("same", generate), ("other", generate), ("missing", generate)];
        let stale = stale(root.path(), &generated).unwrap();
        assert_eq!(stale, [("other", "a\n".to_owned()), ("missing", "a\n".to_owned())]);
    }
}
