//! The daemon's two databases, one file per table.
//!
//! `outbox.db` holds what was accepted here, what is known of the broker, and who is in the mesh.
//! `inbox.db` holds what arrived; it can be lost and rebuilt from the broker's history, so nothing
//! that cannot be had again is in it.

pub mod aside;
pub mod claim;
pub mod event;
pub mod extent;
pub mod inbox;
pub mod link;
pub mod outbox;
pub mod peer;
pub mod reader;
pub mod rows;
pub mod upkeep;

use semel_store::migration::{Migration, MigrationSet};

/// "SMLO" in the header of `outbox.db`.
pub const OUTBOX_APPLICATION_ID: i32 = 0x534d_4c4f;

/// The schema of `outbox.db`.
pub const OUTBOX_MIGRATIONS: MigrationSet = MigrationSet {
    component: "outbox",
    migrations: &[Migration {
        version: 1,
        name: "outbox",
        sql: include_str!("../migrations/outbox/0001_outbox.sql"),
    }],
};

/// "SMLI" in the header of `inbox.db`.
pub const INBOX_APPLICATION_ID: i32 = 0x534d_4c49;

/// The schema of `inbox.db`.
pub const INBOX_MIGRATIONS: MigrationSet = MigrationSet {
    component: "inbox",
    migrations: &[Migration {
        version: 1,
        name: "inbox",
        sql: include_str!("../migrations/inbox/0001_inbox.sql"),
    }],
};

#[cfg(test)]
mod tests {
    use super::*;
    use semel_testkit::sql;

    #[test]
    fn every_statement_prepares_and_none_scans_a_table() {
        let outbox = sql::migrated(OUTBOX_MIGRATIONS.migrations);
        let inbox = sql::migrated(INBOX_MIGRATIONS.migrations);
        let of_outbox =
            [outbox::ALL, outbox::transition::ALL, claim::ALL, link::ALL, peer::ALL, upkeep::ALL];
        // They walk whole tables.
        sql::prepares(&outbox, &rows::ALL[..2]);
        sql::prepares(&inbox, &rows::ALL[2..]);
        for statements in of_outbox {
            sql::prepares(&outbox, statements);
            let plans = sql::plans(&outbox, statements);
            assert!(!plans.contains("SCAN"), "{plans}");
        }
        for statements in [inbox::ALL, extent::ALL, reader::ALL, aside::ALL, event::ALL] {
            sql::prepares(&inbox, statements);
            let plans = sql::plans(&inbox, statements);
            // SQLite's own list of last numbers has a row for each table.
            let plans = plans.replace("SCAN inbox_fts VIRTUAL", "");
            assert!(!plans.replace("SCAN sqlite_sequence", "").contains("SCAN"), "{plans}");
        }
    }
}
