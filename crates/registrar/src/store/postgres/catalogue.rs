//! What PostgreSQL says of the registrar's tables, and of who else may write them.

use std::collections::{BTreeMap, BTreeSet};

use semel_store::{StoreError, statements};

use super::{MIGRATIONS, PostgresStore};
use crate::fitness::{Catalogue, Change, Nullable, SWEPT, TABLES};

/// The function that every trigger calls, but those that let a ledger be swept.
const REFUSE_CHANGE: &str = "registrar.refuse_change";
/// The functions of those, by ledger.
const REFUSE_UNSWEPT: &str = "registrar.refuse_unswept_";

// Of a trigger's type.
const EACH_ROW: i32 = 1;
const BEFORE: i32 = 2;
const DELETE: i32 = 8;
const UPDATE: i32 = 16;
const TRUNCATE: i32 = 32;

/// What the tables say of their values. Differs from sqlite: as the server writes it back.
const CHECKS: &[(&str, &str)] = &[
    ("effect_key", "CHECK ((length(logical_request_key) = 32))"),
    ("effect_key", "CHECK ((length(replay_key) = 32))"),
    ("effect_key", "CHECK ((length(artifact_hash) = 32))"),
    ("effect_key", "CHECK (((operation = 'compensate'::text) = (compensates IS NOT NULL)))"),
    ("effect_key", "CHECK ((compensates = canonical_target))"),
    ("nonce_use", "CHECK ((length(authorization_nonce) = 16))"),
    ("authority", "CHECK ((length(pubkey) = 32))"),
    ("gate", "CHECK ((action = ANY (ARRAY['open'::text, 'hold'::text])))"),
    ("attempt", "CHECK ((event = ANY (ARRAY['started'::text, 'closed'::text, 'answered'::text])))"),
    ("attempt", "CHECK (((event = 'closed'::text) = (closes IS NOT NULL)))"),
    ("attempt", "CHECK (((event = 'started'::text) = (outcome IS NULL)))"),
    ("verification", "CHECK ((verdict = ANY (ARRAY['passed'::text, 'failed'::text])))"),
    ("sweep", "CHECK ((before <= (at - 86400000)))"),
];

statements! {
    COLUMNS = "
        SELECT class.relname::text, attribute.attname::text, attribute.attnotnull
          FROM pg_catalog.pg_class AS class
          JOIN pg_catalog.pg_attribute AS attribute ON attribute.attrelid = class.oid
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND class.relkind = 'r'
           AND attribute.attnum > 0
           AND NOT attribute.attisdropped";

    UNIQUES = "
        -- Only what holds for every row and at once: no part of the table, no expression, no key
        -- that is checked at the end of the transaction.
        SELECT class.relname::text, array_agg(attribute.attname::text)
          FROM pg_catalog.pg_index AS index
          JOIN pg_catalog.pg_class AS class ON class.oid = index.indrelid
          JOIN pg_catalog.pg_attribute AS attribute
            ON attribute.attrelid = class.oid
           AND attribute.attnum = ANY (index.indkey::smallint[])
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND index.indisunique
           AND index.indisvalid
           AND index.indimmediate
           AND index.indpred IS NULL
           AND index.indexprs IS NULL
           AND index.indnkeyatts = index.indnatts
         GROUP BY class.relname, index.indexrelid";

    TRIGGERS = "
        SELECT class.relname::text, trigger.tgtype::integer, proc.prosrc
          FROM pg_catalog.pg_trigger AS trigger
          JOIN pg_catalog.pg_class AS class ON class.oid = trigger.tgrelid
          JOIN pg_catalog.pg_proc AS proc ON proc.oid = trigger.tgfoid
          JOIN pg_catalog.pg_language AS language ON language.oid = proc.prolang
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND NOT trigger.tgisinternal
           AND trigger.tgenabled IN ('O', 'A')
           AND trigger.tgqual IS NULL
           AND trigger.tgattr::text = ''
           AND trigger.tgtype::integer & 2 = 2
           AND language.lanname = 'plpgsql'
           AND proc.proconfig IS NULL";

    CHECKED = "
        SELECT class.relname::text, pg_get_constraintdef(constrained.oid)
          FROM pg_catalog.pg_constraint AS constrained
          JOIN pg_catalog.pg_class AS class ON class.oid = constrained.conrelid
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND constrained.contype = 'c'
           AND constrained.convalidated";

    STRANGERS = "
        SELECT pg_get_userbyid(granted.grantee) || ' may ' || granted.privilege_type || ' '
               || class.relname
          FROM pg_catalog.pg_class AS class
         CROSS JOIN LATERAL (
               SELECT of_table.grantee, of_table.privilege_type
                 FROM aclexplode(class.relacl) AS of_table
                UNION
               SELECT of_column.grantee, of_column.privilege_type
                 FROM pg_catalog.pg_attribute AS attribute
                CROSS JOIN LATERAL aclexplode(attribute.attacl) AS of_column
                WHERE attribute.attrelid = class.oid) AS granted
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND class.relkind = 'r'
           AND granted.grantee <> class.relowner
           AND granted.privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'TRIGGER')
         UNION
        SELECT pg_get_userbyid(class.relowner) || ' owns ' || class.relname
          FROM pg_catalog.pg_class AS class
         WHERE class.relnamespace = to_regnamespace('registrar')
           AND class.relkind = 'r'
           AND pg_get_userbyid(class.relowner) <> current_user";
}

