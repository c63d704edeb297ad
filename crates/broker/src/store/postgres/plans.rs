//! How PostgreSQL reads each statement once the tables are large: through an index, whatever is
//! bound. The plans are generic ones, as a statement gets them that is used for long, on tables
//! with statistics; on small tables every plan is a scan, and says nothing.

use semel_testkit::servers;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::*;

/// Read as a whole by the statements that are meant to.
const WHOLE: &[&str] = &["SESSIONS_CLEAR", "PRESENCE_CLEAR", "EPOCHS_SKIP", "MESH_LIST"];

/// One mesh has most of the rows and others have some, so that its key alone selects nothing.
const ROWS: &str = "
    CREATE FUNCTION pg_temp.id(n BIGINT) RETURNS UUID LANGUAGE sql IMMUTABLE
        AS $$ SELECT lpad(to_hex(n), 32, '0')::uuid $$;
    CREATE TEMP TABLE n AS
        SELECT n, pg_temp.id(CASE WHEN n % 10 = 0 THEN n ELSE 1 END) AS mesh, pg_temp.id(n) AS id,
               pg_temp.id(n % 500) AS member, 'topic ' || n % 200 AS topic,
               decode(md5(n::text) || md5((n + 1)::text), 'hex') AS hash
          FROM generate_series(1, 20000) AS n;
    INSERT INTO mesh.mesh (mesh_id, slug, created_at)
        SELECT id, 'mesh ' || n, 1 FROM n;
    INSERT INTO mesh.member (mesh_id, member_id, name, role, status, joined_at)
        SELECT mesh, id, 'm', CASE WHEN n % 1000 = 0 THEN 'owner' ELSE 'member' END, 'active', n
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
    INSERT INTO mesh.topic (mesh_id, name, created_at)
        SELECT mesh, 'topic ' || n, n FROM n;
    INSERT INTO mesh.topic_subscription (mesh_id, topic, member_id)
        SELECT mesh, topic, id FROM n;
    INSERT INTO mesh.queue (mesh_id, name, queue_id, created_at)
        SELECT mesh, 'queue ' || n, id, n FROM n;
    INSERT INTO mesh.client_message_dedupe
           (mesh_id, sender_member_id, client_message_id, broker_message_id, request_fingerprint,
            destination_kind, destination_ref, first_seen_at, expires_at)
        SELECT mesh, member, 'id ' || n, id, hash, 'topic', topic, n, n FROM n;
    INSERT INTO mesh.topic_message
           (mesh_id, broker_message_id, sender_member_id, client_message_id, topic, priority,
            meta, body, accepted_at)
        SELECT mesh, id, member, 'id ' || n, topic, 1, '', hash, n FROM n;
    INSERT INTO mesh.message_queue
           (mesh_id, broker_message_id, sender_member_id, client_message_id, destination_kind,
            destination_ref, priority, meta, body, accepted_at)
        SELECT mesh, id, member, 'id ' || n, 'dm', topic, 1, '', hash, n FROM n;
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
        SELECT mesh, id, n, 'k', '{}' FROM n;
    ANALYZE;
    SET plan_cache_mode = force_generic_plan";

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

/// Whether a plan reads a whole table; the one that has a single row may be.
fn scans(plan: &str) -> bool {
    let tables = plan.lines().filter_map(|line| line.split_once("Seq Scan on "));
    tables.map(|(_, table)| table).any(|table| !table.starts_with("store "))
}

#[tokio::test]
async fn no_statement_reads_a_large_table_as_a_whole() {
    let address = servers::fresh_postgres().await;
    let options = PostgresOptions::new(&address);
    let _store = PostgresStore::open(options, "epoch-1", UnixMs(1)).await.expect("it opens");
    let (client, connection) = tokio_postgres::connect(&address, NoTls).await.expect("a client");
    drop(tokio::spawn(connection));
    client.batch_execute(ROWS).await.expect("rows");
    #[rustfmt::skip]
    let files = [
        ALL, accept::ALL, audit::ALL, check::ALL, dedupe::ALL, delivery::ALL, history::ALL,
        invite::ALL, member::ALL, mesh::ALL, policy::ALL, presence::ALL, queue::ALL, request::ALL,
        session::ALL, sweep::ALL, topic::ALL,
    ];
    let mut scanning = Vec::new();
    for (name, sql) in files.into_iter().flatten() {
        let plan = plan(&client, sql).await;
        if scans(&plan) && !WHOLE.contains(name) {
            scanning.push(format!("{name}\n{plan}"));
        }
    }
    assert!(scanning.is_empty(), "{}", scanning.join("\n\n"));
    let whole = plan(&client, "SELECT 1 FROM mesh.delivery_queue WHERE attempts = $1").await;
    assert!(scans(&whole), "what it looks for is found: {whole}");
}
