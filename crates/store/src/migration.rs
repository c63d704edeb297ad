//! Forward-only migrations: which are missing, decided once for both stores.

use sha2::{Digest, Sha256};

use crate::OpenError;

/// One step of a schema. It never changes once it was released.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// From 1, without gaps.
    pub version: u32,
    /// As in the file's name.
    pub name: &'static str,
    /// The statements.
    pub sql: &'static str,
}

impl Migration {
    /// sha256 of the statements, in hex: what was applied must be what is known.
    pub fn checksum(&self) -> String {
        let digest = Sha256::digest(self.sql.as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The migrations of one part; several parts may share a store.
#[derive(Debug, Clone, Copy)]
pub struct MigrationSet {
    /// The part's name in the store's bookkeeping.
    pub component: &'static str,
    /// In order.
    pub migrations: &'static [Migration],
}

/// A migration that the store says it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Applied {
    pub(crate) version: u32,
    pub(crate) checksum: String,
}

/// The migrations still to run, or why this version must not touch the store.
pub(crate) fn missing(
    set: &MigrationSet,
    applied: &[Applied],
) -> Result<&'static [Migration], OpenError> {
    let component = set.component;
    for (known, applied) in set.migrations.iter().zip(applied) {
        if known.version != applied.version || known.checksum() != applied.checksum {
            return Err(OpenError::MigrationChanged { component, version: applied.version });
        }
    }
    match (applied.get(set.migrations.len()..), applied.last()) {
        (Some([_, ..]), Some(last)) => Err(OpenError::Newer {
            component,
            found: last.version,
            known: set.migrations.last().map_or(0, |newest| newest.version),
        }),
        (Some([]) | None, _) | (Some([_, ..]), None) => {
            Ok(set.migrations.get(applied.len()..).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Migration = Migration { version: 1, name: "one", sql: "CREATE TABLE a (x)" };
    const TWO: Migration = Migration { version: 2, name: "two", sql: "CREATE TABLE b (x)" };
    const SET: MigrationSet = MigrationSet { component: "part", migrations: &[ONE, TWO] };

    fn applied(version: u32, checksum: &str) -> Applied {
        Applied { version, checksum: checksum.to_owned() }
    }

    fn versions(applied: &[Applied]) -> Result<Vec<u32>, OpenError> {
        Ok(missing(&SET, applied)?.iter().map(|migration| migration.version).collect())
    }

    #[test]
    fn what_is_missing_runs_in_order() {
        let one = applied(1, &ONE.checksum());
        let two = applied(2, &TWO.checksum());
        assert_eq!(versions(&[]).unwrap(), [1, 2]);
        assert_eq!(versions(std::slice::from_ref(&one)).unwrap(), [2]);
        assert_eq!(versions(&[one, two]).unwrap(), [] as [u32; 0]);
    }

    #[test]
    fn newer_and_changed_stores_are_refused() {
        let both = [applied(1, &ONE.checksum()), applied(2, &TWO.checksum())];
        let newer = [both.as_slice(), &[applied(3, "?")]].concat();
        assert!(matches!(versions(&newer), Err(OpenError::Newer { found: 3, known: 2, .. })));
        let changed = [applied(1, "?")];
        let error = versions(&changed);
        assert!(matches!(error, Err(OpenError::MigrationChanged { version: 1, .. })));
        let gap = [applied(2, &TWO.checksum())];
        assert!(matches!(versions(&gap), Err(OpenError::MigrationChanged { version: 2, .. })));
    }
}
