//! `migrations`: a folder of migrations holds `0001_name.sql`, `0002_name.sql` … and nothing else.
//! Folders below `migrations` (one for each database) count for themselves. In those of SQLite a
//! list of words is written with OR: for `IN` with more than two it makes, fills and drops a table
//! each time that it checks one row.

use std::collections::BTreeMap;

use super::Violation;
use super::source::SourceFile;

const RULE: &str = "migrations";

pub(crate) fn check(files: &[SourceFile], found: &mut Vec<Violation>) {
    let mut folders: BTreeMap<&str, Vec<(u32, &SourceFile)>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.in_folder("migrations")) {
        match number(file.name()) {
            Some(number) => {
                long_lists(file, found);
                folders.entry(file.folder()).or_default().push((number, file));
            }
            None => {
                let message = "a migration is named `NNNN_name.sql`";
                found.push(Violation::new(file, 1, RULE, message));
            }
        }
    }
    for mut migrations in folders.into_values() {
        migrations.sort_by_key(|(number, file)| (*number, &file.path));
        let mut last = 0;
        for (number, file) in migrations {
            if number != last + 1 {
                let message = format!("number {number:04} follows {last:04}");
                found.push(Violation::new(file, 1, RULE, message));
            }
            last = number;
        }
    }
}

fn long_lists(file: &SourceFile, found: &mut Vec<Violation>) {
    if file.in_folder("postgres") {
        return;
    }
    for (at, _) in file.text.match_indices(" IN (") {
        let list = file.text[at..].split(')').next().unwrap_or_default();
        if list.matches(',').count() > 1 {
            let line = file.text[..at].matches('\n').count() + 1;
            found.push(Violation::new(file, line, RULE, "more than two words are written with OR"));
        }
    }
}

fn number(name: &str) -> Option<u32> {
    let (digits, title) = name.strip_suffix(".sql")?.split_once('_')?;
    let is_title = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let is_named = !title.is_empty() && title.chars().all(is_title);
    let is_number = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
    if is_named && is_number { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use crate::tidy::tests::broken;

    fn found(names: &[&str]) -> Vec<String> {
        let paths: Vec<_> = names.iter().map(|name| format!("a/migrations/{name}")).collect();
        let tree: Vec<_> = paths.iter().map(|path| (path.as_str(), "")).collect();
        broken("migrations", &tree)
    }

    #[test]
    fn names_and_numbers_that_are_wrong() {
        for name in ["1_a.sql", "0001a.sql", "0001_.sql", "0001_A.sql", "0001_a.txt", "README.md"] {
            assert_eq!(found(&[name]), [format!("a/migrations/{name}:1")]);
        }
        assert_eq!(found(&["0002_a.sql"]), ["a/migrations/0002_a.sql:1"]);
        assert_eq!(found(&["0000_a.sql"]), ["a/migrations/0000_a.sql:1"]);
        assert_eq!(found(&["0001_a.sql", "0003_b.sql"]), ["a/migrations/0003_b.sql:1"]);
        assert_eq!(found(&["0001_a.sql", "0001_b.sql"]), ["a/migrations/0001_b.sql:1"]);
    }

    #[test]
    fn long_lists_are_for_postgres() {
        let list = "CHECK (a IN ('b', 'c'))\nCHECK (a IN ('b', 'c',\n'd'))";
        let of = |folder: &str| {
            broken("migrations", &[(&format!("a/migrations/{folder}/0001_a.sql"), list)])
        };
        assert_eq!(of("sqlite"), ["a/migrations/sqlite/0001_a.sql:2"]);
        assert!(of("postgres").is_empty());
    }

    #[test]
    fn names_and_numbers_that_are_right() {
        assert!(found(&["0002_b.sql", "0001_outbox_rows.sql"]).is_empty());
        assert!(found(&["sqlite/0001_a.sql", "postgres/0001_a.sql"]).is_empty());
        assert!(broken("migrations", &[("a/schema.sql", "")]).is_empty());
    }
}
