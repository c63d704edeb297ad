//! What goes wrong between processes and their PostgreSQL, while everything else goes on: sessions
//! are ended and statements cancelled for a while, and one process does not reach it at all.

use std::time::{Duration, Instant};

use super::now;
use super::proxy::Proxy;
use super::storm::{Blow, Storm};
use super::world::World;
use crate::random::Random;

const STORM_MS: (u64, u64) = (500, 4000);
/// Shorter than anybody's patience, and longer than everybody's and than a lease.
const SHORT_CUT: Duration = Duration::from_secs(2);
const LONG_CUT: Duration = Duration::from_secs(25);
/// One cut in so many is a long one.
const LONG_CUT_ONE_IN: usize = 4;

/// From when on something lasts, and until when it is meant to.
#[derive(Clone, Copy)]
struct Length {
    since: Instant,
    until: Instant,
}

impl Length {
    fn from_now(length: Duration) -> Self {
        let since = now();
        Self { since, until: since + length }
    }

    fn is_over(self) -> bool {
        self.until <= now()
    }
}

/// What is under way, and what has been.
#[derive(Default)]
pub(crate) struct Outages {
    storm: Option<(Blow, Storm, Length)>,
    /// Whose way is closed.
    closed: Option<(usize, Length)>,
    /// When somebody could not use the store as usual.
    pub(crate) past: Vec<(Instant, Instant)>,
    pub(crate) terminated: u64,
    pub(crate) cancelled: u64,
    pub(crate) cuts: u64,
    pub(crate) long_cuts: u64,
}

impl Outages {
    /// What has lasted long enough is over.
    pub(crate) fn look(&mut self, world: &World) {
        if self.storm.as_ref().is_some_and(|(_, _, length)| length.is_over()) {
            self.calm();
        }
        if self.closed.is_some_and(|(_, length)| length.is_over()) {
            self.open(world);
        }
    }

    /// Whoever is started must reach its store: a way that was closed for longer than it would
    /// wait is opened, and a storm ends, which nobody else would end meanwhile.
    pub(crate) fn spare(&mut self, world: &World, way: Option<usize>) {
        self.calm();
        if self.closed.is_some_and(|(closed, _)| Some(closed) == way) {
            self.open(world);
        }
    }

    /// Everything is over.
    pub(crate) fn end(&mut self, world: &World) {
        self.calm();
        self.open(world);
    }

    /// One at a time: the next one ends the last.
    pub(crate) fn storm(&mut self, world: &World, blow: Blow, random: &mut Random) {
        self.calm();
        let Some(postgres) = &world.postgres else { return };
        let length = Length::from_now(random.millis(STORM_MS.0, STORM_MS.1));
        self.storm =
            Some((blow, Storm::start(world.runtime(), &postgres.socket_url(), blow), length));
    }

    /// Somebody does not reach the store any more.
    pub(crate) fn cut(&mut self, world: &World, has_long: bool, random: &mut Random) {
        // A long one lasts, or it would be none.
        if self.closed.is_some() {
            return;
        }
        let ways: Vec<&Proxy> = ways(world).collect();
        if ways.is_empty() {
            return;
        }
        let chosen = random.below(ways.len());
        let is_long = random.below(LONG_CUT_ONE_IN) == 0 && has_long;
        ways[chosen].close(true);
        let length = Length::from_now(if is_long { LONG_CUT } else { SHORT_CUT });
        self.closed = Some((chosen, length));
        self.cuts += 1;
        self.long_cuts += u64::from(is_long);
    }

    fn calm(&mut self) {
        let Some((blow, storm, length)) = self.storm.take() else { return };
        self.past.push((length.since, now()));
        self.add(blow, &storm);
    }

    /// A storm has hit so many.
    pub(crate) fn add(&mut self, blow: Blow, storm: &Storm) {
        match blow {
            Blow::Terminate => self.terminated += storm.hit(),
            Blow::Cancel => self.cancelled += storm.hit(),
        }
    }

    /// What a server's users were spared.
    pub(crate) fn never(&self) -> Vec<&'static str> {
        let all =
            [("terminated", self.terminated), ("cancelled", self.cancelled), ("cuts", self.cuts)];
        all.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }

    fn open(&mut self, world: &World) {
        let Some((chosen, length)) = self.closed.take() else { return };
        self.past.push((length.since, now()));
        if let Some(way) = ways(world).nth(chosen) {
            way.close(false);
        }
    }
}

fn ways(world: &World) -> impl Iterator<Item = &Proxy> {
    world.ways.iter().chain(&world.engines.ways)
}
