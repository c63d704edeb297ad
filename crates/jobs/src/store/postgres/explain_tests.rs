//! How PostgreSQL reads each statement once the tables are large: through an index, whatever is
//! bound.

use semel_store::postgres::PostgresOptions;
use semel_testkit::explain::Explainer;
use semel_testkit::growth::Growth;
use semel_testkit::{servers, statements_of};

use super::*;

/// Most jobs have ended; many wait or are due, of one conversation, one parent, one breaker, or of
/// another home whose engine lives.
const ROWS: &str = "
    CREATE OR REPLACE FUNCTION pg_temp.id(n BIGINT) RETURNS UUID LANGUAGE sql IMMUTABLE
        AS $$ SELECT lpad(to_hex(n), 32, '0')::uuid $$;
    DROP TABLE IF EXISTS n;
    CREATE TEMP TABLE n AS
        SELECT n, pg_temp.id(n) AS id, decode(md5(n::text) || md5((n + 1)::text), 'hex') AS hash
          FROM generate_series(FIRST, LAST) AS n;
    INSERT INTO jobs.job (no, id, root_id, retry_of, parent_id, depth, source, priority,
                          conversation, carries_plan, key, fingerprint, dedup_hash, created_at,
                          status, ready, due_at, held_by, worker, budget_ms, question, expires_at,
                          failure_class, failed_action, entries, completed_at, home)
           OVERRIDING SYSTEM VALUE
        SELECT n, id, CASE WHEN n % 100 IN (7, 12) THEN pg_temp.id(n - 5) ELSE id END,
               CASE WHEN n % 100 IN (7, 12) THEN pg_temp.id(n - 5) END,
               CASE n % 10 WHEN 3 THEN pg_temp.id(7) END, 0, 'api', n % 4,
               CASE n % 4 WHEN 0 THEN 'one' WHEN 1 THEN 'c' || n % 500 END, FALSE,
               CASE WHEN n % 3 = 0 THEN 'key ' || n END, hash,
               CASE WHEN n % 3 = 1 THEN hash END, n,
               CASE n % 10 WHEN 0 THEN 'pending' WHEN 1 THEN 'pending' WHEN 2 THEN 'failed'
                           WHEN 3 THEN 'executing' WHEN 4 THEN 'awaiting_approval'
                           ELSE 'completed' END,
               n % 100 = 1, CASE WHEN n % 20 = 3 THEN 9000000000000 WHEN n % 20 = 13 THEN n END,
               CASE n % 100 WHEN 3 THEN 'web.get ' || n % 1000 END,
               CASE n % 10 WHEN 3 THEN 'w' END, 1,
               CASE n % 10 WHEN 4 THEN '{}'::json END, CASE n % 10 WHEN 4 THEN n END,
               CASE n % 10 WHEN 2 THEN 'transient' END, CASE n % 10 WHEN 2 THEN 'web.get' END, 1,
               CASE WHEN n % 10 NOT IN (0, 1, 3, 4) THEN n END,
               CASE WHEN n % 20 = 13 OR n % 100 = 1 THEN 'home 1' END
          FROM n;
    SELECT setval(pg_get_serial_sequence('jobs.job', 'no'), 1000000);
    INSERT INTO jobs.execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                    step_fingerprint, status, attempts, certain, started_at)
        SELECT id, 'step ' || s, n, 1, 'web', 'get', hash, 'started', 1, TRUE, 1
          FROM n, generate_series(1, 3) AS s;
    INSERT INTO jobs.ledger (job_no, entry, at, lines, fence)
        SELECT n, entry, 1, '[]', 1 FROM n, generate_series(1, 3) AS entry;
    INSERT INTO jobs.ledger (job_no, entry, at, lines, fence)
        SELECT 9, n + 3, 1, '[]', 1 FROM n;
    INSERT INTO jobs.spent_key (scope, key, fingerprint, job_id, status, ended_at)
        SELECT 'job', 'spent ' || n, hash, id, 'completed', n FROM n;
    INSERT INTO jobs.breaker (action, state, run_window, until, open_for_ms, probe, changed_at)
        SELECT 'a' || n, 'closed', '', n, 1, 0, n FROM n;
    INSERT INTO jobs.home (id, seen_at, actions)
        SELECT 'home ' || n, jobs.now_ms() - n, '{}' FROM n";

