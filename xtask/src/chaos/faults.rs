//! What goes wrong, and when: a deck of faults that is shuffled again whenever it is used up, so
//! that every kind comes at its rate and in any order.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::now;
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
const STORE_STOPS_EVERY: u64 = 2;
/// And so many Redis, or fill the disk.
const LIMITER_STOPS_EVERY: u64 = 3;
const DISK_FULL_EVERY: u64 = 2;
/// In a long run, one deck in so many stops a process for longer than anybody waits for a sign of
/// life (`SILENCE_MAX`), while everything else goes on.
const LONG_STOPS_EVERY: u64 = 12;
const LONG_STOP: Duration = Duration::from_secs(65);
/// How far a clock is off after a step, in seconds, and for how long; other faults go on. What a
/// broker leases while its clock is an hour ahead is leased for an hour: such a lease can be meant.
const HOUR: i64 = 60 * 60;
const YEAR: i64 = 365 * 24 * HOUR;
const DAEMON_STEPS: [i64; 4] = [HOUR, -HOUR, YEAR, -YEAR];
const BROKER_STEPS: [i64; 3] = [-HOUR, YEAR, -YEAR];
const CLOCK_WRONG_MS: (u64, u64) = (300, 5000);

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
    StopLimiter,
    FillDisk,
    LongStop,
    StepClock,
}

/// Whose clock is wrong.
#[derive(Debug, Clone, Copy)]
enum Whose {
    Daemon(usize),
    /// All of them: the clocks of brokers must agree (broker.md).
    Brokers,
    Everybody,
}

/// A process that is stopped for long, and until when.
struct Frozen {
    is_broker: bool,
    index: usize,
    until: Instant,
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
    limiter_stops: u64,
    full_disks: u64,
    long_stops: u64,
    clock_steps: u64,
    pub(crate) ended_by_themselves: Vec<String>,
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
            "store_stops": self.store_stops, "limiter_stops": self.limiter_stops,
            "full_disks": self.full_disks, "long_stops": self.long_stops,
            "clock_steps": self.clock_steps,
            "ended_by_themselves": self.ended_by_themselves,
        })
    }
}

/// The deck, and what came of it.
pub(crate) struct Faults {
    deck: Vec<Kind>,
    decks: u64,
    random: Random,
    /// Whether a run is long enough to stop something for long.
    is_long: bool,
    frozen: Option<Frozen>,
    /// Whose clock is wrong, and until when.
    wrong: Option<(Whose, Instant)>,
    pub(crate) counts: Counts,
}

impl Faults {
    pub(crate) fn new(random: Random, is_long: bool) -> Self {
        let (deck, counts) = (Vec::new(), Counts::default());
        Self { deck, decks: 0, random, is_long, frozen: None, wrong: None, counts }
    }

    /// Lets one thing go wrong and, if it is a process or a store, brings it back.
    pub(crate) fn next(&mut self, world: &mut World) -> Result<()> {
        pause(self.random.millis(CALM_MS.0, CALM_MS.1));
        self.revive(world)?;
        if self.frozen.as_ref().is_some_and(|frozen| frozen.until <= now()) {
            self.thaw(world)?;
        }
        if self.wrong.is_some_and(|(_, until)| until <= now()) {
            self.set_right(world)?;
        }
        match self.draw(world) {
            Kind::KillBroker => {
                self.kill(&mut world.brokers, true)?;
                self.counts.broker_kills += 1;
            }
            Kind::KillDaemon => {
                self.kill(&mut world.daemons, false)?;
                self.counts.daemon_kills += 1;
            }
            Kind::StopBroker => self.stop(&mut world.brokers, true)?,
            Kind::StopDaemon => self.stop(&mut world.daemons, false)?,
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
                world.proxy.delay(Duration::ZERO);
                self.counts.delays += 1;
            }
            Kind::StopStore => self.stop_store(world)?,
            Kind::StopLimiter => self.stop_limiter(world)?,
            Kind::FillDisk => self.fill_disk(world)?,
            Kind::LongStop => self.freeze(world)?,
            Kind::StepClock => self.step_clock(world)?,
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

    fn draw(&mut self, world: &World) -> Kind {
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            let sometimes = [
                (Kind::StopStore, world.postgres.is_some(), STORE_STOPS_EVERY),
                (Kind::StopLimiter, world.redis.is_some(), LIMITER_STOPS_EVERY),
                (Kind::FillDisk, world.disk.is_some(), DISK_FULL_EVERY),
                (Kind::LongStop, self.is_long, LONG_STOPS_EVERY),
                (Kind::StepClock, world.steps_clocks(), 1),
            ];
            let now = sometimes.into_iter().filter(|(_, can, _)| *can);
            let now = now.filter(|(_, _, every)| self.decks.is_multiple_of(*every));
            self.deck.extend(now.map(|(kind, _, _)| kind));
            self.random.shuffle(&mut self.deck);
            self.decks += 1;
        }
        self.deck.pop().unwrap_or(Kind::CutOne)
    }

