//! Breakers: one row for the whole cluster.

use std::time::Duration;

use futures_util::future::join_all;
use semel_core::clock::UnixMs;
use semel_jobs::breaker::{Admission, BreakerState, Run};
use semel_jobs::life::JobStatus;

use crate::support::{NOW, World, after, id, moved, new_job};

const PROBE: Duration = Duration::from_secs(60);
const LATER: UnixMs = UnixMs(NOW.0 + 30_000);

async fn open(world: &World) {
    let row = world.store.breaker_note("web.get", vec![Run::Failed; 5], None, NOW).await.unwrap();
    assert!(row.changed && row.breaker.state == BreakerState::Open);
}

pub(crate) async fn one_probe_of_many(world: &World) {
    let admit = |now| world.store.breaker_admit("web.get", now, PROBE);
    assert_eq!(admit(NOW).await.unwrap(), Admission::Through);
    open(world).await;
    assert_eq!(admit(NOW).await.unwrap(), Admission::Held(LATER));
    let many = join_all((0..16).map(|_| admit(LATER))).await;
    let many: Vec<Admission> = many.into_iter().map(Result::unwrap).collect();
    let probes = many.iter().filter(|said| **said == Admission::Probe(1)).count();
    let held = many.iter().filter(|said| matches!(said, Admission::Held(_))).count();
    assert_eq!((probes, held), (1, 15), "{many:?}");
    let note = |run, probe| world.store.breaker_note("web.get", vec![run], probe, LATER);
    for (run, probe) in [(Run::Succeeded, None), (Run::Failed, None), (Run::Succeeded, Some(7))] {
        let row = note(run, probe).await.unwrap();
        let state = row.breaker.state;
        assert!(!row.changed && state == BreakerState::HalfOpen, "{run:?} of {probe:?}: {state}");
    }
    let row = note(Run::Succeeded, Some(1)).await.unwrap();
    assert!(row.changed && row.breaker.state == BreakerState::Closed);
    assert_eq!(admit(LATER).await.unwrap(), Admission::Through);
    // Notes of many at once are all counted.
    let notes = (0..10).map(|_| world.store.breaker_note("b", vec![Run::Succeeded], None, NOW));
    join_all(notes).await.into_iter().for_each(|note| drop(note.unwrap()));
    let rows = world.store.breakers().await.unwrap();
    let windows: Vec<_> = rows.iter().map(|row| (&*row.action, row.breaker.window.len())).collect();
    assert_eq!(windows, [("b", 10), ("web.get", 0)]);
    // What nobody has asked or told anything for long is forgotten.
    assert_eq!(world.store.breakers_forget(LATER).await.unwrap(), 1);
    let rows = world.store.breakers().await.unwrap();
    assert_eq!(rows.iter().map(|row| &*row.action).collect::<Vec<_>>(), ["web.get"]);
}

pub(crate) async fn a_closed_breaker_lets_those_go_that_wait(world: &World) {
    open(world).await;
    assert!(!world.store.breaker_close("other", NOW).await.unwrap());
    for number in [1, 2] {
        world.made(new_job(number)).await;
        let claimed = after(&world.claim("w", 1, NOW).await[0]);
        let mut hold = moved(&claimed, JobStatus::Pending, NOW);
        hold.state.worker = None;
        hold.state.due_at = Some(UnixMs(LATER.0 + 1));
        hold.state.held_by = Some("web.get".to_owned());
        world.store.advance(hold).await.unwrap();
    }
    assert!(world.claim("w", 9, LATER).await.is_empty());
    assert!(world.store.breaker_close("web.get", NOW).await.unwrap());
    let claimed = world.claim("w", 9, LATER).await;
    assert_eq!(claimed.len(), 2);
    let executing = |id| async move { world.kept(id).await.job.state.status };
    assert_eq!(executing(id(1)).await, JobStatus::Executing);
}
