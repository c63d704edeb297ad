//! What goes wrong, and when: a deck of faults that is shuffled again whenever it is used up, so
//! that every kind comes at its rate and in any order.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::now;
use super::outages::Outages;
use super::process::{Process, Stderr};
use super::proxy::Fault;
use super::storm::Blow;
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
/// Every deck stops PostgreSQL so often, and one in so many again and again: 20 times a minute.
const STORE_STOPS: usize = 1;
const STORE_STOPS_MANY: usize = 5;
const STORE_STOPS_MANY_EVERY: u64 = 3;
/// One deck in so many stops Redis, or fills the disk.
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
const EVERYBODYS_STEPS: [i64; 3] = [-HOUR, YEAR - 24 * HOUR, -YEAR];
/// A question to a person stays open for a year at the most, and none may be given up here.
pub(crate) const ENGINE_STEPS: [i64; 5] = [20, -20, HOUR, -HOUR, YEAR - 24 * HOUR];
/// One start in so many is with a log that cannot be written: a pipe without a reader, a full disk.
const UNHEARD_ONE_IN: usize = 4;
const CLOCK_WRONG_MS: (u64, u64) = (300, 5000);

#[derive(Debug, Clone, Copy)]
enum Kind {
    Kill(Group),
    Stop(Group),
    CutOne,
    CutAll,
    Tear,
    HalfClose,
    Delay,
    StopStore,
    Storm(Blow),
    CutStore,
    StopLimiter,
    FillDisk,
    LongStop,
    StepClock,
    Reload,
}

/// Processes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    Brokers,
    Daemons,
    Engines,
}

impl Group {
    fn of(self, world: &World) -> &[Process] {
        match self {
            Self::Brokers => &world.brokers,
            Self::Daemons => &world.daemons,
            Self::Engines => &world.engines.processes,
        }
    }

    /// Which of the ways to the store is that of this process; daemons have none.
    fn way(self, world: &World, index: usize) -> Option<usize> {
        match self {
            Self::Brokers => Some(index),
            Self::Engines => Some(world.ways.len() + index),
            Self::Daemons => None,
        }
    }

    fn of_mut(self, world: &mut World) -> &mut [Process] {
        match self {
            Self::Brokers => &mut world.brokers,
            Self::Daemons => &mut world.daemons,
            Self::Engines => &mut world.engines.processes,
        }
    }
}

/// Whose clock is wrong.
#[derive(Debug, Clone, Copy)]
enum Whose {
    Daemon(usize),
    Engine(usize),
    /// All of them: the clocks of brokers must agree (broker.md).
    Brokers,
    Everybody,
}

/// A process that is stopped for long, and until when.
struct Frozen {
    group: Group,
    index: usize,
    since: Instant,
    until: Instant,
}

const DECK: [Kind; 17] = [
    Kind::Kill(Group::Brokers),
    Kind::Kill(Group::Brokers),
    Kind::Kill(Group::Daemons),
    Kind::Kill(Group::Daemons),
    Kind::Kill(Group::Daemons),
    Kind::Kill(Group::Engines),
    Kind::Stop(Group::Brokers),
    Kind::Stop(Group::Daemons),
    Kind::Stop(Group::Engines),
    Kind::CutOne,
    Kind::CutOne,
    Kind::CutOne,
    Kind::CutAll,
    Kind::Tear,
    Kind::HalfClose,
    Kind::Delay,
    Kind::Reload,
];

/// What a deck has besides where the store is a server.
const STORE_DECK: [Kind; 4] =
    [Kind::Storm(Blow::Terminate), Kind::Storm(Blow::Cancel), Kind::CutStore, Kind::CutStore];

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    broker_kills: u64,
    daemon_kills: u64,
    engine_kills: u64,
    unheard_starts: u64,
    stops: u64,
    cuts: u64,
    half_closes: u64,
    delays: u64,
    store_stops: u64,
    limiter_stops: u64,
    full_disks: u64,
    long_stops: u64,
    clock_steps: u64,
    reloads: u64,
    pub(crate) ended_by_themselves: Vec<String>,
}

impl Counts {
    pub(crate) fn kills(&self) -> u64 {
        self.broker_kills + self.daemon_kills + self.engine_kills
    }

