//! `growth`: every file with statements for PostgreSQL is among those whose plans are looked at on
//! empty and on large tables (`explain_tests.rs` of its folder). What asks the server's own
//! catalogue is not: that does not grow with what is stored.

use super::Violation;
use super::source::SourceFile;

const RULE: &str = "growth";
const FOLDER: &str = "/store/postgres";
const PLANS: &str = "explain_tests.rs";

pub(crate) fn check(files: &[SourceFile], found: &mut Vec<Violation>) {
    for file in files.iter().filter(|file| file.folder().ends_with(FOLDER)) {
        if !file.text.contains("statements! {") || file.text.contains("FROM pg_catalog.") {
            continue;
        }
        let name = file.name().trim_end_matches(".rs");
        let plans = format!("{}/{PLANS}", file.folder());
        let plans = files.iter().find(|other| other.path == plans);
        if !plans.is_some_and(|plans| lists(&plans.text, name)) {
            let message = format!("`{name}::ALL` is not in {PLANS}: nobody looks at its plans");
            found.push(Violation::new(file, 1, RULE, message));
        }
    }
}

fn lists(plans: &str, name: &str) -> bool {
    let all = format!("{name}::ALL");
    plans.match_indices(&all).any(|(at, _)| {
        let before = plans[..at].chars().next_back();
        !before.is_some_and(|before| before.is_alphanumeric() || before == '_')
    })
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::broken;

    const SOME: &str = "//! Some.\nstatements! {\n    A = \"SELECT 1\";\n}\n";
    const CATALOGUE: &str =
        "//! Some.\nstatements! {\n    A = \"SELECT 1 FROM pg_catalog.pg_class\";\n}\n";

    fn found(name: &str, text: &str, plans: &str) -> Vec<String> {
        let path = format!("crates/a/src/store/postgres/{name}.rs");
        let plans_path = "crates/a/src/store/postgres/explain_tests.rs";
        broken("growth", &[(&path, text), (plans_path, &format!("//! Plans.\n{plans}\n"))])
    }

    #[test]
    fn statements_that_nobody_plans_are_found() {
        let path = |name: &str| [format!("crates/a/src/store/postgres/{name}.rs:1")];
        assert_eq!(found("job", SOME, ""), path("job"));
        assert_eq!(found("job", SOME, "const X: A = prejob::ALL;"), path("job"));
        assert!(found("job", SOME, "const X: A = job::ALL;").is_empty());
        assert!(found("job", "//! None.", "").is_empty());
        assert!(found("catalogue", CATALOGUE, "").is_empty());
        let alone = [("crates/a/src/store/postgres/job.rs", SOME)];
        assert_eq!(broken("growth", &alone), path("job"));
    }
}