impl PostgresStore {
    pub(in crate::store) async fn catalogue(&self) -> Result<Catalogue, StoreError> {
        let tx = self.postgres.snapshot().await?;
        let mut catalogue = Catalogue::default();
        for row in tx.query(COLUMNS, &[]).await? {
            let (table, column, not_null): (String, String, bool) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let nullable = if not_null { Nullable::No } else { Nullable::Yes };
            catalogue.columns.entry(table).or_default().insert(column, nullable);
        }
        for row in tx.query(UNIQUES, &[]).await? {
            let (table, columns): (String, Vec<String>) = (row.try_get(0)?, row.try_get(1)?);
            catalogue.uniques.entry(table).or_default().insert(columns.into_iter().collect());
        }
        let mut triggers: BTreeMap<String, Refusing> = BTreeMap::new();
        for row in tx.query(TRIGGERS, &[]).await? {
            let (table, kind, body): (String, i32, String) =
                (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            triggers.entry(table.clone()).or_default().add(&table, kind, &body);
        }
        for (table, refusing) in triggers {
            if refusing.of_rows & UPDATE == UPDATE {
                catalogue.refusals.insert((table.clone(), Change::Update));
                // Differs from sqlite: a row takes another one's place only by changing it.
                catalogue.refusals.insert((table.clone(), Change::Replace));
            }
            // Truncating is deleting.
            if refusing.of_rows & DELETE == DELETE && refusing.of_statements & TRUNCATE == TRUNCATE
            {
                catalogue.refusals.insert((table, Change::Delete));
            }
        }
        for row in tx.query(CHECKED, &[]).await? {
            catalogue.definitions.insert((row.try_get(0)?, row.try_get(1)?));
        }
        let needed = CHECKS.iter().map(|(table, check)| ((*table).into(), (*check).into()));
        catalogue.needed = needed.collect();
        for row in tx.query(STRANGERS, &[]).await? {
            catalogue.strangers.push(row.try_get(0)?);
        }
        let ours: BTreeSet<&str> = TABLES.iter().copied().collect();
        catalogue.uniques.retain(|table, _| ours.contains(table.as_str()));
        Ok(catalogue)
    }
}

/// What the triggers of a table refuse, as the bits of their types.
#[derive(Default)]
struct Refusing {
    of_rows: i32,
    of_statements: i32,
}

impl Refusing {
    /// One that says word for word what the migration says. What lets a ledger be swept counts
    /// against deleting from that ledger, and nowhere else.
    fn add(&mut self, table: &str, kind: i32, body: &str) {
        let refuses = if Some(body) == body_of(REFUSE_CHANGE) {
            kind
        } else if SWEPT.contains(&table)
            && Some(body) == body_of(&format!("{REFUSE_UNSWEPT}{table}"))
        {
            kind & (EACH_ROW | BEFORE | DELETE)
        } else {
            return;
        };
        match refuses & EACH_ROW {
            EACH_ROW => self.of_rows |= refuses,
            _ => self.of_statements |= refuses,
        }
    }
}

/// The body of a function, as the migration makes it.
fn body_of(function: &str) -> Option<&'static str> {
    let made = format!("CREATE FUNCTION {function}()");
    MIGRATIONS.migrations.iter().find_map(|migration| {
        let (_, rest) = migration.sql.split_once(&made)?;
        rest.split("$$").nth(1)
    })
}