    /// Any of them, but what is stopped stays stopped, and an only one is not spared.
    fn victim<'a>(&mut self, processes: &'a mut [Process], is_broker: bool) -> &'a mut Process {
        let chosen = self.random.below(processes.len());
        let frozen = self.frozen.as_ref();
        let is_frozen =
            frozen.is_some_and(|frozen| frozen.is_broker == is_broker && frozen.index == chosen);
        let spared = usize::from(is_frozen);
        let count = processes.len();
        &mut processes[(chosen + spared) % count]
    }

    fn kill(&mut self, processes: &mut [Process], is_broker: bool) -> Result<()> {
        let victim = self.victim(processes, is_broker);
        victim.kill()?;
        pause(self.random.millis(0, AWAY_MS_MAX));
        victim.start_again()
    }

    fn stop(&mut self, processes: &mut [Process], is_broker: bool) -> Result<()> {
        let victim = self.victim(processes, is_broker);
        victim.pause()?;
        pause(self.random.millis(STOPPED_MS.0, STOPPED_MS.1));
        self.counts.stops += 1;
        victim.resume()
    }

    fn stop_store(&mut self, world: &mut World) -> Result<()> {
        let Some(postgres) = &mut world.postgres else { return Ok(()) };
        if self.random.below(2) == 0 {
            postgres.stop();
        } else {
            postgres.crash()?;
        }
        pause(self.random.millis(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
        self.counts.store_stops += 1;
        postgres.start_again()
    }

    fn stop_limiter(&mut self, world: &mut World) -> Result<()> {
        let Some(redis) = &mut world.redis else { return Ok(()) };
        redis.stop();
        pause(self.random.millis(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
        self.counts.limiter_stops += 1;
        redis.start_again()
    }

    fn fill_disk(&mut self, world: &World) -> Result<()> {
        let Some(disk) = &world.disk else { return Ok(()) };
        disk.fill()?;
        pause(self.random.millis(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
        self.counts.full_disks += 1;
        disk.empty()
    }

    /// An only broker is left alone: nothing would happen meanwhile.
    fn freeze(&mut self, world: &World) -> Result<()> {
        if self.frozen.is_some() {
            return Ok(());
        }
        let is_broker = world.brokers.len() > 1 && self.random.below(2) == 0;
        let processes = if is_broker { &world.brokers } else { &world.daemons };
        let index = self.random.below(processes.len());
        processes[index].pause()?;
        self.frozen = Some(Frozen { is_broker, index, until: now() + LONG_STOP });
        self.counts.long_stops += 1;
        Ok(())
    }

    /// What is stopped for long goes on.
    pub(crate) fn thaw(&mut self, world: &World) -> Result<()> {
        let Some(frozen) = self.frozen.take() else { return Ok(()) };
        let processes = if frozen.is_broker { &world.brokers } else { &world.daemons };
        processes[frozen.index].resume()
    }

    /// It stays wrong while other things fail, and also for those that are started meanwhile.
    fn step_clock(&mut self, world: &World) -> Result<()> {
        self.set_right(world)?;
        let (whose, steps) = match self.random.below(4) {
            0 => (Whose::Brokers, &BROKER_STEPS[..]),
            1 => (Whose::Everybody, &BROKER_STEPS[..]),
            _ => (Whose::Daemon(self.random.below(world.daemons.len())), &DAEMON_STEPS[..]),
        };
        set_clocks(world, whose, *self.random.pick(steps))?;
        let length = self.random.millis(CLOCK_WRONG_MS.0, CLOCK_WRONG_MS.1);
        self.wrong = Some((whose, now() + length));
        self.counts.clock_steps += 1;
        Ok(())
    }

    /// Every clock says what time it is.
    pub(crate) fn set_right(&mut self, world: &World) -> Result<()> {
        let Some((whose, _)) = self.wrong.take() else { return Ok(()) };
        set_clocks(world, whose, 0)
    }
}

fn set_clocks(world: &World, whose: Whose, off_by_seconds: i64) -> Result<()> {
    let (brokers, daemons) = match whose {
        Whose::Daemon(index) => (&[][..], &world.daemons[index..=index]),
        Whose::Brokers => (&world.brokers[..], &[][..]),
        Whose::Everybody => (&world.brokers[..], &world.daemons[..]),
    };
    let clocks = brokers.iter().chain(daemons).filter_map(|process| process.clock.as_ref());
    clocks.into_iter().try_for_each(|clock| clock.set(off_by_seconds))
}
