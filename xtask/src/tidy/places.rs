//! What may be only in one place: SQL in stores, the clock in `core`, the environment in `cli`.

use super::Violation;
use super::source::SourceFile;
use super::syntax::{Kind, Syntax, Token};

const CLOCK: &str = "crates/core/src/clock.rs";
const CLI: &str = "crates/cli/";
/// Runs in gears and not in the product: one that cannot tell what it has done exits.
const KIT: &str = "crates/gear/src/worker.rs";

const SQL_VERBS: &[&str] = &[
    "SELECT",
    "INSERT",
    "UPDATE",
    "DELETE",
    "CREATE",
    "ALTER",
    "DROP",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT",
    "RELEASE",
    "PRAGMA",
    "WITH",
    "VACUUM",
    "LISTEN",
    "NOTIFY",
];

pub(crate) fn check(file: &SourceFile, syntax: &Syntax, found: &mut Vec<Violation>) {
    if file.is_tool() {
        return;
    }
    for (index, token) in syntax.tokens.iter().enumerate() {
        if token.in_test {
            continue;
        }
        if !file.in_folder("store") && is_sql(token) {
            let message = "SQL belongs in a `store` folder";
            found.push(Violation::new(file, token.line, "sql-outside-store", message));
        }
        if file.path != CLOCK && reads_clock(syntax, index) {
            let message = "time is an argument: take a `Clock`";
            found.push(Violation::new(file, token.line, "clock-outside-core", message));
        }
        let may_exit = file.path.starts_with(CLI) || file.path == KIT;
        if !may_exit && touches_environment(syntax, index) {
            let message = "only `cli` reads variables and arguments, and exits";
            found.push(Violation::new(file, token.line, "environment-outside-cli", message));
        }
    }
}

fn is_sql(token: &Token) -> bool {
    let Kind::Literal(literal) = &token.kind else {
        return false;
    };
    let literal = syn::Lit::new(literal.clone());
    if let syn::Lit::Str(text) = &literal {
        looks_like_sql(&text.value())
    } else if let syn::Lit::ByteStr(bytes) = &literal {
        looks_like_sql(&String::from_utf8_lossy(&bytes.value()))
    } else if let syn::Lit::CStr(text) = &literal {
        looks_like_sql(&text.value().to_string_lossy())
    } else {
        false
    }
}

fn looks_like_sql(text: &str) -> bool {
    let text = text.trim();
    // Alone it is no statement, but a method of HTTP.
    text != "DELETE"
        && SQL_VERBS.iter().any(|verb| {
            text.strip_prefix(verb).is_some_and(|rest| {
                rest.chars().next().is_none_or(|next| next.is_whitespace() || next == ';')
            })
        })
}

fn reads_clock(syntax: &Syntax, index: usize) -> bool {
    let mut names = ["SystemTime", "Instant"].into_iter().flat_map(|t| syntax.names_in(index, t));
    names.any(|(_, name)| name == "now")
}

fn touches_environment(syntax: &Syntax, index: usize) -> bool {
    let is_read = |name: &str| name.starts_with("var") || name.starts_with("args");
    syntax.names_in(index, "env").iter().any(|(_, name)| is_read(name))
        || syntax.names_in(index, "process").iter().any(|(_, name)| *name == "exit")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tests::broken;

    const PATH: &str = "crates/broker/src/a.rs";
    const LINE_2: [&str; 1] = ["crates/broker/src/a.rs:2"];

    /// One function on line 2, once as code and once for tests only, and the tools' own copy.
    fn fires(rule: &str, code: &str) -> bool {
        let text = format!("//! A.\nfn f() {{ {code} }}\n");
        let in_test = format!("//! A.\n#[cfg(test)]\nmod tests {{ fn f() {{ {code} }} }}\n");
        assert!(broken(rule, &[(PATH, &in_test)]).is_empty(), "in tests: {code}");
        for exempt in ["xtask/src/a.rs", "bench/src/a.rs", "crates/testkit/src/a.rs"] {
            assert!(broken(rule, &[(exempt, &text)]).is_empty(), "{exempt}: {code}");
        }
        assert!(broken(rule, &[("crates/broker/tests/a.rs", &text)]).is_empty());
        let found = broken(rule, &[(PATH, &text)]);
        assert!(found.is_empty() || found == LINE_2, "{found:?}");
        !found.is_empty()
    }

    #[test]
    fn sql() {
        let rule = "sql-outside-store";
        for code in [
            "g(\"SELECT 1\")",
            "g(\"\\n  WITH x AS\")",
            "g(\"COMMIT\")",
            "g(\"BEGIN;\")",
            "g(r#\"UPDATE t\"#)",
            "g(b\"PRAGMA x\")",
            "g!(a, { \"DROP TABLE t\" })",
        ] {
            assert!(fires(rule, code), "{code}");
        }
        for code in [
            "g(\"Select one\")",
            "g(\"SELECTED\")",
            "g(\"DELETE\")",
            "/* \"SELECT 1\" */",
            "g(\"please SELECT 1\")",
            "g('B')",
        ] {
            assert!(!fires(rule, code), "{code}");
        }
        let text = "//! A.\n/// SELECT 1\nconst A: &str = \"SELECT 1\";\n";
        assert_eq!(broken(rule, &[(PATH, text)]), ["crates/broker/src/a.rs:3"]);
        assert!(broken(rule, &[("crates/broker/src/store/a.rs", text)]).is_empty());
        assert!(broken(rule, &[("crates/store/src/a.rs", text)]).is_empty());
    }

    #[test]
    fn clock() {
        let rule = "clock-outside-core";
        for code in [
            "std::time::SystemTime::now();",
            "Instant::now()",
            "g(Instant::now)",
            "log!(\"{:?}\", SystemTime::now())",
        ] {
            assert!(fires(rule, code), "{code}");
        }
        for code in ["clock.now()", "// Instant::now()\n", "g(\"Instant::now()\")", "Clock::now()"]
        {
            assert!(!fires(rule, code), "{code}");
        }
        let text = "//! A.\nfn f() { SystemTime::now() }\n";
        assert!(broken(rule, &[(CLOCK, text)]).is_empty());
        assert_eq!(broken(rule, &[("crates/core/src/a.rs", text)]).len(), 1);
    }

    #[test]
    fn environment() {
        let rule = "environment-outside-cli";
        for code in [
            "std::env::var(\"A\")",
            "env::var_os(\"A\")",
            "env::vars()",
            "env::args()",
            "std::process::exit(1)",
            "use std::env::{self, args_os};",
            "use std::env::var;",
        ] {
            assert!(fires(rule, code), "{code}");
        }
        for code in ["env!(\"A\")", "env::temp_dir()", "process::id()", "// env::var\n"] {
            assert!(!fires(rule, code), "{code}");
        }
        let text = "//! A.\nfn f() { std::env::args() }\n";
        assert!(broken(rule, &[("crates/cli/src/main.rs", text)]).is_empty());
    }
}