/// Read from the end of an index that holds only what is asked for.
const FROM_THE_END: &[(&str, &str)] = &[
    ("claim CLAIMABLE", " job_ready "),
    ("claim CLAIMABLE", " job_due "),
    ("claim NEXT_DUE", " job_ready "),
    ("claim NEXT_DUE", " job_due "),
    ("submit BEGIN", " job_ready "),
    ("list LIVE", " job_live "),
    ("list DEPTH", " job_live "),
    ("family ORPHANS", " job_parent "),
    ("family NOTE_RESTORED", " job_pkey "),
];

/// Whether a plan reads a whole table, as such or through an index without a condition.
fn scans(name: &str, plan: &str) -> bool {
    let lines: Vec<&str> = plan.lines().collect();
    let whole = |number: usize| {
        let line = lines[number];
        let next = lines.get(number + 1).copied().unwrap_or_default();
        let through = line.contains("Index Scan") || line.contains("Index Only Scan");
        let partial = FROM_THE_END.iter().any(|(own, index)| *own == name && line.contains(index));
        line.contains("Seq Scan on ")
            || (through && !partial && !next.contains("Index Cond") && !line.contains("Bitmap"))
    };
    (0..lines.len()).any(whole)
}

fn statements() -> Vec<(String, &'static str)> {
    statements_of![
        advance::ALL,
        breaker::ALL,
        claim::ALL,
        execution::ALL,
        family::ALL,
        job::ALL,
        ledger::ALL,
        letter::ALL,
        list::ALL,
        lock::ALL,
        settle::ALL,
        signal::ALL,
        submit::ALL,
    ]
}

#[tokio::test]
async fn no_statement_reads_a_large_table_as_a_whole() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _pool = Postgres::open(options, &[MIGRATIONS], 1).await.expect("it opens");
    let explainer = Explainer::at(&address).await;
    let mut scanning = Vec::new();
    // On empty tables, too: a plan that is made there is kept for long.
    for rows in [0, 20_000] {
        if rows > 0 {
            explainer.fill(ROWS, rows).await;
        }
        for (name, sql) in statements() {
            let plan = explainer.plan(sql).await;
            // Not through the one that holds those that have ended, too.
            let looks = ["advance HEAD", "submit FACTS"].contains(&name.as_str());
            let live = !looks || plan.contains(" job_conversation ");
            if scans(&name, &plan) || !live {
                scanning.push(format!("{name}\n{plan}"));
            }
        }
    }
    assert!(scanning.is_empty(), "{}", scanning.join("\n\n"));
    let whole = explainer.plan("SELECT 1 FROM jobs.job WHERE worker = $1").await;
    assert!(scans("", &whole), "what it looks for is found: {whole}");
}

/// Read as a whole by the statements that are meant to.
const WHOLE: &[&str] = &[
    // Every night.
    "breaker FORGET",
    // They count.
    "letter PATTERNS",
    "list DEPTH",
];

/// A job goes on: a step ends, another begins.
const ADVANCED: &str = "
    ARRAY[3], ARRAY['executing'], ARRAY[0], ARRAY[1], ARRAY['executing'], ARRAY[1], ARRAY[0],
    ARRAY[0], ARRAY[1], ARRAY['w'], ARRAY[0], ARRAY[FALSE], ARRAY[1], ARRAY[NULL], ARRAY[1],
    ARRAY[NULL]::bigint[], ARRAY[NULL], ARRAY[NULL]::bigint[], ARRAY[NULL], ARRAY[NULL],
    ARRAY[NULL], ARRAY[NULL], ARRAY[2], ARRAY[1], ARRAY[NULL]::bigint[], ARRAY[NULL],
    ARRAY['approve'], ARRAY[FALSE], ARRAY[NULL], ARRAY[FALSE], 1,
    ARRAY[ID(3)], ARRAY['step 1'], ARRAY['completed'], ARRAY[TRUE], ARRAY['{}'],
    ARRAY[NULL]::bytea[], ARRAY[NULL], ARRAY[1], ARRAY[FALSE], 1,
    ARRAY[ID(3)], ARRAY['step 4'], ARRAY[3], ARRAY[1], ARRAY['g'], ARRAY['a'],
    ARRAY[decode(md5('7') || md5('8'), 'hex')], ARRAY[1], ARRAY[1], ARRAY['v'], 1,
    ARRAY[3], ARRAY[1000000], ARRAY[1], ARRAY['[]'], ARRAY[1]";

