//! How long files, functions and lines may be, and how a file begins.

use std::collections::BTreeSet;

use super::Violation;
use super::source::SourceFile;
use super::syntax::Syntax;

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const LINE_CHARS_MAX: usize = 100;

/// `line-length` and `module-doc`.
pub(crate) fn check_text(file: &SourceFile, found: &mut Vec<Violation>) {
    if !file.text.starts_with("//!") {
        let message = "a file begins with `//!` and says what it owns";
        found.push(Violation::new(file, 1, "module-doc", message));
    }
    if file.is_golden() {
        return;
    }
    for (number, line) in file.lines() {
        let length = line.chars().count();
        if length > LINE_CHARS_MAX {
            let message = format!("{length} characters, {LINE_CHARS_MAX} at most");
            found.push(Violation::new(file, number, "line-length", message));
        }
    }
}

/// `file-length` and `function-length`.
pub(crate) fn check_syntax(file: &SourceFile, syntax: &Syntax, found: &mut Vec<Violation>) {
    let in_tests: BTreeSet<usize> = syntax.test_modules.iter().cloned().flatten().collect();
    let length = file.text.lines().count() - in_tests.len();
    if length > FILE_LINES_MAX && !file.is_test() {
        let message = format!("{length} lines without tests, {FILE_LINES_MAX} at most");
        found.push(Violation::new(file, 1, "file-length", message));
    }
    for function in &syntax.functions {
        if function.body_lines > FUNCTION_LINES_MAX && !function.in_test {
            let (name, length) = (&function.name, function.body_lines);
            let message = format!("`{name}` has {length} lines, {FUNCTION_LINES_MAX} at most");
            found.push(Violation::new(file, function.line, "function-length", message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::broken;

    const PATH: &str = "crates/core/src/a.rs";

    fn function(name: &str, body_lines: usize) -> String {
        format!("fn {name}() {{\n{}}}\n", "    f();\n".repeat(body_lines))
    }

    #[test]
    fn long_files() {
        let lines = |count: usize| format!("//! A.\n{}", "// x\n".repeat(count - 1));
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "// x\n".repeat(700));
        let clean = lines(FILE_LINES_MAX);
        let long = lines(FILE_LINES_MAX + 1);
        assert_eq!(broken("file-length", &[(PATH, &long)]), ["crates/core/src/a.rs:1"]);
        assert!(broken("file-length", &[(PATH, &clean)]).is_empty());
        assert!(broken("file-length", &[(PATH, &(clean + &tests))]).is_empty());
        assert!(broken("file-length", &[("crates/core/src/a/tests.rs", &long)]).is_empty());
        assert!(broken("file-length", &[("crates/core/tests/a.rs", &long)]).is_empty());
    }

    #[test]
    fn long_functions() {
        let long = function("f", FUNCTION_LINES_MAX + 1);
        let clean = function("f", FUNCTION_LINES_MAX);
        let found = |text: &str| broken("function-length", &[(PATH, text)]);
        assert_eq!(found(&long), ["crates/core/src/a.rs:1"]);
        assert_eq!(found(&format!("impl A {{\n{long}}}\n")), ["crates/core/src/a.rs:2"]);
        assert_eq!(found(&format!("trait A {{\n{long}}}\n")), ["crates/core/src/a.rs:2"]);
        assert!(found(&clean).is_empty());
        assert!(found(&format!("#[test]\n{long}")).is_empty());
        assert!(found(&format!("#[cfg(test)]\nmod tests {{\n{long}}}\n")).is_empty());
    }

    #[test]
    fn long_lines() {
        let long = format!("//! A.\n// {}\n", "é".repeat(LINE_CHARS_MAX - 2));
        let clean = format!("//! A.\n// {}\n", "é".repeat(LINE_CHARS_MAX - 3));
        assert_eq!(broken("line-length", &[(PATH, &long)]), ["crates/core/src/a.rs:2"]);
        assert!(broken("line-length", &[(PATH, &clean)]).is_empty());
        assert!(broken("line-length", &[("docs/a.md", &long)]).is_empty());
        assert!(broken("line-length", &[("crates/cli/tests/golden/a.rs", &long)]).is_empty());
    }

    #[test]
    fn files_without_a_beginning() {
        let tree = [(PATH, "// A.\n"), ("crates/core/build.rs", "\n//! A.\n"), ("a.md", "A\n")];
        let expected = ["crates/core/build.rs:1", "crates/core/src/a.rs:1"];
        assert_eq!(broken("module-doc", &tree), expected);
        assert!(broken("module-doc", &[(PATH, "//! A.\n")]).is_empty());
    }
}
