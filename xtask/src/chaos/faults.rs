//! What goes wrong, and when: a deck of faults that is shuffled again whenever it is used up, so
//! that every kind comes at its rate and in any order.

use anyhow::Result;
use semel_core::clock::{Clock, SystemClock, UnixMs};
use serde_json::{Value, json};

use super::process::Process;
use super::proxy::Fault;
use super::world::World;
use crate::random::Random;
use crate::servers::pause;

/// Between two faults, in milliseconds.
const CALM_MS: (u64, u64) = (20, 350);
/// How long a killed process stays away, at the most.
const AWAY_MS_MAX: u64 = 400;
const STOPPED_MS: (u64, u64) = (100, 1500);
const STORE_AWAY_MS: (u64, u64) = (100, 1500);
const DELAY_MS: (u64, u64) = (5, 120);
const DELAYED_MS: (u64, u64) = (200, 1500);
/// One deck in so many stops PostgreSQL too.
const STORE_STOPS_EVERY: u64 = 3;

#[derive(Debug, Clone, Copy)]
enum Kind {
    KillBroker,
    KillDaemon,
    StopBroker,
    StopDaemon,
    CutOne,
    CutAll,
    Tear,
    HalfClose,
    Delay,
    StopStore,
}

const DECK: [Kind; 14] = [
    Kind::KillBroker,
    Kind::KillBroker,
    Kind::KillDaemon,
    Kind::KillDaemon,
    Kind::KillDaemon,
    Kind::StopBroker,
    Kind::StopDaemon,
    Kind::CutOne,
    Kind::CutOne,
    Kind::CutOne,
    Kind::CutAll,
    Kind::Tear,
    Kind::HalfClose,
    Kind::Delay,
];

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    broker_kills: u64,
    daemon_kills: u64,
    stops: u64,
    cuts: u64,
    half_closes: u64,
    delays: u64,
    store_stops: u64,
    pub(crate) ended_by_themselves: Vec<String>,
    /// From when to when the store was away.
    pub(crate) outages: Vec<(UnixMs, UnixMs)>,
}

impl Counts {
    pub(crate) fn kills(&self) -> u64 {
        self.broker_kills + self.daemon_kills
    }

    /// Connections that ended, half closed ones apart.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "kills": self.kills(), "broker_kills": self.broker_kills,
            "daemon_kills": self.daemon_kills, "stops": self.stops, "cuts": self.cuts,
            "half_closes": self.half_closes, "delays": self.delays,
            "store_stops": self.store_stops, "ended_by_themselves": self.ended_by_themselves,
        })
    }
}

/// The deck, and what came of it.
pub(crate) struct Faults {
    deck: Vec<Kind>,
    decks: u64,
    random: Random,
    pub(crate) counts: Counts,
}

impl Faults {
    pub(crate) fn new(random: Random) -> Self {
        Self { deck: Vec::new(), decks: 0, random, counts: Counts::default() }
    }

    /// Lets one thing go wrong and, if it is a process or a store, brings it back.
    pub(crate) fn next(&mut self, world: &mut World) -> Result<()> {
        pause(self.random.millis(CALM_MS.0, CALM_MS.1));
        self.revive(world)?;
        let kind = self.draw(world.postgres.is_some());
        match kind {
            Kind::KillBroker => {
                self.kill(&mut world.brokers)?;
                self.counts.broker_kills += 1;
            }
            Kind::KillDaemon => {
                self.kill(&mut world.daemons)?;
                self.counts.daemon_kills += 1;
            }
            Kind::StopBroker => self.stop(&world.brokers)?,
            Kind::StopDaemon => self.stop(&world.daemons)?,
            Kind::CutOne => {
                let cut = world.proxy.fail_one(Fault::Cut, &mut self.random);
                self.counts.cuts += u64::from(cut);
            }
            Kind::CutAll => self.counts.cuts += world.proxy.fail_all(Fault::Cut),
            Kind::Tear => {
                let torn = world.proxy.fail_one(Fault::Tear, &mut self.random);
                self.counts.cuts += u64::from(torn);
            }
            Kind::HalfClose => {
                let way = *self.random.pick(&[Fault::CloseUp, Fault::CloseDown]);
                let closed = world.proxy.fail_one(way, &mut self.random);
                self.counts.half_closes += u64::from(closed);
            }
            Kind::Delay => {
                world.proxy.delay(self.random.millis(DELAY_MS.0, DELAY_MS.1));
                pause(self.random.millis(DELAYED_MS.0, DELAYED_MS.1));
                world.proxy.delay(std::time::Duration::ZERO);
                self.counts.delays += 1;
            }
            Kind::StopStore => self.stop_store(world)?,
        }
        Ok(())
    }

    /// Whatever has ended without being killed is told and started again.
    pub(crate) fn revive(&mut self, world: &mut World) -> Result<()> {
        for process in world.brokers.iter_mut().chain(&mut world.daemons) {
            if let Some(status) = process.ended()? {
                self.counts.ended_by_themselves.push(format!("{}: {status}", process.name));
                process.start_again()?;
            }
        }
        Ok(())
    }

    fn draw(&mut self, has_server: bool) -> Kind {
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            if has_server && self.decks.is_multiple_of(STORE_STOPS_EVERY) {
                self.deck.push(Kind::StopStore);
            }
            self.random.shuffle(&mut self.deck);
            self.decks += 1;
        }
        self.deck.pop().unwrap_or(Kind::CutOne)
    }

    fn kill(&mut self, processes: &mut [Process]) -> Result<()> {
        let victim = self.random.below(processes.len());
        processes[victim].kill()?;
        pause(self.random.millis(0, AWAY_MS_MAX));
        processes[victim].start_again()
    }

    fn stop(&mut self, processes: &[Process]) -> Result<()> {
        let victim = self.random.pick(processes);
        victim.pause()?;
        pause(self.random.millis(STOPPED_MS.0, STOPPED_MS.1));
        self.counts.stops += 1;
        victim.resume()
    }

    fn stop_store(&mut self, world: &mut World) -> Result<()> {
        let Some(postgres) = &mut world.postgres else { return Ok(()) };
        let clock = SystemClock::new();
        let began = clock.wall();
        if self.random.below(2) == 0 {
            postgres.stop();
        } else {
            postgres.crash()?;
        }
        pause(self.random.millis(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
        self.counts.store_stops += 1;
        postgres.start_again()?;
        self.counts.outages.push((began, clock.wall()));
        Ok(())
    }
}
