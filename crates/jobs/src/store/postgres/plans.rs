//! How PostgreSQL reads each statement once the tables are large: through an index, whatever is
//! bound.

use semel_testkit::servers;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use semel_store::postgres::PostgresOptions;

use super::*;

/// Most jobs have ended; some wait, many of them in one conversation; some are under way.
const ROWS: &str = "
    CREATE FUNCTION pg_temp.id(n BIGINT) RETURNS UUID LANGUAGE sql IMMUTABLE
        AS $$ SELECT lpad(to_hex(n), 32, '0')::uuid $$;
    CREATE TEMP TABLE n AS
        SELECT n, pg_temp.id(n) AS id, decode(md5(n::text) || md5((n + 1)::text), 'hex') AS hash
          FROM generate_series(1, 20000) AS n;
    INSERT INTO jobs.job (id, root_id, retry_of, depth, source, priority, conversation,
                          carries_plan, key, fingerprint, dedup_hash, created_at, status, ready,
                          due_at, held_by, worker, budget_ms, question, expires_at,
                          failure_class, failed_action, entries, completed_at)
        SELECT id, CASE WHEN n % 100 = 7 THEN pg_temp.id(n - 5) ELSE id END,
               CASE WHEN n % 100 = 7 THEN pg_temp.id(n - 5) END, 0, 'api', n % 4,
               CASE n % 4 WHEN 0 THEN 'one' WHEN 1 THEN 'c' || n % 500 END, FALSE,
               CASE WHEN n % 3 = 0 THEN 'key ' || n END, hash,
               CASE WHEN n % 3 = 1 THEN hash END, n,
               CASE n % 10 WHEN 0 THEN 'pending' WHEN 1 THEN 'pending' WHEN 2 THEN 'failed'
                           WHEN 3 THEN 'executing' WHEN 4 THEN 'awaiting_approval'
                           ELSE 'completed' END,
               n % 100 = 1, CASE n % 10 WHEN 3 THEN n END,
               CASE n % 1000 WHEN 3 THEN 'web.get' END, CASE n % 10 WHEN 3 THEN 'w' END, 1,
               CASE n % 10 WHEN 4 THEN '{}'::json END, CASE n % 10 WHEN 4 THEN n END,
               CASE n % 10 WHEN 2 THEN 'transient' END, CASE n % 10 WHEN 2 THEN 'web.get' END, 1,
               CASE WHEN n % 10 NOT IN (0, 1, 3, 4) THEN n END
          FROM n;
    INSERT INTO jobs.execution_log (root_id, step_id, job_no, plan_no, gear, action,
                                    step_fingerprint, status, attempts, certain, started_at)
        SELECT id, 'step ' || s, n, 1, 'web', 'get', hash, 'started', 1, TRUE, 1
          FROM n, generate_series(1, 3) AS s;
    INSERT INTO jobs.ledger (job_no, entry, at, lines, fence)
        SELECT n, entry, 1, '[]', 1 FROM n, generate_series(1, 3) AS entry;
    INSERT INTO jobs.breaker (action, state, run_window, until, open_for_ms, probe, changed_at)
        SELECT 'a' || n, 'closed', '', 0, 1, 0, 1 FROM n;
    ANALYZE;
    SET plan_cache_mode = force_generic_plan;
    SET enable_seqscan = off";

async fn plan(client: &Client, sql: &str) -> String {
    let parameters = client.prepare(sql).await.expect(sql).params().len();
    client.batch_execute(&format!("PREPARE asked AS {sql}")).await.expect(sql);
    let nothing = vec!["NULL"; parameters].join(", ");
    let with = if parameters == 0 { String::new() } else { format!("({nothing})") };
    let lines = client.simple_query(&format!("EXPLAIN EXECUTE asked {with}")).await.expect(sql);
    client.batch_execute("DEALLOCATE asked").await.expect(sql);
    let text = lines
        .iter()
        .filter_map(|line| if let SimpleQueryMessage::Row(row) = line { row.get(0) } else { None });
    text.collect::<Vec<_>>().join("\n")
}

/// Read from the end of an index that holds only what is asked for.
const FROM_THE_END: &[(&str, &str)] = &[
    ("CLAIMABLE", " job_ready "),
    ("ANYTHING", " job_ready "),
    ("BEGIN", " job_ready "),
    ("LIVE", " job_live "),
    ("DEPTH", " job_live "),
    ("ORPHANS", " job_parent "),
    ("NOTE_RESTORED", " job_pkey "),
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

#[tokio::test]
async fn no_statement_reads_a_large_table_as_a_whole() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _pool = Postgres::open(options, &[MIGRATIONS], 1).await.expect("it opens");
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await.expect("a client");
    drop(tokio::spawn(connection));
    #[rustfmt::skip]
    let files = [
        advance::ALL, breaker::ALL, claim::ALL, execution::ALL, job::ALL, ledger::ALL, letter::ALL,
        family::ALL, list::ALL, lock::ALL, settle::ALL, signal::ALL, submit::ALL,
    ];
    let mut scanning = Vec::new();
    client.batch_execute("SET enable_seqscan = off").await.expect("a setting");
    for rows in ["", ROWS] {
        // On empty tables, too: a plan that is made there is kept for long.
        client.batch_execute(rows).await.expect("rows");
        for (name, sql) in files.into_iter().flatten() {
            let plan = plan(&client, sql).await;
            // Not through the one that holds those that have ended, too.
            let live = !["HEAD", "FACTS"].contains(name) || plan.contains(" job_conversation ");
            if scans(name, &plan) || !live {
                scanning.push(format!("{name}\n{plan}"));
            }
        }
    }
    assert!(scanning.is_empty(), "{}", scanning.join("\n\n"));
    let whole = plan(&client, "SELECT 1 FROM jobs.job WHERE worker = $1").await;
    assert!(scans("", &whole), "what it looks for is found: {whole}");
}
