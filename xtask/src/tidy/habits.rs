//! Attributes, macros and calls that we do not use: `suppression`, `test-hygiene`, and the macros
//! of `leftover`.

use proc_macro2::Delimiter;

use super::Violation;
use super::source::SourceFile;
use super::syntax::Syntax;

const UNFINISHED: [&str; 3] = ["dbg", "todo", "unimplemented"];

pub(crate) fn check(file: &SourceFile, syntax: &Syntax, found: &mut Vec<Violation>) {
    for (index, token) in syntax.tokens.iter().enumerate() {
        let mut report =
            |rule, message: String| found.push(Violation::new(file, token.line, rule, message));
        match attribute(syntax, index) {
            Some("allow") => {
                report("suppression", "use `expect` with a reason instead of `allow`".to_owned());
            }
            Some(name @ ("ignore" | "should_panic")) => {
                report(
                    "test-hygiene",
                    format!("no `{name}`: a test runs, and says what it expects"),
                );
            }
            _ => {}
        }
        let Some(word) = syntax.word(index) else {
            continue;
        };
        if UNFINISHED.contains(&word) && is_macro_call(syntax, index) {
            report("leftover", format!("`{word}!` is for unfinished work"));
        }
        if token.in_test && word == "sleep" && is_call(syntax, index) {
            report("test-hygiene", "a test waits for an event, it does not sleep".to_owned());
        }
    }
}

/// The name of the attribute that starts at `index`; `cfg_attr` has the name of what it may set.
fn attribute(syntax: &Syntax, index: usize) -> Option<&str> {
    if !syntax.is_sign(index, '#') {
        return None;
    }
    let bracket = if syntax.is_sign(index + 1, '!') { index + 2 } else { index + 1 };
    if !syntax.is_open(bracket, Delimiter::Bracket) {
        return None;
    }
    match syntax.word(bracket + 1)? {
        "cfg_attr" => {
            let mut names = syntax.words_in_group(bracket).into_iter().map(|(_, name)| name);
            names.find(|name| ["allow", "ignore", "should_panic"].contains(name))
        }
        name => Some(name),
    }
}

/// `a != b` also has the sign, but no group after it.
fn is_macro_call(syntax: &Syntax, index: usize) -> bool {
    let delimiters = [Delimiter::Parenthesis, Delimiter::Bracket, Delimiter::Brace];
    syntax.is_sign(index + 1, '!') && delimiters.iter().any(|d| syntax.is_open(index + 2, *d))
}

fn is_call(syntax: &Syntax, index: usize) -> bool {
    let is_definition = index.checked_sub(1).and_then(|before| syntax.word(before)) == Some("fn");
    syntax.is_open(index + 1, Delimiter::Parenthesis) && !is_definition
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::broken;

    const PATH: &str = "crates/core/src/a.rs";
    const LINE_2: [&str; 1] = ["crates/core/src/a.rs:2"];

    fn found(rule: &str, line: &str) -> Vec<String> {
        broken(rule, &[(PATH, &format!("//! A.\n{line}\n"))])
    }

    #[test]
    fn suppressions() {
        for line in [
            "#[allow(dead_code)] fn f() {}",
            "mod a { #![allow(dead_code)] }",
            "#[cfg_attr(unix, allow(dead_code))] fn f() {}",
            "m! { #[allow(dead_code)] }",
        ] {
            assert_eq!(found("suppression", line), LINE_2, "{line}");
        }
        for line in [
            "#[expect(dead_code, reason = \"\")] fn f() {}",
            "// #[allow(dead_code)]",
            "fn allow() { allow(1) }",
            "#[cfg_attr(unix, expect(dead_code, reason = \"\"))] fn f() {}",
        ] {
            assert!(found("suppression", line).is_empty(), "{line}");
        }
    }

    #[test]
    fn tests_that_hide_or_wait() {
        for line in [
            "#[test] #[ignore] fn f() {}",
            "#[test] #[ignore = \"slow\"] fn f() {}",
            "#[test] #[should_panic(expected = \"x\")] fn f() {}",
            "#[test] #[cfg_attr(unix, ignore)] fn f() {}",
            "#[test] fn f() { std::thread::sleep(d); }",
            "#[cfg(test)] mod tests { async fn f() { timeout(sleep(d)).await; } }",
            "#[test] fn f() { assert!(clock.sleep(d)); }",
        ] {
            assert_eq!(found("test-hygiene", line), LINE_2, "{line}");
        }
        for line in [
            "fn f() { clock.sleep(d); }",
            "#[test] fn f() { wait_for(event); }",
            "#[cfg(test)] mod tests { fn sleep() {} }",
            "#[test] fn f() { let ignore = sleep; }",
        ] {
            assert!(found("test-hygiene", line).is_empty(), "{line}");
        }
        let file = ("crates/core/tests/a.rs", "//! A.\nfn f() { sleep(d) }\n");
        assert_eq!(broken("test-hygiene", &[file]), ["crates/core/tests/a.rs:2"]);
    }

    #[test]
    fn unfinished_macros() {
        for line in ["fn f() { dbg!(1) }", "fn f() { todo!() }", "fn f() { a(unimplemented![]) }"] {
            assert_eq!(found("leftover", line), LINE_2, "{line}");
        }
        for line in ["fn f() { todo() }", "fn f() { if todo != (1) {} }", "// dbg!(1)"] {
            assert!(found("leftover", line).is_empty(), "{line}");
        }
    }
}
