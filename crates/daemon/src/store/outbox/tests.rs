//! The outbox's tables, walked against the real schema and the real statements.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use semel_core::clock::UnixMs;
use semel_core::envelope::{Destination, DestinationKind, Envelope};
use semel_core::id::{BrokerMessageId, ClientMessageId, OutboxId};
use semel_core::limits::BACKOFF_CAP_MS;
use semel_core::mint::IdMint;
use semel_core::outbox::{
    AbortedBy, Accept, Compared, OUTBOX, OutboxEvent, OutboxStatus, Outcome, outbox_accept,
};
use semel_store::sqlite::{Sqlite, SqliteOptions};
use semel_testkit::clock::SimClock;
use semel_testkit::tables::{self, Life};
use semel_testkit::{crash, sql};

use super::*;
use crate::store::{OUTBOX_APPLICATION_ID, OUTBOX_MIGRATIONS, claim};

const NOW: UnixMs = UnixMs(1_800_000_000_000);
const LIFE: i64 = 3;

/// An outbox of its own, and ids for its rows.
struct Fixture {
    connection: Connection,
    mint: IdMint,
}

impl Fixture {
    fn new() -> Self {
        let connection = sql::migrated(OUTBOX_MIGRATIONS.migrations);
        connection.pragma_update(None, "foreign_keys", true).unwrap();
        Self { connection, mint: mint() }
    }

    fn new_row(&self, client_message_id: &str, message: &str) -> NewOutboxRow {
        let destination = Destination::new(DestinationKind::Topic, "builds").unwrap();
        let envelope = Envelope::new(destination.clone(), message.into()).unwrap();
        NewOutboxRow {
            id: self.mint.outbox_id(),
            client_message_id: ClientMessageId::parse(client_message_id).unwrap(),
            draft: Draft::of(&envelope),
            to_given: "#builds".to_owned(),
            resolved: Ok(destination),
            life: LIFE,
            now: NOW,
        }
    }

    /// A row that was moved into this status by the statements themselves.
    fn row_in(&self, status: OutboxStatus, client_message_id: &str) -> OutboxId {
        let row = self.new_row(client_message_id, "hello");
        let (c, id) = (&self.connection, row.id);
        assert!(matches!(accept(c, &row).unwrap(), Accepted::Inserted { .. }));
        match status {
            OutboxStatus::Pending => {}
            OutboxStatus::Inflight => assert_moved(outbox_claim_in_tx(c, id)),
            OutboxStatus::Done => {
                assert_moved(outbox_claim_in_tx(c, id));
                assert_moved(outbox_accepted_in_tx(c, id, &delivery(), NOW));
            }
            OutboxStatus::Dead => {
                assert_moved(outbox_claim_in_tx(c, id));
                let refused = outbox_permanent_in_tx(c, id, "forbidden", Outcome::Refused);
                assert_moved(refused);
            }
            OutboxStatus::Aborted => {
                let successor = self.new_row(&format!("{client_message_id}-2"), "hello");
                assert_moved(requeue(c, id, &successor));
            }
        }
        id
    }

    /// Everything in a row, to see whether it was touched.
    fn dump(&self, id: OutboxId) -> Vec<rusqlite::types::Value> {
        let mut statement = self.connection.prepare("SELECT * FROM outbox WHERE id = ?1").unwrap();
        let columns = statement.column_count();
        let row =
            statement.query_row([id.to_string()], |row| (0..columns).map(|n| row.get(n)).collect());
        row.unwrap()
    }

    fn count(&self) -> i64 {
        self.connection.query_row("SELECT count(*) FROM outbox", [], |row| row.get(0)).unwrap()
    }
}

fn mint() -> IdMint {
    IdMint::new(Arc::new(SimClock::at_ms(NOW.0)), Box::new(|| 42))
}

fn delivery() -> Delivery {
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    Delivery { broker_message_id: BrokerMessageId::parse(id).unwrap(), history_id: Some(7) }
}

fn accept(tx: &Connection, new: &NewOutboxRow) -> Result<Accepted, StoreError> {
    outbox_accept_in_tx(tx, new, new.fingerprint())
}

fn requeue(tx: &Connection, id: OutboxId, successor: &NewOutboxRow) -> Result<Moved, StoreError> {
    let destination = successor.resolved.clone().unwrap();
    outbox_requeue_in_tx(tx, id, successor, &destination, AbortedBy::Operator, false)
}

#[track_caller]
fn assert_moved(moved: Result<Moved, StoreError>) {
    assert!(matches!(moved, Ok(Moved::To(_))), "{moved:?}");
}

