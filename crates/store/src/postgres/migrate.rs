//! Migrations under a lock: many brokers may start at once, one of them migrates.

use super::{Postgres, Transaction};
use crate::migration::{self, Applied, MigrationSet};
use crate::{OpenError, StoreError};

/// Held to the end of the transaction. The number means nothing; it must only stay the same.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7305796021)";

// Differs from sqlite: a prefix, because other programs may share the database.
const BOOKKEEPING: &str = "
    CREATE TABLE IF NOT EXISTS public.semel_schema_migration (
        component  TEXT    NOT NULL,
        version    INTEGER NOT NULL,
        name       TEXT    NOT NULL,
        checksum   TEXT    NOT NULL,
        applied_at BIGINT  NOT NULL,
        PRIMARY KEY (component, version)
    )";

const APPLIED: &str = "
    SELECT version, checksum
      FROM public.semel_schema_migration
     WHERE component = $1
     ORDER BY version";

const APPLY: &str = "
    INSERT INTO public.semel_schema_migration (component, version, name, checksum, applied_at)
    VALUES ($1, $2, $3, $4, $5)";

/// Locks a row that every database of ours has, which is written down and committed as any change
/// is, and leaves nothing behind.
pub(super) const PROBE: &str = "
    SELECT version
      FROM public.semel_schema_migration
     ORDER BY component, version
     LIMIT 1
       FOR NO KEY UPDATE";

const HAS_BOOKKEEPING: &str = "SELECT to_regclass('public.semel_schema_migration') IS NOT NULL";

const IS_APPLIED: &str = "
    SELECT EXISTS (SELECT 1
                     FROM public.semel_schema_migration
                    WHERE component = $1)";

/// Whether any migration of a part was ever run here.
pub(super) async fn is_applied(postgres: &Postgres, component: &str) -> Result<bool, StoreError> {
    let tx = postgres.snapshot().await?;
    let kept = tx.query(HAS_BOOKKEEPING, &[]).await?;
    if !kept.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false) {
        return Ok(false);
    }
    let found = tx.query(IS_APPLIED, &[&component]).await?;
    Ok(found.first().map(|row| row.try_get(0)).transpose()?.unwrap_or(false))
}

/// Everything that a part misses, in one transaction.
pub(super) async fn run(
    postgres: &Postgres,
    sets: &[MigrationSet],
    now_ms: i64,
) -> Result<(), OpenError> {
    for set in sets {
        match postgres.retry(|| run_one(postgres, set, now_ms)).await {
            Ok(done) => done?,
            Err(error) => return Err(OpenError::of_server(&error)),
        }
    }
    Ok(())
}

/// The outer error is the store's, the inner one is the schema's.
async fn run_one(
    postgres: &Postgres,
    set: &MigrationSet,
    now_ms: i64,
) -> Result<Result<(), OpenError>, StoreError> {
    let tx = postgres.begin().await?;
    match run_in_tx(&tx, set, now_ms).await? {
        Ok(()) => tx.commit().await.map(Ok),
        Err(refusal) => Ok(Err(refusal)),
    }
}

async fn run_in_tx(
    tx: &Transaction,
    set: &MigrationSet,
    now_ms: i64,
) -> Result<Result<(), OpenError>, StoreError> {
    tx.batch(LOCK).await?;
    tx.batch(BOOKKEEPING).await?;
    let rows = tx.query(APPLIED, &[&set.component]).await?;
    let mut applied = Vec::with_capacity(rows.len());
    for row in rows {
        let version: i32 = row.try_get(0)?;
        let version = u32::try_from(version).unwrap_or(u32::MAX);
        applied.push(Applied { version, checksum: row.try_get(1)? });
    }
    let missing = match migration::missing(set, &applied) {
        Ok(missing) => missing,
        Err(refusal) => return Ok(Err(refusal)),
    };
    for migration in missing {
        tx.batch(migration.sql).await?;
        let version = i32::try_from(migration.version).unwrap_or(i32::MAX);
        let checksum = migration.checksum();
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&set.component, &version, &migration.name, &checksum, &now_ms];
        tx.execute(APPLY, &row).await?;
    }
    Ok(Ok(()))
}