/// One that finds room.
const BEGUN: &str = "
    ARRAY[ID(30001)], ARRAY[ID(30001)], ARRAY[NULL]::uuid[], ARRAY[NULL]::uuid[], ARRAY[0],
    ARRAY['api'], ARRAY[1], ARRAY[NULL], ARRAY['r'], ARRAY[NULL],
    ARRAY[decode(md5('7') || md5('8'), 'hex')], ARRAY[NULL]::bytea[], ARRAY[1], ARRAY['{}'],
    ARRAY[1], ARRAY['executing'], ARRAY[0], ARRAY[0], ARRAY[0], ARRAY[1], ARRAY['w'], ARRAY[0],
    ARRAY[FALSE], ARRAY[1], ARRAY[NULL], ARRAY[1], ARRAY[NULL]::bigint[], ARRAY[NULL],
    ARRAY[NULL]::bigint[], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[NULL], ARRAY[2],
    ARRAY[1], ARRAY[NULL]::bigint[], ARRAY[NULL], ARRAY['approve'], 10,
    ARRAY[ID(30001)], ARRAY['s'], ARRAY[1], ARRAY['g'], ARRAY['a'],
    ARRAY[decode(md5('7') || md5('8'), 'hex')], ARRAY[1], ARRAY[1], ARRAY['v'],
    ARRAY[ID(30001)], ARRAY[2], ARRAY[1], ARRAY['[]'], ARRAY[1], ARRAY[NULL]::text[],
    ARRAY[NULL]::text[]";

/// What the usual arguments of their types would not do.
const ARGUMENTS: &[(&str, &str)] = &[
    ("advance ADVANCE", ADVANCED),
    (
        "execution START",
        "ARRAY[ID(30001)], ARRAY['s'], ARRAY[7], ARRAY[1], ARRAY['g'], ARRAY['a'],
         ARRAY[decode(md5('7') || md5('8'), 'hex')], ARRAY[1], ARRAY[1], ARRAY['v'], 1",
    ),
    // Of a job that is gone.
    ("ledger FORGET", "ARRAY[30001, 30002]::bigint[]"),
    (
        "submit INSERT",
        "ARRAY[ID(30001)], ARRAY[ID(30001)], ARRAY[NULL]::uuid[], ARRAY[ID(7)], ARRAY[1],
         ARRAY['api'], ARRAY[1], ARRAY['one'], ARRAY['r'], ARRAY['new'],
         ARRAY[decode(md5('7') || md5('8'), 'hex')], ARRAY[decode(md5('x') || md5('y'), 'hex')],
         ARRAY[1], ARRAY['{}'], ARRAY[FALSE], ARRAY[1], ARRAY['home 1'], ARRAY[NULL]::text[],
         ARRAY[NULL]::text[]",
    ),
    ("submit BEGIN", BEGUN),
    (
        "submit FACTS",
        "ARRAY['key 9', 'spent 9'], ARRAY[NULL, NULL]::bytea[],
                      ARRAY[decode(md5('1') || md5('2'), 'hex'), NULL], ARRAY[NULL, NULL]::bytea[],
                      ARRAY[ID(7), ID(12)], ARRAY[ID(2), ID(7)], ARRAY['one', 'c1']",
    ),
    ("advance HEAD", "ARRAY['one', 'c1']"),
    ("breaker RELEASE", "'web.get 3'"),
    ("family ORPHANS", "100"),
    ("family NEWEST_REPEAT", "ID(2)"),
    ("letter FAILED", "'transient', 100, 100"),
    ("list FAILED", "20000, 100, NULL, 'transient', 50"),
    ("list OF_CONVERSATION", "20000, 100, NULL, NULL, 50, 'one'"),
    ("list LIVE", "20000, 100, NULL, NULL, 50"),
    ("list EVERY", "20000, 100, NULL, NULL, 50"),
    // Of a job with very many lines.
    ("ledger AFTER", "9, 100, 150"),
    // For an engine of another home than the one that has some.
    ("claim CLAIMABLE", "10, ARRAY[7]::bigint[], 'home 2', 1000000000"),
    ("claim NEXT_DUE", "ARRAY[7]::bigint[], 'home 2', 1000000000"),
];

#[tokio::test]
async fn what_was_planned_on_empty_tables_is_as_cheap_on_large_ones() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _pool = Postgres::open(options, &[MIGRATIONS], 1).await.expect("it opens");
    let growth = Growth {
        address: &address,
        rows: ROWS,
        statements: statements(),
        arguments: ARGUMENTS,
        whole: WHOLE,
    };
    let costly = growth.costly().await;
    assert!(costly.is_empty(), "{}", costly.join("\n\n"));
}
