//! Sweeps by clocks that step, and inboxes that nobody reads.

use std::time::Duration;

use semel_core::envelope::{DestinationKind, Priority};
use semel_core::id::{BrokerMessageId, ClientMessageId, InstanceId, MemberId};
use semel_core::mint::IdMint;
use semel_store::sqlite::OnUncertain;
use semel_testkit::clock::SimClock;
use uuid::Uuid;

use super::*;
use crate::link::LinkState;
use crate::outbox::Room;
use crate::store::inbox::{Arrived, Filter, Way};

const NOW: i64 = 1_800_000_000_000;
const HOUR: Duration = Duration::from_secs(60 * 60);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
const YEAR_MS: i64 = 365 * 24 * 60 * 60 * 1000;

struct Fixture {
    upkeep: Upkeep,
    clock: SimClock,
    status: watch::Sender<LinkStatus>,
    keeping: watch::Sender<Keeping>,
    _folder: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = SimClock::at_ms(NOW);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let mint = Arc::new(IdMint::new(Arc::clone(&shared), Box::new(|| 42)));
        let on_uncertain: OnUncertain = Arc::new(|error: &StoreError| panic!("{error}"));
        let path = folder.path().join("outbox.db");
        let outbox = Outbox::open(
            &path,
            InstanceId::new(Uuid::from_u128(1)),
            Room { bytes_max: u64::MAX, reserved_bytes: 0 },
            mint,
            Arc::clone(&shared),
            Arc::clone(&on_uncertain),
        );
        let inbox_path = folder.path().join("inbox.db");
        let inbox = Inbox::open(&inbox_path, Arc::clone(&shared), on_uncertain).unwrap().inbox;
        let status = watch::Sender::new(LinkStatus::new(LinkState::Connecting, shared.wall()));
        let keeping = watch::Sender::new(Keeping { kept: 30 * 24 * HOUR, bytes_max: u64::MAX });
        let upkeep = Upkeep {
            outbox: Arc::new(outbox.await.unwrap()),
            inbox: Arc::new(inbox),
            clock: shared,
            sweep_clock: SweepClock::new(),
            status: status.subscribe(),
            keeping: keeping.subscribe(),
            was_full: false,
        };
        Self { upkeep, clock, status, keeping, _folder: folder }
    }

    async fn receive(&self, count: u128, body: &str) {
        let already = self.left().await as u128;
        let messages = (already..already + count).map(|number| Arrived {
            sender_member_id: MemberId::new(Uuid::from_u128(1)),
            client_message_id: ClientMessageId::parse(&format!("m-{number}")).unwrap(),
            broker_message_id: BrokerMessageId::new(Uuid::from_u128(number)),
            seq: i64::try_from(number).unwrap(),
            destination_kind: DestinationKind::Dm,
            topic: None,
            sender_pubkey: "ab".repeat(32),
            sender_name: "alice".to_owned(),
            priority: Priority::Next,
            reply_to_id: None,
            meta: String::new(),
            body: body.as_bytes().to_vec(),
            accepted_at: self.clock.wall(),
        });
        let stored = self.upkeep.inbox.receive(messages.collect(), Way::Live).await.unwrap();
        assert_eq!(stored as u128, count);
    }

    async fn read_all(&self) {
        let newest = self.upkeep.inbox.newest().await.unwrap();
        self.upkeep.inbox.reader_set("me", newest, None).await.unwrap();
    }

    async fn sweep(&mut self) -> usize {
        self.upkeep.sweep_once().await.unwrap();
        self.left().await
    }

    async fn left(&self) -> usize {
        self.upkeep.inbox.list(Filter::default(), 100_000).await.unwrap().len()
    }

    /// Hours pass, with a look now and then.
    async fn hours(&mut self, hours: u32) -> usize {
        for _ in 0..hours * 2 {
            self.clock.advance(HOUR / 2);
            self.sweep().await;
        }
        self.left().await
    }
}

#[tokio::test]
async fn a_clock_that_is_ahead_for_a_moment_deletes_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.receive(3, "hello").await;
    fixture.read_all().await;
    assert_eq!(fixture.hours(2).await, 3);
    fixture.clock.step_wall_ms(YEAR_MS);
    assert_eq!(fixture.sweep().await, 3, "while it is ahead");
    fixture.clock.advance(Duration::from_secs(4));
    assert_eq!(fixture.sweep().await, 3);
    fixture.clock.step_wall_ms(-YEAR_MS);
    assert_eq!(fixture.hours(2).await, 3, "after it was set right");
    // Time that has really passed is believed.
    fixture.clock.advance(31 * 24 * HOUR);
    assert_eq!(fixture.hours(2).await, 0);
}

#[tokio::test]
async fn a_clock_that_stays_ahead_of_the_brokers_deletes_nothing() {
    let mut fixture = Fixture::new().await;
    fixture.receive(3, "hello").await;
    fixture.read_all().await;
    let heard = Some((fixture.clock.wall(), fixture.clock.monotonic()));
    fixture.status.send_modify(|status| status.server_time = heard);
    fixture.clock.step_wall_ms(YEAR_MS);
    assert_eq!(fixture.hours(50).await, 3);
}

#[tokio::test]
async fn an_inbox_that_is_full_is_known_to_be_also_when_upkeep_is_late() {
    let mut fixture = Fixture::new().await;
    fixture.keeping.send_modify(|keeping| keeping.bytes_max = 1_000_000);
    let keeping = *fixture.keeping.borrow();
    fixture.upkeep.inbox.measure_first(keeping).await;
    fixture.receive(60, &"x".repeat(10_000)).await;
    assert!(!fixture.upkeep.inbox.is_full(), "there is room");
    fixture.receive(60, &"x".repeat(10_000)).await;
    assert!(fixture.upkeep.inbox.is_full());
    // Whoever comes late sees that it was read.
    fixture.read_all().await;
    assert!(fixture.sweep().await < 120);
    assert!(!fixture.upkeep.inbox.is_full());
}

#[tokio::test]
async fn what_nobody_has_read_stays_and_fills_the_inbox() {
    let mut fixture = Fixture::new().await;
    fixture.receive(40, &"x".repeat(10_000)).await;
    fixture.clock.advance(400 * 24 * HOUR);
    assert_eq!(fixture.hours(2).await, 40, "however old it is");
    fixture.keeping.send_modify(|keeping| keeping.bytes_max = 300_000);
    assert_eq!(fixture.sweep().await, 40, "however much it is");
    assert!(fixture.upkeep.inbox.is_full());
    // The oldest are read: as many go as make room, whatever the clock says.
    fixture.upkeep.inbox.reader_set("me", 30, None).await.unwrap();
    fixture.keeping.send_modify(|keeping| keeping.kept = YEAR * 10);
    let left = fixture.sweep().await;
    assert!((10..40).contains(&left), "{left}");
    assert!(!fixture.upkeep.inbox.is_full());
    let kept = fixture.upkeep.inbox.list(Filter::default(), 100).await.unwrap();
    assert!((31..=40).all(|id| kept.iter().any(|message| message.id == id)), "the unread ones");
}
