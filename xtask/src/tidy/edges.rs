//! `crate-edges`: which of our crates may depend on which (ARCHITECTURE.md, "Edges").

use toml::Table;

use super::Violation;
use super::source::SourceFile;

const RULE: &str = "crate-edges";
const PREFIX: &str = "semel-";
const TESTKIT: &str = "testkit";

enum May {
    Use(&'static [&'static str]),
    UseAllButTestkit,
    UseAll,
}

/// Packages without `semel-`; the binary itself is `semel`.
const TABLE: &[(&str, May)] = &[
    ("core", May::Use(&[])),
    ("store", May::Use(&[])),
    ("serve", May::Use(&[])),
    ("vital", May::Use(&[])),
    ("wire", May::Use(&["core"])),
    ("crypto", May::Use(&["core"])),
    ("client", May::Use(&["wire", "core"])),
    ("gear", May::Use(&["core"])),
    ("api", May::Use(&["wire", "serve", "store", "core"])),
    ("registrar", May::Use(&["api", "wire", "crypto", "vital", "store", "core"])),
    ("broker", May::Use(&["wire", "crypto", "serve", "vital", "store", "core"])),
    ("daemon", May::Use(&["api", "wire", "crypto", "vital", "store", "core"])),
    ("jobs", May::Use(&["api", "registrar", "gear", "wire", "crypto", "vital", "store", "core"])),
    ("testkit", May::Use(&["core", "store"])),
    ("semel", May::UseAllButTestkit),
    ("xtask", May::Use(&["client", "core"])),
    ("bench", May::UseAll),
    ("bench-peers", May::Use(&[])),
    ("bench-sqlxmq", May::Use(&[])),
    ("bench-apalis", May::Use(&[])),
];

/// What tests may use besides: a daemon is tested beside a real broker.
const IN_TESTS: &[(&str, &str)] = &[("daemon", "broker")];

pub(crate) fn check(files: &[SourceFile], found: &mut Vec<Violation>) {
    for file in files.iter().filter(|file| file.name() == "Cargo.toml" && !file.is_test()) {
        match file.text.parse::<Table>() {
            Ok(manifest) => check_manifest(file, &manifest, found),
            Err(error) => found.push(Violation::new(file, 1, RULE, error.message())),
        }
    }
}

fn check_manifest(file: &SourceFile, manifest: &Table, found: &mut Vec<Violation>) {
    let package = manifest.get("package").and_then(|package| package.get("name")?.as_str());
    let Some(package) = package else { return };
    let Some(may) = row(package) else {
        let message = format!("`{package}` is unknown: add it to the table in xtask");
        found.push(Violation::new(file, line_of(file, "name"), RULE, message));
        return;
    };
    for (kind, name) in dependencies(manifest) {
        let allowed = match may {
            _ if kind == "dev-dependencies" && short(&name) == TESTKIT => true,
            _ if kind == "dev-dependencies"
                && IN_TESTS.contains(&(short(package), short(&name))) =>
            {
                true
            }
            May::Use(list) => list.contains(&short(&name)),
            May::UseAllButTestkit => row(&name).is_some() && short(&name) != TESTKIT,
            May::UseAll => row(&name).is_some(),
        };
        if !allowed {
            let message = format!("`{package}` may not depend on `{name}` ({kind})");
            found.push(Violation::new(file, line_of(file, &name), RULE, message));
        }
    }
}

/// Our own crates under every kind of dependency, also those for one platform only.
fn dependencies(manifest: &Table) -> Vec<(&'static str, String)> {
    let mut tables = vec![manifest];
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        tables.extend(targets.values().filter_map(toml::Value::as_table));
    }
    let mut ours = Vec::new();
    for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
        for table in &tables {
            let Some(list) = table.get(kind).and_then(toml::Value::as_table) else {
                continue;
            };
            for (key, value) in list {
                let name = value.get("package").and_then(toml::Value::as_str).unwrap_or(key);
                if name.starts_with(PREFIX) || row(name).is_some_and(|_| !is_short(name)) {
                    ours.push((kind, name.to_owned()));
                }
            }
        }
    }
    ours
}

fn row(package: &str) -> Option<&'static May> {
    TABLE.iter().find(|(name, _)| *name == short(package)).map(|(_, may)| may)
}

fn short(package: &str) -> &str {
    package.strip_prefix(PREFIX).unwrap_or(package)
}

/// `core` in a manifest is somebody else's crate, `semel-core` is ours.
fn is_short(package: &str) -> bool {
    !package.starts_with(PREFIX) && !["semel", "xtask"].contains(&package)
}

/// Good enough for a message: the first line that begins with the key.
fn line_of(file: &SourceFile, key: &str) -> usize {
    let mut lines = file.lines();
    lines.find(|(_, line)| line.trim_start().starts_with(key)).map_or(1, |(number, _)| number)
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::broken;

    fn found(package: &str, dependencies: &str) -> Vec<String> {
        let manifest = format!("[package]\nname = \"{package}\"\n{dependencies}");
        broken("crate-edges", &[("crates/a/Cargo.toml", &manifest)])
    }

    #[test]
    fn edges_outside_the_table() {
        let line_4 = ["crates/a/Cargo.toml:4"];
        assert_eq!(found("semel-core", "[dependencies]\nsemel-store.workspace = true\n"), line_4);
        assert_eq!(found("semel-broker", "[dependencies]\nsemel-registrar = \"1\"\n"), line_4);
        assert_eq!(found("semel", "[dependencies]\nsemel-testkit.workspace = true\n"), line_4);
        assert_eq!(found("semel-core", "[dependencies]\nsemel = \"1\"\n"), line_4);
        assert_eq!(found("semel-core", "[dev-dependencies]\nsemel-store = \"1\"\n"), line_4);
        assert_eq!(found("semel", "[dependencies]\nsemel-new = \"1\"\n"), line_4);
        let renamed = "[dependencies]\ns = { package = \"semel-store\", path = \"../store\" }\n";
        assert_eq!(found("semel-core", renamed).len(), 1);
        let for_unix = "[target.'cfg(unix)'.dependencies]\nsemel-store = \"1\"\n";
        assert_eq!(found("semel-core", for_unix), line_4);
    }

    #[test]
    fn edges_in_the_table() {
        for (package, dependencies) in [
            ("semel-core", "[dependencies]\nserde = \"1\"\n"),
            ("semel-core", "[dev-dependencies]\nsemel-testkit = \"1\"\n"),
            ("semel-jobs", "[dependencies]\nsemel-registrar = \"1\"\nsemel-gear = \"1\"\n"),
            ("semel", "[dependencies]\nsemel-jobs = \"1\"\nsemel-client = \"1\"\n"),
            ("semel-bench", "[dependencies]\nsemel-testkit = \"1\"\nsemel = \"1\"\n"),
            ("xtask", "[dependencies]\nsemel-core = \"1\"\n"),
        ] {
            assert!(found(package, dependencies).is_empty(), "{package}: {dependencies}");
        }
    }

    #[test]
    fn a_crate_that_the_table_does_not_know() {
        assert_eq!(found("semel-new", ""), ["crates/a/Cargo.toml:2"]);
        assert!(broken("crate-edges", &[("Cargo.toml", "[workspace]\n")]).is_empty());
        assert_eq!(broken("crate-edges", &[("Cargo.toml", "[workspace\n")]), ["Cargo.toml:1"]);
    }
}
