//! How PostgreSQL reads each statement once the tables are large: through an index, whatever is
//! bound. The plans are generic ones, as a statement gets them that is used for long, on tables
//! with statistics; on small tables every plan is a scan, and says nothing.

use semel_testkit::explain::Explainer;
use semel_testkit::growth::Growth;
use semel_testkit::servers;

use super::*;

/// Read as a whole by the statements that are meant to.
const WHOLE: &[&str] = &["SESSIONS_CLEAR", "PRESENCE_CLEAR", "EPOCHS_SKIP", "MESH_LIST"];

/// What the usual arguments of their types would not do.
const ARGUMENTS: &[(&str, &str)] = &[
    // Of as many recipients as it is told to look at.
    ("OLDEST", "ID(1), 5"),
    // Of as many subscribers as anybody wants to know.
    ("AUDIENCES", "ID(1), ARRAY['topic 7'], 5"),
    // From one page's end to the next.
    ("PAGE_END", "ID(1), ID(7), 'id 7', 10"),
    ("EXTEND", "ID(1), ID(7), 'id 7', 1000000, ID(7), 'id 9'"),
    ("EXTEND_REST", "ID(1), ID(499), 'id 9', 1000000"),
    // Of as many as a member may have.
    ("RETIRED_COUNT", "ID(1), ID(7), ARRAY[ID(9), ID(507)], 5"),
    ("QUEUE_DISCARD", "ID(1), ID(7), 5"),
    ("INVITES_FULL", "ID(1), 100, 10"),
    // Everybody is there.
    ("ROSTER", "ID(1), 4000000000000, 100"),
    ("EXPIRED", "100000000000, 10"),
    ("MEMBER_BY_KEY", "ID(1), 'key 7'"),
    ("MEMBER_OF_KEY", "ID(1), 'key 7'"),
    (
        "TARGETS",
        "ID(1), ARRAY['topic', 'dm', 'queue'], ARRAY['topic 7', 'key 7', 'queue 7'],
                 ARRAY[ID(7), ID(7), ID(7)]",
    ),
    ("QUEUE_NAMED", "ID(1), 'queue 7'"),
    ("ACK", "ID(1), 'queue 7', ID(9), ARRAY[9, 507]::bigint[]"),
    // Of a mesh with most of the members.
    ("DELIVERIES_DOOMED", "ID(1), 1, 100"),
    ("SET_ASIDE_DELETE", "ID(1), 1, 100"),
    ("MENTIONS_DELETE", "ID(1), 1, 100"),
    ("END", "ID(1), ID(7), 'left'"),
    (
        "NUMBERED",
        "ID(1), 2, ARRAY[ID(30001), ID(30002)], ARRAY[ID(7), ID(8)], ARRAY['topic', 'dm'],
         ARRAY['topic 7', 'key 8'], ARRAY[NULL, ID(8)], ARRAY[ID(30001)], ARRAY['key 9']",
    ),
];

