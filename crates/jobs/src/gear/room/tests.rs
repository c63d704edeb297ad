//! Places are given and taken step by step; nothing here waits for anything.

use futures_util::FutureExt;

use super::*;

/// Processes of a gear that wait for more.
#[derive(Default)]
struct Idle(Mutex<Vec<Lives>>, Mutex<Vec<Lives>>);

impl Idle {
    fn keep(&self, process: Lives) {
        self.0.lock().expect("no panic").push(process);
    }

    /// Those that were told to end are gone.
    fn bury(&self) -> usize {
        let ending = std::mem::take(&mut *self.1.lock().expect("no panic"));
        ending.len()
    }
}

impl Spare for Idle {
    fn end_one(&self) -> bool {
        let Some(mut process) = self.0.lock().expect("no panic").pop() else { return false };
        process.ends();
        self.1.lock().expect("no panic").push(process);
        true
    }
}

type Asking = std::pin::Pin<Box<dyn Future<Output = Place> + Send>>;

fn ask(room: &Room, lane: &Arc<Lane>, depth: u32) -> Asking {
    let (room, lane) = (room.clone(), Arc::clone(lane));
    Box::pin(async move { room.place(&lane, depth).await })
}

fn at_once(room: &Room, lane: &Arc<Lane>, depth: u32) -> Option<Place> {
    ask(room, lane, depth).now_or_never()
}

#[test]
fn as_many_as_there_is_room_for_and_the_next_when_one_has_ended() {
    let (room, one, other) = (Room::new(2), Arc::new(Lane::default()), Arc::new(Lane::default()));
    let first = at_once(&room, &one, 0).expect("room");
    let _second = at_once(&room, &other, 0).expect("room");
    let (mut third, mut fourth) = (ask(&room, &one, 0), ask(&room, &other, 0));
    assert!((&mut third).now_or_never().is_none() && (&mut fourth).now_or_never().is_none());
    drop(first);
    let third = third.now_or_never().expect("it came first");
    assert!((&mut fourth).now_or_never().is_none());
    // One that has gone away takes nothing with it.
    drop(fourth);
    drop(third);
    assert!(at_once(&room, &other, 0).is_some());
}

#[test]
fn a_process_that_takes_long_to_end_is_counted() {
    let (room, lane) = (Room::new(1), Arc::new(Lane::default()));
    let place = at_once(&room, &lane, 0).expect("room");
    let mut process = lane.lives();
    assert_eq!(room.lock().used, 1, "its call and itself are one");
    process.ends();
    drop(place);
    let mut next = ask(&room, &lane, 0);
    assert!((&mut next).now_or_never().is_none(), "it is still there");
    drop(process);
    assert!(next.now_or_never().is_some());
}

#[test]
fn idle_processes_serve_their_gear_and_make_room_for_others() {
    let idle: Arc<Idle> = Arc::default();
    let weak: Weak<Idle> = Arc::downgrade(&idle);
    let (warm, cold) = (Arc::new(Lane::with_spare(weak)), Arc::new(Lane::default()));
    let room = Room::new(2);
    let (one, two) = (at_once(&room, &warm, 0), at_once(&room, &warm, 0));
    assert!(one.is_some() && two.is_some());
    idle.keep(warm.lives());
    idle.keep(warm.lives());
    drop((one, two));
    assert_eq!(room.lock().used, 2, "they wait for more");
    drop(at_once(&room, &warm, 0).expect("one of them serves it"));
    assert_eq!(idle.bury(), 0);
    let mut other = ask(&room, &cold, 0);
    assert!((&mut other).now_or_never().is_none());
    assert_eq!(room.lock().lanes[&warm.number].ending, 1, "as many as are waited for");
    // What ends serves nobody.
    let own = at_once(&room, &warm, 0).expect("the other one");
    assert!(at_once(&room, &warm, 0).is_none());
    assert_eq!(idle.bury(), 1);
    let other = other.now_or_never().expect("there is room");
    drop((own, other));
    drop(idle);
    let state = room.lock();
    assert_eq!((state.used, state.lanes.len(), state.waiting.len()), (0, 0, 0));
}

/// Everybody waits for one that is deeper: the deepest has a place.
#[test]
fn whoever_is_waited_for_has_a_place_beyond() {
    let (room, lane) = (Room::new(2), Arc::new(Lane::default()));
    let parents: Vec<Place> = (0..2).filter_map(|_| at_once(&room, &lane, 0)).collect();
    assert_eq!(parents.len(), 2);
    let child = at_once(&room, &lane, 1).expect("one of its depth");
    let mut sibling = ask(&room, &lane, 1);
    assert!((&mut sibling).now_or_never().is_none());
    assert!(at_once(&room, &lane, 0).is_none());
    let grandchild = at_once(&room, &lane, 2).expect("one of its depth");
    assert_eq!(room.lock().used, 4);
    drop(grandchild);
    drop(child);
    let sibling = sibling.now_or_never().expect("its turn");
    assert_eq!(sibling.beyond, Some(1));
    drop(parents);
    // Beyond the bound is beyond it for as long as it lasts.
    let two: Vec<Place> = (0..2).filter_map(|_| at_once(&room, &lane, 0)).collect();
    assert_eq!((two.len(), at_once(&room, &lane, 0).is_none()), (2, true));
}
