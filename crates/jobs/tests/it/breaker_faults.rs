//! What engines and people write of breakers, with every fault at every request of it, as in
//! `faults`: no two probes at a time, a breaker that is told as closed lets go whoever waits for
//! it, and what is told as undone is not there.

use std::time::Duration;

use semel_core::clock::UnixMs;
use semel_jobs::breaker::{Admission, BreakerState, Run};
use semel_jobs::life::JobStatus;
use semel_jobs::store::{BreakerRow, Store};
use semel_store::Fate;

use crate::faults::{each, is_undone, until_told};
use crate::support::{NOW, World, after, id, moved, new_job};

const ACTION: &str = "web.get";
const PROBE: Duration = Duration::from_secs(60);
const LATER: UnixMs = UnixMs(NOW.0 + 30_000);

async fn row(store: &Store) -> BreakerRow {
    let rows = store.breakers().await.unwrap();
    rows.into_iter().find(|row| row.action == ACTION).expect("a breaker")
}

/// One that is open, and a job that waits for it.
async fn open(world: &World) {
    let row = world.store.breaker_note(ACTION, vec![Run::Failed; 5], None, NOW).await.unwrap();
    assert_eq!(row.breaker.state, BreakerState::Open);
    world.made(new_job(1)).await;
    let claimed = after(&world.claim("w", 1, NOW).await[0]);
    let mut hold = moved(&claimed, JobStatus::Pending, NOW);
    hold.state.worker = None;
    hold.state.due_at = Some(UnixMs(LATER.0 + 1));
    hold.state.held_by = Some(ACTION.to_owned());
    world.store.advance(hold).await.unwrap();
}

async fn waits(world: &World) -> bool {
    world.kept(id(1)).await.job.state.due_at == Some(UnixMs(LATER.0 + 1))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_has_one_probe_at_a_time_and_only_that_closes_it() {
    let tried = each(open, async |run| {
        let admit = async |_| run.mine.breaker_admit(ACTION, LATER, PROBE).await;
        let others = std::sync::Mutex::new(Admission::Held(LATER));
        let meanwhile = async {
            if let Ok(admitted) = run.world.store.breaker_admit(ACTION, LATER, PROBE).await {
                *others.lock().unwrap() = admitted;
            }
        };
        let told = run.during(until_told(admit), meanwhile).await;
        let others = others.into_inner().unwrap();
        let probes = told.iter().flatten().chain([&others]);
        let probes: Vec<i64> = probes
            .filter_map(|admitted| match admitted {
                Admission::Probe(number) => Some(*number),
                Admission::Held(_) => None,
                Admission::Through => panic!("it is open: {told:?} {others:?}"),
            })
            .collect();
        assert!(probes.len() <= 1, "two probes at a time: {told:?} {others:?}");
        let stands = row(&run.world.store).await.breaker;
        assert!(
            !is_undone(&told) || !probes.is_empty() || stands.state == BreakerState::Open,
            "undone, and there: {told:?} {stands:?}"
        );
        let Some(probe) = probes.first() else { return };
        assert_eq!((stands.state, stands.probe), (BreakerState::HalfOpen, *probe), "{told:?}");
        let closed =
            run.world.store.breaker_note(ACTION, vec![Run::Succeeded], Some(*probe), LATER);
        assert_eq!(closed.await.unwrap().breaker.state, BreakerState::Closed);
    })
    .await;
    assert!(tried.requests > 1, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_closes_a_breaker_lets_those_go_that_wait_or_is_undone() {
    let tried = each(open, async |run| {
        let admitted = run.world.store.breaker_admit(ACTION, LATER, PROBE).await.unwrap();
        let Admission::Probe(probe) = admitted else { panic!("{admitted:?}") };
        let note =
            async |_| run.mine.breaker_note(ACTION, vec![Run::Succeeded], Some(probe), LATER).await;
        let told = run.during(until_told(note), std::future::ready(())).await;
        let is_closed = row(&run.world.store).await.breaker.state == BreakerState::Closed;
        assert_eq!(is_closed, !waits(&run.world).await, "closed, and it waits: {told:?}");
        assert!(!is_undone(&told) || !is_closed, "undone, and closed: {told:?}");
        assert!(told.iter().all(Result::is_err) || is_closed, "told, and open: {told:?}");
    })
    .await;
    assert!(tried.requests > 1, "{tried:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_breaker_that_a_person_closes_is_closed_or_it_is_not_said() {
    let tried = each(open, async |run| {
        let close = async |_| run.mine.breaker_close(ACTION, LATER).await;
        let told = run.during(until_told(close), std::future::ready(())).await;
        let is_closed = row(&run.world.store).await.breaker.state == BreakerState::Closed;
        assert_eq!(is_closed, !waits(&run.world).await, "closed, and it waits: {told:?}");
        assert!(!is_undone(&told) || !is_closed, "undone, and closed: {told:?}");
        assert!(told.iter().all(Result::is_err) || is_closed, "told, and open: {told:?}");
        assert!(!told.contains(&Ok(false)), "there is one: {told:?}");
        // What is noted since counts on its own.
        let failed = async |_| run.mine.breaker_note("other", vec![Run::Failed], None, NOW).await;
        let noted = until_told(failed).await;
        assert!(noted.iter().all(|told| matches!(told, Ok(_) | Err(Fate::Uncertain))), "{noted:?}");
    })
    .await;
    assert!(tried.requests > 1, "{tried:?}");
}