/// One mesh has most of the rows and others have some, so that its key alone selects nothing.
const ROWS: &str = "
    CREATE OR REPLACE FUNCTION pg_temp.id(n BIGINT) RETURNS UUID LANGUAGE sql IMMUTABLE
        AS $$ SELECT lpad(to_hex(n), 32, '0')::uuid $$;
    DROP TABLE IF EXISTS n;
    CREATE TEMP TABLE n AS
        SELECT n, pg_temp.id(CASE WHEN n % 10 = 0 THEN n ELSE 1 END) AS mesh, pg_temp.id(n) AS id,
               pg_temp.id(CASE WHEN n % 3 = 0 THEN 7 ELSE n % 500 END) AS member,
               'topic ' || n % 200 AS topic,
               decode(md5(n::text) || md5((n + 1)::text), 'hex') AS hash
          FROM generate_series(FIRST, LAST) AS n;
    INSERT INTO mesh.mesh (mesh_id, slug, created_at, next_seq)
        SELECT id, 'mesh ' || n, 1, 100000 FROM n;
    INSERT INTO mesh.member (mesh_id, member_id, name, role, status, joined_at)
        SELECT mesh, id, 'm' || n, CASE WHEN n % 1000 = 0 THEN 'owner' ELSE 'member' END,
               'active', n
          FROM n;
    INSERT INTO mesh.member_key (mesh_id, key_id, member_id, pubkey, status, created_at)
        SELECT mesh, 'k' || n, id, 'key ' || n, 'current', n FROM n;
    INSERT INTO mesh.invite (mesh_id, token_hash, role, uses_left, expires_at, created_at)
        SELECT mesh, hash, 'member', 1, n, 1 FROM n;
    INSERT INTO mesh.request_nonce (mesh_id, pubkey, nonce, expires_at)
        SELECT mesh, 'key ' || n, substring(hash FOR 16), n FROM n;
    INSERT INTO mesh.session (mesh_id, member_id, instance_id, session_epoch, broker_id,
                              hello_nonce)
        SELECT mesh, id, id, n, id, substring(hash FOR 16) FROM n;
    INSERT INTO mesh.presence (mesh_id, member_id, instance_id, session_epoch, broker_id,
                               heartbeat_at)
        SELECT mesh, id, id, n, id, n FROM n;
    INSERT INTO mesh.retired_instance (mesh_id, member_id, instance_id, retired_at)
        SELECT mesh, id, id, n FROM n;
    INSERT INTO mesh.topic (mesh_id, name, created_at, created_by)
        SELECT mesh, 'topic ' || n, n, member FROM n;
    INSERT INTO mesh.topic_subscription (mesh_id, topic, member_id, from_seq)
        SELECT mesh, topic, id, n FROM n;
    INSERT INTO mesh.queue (mesh_id, name, queue_id, created_at, created_by)
        SELECT mesh, 'queue ' || n, id, n, member FROM n;
    INSERT INTO mesh.client_message_dedupe
           (mesh_id, sender_member_id, client_message_id, broker_message_id, request_fingerprint,
            destination_kind, destination_ref, first_seen_at, expires_at)
        SELECT mesh, member, 'id ' || n, id, hash, 'topic', topic, n, n FROM n;
    INSERT INTO mesh.topic_message
           (mesh_id, broker_message_id, sender_member_id, client_message_id, topic, priority,
            meta, body, accepted_at, request_fingerprint)
        SELECT mesh, id, member, 'id ' || n, topic, 1, '', hash, n, hash FROM n;
    INSERT INTO mesh.message_queue
           (mesh_id, broker_message_id, sender_member_id, client_message_id, destination_kind,
            destination_ref, priority, meta, body, accepted_at, request_fingerprint)
        SELECT mesh, id, member, 'id ' || n, 'dm', topic, 1, '', hash, n, hash FROM n;
    INSERT INTO mesh.message_history
           (mesh_id, seq, broker_message_id, sender_member_id, destination_kind)
        SELECT mesh, n, id, member, 'topic' FROM n;
    INSERT INTO mesh.delivery_queue (mesh_id, recipient, seq, leased_by, lease_until)
        SELECT mesh, member, n, CASE WHEN n % 3 = 0 THEN id END,
               CASE n % 3 WHEN 0 THEN n WHEN 1 THEN 0 END FROM n;
    INSERT INTO mesh.delivery_set_aside (mesh_id, recipient, seq, reason, at)
        SELECT mesh, member, n, 'r', n FROM n;
    INSERT INTO mesh.mention_index (mesh_id, member_id, seq)
        SELECT mesh, member, n FROM n;
    INSERT INTO mesh.audit_event (mesh_id, id, at, kind, detail)
        SELECT mesh, id, n, 'k', '{}' FROM n";

/// Whether a plan reads a whole table; the one that has a single row may be.
fn scans(plan: &str) -> bool {
    let tables = plan.lines().filter_map(|line| line.split_once("Seq Scan on "));
    tables.map(|(_, table)| table).any(|table| !table.starts_with("store "))
}

#[rustfmt::skip]
fn statements() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    let files = [
        ALL, accept::ALL, audit::ALL, check::ALL, dedupe::ALL, deletion::ALL, delivery::ALL,
        history::ALL, invite::ALL, member::ALL, mesh::ALL, policy::ALL, presence::ALL, queue::ALL,
        request::ALL, session::ALL, sweep::ALL, topic::ALL,
    ];
    files.into_iter().flatten()
}

#[tokio::test]
async fn no_statement_reads_a_large_table_as_a_whole() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _store = PostgresStore::open(options, "epoch-1", UnixMs(1)).await.expect("it opens");
    let explainer = Explainer::at(&address).await;
    explainer.fill(ROWS, 20_000).await;
    let mut scanning = Vec::new();
    for (name, sql) in statements() {
        let plan = explainer.plan(sql).await;
        if scans(&plan) && !WHOLE.contains(name) {
            scanning.push(format!("{name}\n{plan}"));
        }
    }
    assert!(scanning.is_empty(), "{}", scanning.join("\n\n"));
    let whole = explainer.plan("SELECT 1 FROM mesh.delivery_queue WHERE attempts = $1").await;
    assert!(scans(&whole), "what it looks for is found: {whole}");
}

#[tokio::test]
async fn what_was_planned_on_empty_tables_is_as_cheap_on_large_ones() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _store = PostgresStore::open(options, "epoch-1", UnixMs(1)).await.expect("it opens");
    let growth = Growth {
        address: &address,
        rows: ROWS,
        statements: statements().map(|(name, sql)| ((*name).to_owned(), *sql)).collect(),
        arguments: ARGUMENTS,
        whole: WHOLE,
    };
    let costly = growth.costly().await;
    assert!(costly.is_empty(), "{}", costly.join("\n\n"));
}