#[test]
fn every_row_of_the_accept_table_against_the_database() {
    let mut walked = 0;
    for status in OutboxStatus::ALL {
        for compared in Compared::ALL {
            let fixture = Fixture::new();
            let id = fixture.row_in(*status, "deploy-1");
            let (before, rows) = (fixture.dump(id), fixture.count());
            let message = match compared {
                Compared::Match => "hello",
                Compared::Differs => "something else",
            };
            let again = fixture.new_row("deploy-1", message);
            let answer = accept(&fixture.connection, &again).unwrap();
            let Accepted::Found { accept, row, .. } = answer else { panic!("{answer:?}") };
            assert_eq!(accept, outbox_accept(Some(*status), *compared));
            assert_eq!((row.id, row.status), (id, *status));
            assert_eq!(row.delivery.is_some(), *status == OutboxStatus::Done);
            assert_eq!((fixture.dump(id), fixture.count()), (before, rows), "nothing is written");
            walked += 1;
        }
    }
    let fixture = Fixture::new();
    let new = fixture.new_row("deploy-1", "hello");
    let answer = accept(&fixture.connection, &new).unwrap();
    assert!(matches!(answer, Accepted::Inserted { .. }), "{answer:?}");
    let found = outbox_find_in_tx(&fixture.connection, &new.client_message_id).unwrap().unwrap();
    assert_eq!((found.id, found.status), (new.id, OutboxStatus::Pending));
    assert_eq!(walked + 1, 11, "the table has eleven rows");
}

#[test]
fn every_status_and_event_against_the_database() {
    let life = Life {
        rows: OUTBOX,
        states: OutboxStatus::ALL,
        events: OutboxEvent::ALL,
        initial: OutboxStatus::Pending,
        terminal: &[OutboxStatus::Aborted],
    };
    let walked = tables::database_moves_as_told(&life, |status, event| {
        let fixture = Fixture::new();
        let id = fixture.row_in(status, "deploy-1");
        if event == OutboxEvent::Committed && status == OutboxStatus::Dead {
            // The guard beside the table: only an unknown outcome can turn out well.
            let sql = "UPDATE outbox SET outcome = 'unknown'";
            fixture.connection.execute(sql, []).unwrap();
        }
        let (before, rows) = (fixture.dump(id), fixture.count());
        match drive(&fixture, id, event).unwrap() {
            Moved::To(to) => {
                let row = &fixture.dump(id);
                let status = rusqlite::types::Value::Text(to.as_str().to_owned());
                assert!(row.contains(&status), "{event}: told {to}, found {row:?}");
                tables::Moved::To(to)
            }
            Moved::Illegal { found, event: told } => {
                assert_eq!((found, told), (status, event));
                assert_eq!((fixture.dump(id), fixture.count()), (before, rows), "untouched");
                tables::Moved::Refused
            }
            Moved::Absent => panic!("the row is there"),
        }
    });
    assert_eq!(walked, 5 * 9);
}

fn drive(fixture: &Fixture, id: OutboxId, event: OutboxEvent) -> Result<Moved, StoreError> {
    let tx = &fixture.connection;
    match event {
        OutboxEvent::Claim => outbox_claim_in_tx(tx, id),
        OutboxEvent::Expire => outbox_expire_in_tx(tx, id, "too old", LIFE),
        OutboxEvent::Requeue => {
            let successor = fixture.new_row("successor", "hello");
            requeue(tx, id, &successor)
        }
        OutboxEvent::Accepted => outbox_accepted_in_tx(tx, id, &delivery(), NOW),
        OutboxEvent::Transient => outbox_transient_in_tx(tx, id, "503", Some(NOW)),
        OutboxEvent::Permanent => outbox_permanent_in_tx(tx, id, "403", Outcome::Refused),
        OutboxEvent::Restart => outbox_restart_in_tx(tx, id),
        OutboxEvent::Committed => outbox_committed_in_tx(tx, id, &delivery(), NOW),
        OutboxEvent::Disowned => outbox_disowned_in_tx(tx, id, "404"),
    }
}

/// Nothing waits for longer than the longest backoff, so what seems to was told to wait by a clock
/// that has been set back since.
#[test]
fn what_waits_on_its_own_is_due_in_time_and_also_if_the_clock_was_set_back() {
    let fixture = Fixture::new();
    let tx = &fixture.connection;
    let cap = Duration::from_millis(BACKOFF_CAP_MS);
    let id = fixture.row_in(OutboxStatus::Inflight, "stuck");
    assert_moved(outbox_transient_in_tx(tx, id, "503", Some(NOW.saturating_add(cap))));
    let due = |now| !claim::due(tx, &HashSet::new(), now, 10).unwrap().due.is_empty();
    assert!(!due(NOW));
    assert_eq!(claim::next_due(tx, 10).unwrap(), Some(NOW.saturating_add(cap)));
    assert!(due(NOW.saturating_add(cap)));
    assert!(due(NOW.saturating_sub(Duration::from_millis(1))), "the clock was set back");
}

