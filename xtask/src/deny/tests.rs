//! Each rule with a graph that breaks it, and the repository with its own.

use super::*;

const MANIFEST: &str = "[workspace.dependencies]\na = \"1\"\nours = { path = \"crates/ours\" }\n";
const LOCK: &str = "[[package]]\nname = \"ours\"\n[[package]]\nname = \"a\"\n\
                    source = \"registry+one\"\nchecksum = \"00\"\n";

fn package(name: &str, version: &str, license: &str) -> Package {
    let [name, version, license] = [name, version, license].map(str::to_owned);
    Package { name, version, license }
}

fn found(packages: &[Package], lock: &str, manifest: &str) -> Vec<String> {
    let packages = packages.iter().cloned().collect();
    check(&rules().unwrap(), &packages, lock, manifest).unwrap()
}

fn found_of(packages: &[Package]) -> Vec<String> {
    found(packages, LOCK, MANIFEST)
}

#[test]
fn a_license_is_read_as_an_expression() {
    for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "(MIT OR ISC) AND Unicode-3.0"] {
        assert!(found_of(&[package("a", "1.0.0", good)]).is_empty(), "{good}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "MPL-2.0", "", "whatever"] {
        assert_eq!(found_of(&[package("a", "1.0.0", bad)]).len(), 1, "{bad}");
    }
}

#[test]
fn a_banned_crate_is_found_and_so_is_a_second_of_what_there_is_one_of() {
    assert_eq!(found_of(&[package("ring", "0.17.0", "MIT")]).len(), 1);
    let rustls = package("rustls", "0.23.0", "MIT");
    assert!(found_of(std::slice::from_ref(&rustls)).is_empty());
    assert_eq!(found_of(&[rustls, package("rustls", "0.22.0", "MIT")]).len(), 1);
}

#[test]
fn packages_come_from_one_registry() {
    let lock = |source: &str| format!("{LOCK}[[package]]\nname = \"b\"\n{source}\n");
    let sources = [
        "source = \"registry+two\"\nchecksum = \"00\"",
        "source = \"git+https://example.org/b#1\"",
        "source = \"registry+one\"",
    ];
    for source in sources {
        assert_eq!(found(&[], &lock(source), MANIFEST).len(), 1, "{source}");
    }
    assert!(found(&[], &lock("source = \"registry+one\"\nchecksum = \"00\""), MANIFEST).is_empty());
}

#[test]
fn any_version_is_no_version() {
    for bad in ["b = \"*\"", "b = { git = \"x\" }", "b = { version = \"1.*\" }"] {
        assert_eq!(found(&[], LOCK, &format!("{MANIFEST}{bad}\n")).len(), 1, "{bad}");
    }
}

#[test]
fn what_is_built_is_allowed() {
    assert_eq!(run().unwrap(), ExitCode::SUCCESS);
}

#[test]
fn a_line_of_the_tree_is_read_or_an_error() {
    let text = "a v1.0.0 (/x/y)\tMIT\n\nb v2.0.0-rc.1 (proc-macro)\tMIT OR ISC (*)\n";
    let packages = read_tree(text).unwrap();
    let expected = [package("a", "1.0.0", "MIT"), package("b", "2.0.0-rc.1", "MIT OR ISC")];
    assert_eq!(packages, expected.into_iter().collect());
    assert!(read_tree("nothing").is_err());
}

#[test]
fn a_rule_that_is_not_held_is_refused() {
    let text = fs::read_to_string(repo::root().join("deny.toml")).unwrap();
    assert!(toml::from_str::<Rules>(&text).is_ok());
    assert!(toml::from_str::<Rules>(&format!("{text}\n[advisories]\n")).is_err());
    assert!(toml::from_str::<Rules>(&text.replace("\"deny\"", "\"warn\"")).is_err());
}
