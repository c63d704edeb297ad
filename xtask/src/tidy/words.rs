//! Words that must not be in a text file: the marks of `leftover`, and what `machine-path` forbids,
//! the paths and package hosts that exist on some machines only.

use super::Violation;
use super::source::SourceFile;

const MARKS: [&str; 3] = ["FIXME", "TODO", "XXX"];
const MARKED_EXTENSIONS: [&str; 8] = ["rs", "md", "toml", "py", "sh", "sql", "ts", "go"];

const FOLDERS: [&str; 2] = ["/work/", "/root/"];
const HOMES: &str = "/home/";
const HOSTS: [&str; 4] = ["crates.io", "pypi.org", "npmjs", "deb.debian"];
const LOCK_FILES: [&str; 4] = ["Cargo.lock", "package-lock.json", "pnpm-lock.yaml", "go.sum"];

pub(crate) fn check(file: &SourceFile, found: &mut Vec<Violation>) {
    if file.is_tidy_itself() || file.text.contains('\0') {
        return;
    }
    let is_marked = file.extension().is_some_and(|e| MARKED_EXTENSIONS.contains(&e));
    let is_lock = LOCK_FILES.contains(&file.name()) || file.extension() == Some("lock");
    for (number, line) in file.lines() {
        if let Some(mark) = MARKS.iter().find(|mark| is_marked && has_word(line, mark)) {
            let message = format!("`{mark}`: finish it or drop it");
            found.push(Violation::new(file, number, "leftover", message));
        }
        if let Some(path) = machine_path(line) {
            let message = format!("`{path}` is a path of one machine");
            found.push(Violation::new(file, number, "machine-path", message));
        }
        // A lock file names the registry of every package.
        if let Some(host) = HOSTS.iter().find(|host| !is_lock && line.contains(**host)) {
            let message = format!("`{host}`: where packages come from is the machine's business");
            found.push(Violation::new(file, number, "machine-path", message));
        }
    }
}

/// `XXX` is a mark, `mktemp a.XXXXXX` is not.
fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

fn machine_path(line: &str) -> Option<&'static str> {
    let folder = FOLDERS.into_iter().find(|folder| absolute(line, folder).next().is_some());
    let is_home = |rest: &str| rest.starts_with(|c: char| c.is_ascii_alphabetic());
    folder.or_else(|| absolute(line, HOMES).any(is_home).then_some(HOMES))
}

/// What follows `folder` where it begins a path: `a/work/b` and `$HOME/work/b` are others.
fn absolute<'a>(line: &'a str, folder: &'a str) -> impl Iterator<Item = &'a str> {
    let continues = |c: char| c.is_alphanumeric() || "_-.~})*".contains(c);
    line.match_indices(folder)
        .filter(move |(at, _)| !line[..*at].ends_with(continues))
        .map(move |(at, _)| &line[at + folder.len()..])
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::broken;

    fn found(rule: &str, path: &str, line: &str) -> Vec<String> {
        broken(rule, &[(path, &format!("//! A.\n{line}\n"))])
    }

    #[test]
    fn marks() {
        for line in ["// TODO: later", "# FIXME", "-- XXX", "(TODO)"] {
            assert_eq!(found("leftover", "docs/a.md", line), ["docs/a.md:2"], "{line}");
        }
        for line in ["mktemp a.XXXXXX", "MY_TODO_LIST", "todo", "TODOS"] {
            assert!(found("leftover", "docs/a.md", line).is_empty(), "{line}");
        }
        assert!(found("leftover", "docs/a.txt", "TODO").is_empty());
        assert!(found("leftover", "xtask/src/tidy/a.rs", "// TODO").is_empty());
    }

    #[test]
    fn paths_of_one_machine() {
        for line in ["cd /work/main", "\"/root/.cargo\"", "file:///home/ada/x", "=/work/"] {
            assert_eq!(found("machine-path", "a.sh", line), ["a.sh:2"], "{line}");
        }
        for line in ["docs/work/a", "$HOME/work/a", "/home/$USER", "/homework/", "~/root/a"] {
            assert!(found("machine-path", "a.sh", line).is_empty(), "{line}");
        }
        assert!(found("machine-path", "xtask/src/tidy/a.rs", "// /work/main").is_empty());
    }

    #[test]
    fn hosts_of_packages() {
        for line in ["https://crates.io/a", "pypi.org", "registry.npmjs.org", "deb.debian.org"] {
            assert_eq!(found("machine-path", "a.toml", line), ["a.toml:2"], "{line}");
            assert!(found("machine-path", "Cargo.lock", line).is_empty(), "{line}");
            assert!(found("machine-path", "sdk/python/uv.lock", line).is_empty(), "{line}");
        }
        assert!(found("machine-path", "a.toml", "[patch.crates-io]").is_empty());
    }
}