#[test]
fn what_may_have_been_sent_dies_unknown_and_is_not_requeued() {
    let fixture = Fixture::new();
    let tx = &fixture.connection;
    let outcome = |id: OutboxId| -> String {
        let sql = "SELECT outcome FROM outbox WHERE id = ?1";
        tx.query_row(sql, [id.to_string()], |row| row.get(0)).unwrap()
    };
    let fresh = fixture.row_in(OutboxStatus::Pending, "fresh");
    assert_moved(outbox_expire_in_tx(tx, fresh, "too old", LIFE));
    assert_eq!(outcome(fresh), "never_sent");

    let tried = fixture.row_in(OutboxStatus::Inflight, "tried");
    assert_moved(outbox_transient_in_tx(tx, tried, "503", None));
    let successor = fixture.new_row("tried-2", "hello");
    let requeued = requeue(tx, tried, &successor).unwrap();
    assert!(matches!(requeued, Moved::Illegal { found: OutboxStatus::Pending, .. }));
    assert_moved(outbox_expire_in_tx(tx, tried, "too old", LIFE));
    assert_eq!(outcome(tried), "unknown");
    let requeued = requeue(tx, tried, &successor).unwrap();
    assert!(matches!(requeued, Moved::Illegal { found: OutboxStatus::Dead, .. }));
    let gone = outbox_find_in_tx(tx, &successor.client_message_id).unwrap();
    assert_eq!(gone, None, "the successor was taken back");
    let refused = fixture.row_in(OutboxStatus::Dead, "refused");
    let committed = outbox_committed_in_tx(tx, refused, &delivery(), NOW).unwrap();
    assert!(matches!(committed, Moved::Illegal { .. }), "a refusal is final");
}

#[test]
fn claimed_and_accepted_at_once_is_the_same_as_one_after_the_other() {
    let fixture = Fixture::new();
    let tx = &fixture.connection;
    let apart = fixture.row_in(OutboxStatus::Done, "apart");
    let at_once = fixture.row_in(OutboxStatus::Pending, "at once");
    assert_eq!(
        outbox_sent_in_tx(tx, at_once, &delivery(), NOW).unwrap(),
        Moved::To(OutboxStatus::Done)
    );
    // All columns but the two ids.
    assert_eq!(fixture.dump(apart)[2..], fixture.dump(at_once)[2..]);
    for status in [OutboxStatus::Inflight, OutboxStatus::Dead, OutboxStatus::Aborted] {
        let id = fixture.row_in(status, status.as_str());
        let moved = outbox_sent_in_tx(tx, id, &delivery(), NOW).unwrap();
        assert!(matches!(moved, Moved::Illegal { found, .. } if found == status), "{moved:?}");
    }
}

#[test]
fn a_row_that_is_not_there_is_absent() {
    let fixture = Fixture::new();
    for event in OutboxEvent::ALL {
        let nobody = fixture.mint.outbox_id();
        assert_eq!(drive(&fixture, nobody, *event).unwrap(), Moved::Absent);
    }
    assert_eq!(fixture.count(), 0);
}

#[test]
fn an_impossible_row_is_corrupt() {
    let fixture = Fixture::new();
    fixture.row_in(OutboxStatus::Pending, "deploy-1");
    let tx = &fixture.connection;
    tx.execute("UPDATE outbox SET id = 'not a ulid'", []).unwrap();
    let found = outbox_find_in_tx(tx, &ClientMessageId::parse("deploy-1").unwrap());
    assert!(matches!(found, Err(StoreError::Corrupt { table: "outbox", .. })), "{found:?}");
}

#[test]
fn the_schema_lists_what_the_code_lists() {
    let schema = sql::schema(&Fixture::new().connection);
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let statuses: Vec<&str> = OutboxStatus::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(sql::check_list(&schema, "status"), names(&statuses));
    let outcomes: Vec<&str> = Outcome::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(sql::check_list(&schema, "outcome"), names(&outcomes));
    let kinds: Vec<&str> = DestinationKind::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(sql::check_list(&schema, "destination_kind"), names(&kinds));
    let who: Vec<&str> = AbortedBy::ALL.iter().map(|s| s.as_str()).collect();
    assert_eq!(sql::check_list(&schema, "aborted_by"), names(&who));
}

