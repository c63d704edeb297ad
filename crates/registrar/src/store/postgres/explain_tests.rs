//! How PostgreSQL reads each statement once the tables are large, whatever they were planned on.

use semel_store::postgres::PostgresOptions;
use semel_testkit::growth::Growth;
use semel_testkit::{servers, statements_of};

use super::*;

/// One domain has most of the rows.
const ROWS: &str = "
    DROP TABLE IF EXISTS n;
    CREATE TEMP TABLE n AS
        SELECT n, decode(md5(n::text) || md5((n + 1)::text), 'hex') AS hash,
               CASE WHEN n % 10 = 0 THEN 'topic ' || n ELSE 'topic 7' END AS domain
          FROM generate_series(FIRST, LAST) AS n;
    INSERT INTO registrar.effect_key (logical_request_key, replay_key, protocol_version, domain,
                                      operation, canonical_target, artifact_hash, owner_binding,
                                      run_id, authorization_nonce, consumed_at, compensates)
        SELECT hash, hash, 1, domain, CASE n % 2 WHEN 0 THEN 'do' ELSE 'compensate' END, 't' || n,
               hash, 'o', 'r', substring(hash FOR 16), n, CASE n % 2 WHEN 1 THEN 't' || n END
          FROM n;
    INSERT INTO registrar.nonce_use (authorization_nonce, logical_request_key, issuer, used_at)
        SELECT substring(hash FOR 16), hash, hash, n FROM n;
    INSERT INTO registrar.registration (logical_request_key, attempt_id, result, registered_at)
        SELECT hash, 'a', '', n FROM n;
    INSERT INTO registrar.authority (domain, pubkey, trusted_at)
        SELECT domain, hash, n FROM n;
    INSERT INTO registrar.grant_issued (authorization_nonce, domain, logical_request_key,
                                        not_before, not_after, issuer, issued_at)
        SELECT substring(hash FOR 16), domain, hash, 1, n, hash, n FROM n;
    INSERT INTO registrar.grant_revoked (authorization_nonce, revoked_at)
        SELECT substring(hash FOR 16), n FROM n WHERE n % 3 = 0;
    INSERT INTO registrar.gate (domain, action, at)
        SELECT domain, CASE n % 2 WHEN 0 THEN 'hold' ELSE 'open' END, n FROM n;
    INSERT INTO registrar.attempt (entry, event, logical_request_key, attempt_id, closes, outcome,
                                   at)
           OVERRIDING SYSTEM VALUE
        SELECT 2 * n, 'started', hash, 'a', NULL, NULL, n FROM n;
    INSERT INTO registrar.attempt (entry, event, logical_request_key, attempt_id, closes, outcome,
                                   at)
           OVERRIDING SYSTEM VALUE
        SELECT 2 * n + 1, 'closed', hash, 'a', 2 * n, 'REGISTERED', n FROM n;
    SELECT setval(pg_get_serial_sequence('registrar.attempt', 'entry'), 1000000);
    INSERT INTO registrar.failure_audit (entry, domain, logical_request_key, authorization_nonce,
                                         attempt_id, outcome, at)
           OVERRIDING SYSTEM VALUE
        SELECT n, domain, hash, substring(hash FOR 16), 'a', 'EXPIRED', n FROM n;
    SELECT setval(pg_get_serial_sequence('registrar.failure_audit', 'entry'), 1000000);
    INSERT INTO registrar.verification (logical_request_key, verdict, note, at)
        SELECT hash, 'passed', '', n FROM n;
    INSERT INTO registrar.sweep (before, at)
        SELECT 100000, 100000000 + n FROM n";

/// Read as a whole by the statements that are meant to.
const WHOLE: &[&str] = &[];

/// What the usual arguments of their types would not do.
const ARGUMENTS: &[(&str, &str)] = &[
    (
        "effect CONSUME",
        "ARRAY[decode(md5('x') || md5('y'), 'hex')], ARRAY[decode(md5('x') || md5('z'), 'hex')],
         ARRAY[1], ARRAY['topic 7'], ARRAY['do'], ARRAY['t'],
         ARRAY[decode(md5('x') || md5('y'), 'hex')], ARRAY['o'], ARRAY['r'],
         ARRAY[decode(md5('x'), 'hex')], ARRAY[1], ARRAY[decode(md5('x'), 'hex')], ARRAY['a'],
         ARRAY['x']::bytea[], ARRAY[0], 'REGISTERED'",
    ),
    ("verification VERIFY", "decode(md5('7') || md5('8'), 'hex'), 'passed', '', 1"),
    ("sweep SWEEP_STARTED", "0, 100, 100000"),
    // All of whose attempts are there.
    ("sweep SWEEP_ENDED", "0, 20, 100000"),
    ("grant GRANT_LIST", "'topic 7', '', 100"),
];

fn statements() -> Vec<(String, &'static str)> {
    statements_of![
        attempt::ALL,
        effect::ALL,
        gate::ALL,
        grant::ALL,
        register::ALL,
        restore::ALL,
        sweep::ALL,
        verification::ALL,
    ]
}

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