    /// Connections that ended, half closed ones apart.
    pub(crate) fn cuts(&self) -> u64 {
        self.cuts
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "kills": self.kills(), "broker_kills": self.broker_kills,
            "daemon_kills": self.daemon_kills, "engine_kills": self.engine_kills,
            "unheard_starts": self.unheard_starts, "stops": self.stops, "cuts": self.cuts,
            "half_closes": self.half_closes, "delays": self.delays,
            "store_stops": self.store_stops, "limiter_stops": self.limiter_stops,
            "full_disks": self.full_disks, "long_stops": self.long_stops,
            "clock_steps": self.clock_steps, "reloads": self.reloads,
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
    /// Whether it is long enough to cut something off from the store for longer than a lease.
    has_long_cuts: bool,
    frozen: Option<Frozen>,
    /// Whose clock is wrong, and until when.
    wrong: Option<(Whose, Instant)>,
    pub(crate) outages: Outages,
    pub(crate) counts: Counts,
    /// How long things went wrong.
    pub(crate) seconds: u64,
    /// When a process stood still for longer than a lease.
    pub(crate) stood_still: Vec<(Instant, Instant)>,
}

impl Faults {
    pub(crate) fn new(random: Random, is_long: bool, has_long_cuts: bool) -> Self {
        let (deck, counts, outages) = (Vec::new(), Counts::default(), Outages::default());
        let (decks, frozen, wrong) = (0, None, None);
        let (seconds, stood_still) = (0, Vec::new());
        Self {
            deck,
            decks,
            random,
            is_long,
            has_long_cuts,
            frozen,
            wrong,
            outages,
            counts,
            seconds,
            stood_still,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let mut report = self.counts.json();
        let outages = &self.outages;
        report["terminated"] = json!(outages.terminated);
        report["cancelled"] = json!(outages.cancelled);
        report["store_cuts"] = json!(outages.cuts);
        report["long_store_cuts"] = json!(outages.long_cuts);
        report
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
        self.outages.look(world);
        match self.draw(world) {
            Kind::Kill(group) => self.kill(world, group)?,
            Kind::Stop(group) => self.stop(world, group)?,
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
            Kind::Storm(blow) => self.outages.storm(world, blow, &mut self.random),
            Kind::CutStore => self.outages.cut(world, self.has_long_cuts, &mut self.random),
            Kind::StopLimiter => self.stop_limiter(world)?,
            Kind::FillDisk => self.fill_disk(world)?,
            Kind::LongStop => self.freeze(world)?,
            Kind::StepClock => self.step_clock(world)?,
            Kind::Reload => self.reload(world)?,
        }
        Ok(())
    }

    /// Whatever has ended without being killed is told and started again.
    pub(crate) fn revive(&mut self, world: &mut World) -> Result<()> {
        let mut ended = Vec::new();
        for process in everybody(world) {
            if let Some(status) = process.ended()? {
                ended.push(format!("{}: {status}", process.name));
            }
        }
        if !ended.is_empty() {
            self.outages.end(world);
        }
        for process in everybody(world) {
            if process.ended()?.is_some() {
                ended.extend(process.start_again()?);
            }
        }
        self.counts.ended_by_themselves.extend(ended);
        Ok(())
    }

    fn draw(&mut self, world: &World) -> Kind {
        if self.deck.is_empty() {
            self.deck = DECK.to_vec();
            let sometimes = [
                (Kind::StopLimiter, world.redis.is_some(), LIMITER_STOPS_EVERY),
                (Kind::FillDisk, world.disk.is_some(), DISK_FULL_EVERY),
                (Kind::LongStop, self.is_long, LONG_STOPS_EVERY),
                (Kind::StepClock, world.steps_clocks(), 1),
            ];
            let now = sometimes.into_iter().filter(|(_, can, _)| *can);
            let now = now.filter(|(_, _, every)| self.decks.is_multiple_of(*every));
            self.deck.extend(now.map(|(kind, _, _)| kind));
            if world.postgres.is_some() {
                let many = self.decks.is_multiple_of(STORE_STOPS_MANY_EVERY);
                let stops = if many { STORE_STOPS_MANY } else { STORE_STOPS };
                self.deck.extend(STORE_DECK);
                self.deck.extend(std::iter::repeat_n(Kind::StopStore, stops));
            }
            self.random.shuffle(&mut self.deck);
            self.decks += 1;
        }
        self.deck.pop().unwrap_or(Kind::CutOne)
    }

    /// Any of them, but what is stopped stays stopped, and an only one is not spared.
    fn victim(&mut self, world: &World, group: Group) -> usize {
        let processes = group.of(world);
        let chosen = self.random.below(processes.len());
        let frozen = self.frozen.as_ref();
        let is_frozen =
            frozen.is_some_and(|frozen| frozen.group == group && frozen.index == chosen);
        let spared = usize::from(is_frozen);
        (chosen + spared) % processes.len()
    }

    /// Its log may be one that cannot be written when it is started again.
    fn kill(&mut self, world: &mut World, group: Group) -> Result<()> {
        let index = self.victim(world, group);
        self.outages.spare(world, group.way(world, index));
        let victim = &mut group.of_mut(world)[index];
        victim.kill()?;
        pause(self.random.millis(0, AWAY_MS_MAX));
        victim.stderr = match self.random.below(UNHEARD_ONE_IN) {
            0 => *self.random.pick(&[Stderr::Closed, Stderr::Full]),
            _ => Stderr::Log,
        };
        self.counts.unheard_starts += u64::from(victim.stderr != Stderr::Log);
        match group {
            Group::Brokers => self.counts.broker_kills += 1,
            Group::Daemons => self.counts.daemon_kills += 1,
            Group::Engines => self.counts.engine_kills += 1,
        }
        let ended = victim.start_again()?;
        self.counts.ended_by_themselves.extend(ended);
        Ok(())
    }

    fn stop(&mut self, world: &World, group: Group) -> Result<()> {
        let index = self.victim(world, group);
        let victim = &group.of(world)[index];
        victim.pause()?;
        pause(self.random.millis(STOPPED_MS.0, STOPPED_MS.1));
        self.counts.stops += 1;
        victim.resume()
    }

    fn stop_store(&mut self, world: &mut World) -> Result<()> {
        let Some(postgres) = &mut world.postgres else { return Ok(()) };
        let since = now();
        if self.random.below(2) == 0 {
            postgres.stop();
        } else {
            postgres.crash()?;
        }
        pause(self.random.millis(STORE_AWAY_MS.0, STORE_AWAY_MS.1));
        self.counts.store_stops += 1;
        postgres.start_again()?;
        self.outages.past.push((since, now()));
        Ok(())
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
        let alone = world.brokers.len() == 1;
        let groups = [Group::Daemons, Group::Engines, Group::Brokers];
        let group = *self.random.pick(if alone { &groups[..1] } else { &groups });
        let processes = group.of(world);
        let index = self.random.below(processes.len());
        processes[index].pause()?;
        self.frozen = Some(Frozen { group, index, since: now(), until: now() + LONG_STOP });
        self.counts.long_stops += 1;
        Ok(())
    }

    /// What is stopped for long goes on.
    pub(crate) fn thaw(&mut self, world: &World) -> Result<()> {
        let Some(frozen) = self.frozen.take() else { return Ok(()) };
        frozen.group.of(world)[frozen.index].resume()?;
        self.stood_still.push((frozen.since, now()));
        Ok(())
    }

    /// Brokers have another certificate, and everybody is told to read again what can be.
    fn reload(&mut self, world: &mut World) -> Result<()> {
        world.renew_certificate()?;
        for process in everybody(world) {
            process.hang_up()?;
        }
        self.counts.reloads += 1;
        Ok(())
    }

    /// It stays wrong while other things fail, and also for those that are started meanwhile.
    fn step_clock(&mut self, world: &World) -> Result<()> {
        self.set_right(world)?;
        let (whose, steps) = match self.random.below(6) {
            0 => (Whose::Brokers, &BROKER_STEPS[..]),
            1 => (Whose::Everybody, &EVERYBODYS_STEPS[..]),
            2 | 3 => {
                let engine = self.random.below(world.engines.processes.len());
                (Whose::Engine(engine), &ENGINE_STEPS[..])
            }
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

fn everybody(world: &mut World) -> impl Iterator<Item = &mut Process> {
    let engines = &mut world.engines.processes;
    world.brokers.iter_mut().chain(&mut world.daemons).chain(engines)
}

fn set_clocks(world: &World, whose: Whose, off_by_seconds: i64) -> Result<()> {
    let engines = &world.engines.processes;
    let processes: Vec<&Process> = match whose {
        Whose::Daemon(index) => world.daemons[index..=index].iter().collect(),
        Whose::Engine(index) => engines[index..=index].iter().collect(),
        Whose::Brokers => world.brokers.iter().collect(),
        Whose::Everybody => world.brokers.iter().chain(&world.daemons).chain(engines).collect(),
    };
    let mut clocks = processes.into_iter().filter_map(|process| process.clock.as_ref());
    clocks.try_for_each(|clock| clock.set(off_by_seconds))
}