#[test]
fn a_retry_in_the_same_words_is_compared_under_what_they_meant_first() {
    let fixture = Fixture::new();
    let tx = &fixture.connection;
    let key = |digit: &str| Destination::new(DestinationKind::Dm, digit.repeat(64)).unwrap();
    let mut first = fixture.new_row("deploy-1", "hello");
    (first.to_given, first.resolved) = ("@bob".to_owned(), Ok(key("a")));
    assert!(matches!(accept(tx, &first).unwrap(), Accepted::Inserted { .. }));
    let found = |new: &NewOutboxRow| match accept(tx, new).unwrap() {
        Accepted::Found { accept, .. } => accept,
        other @ (Accepted::Inserted { .. } | Accepted::Unresolved(_)) => panic!("{other:?}"),
    };
    // Bob has another key now, or is gone: the words are the same.
    let renamed = NewOutboxRow { resolved: Ok(key("b")), ..first.clone() };
    assert_eq!(found(&renamed), Accept::Queued);
    let refusal = Refusal::new(Code::RecipientNotFound, "nobody");
    let gone = NewOutboxRow { resolved: Err(refusal.clone()), ..first.clone() };
    assert_eq!(found(&gone), Accept::Queued);
    // Other words count for what they mean now.
    let by_key = NewOutboxRow { to_given: "a".repeat(64), ..first.clone() };
    assert_eq!(found(&by_key), Accept::Queued);
    let mismatch = Accept::Reused(semel_core::outbox::Conflict::PendingMismatch);
    assert_eq!(found(&NewOutboxRow { to_given: "b".repeat(64), ..renamed }), mismatch);
    assert_eq!(found(&NewOutboxRow { to_given: "@rob".to_owned(), ..gone.clone() }), mismatch);
    // Without a row nothing is written for nobody.
    let mut nobody = NewOutboxRow { id: fixture.mint.outbox_id(), ..gone };
    nobody.client_message_id = ClientMessageId::parse("deploy-2").unwrap();
    assert_eq!(accept(tx, &nobody).unwrap(), Accepted::Unresolved(refusal));
    assert_eq!(fixture.count(), 1);
}

#[test]
fn what_an_earlier_life_left_open_may_have_been_sent() {
    let fixture = Fixture::new();
    let tx = &fixture.connection;
    let row = fixture.new_row("deploy-1", "hello");
    accept(tx, &row).unwrap();
    let mut successor = fixture.new_row("deploy-2", "hello");
    successor.life = LIFE + 1;
    assert!(matches!(requeue(tx, row.id, &successor).unwrap(), Moved::Illegal { .. }));
    assert_moved(outbox_expire_in_tx(tx, row.id, "too old", LIFE + 1));
    let outcome: String = tx.query_row("SELECT outcome FROM outbox", [], |row| row.get(0)).unwrap();
    assert_eq!(outcome, "unknown");
}

#[test]
fn an_accept_killed_at_any_statement_is_there_iff_it_was_answered_or_in_flight() {
    let test = "store::outbox::tests::\
                an_accept_killed_at_any_statement_is_there_iff_it_was_answered_or_in_flight";
    let options = |folder: &std::path::Path| {
        let on_uncertain = Arc::new(|error: &StoreError| panic!("{error}"));
        let path = folder.join("outbox.db");
        SqliteOptions::new(path, OUTBOX_APPLICATION_ID, vec![OUTBOX_MIGRATIONS], 0, on_uncertain)
    };
    let runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    let ids = ["one", "two", "three"];
    crash::every_point(
        test,
        |child| {
            let mut options = options(&child.folder);
            options.instrument = Some(crash::instrument);
            let fixture = Fixture::new();
            let store = Sqlite::open(&options).unwrap();
            for id in ids {
                let row = fixture.new_row(id, "hello");
                let accepted = store.write(move |tx| accept(tx, &row));
                let accepted = runtime().block_on(accepted).unwrap();
                assert!(matches!(accepted, Accepted::Inserted { .. }), "{accepted:?}");
                child.acknowledge(id);
            }
        },
        |left| {
            let store = Sqlite::open(&options(&left.folder)).unwrap();
            let fixture = Fixture::new();
            for (number, id) in ids.iter().enumerate() {
                let row = fixture.new_row(id, "hello");
                let again = store.write(move |tx| accept(tx, &row));
                let accept = match runtime().block_on(again).unwrap() {
                    Accepted::Found { accept, .. } => accept,
                    Accepted::Inserted { .. } => Accept::Insert,
                    Accepted::Unresolved(refusal) => panic!("{refusal}"),
                };
                match number.cmp(&left.acknowledged.len()) {
                    std::cmp::Ordering::Less => assert_eq!(accept, Accept::Queued, "{id} was lost"),
                    std::cmp::Ordering::Equal => {}
                    std::cmp::Ordering::Greater => assert_eq!(accept, Accept::Insert, "{id}"),
                }
            }
        },
    );
}
