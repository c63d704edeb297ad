//! What the model knows, and what must be true of it.

use semel_jobs::gear::manifest::Recovery;
use semel_jobs::life::JobStatus;
use semel_jobs::limits::DEATHS_MAX;

/// Workers, each of an engine of its own.
pub(crate) const WORKERS: usize = 3;
/// Steps of the job.
pub(crate) const STEPS: usize = 3;
/// What follows an attempt at each of them whose end nobody saw.
pub(crate) const RECOVERY: [Recovery; STEPS] =
    [Recovery::Idempotent, Recovery::Resolve, Recovery::Ask];

/// What the log says of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) enum Log {
    #[default]
    Nothing,
    Started,
    Completed,
    /// The gear said so.
    Failed,
    /// Nobody knows what became of it.
    Uncertain,
}

/// When a job may be claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Due {
    /// It waits to be claimed for the first time.
    Ready,
    /// When its lease or its pause is over.
    Later,
    /// It is.
    Now,
    Never,
}

/// The row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Row {
    /// Somebody has submitted it.
    pub(crate) made: bool,
    pub(crate) status: JobStatus,
    /// Somebody works on it.
    pub(crate) worker: bool,
    pub(crate) due: Due,
    pub(crate) deaths: u8,
    /// What the log says, and attempts as long as they matter.
    pub(crate) log: [(Log, u8); STEPS],
}

/// Where a worker stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) enum Phase {
    #[default]
    Idle,
    /// Its gear is at work, and nothing has happened yet.
    Runs,
    /// Its gear is at work, and the effect has happened.
    Acted,
    /// Its gear is asked what became of an earlier attempt.
    Asks,
    /// Its gear has ended. The write of that was undone, and it has heard nothing of it.
    HasDone,
    HasFailed,
    HasLost,
    /// Its gear was stopped. Its claim was to be given back: undone, and nothing heard of it.
    Leaves,
    /// It has written something, and has heard nothing of it.
    Unheard,
    /// Its claim was undone, and it has heard nothing of that either.
    Undone,
    /// It has stopped to look for what it wrote, and keeps the job.
    Hangs,
}

/// What a person says of a step that is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Word {
    Happened,
    Run,
}

/// A person who has heard nothing of a word, and will say it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Person {
    pub(crate) word: Word,
    pub(crate) step: u8,
    /// The question is still the same.
    pub(crate) own: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct Worker {
    pub(crate) phase: Phase,
    pub(crate) step: u8,
    /// The fence that it was told is the row's.
    pub(crate) fenced_in: bool,
    /// Nobody has claimed the job or had a word in it since.
    pub(crate) own: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) row: Row,
    pub(crate) workers: [Worker; WORKERS],
    pub(crate) person: Option<Person>,
    /// Effects of each step; more than two are two.
    pub(crate) effects: [u8; STEPS],
    /// Steps whose end was once recorded.
    pub(crate) done: [bool; STEPS],
    /// Steps of which a person has said that they are to be run, or have happened.
    pub(crate) told_run: [bool; STEPS],
    pub(crate) told_happened: [bool; STEPS],
    /// Something went wrong: a crash, a late worker, a lost gear, an unheard answer, a cancel.
    pub(crate) trouble: bool,
    /// A whole machine stood still while its claim ran out. It could not stop its gear, and what
    /// the gear does then nobody here can keep from happening beside another.
    pub(crate) frozen: bool,
    /// What went wrong in a way that only shows while it happens.
    pub(crate) seen: Option<Broken>,
}

/// A promise that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    /// Somebody wrote who had lost the job.
    FencedWrote,
    /// A step was begun whose end was recorded.
    RanAgain,
    /// A step took effect twice that only a person or its gear may let run again.
    TwoEffects,
    /// The job is completed, and a step has neither happened nor was it said so.
    Hollow,
    /// Nothing went wrong, and a person is asked, a worker counts as dead or a step ran twice.
    Untroubled,
    /// More workers died over it than may.
    ClaimedForEver,
    /// Two gears are at the same step.
    TwoLive,
    /// Somebody was told that the job is still its own, and it is not.
    Lie,
    /// A job that has ended moved.
    Revived,
    /// However it goes on, it does not end.
    Stuck,
}

impl Default for State {
    fn default() -> Self {
        let row = Row {
            made: false,
            status: JobStatus::Pending,
            worker: false,
            due: Due::Never,
            deaths: 0,
            log: [(Log::Nothing, 0); STEPS],
        };
        Self {
            row,
            workers: [Worker::default(); WORKERS],
            person: None,
            effects: [0; STEPS],
            done: [false; STEPS],
            told_run: [false; STEPS],
            told_happened: [false; STEPS],
            trouble: false,
            frozen: false,
            seen: None,
        }
    }
}

impl State {
    /// The first promise that is broken here.
    pub(crate) fn broken(&self) -> Option<Broken> {
        let twice = |step: usize| {
            let is_free = match RECOVERY[step] {
                Recovery::Idempotent => true,
                Recovery::Resolve => self.frozen || self.told_run[step],
                Recovery::Ask => self.told_run[step],
            };
            self.effects[step] > 1 && !is_free
        };
        let hollow = |step: usize| {
            let is_over = self.row.status == JobStatus::Completed;
            is_over && self.effects[step] == 0 && !self.told_happened[step]
        };
        let strange = self.row.deaths > 0
            || self.row.status == JobStatus::AwaitingApproval
            || self.effects.iter().any(|count| *count > 1);
        let checks = [
            ((0..STEPS).any(twice), Broken::TwoEffects),
            ((0..STEPS).any(hollow), Broken::Hollow),
            (strange && !self.trouble, Broken::Untroubled),
            (u32::from(self.row.deaths) > DEATHS_MAX, Broken::ClaimedForEver),
            (!self.frozen && (0..STEPS).any(|step| self.live(step) > 1), Broken::TwoLive),
        ];
        let found = checks.iter().find(|(broken, _)| *broken).map(|(_, which)| *which);
        self.seen.or(found)
    }

    /// Workers whose gears are at this step.
    fn live(&self, step: usize) -> usize {
        let at_it = |worker: &&Worker| {
            let runs = matches!(worker.phase, Phase::Runs | Phase::Acted);
            runs && usize::from(worker.step) == step
        };
        self.workers.iter().filter(at_it).count()
    }

    /// Somebody will do once more what was undone. The model has one of them at a time: only one
    /// has the job, and the others are refused whatever they do. Claims that are undone are not
    /// counted.
    pub(crate) fn has_undone(&self) -> bool {
        let waits = |worker: &Worker| {
            let has = matches!(worker.phase, Phase::HasDone | Phase::HasFailed | Phase::HasLost);
            has || worker.phase == Phase::Leaves
        };
        self.person.is_some() || self.workers.iter().any(waits)
    }

    /// Everything is over.
    pub(crate) fn is_over(&self) -> bool {
        self.row.status.is_terminal()
    }

    /// Somebody claims the job or has a word in it.
    pub(crate) fn change_hands(&mut self, raises_fence: bool) {
        for worker in &mut self.workers {
            worker.own = false;
            worker.fenced_in &= !raises_fence;
        }
        if let Some(person) = &mut self.person {
            person.own = false;
        }
    }

    /// What went wrong just now, unless something has before.
    pub(crate) fn notice(&mut self, broken: Broken, is_so: bool) {
        self.seen = self.seen.or(is_so.then_some(broken));
    }
}
