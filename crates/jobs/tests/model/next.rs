//! What can happen next, and the rules as switches. A rule that is off is replaced by what a
//! plausible wrong implementation does; its comment names that mistake.

use semel_jobs::dispatch::{Attempts, Content, Dispatch, Logged, dispatch};
use semel_jobs::gear::manifest::Recovery;
use semel_jobs::life::{JobEvent, JobStatus, next};
use semel_jobs::limits::{ATTEMPTS_MAX, DEATHS_MAX};

use crate::state::{Broken, Due, Log, Phase, RECOVERY, STEPS, State, WORKERS, Worker};

/// One switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Off: a worker's write does not name the fence.
    WritesNameTheFence,
    /// Off: a claim leaves the fence as it is.
    ClaimRaisesTheFence,
    /// Off: a person's word leaves the fence as it is.
    PersonRaisesTheFence,
    /// Off: a lease that is not over keeps nobody from claiming.
    LeaseIsKept,
    /// Off: only what has no worker is claimed.
    DeadAreFollowed,
    /// Off: a step is written down when it has ended.
    StartedFirst,
    /// Off: a step that was begun by somebody who is gone counts as one that failed.
    BegunIsUncertain,
    /// Off: a step that was begun by somebody who is gone counts as one that was done.
    BegunIsNotDone,
    /// Off: whoever takes a job over begins with its first step.
    DoneIsDone,
    /// Off: what declares `resolve` is run again without being asked.
    GearIsAsked,
    /// Off: nobody counts the dead.
    DeathsAreCounted,
    /// Off: a lease is renewed by whoever asks.
    RenewalNamesTheFence,
    /// Off: a job that was approved waits for nothing, and nobody looks.
    ApprovedIsDue,
    /// Off: a write of which nothing was heard counts as none, and its step is run again.
    UnheardIsLookedUp,
    /// Off: a job that pauses keeps its worker.
    PauseLetsGo,
}

impl Rule {
    pub(crate) const ALL: [Self; 15] = [
        Self::WritesNameTheFence,
        Self::ClaimRaisesTheFence,
        Self::PersonRaisesTheFence,
        Self::LeaseIsKept,
        Self::DeadAreFollowed,
        Self::StartedFirst,
        Self::BegunIsUncertain,
        Self::BegunIsNotDone,
        Self::DoneIsDone,
        Self::GearIsAsked,
        Self::DeathsAreCounted,
        Self::RenewalNamesTheFence,
        Self::ApprovedIsDue,
        Self::UnheardIsLookedUp,
        Self::PauseLetsGo,
    ];
}

/// Which rules are on.
pub(crate) struct Scope {
    off: Option<Rule>,
}

impl Scope {
    pub(crate) fn design() -> Self {
        Self { off: None }
    }

    pub(crate) fn without(rule: Rule) -> Self {
        Self { off: Some(rule) }
    }

    fn on(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }
}

/// How a gear's work ended, as its worker saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The gear said no, and nothing has happened.
    Failed,
    /// The gear is gone without a word.
    Lost,
}

/// What a gear says of an earlier attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    Done,
    NotDone,
    Unknown,
}

/// Something that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A worker claims the job, and makes its first move.
    Claim {
        who: usize,
    },
    /// Its lease is made longer, or it hears that the job is lost and stops its gear.
    Renew {
        who: usize,
        held: bool,
    },
    /// The gear does what it is for.
    Effect {
        who: usize,
    },
    /// It writes how the step ended, together with what follows.
    Record {
        who: usize,
        end: End,
        written: bool,
    },
    /// The same, and the answer is lost.
    RecordUnheard {
        who: usize,
        end: End,
    },
    /// It finds out.
    Settle {
        who: usize,
    },
    /// It writes what the gear says of an earlier attempt, together with what follows.
    Resolved {
        who: usize,
        told: Told,
        written: bool,
    },
    /// The process dies, and the kernel kills its gears.
    Crash {
        who: usize,
    },
    /// The engine stops: its gear is stopped, and the claim given back.
    LetGo {
        who: usize,
    },
    /// A lease or a pause is over.
    TimePasses,
    Cancel,
    SayHappened,
    SayRun,
}

/// Everything that can happen in this state.
pub(crate) fn steps(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    found.clear();
    for who in 0..WORKERS {
        match from.workers[who].phase {
            Phase::Idle => claims(from, scope, who, found),
            Phase::Runs => {
                let mut to = *from;
                let worker = &mut to.workers[who];
                worker.phase = Phase::Acted;
                let count = &mut to.effects[usize::from(worker.step)];
                *count = (*count + 1).min(2);
                to.late |= !worker.own;
                found.push((Step::Effect { who }, to));
                records(from, scope, who, &[End::Failed, End::Lost], found);
                ends(from, scope, who, found);
            }
            Phase::Acted => {
                records(from, scope, who, &[End::Done, End::Lost], found);
                ends(from, scope, who, found);
            }
            Phase::Asks => {
                resolves(from, scope, who, found);
                ends(from, scope, who, found);
            }
            Phase::Unheard => {
                settle(from, scope, who, found);
                let mut to = *from;
                to.workers[who] = Worker::default();
                found.push((Step::Crash { who }, to));
            }
        }
    }
    world(from, scope, found);
}

fn claims(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let row = &from.row;
    let is_due = match row.due {
        Due::Ready => true,
        Due::Now => !row.worker || scope.on(Rule::DeadAreFollowed),
        Due::Later => row.worker && !scope.on(Rule::LeaseIsKept),
        Due::Never => false,
    };
    if !is_due {
        return;
    }
    let mut to = *from;
    to.change_hands(scope.on(Rule::ClaimRaisesTheFence));
    to.workers[who] = Worker { fenced_in: true, own: true, ..Worker::default() };
    let row = &mut to.row;
    row.deaths += u8::from(row.worker);
    (row.worker, row.due) = (true, Due::Later);
    if u32::from(row.deaths) >= DEATHS_MAX && scope.on(Rule::DeathsAreCounted) {
        close_started(&mut to);
        happens(&mut to, JobEvent::WorkersDied);
        to.workers[who] = Worker::default();
    } else {
        if row.status == JobStatus::Pending {
            happens(&mut to, JobEvent::ClaimPlan);
            happens(&mut to, JobEvent::Approved);
        }
        if !scope.on(Rule::DoneIsDone) {
            to.row.log = [(Log::Nothing, 0); STEPS];
        }
        follow(&mut to, scope, who, Moment::Later);
    }
    found.push((Step::Claim { who }, to));
}

/// Where the table leads; nothing else moves a job.
fn happens(to: &mut State, event: JobEvent) {
    let Some(status) = next(to.row.status, event) else {
        to.notice(Broken::Revived, true);
        return;
    };
    to.row.status = status;
    if status.is_terminal() || status == JobStatus::AwaitingApproval {
        (to.row.worker, to.row.due) = (false, Due::Never);
    }
}

fn close_started(to: &mut State) {
    for (log, _) in &mut to.row.log {
        if *log == Log::Started {
            *log = Log::Uncertain;
        }
    }
}

/// Whether a failure that is looked at has just been written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    Now,
    Later,
}

/// What the holder does next: the walk of the product, with the product's table.
fn follow(to: &mut State, scope: &Scope, who: usize, moment: Moment) {
    to.workers[who].phase = Phase::Idle;
    for (step, declared) in RECOVERY.into_iter().enumerate() {
        let is_ignored = declared == Recovery::Resolve && !scope.on(Rule::GearIsAsked);
        let recovery = if is_ignored { Recovery::Idempotent } else { declared };
        loop {
            let (log, used) = to.row.log[step];
            let attempts =
                if u32::from(used) < ATTEMPTS_MAX { Attempts::Left } else { Attempts::Spent };
            match dispatch(logged(log), Content::Same, attempts, recovery) {
                Dispatch::Recorded => break,
                Dispatch::Close => to.row.log[step].0 = closed(scope),
                Dispatch::Start if log == Log::Failed && used > 0 && moment == Moment::Now => {
                    // What has just failed is given time.
                    to.row.due = Due::Later;
                    if scope.on(Rule::PauseLetsGo) {
                        to.row.worker = false;
                    }
                    to.workers[who] = Worker::default();
                    return;
                }
                Dispatch::Start => return begin(to, scope, who, step),
                Dispatch::Resolve => {
                    let step = u8::try_from(step).unwrap_or(u8::MAX);
                    to.workers[who] = Worker { phase: Phase::Asks, step, ..to.workers[who] };
                    return;
                }
                Dispatch::Ask => {
                    happens(to, JobEvent::Unsure);
                    to.workers[who] = Worker::default();
                    return;
                }
                Dispatch::GiveUp | Dispatch::Refuse => {
                    happens(to, JobEvent::StepFailed);
                    to.workers[who] = Worker::default();
                    return;
                }
            }
        }
    }
    happens(to, JobEvent::Finished);
    to.workers[who] = Worker::default();
}

fn logged(log: Log) -> Logged {
    match log {
        Log::Nothing => Logged::Nothing,
        Log::Started => Logged::Crashed,
        Log::Completed => Logged::Completed,
        Log::Failed => Logged::Failed,
        Log::Uncertain => Logged::Uncertain,
    }
}

/// What becomes of a step that was begun by somebody who is gone.
fn closed(scope: &Scope) -> Log {
    if !scope.on(Rule::BegunIsUncertain) {
        Log::Failed
    } else if !scope.on(Rule::BegunIsNotDone) {
        Log::Completed
    } else {
        Log::Uncertain
    }
}

/// A gear is set to work.
fn begin(to: &mut State, scope: &Scope, who: usize, step: usize) {
    to.notice(Broken::RanAgain, to.done[step]);
    if scope.on(Rule::StartedFirst) {
        to.row.log[step] = (Log::Started, to.row.log[step].1 + 1);
    }
    let step = u8::try_from(step).unwrap_or(u8::MAX);
    to.workers[who] = Worker { phase: Phase::Runs, step, ..to.workers[who] };
}

/// Whether a write of this worker counts. It names the status that it begins at, too.
fn holds(from: &State, scope: &Scope, who: usize) -> bool {
    let is_named = from.workers[who].fenced_in || !scope.on(Rule::WritesNameTheFence);
    from.row.status == JobStatus::Executing && is_named
}

/// Attempts at what is done do not matter any more.
fn ended(to: &mut State, step: usize, log: Log) {
    let (kept, used) = &mut to.row.log[step];
    *kept = log;
    if log == Log::Completed {
        *used = 0;
        to.done[step] = true;
    }
}

/// The holder writes how a step ended, together with what follows.
fn write(to: &mut State, scope: &Scope, who: usize, log: Log) {
    let Worker { step, own, .. } = to.workers[who];
    let step = usize::from(step);
    to.notice(Broken::FencedWrote, !own);
    ended(to, step, log);
    follow(to, scope, who, Moment::Now);
}

fn records(from: &State, scope: &Scope, who: usize, ends: &[End], found: &mut Vec<(Step, State)>) {
    for end in ends.iter().copied() {
        let mut to = *from;
        to.trouble |= end == End::Lost;
        if !holds(from, scope, who) {
            to.workers[who] = Worker::default();
            found.push((Step::Record { who, end, written: false }, to));
            continue;
        }
        let mine = to.workers[who];
        let log = match end {
            End::Done => Log::Completed,
            End::Failed => Log::Failed,
            End::Lost => Log::Uncertain,
        };
        write(&mut to, scope, who, log);
        found.push((Step::Record { who, end, written: true }, to));
        to.workers[who] = Worker { phase: Phase::Unheard, ..mine };
        to.trouble = true;
        found.push((Step::RecordUnheard { who, end }, to));
    }
}

/// What was written is looked for. Nobody but the holder writes while a turn lasts, so it is there
/// if nobody else has had one since; if not, it is tried again.
fn settle(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    let mine = to.workers[who];
    if !scope.on(Rule::UnheardIsLookedUp) && holds(from, scope, who) {
        begin(&mut to, scope, who, usize::from(mine.step));
    } else if mine.own {
        go_on(&mut to, who);
    } else if holds(from, scope, who) {
        to.notice(Broken::FencedWrote, true);
    } else {
        to.workers[who] = Worker::default();
    }
    found.push((Step::Settle { who }, to));
}

/// Goes on as if it had heard.
fn go_on(to: &mut State, who: usize) {
    let mine = std::mem::take(&mut to.workers[who]);
    if !to.row.worker {
        return;
    }
    let open = |(log, _): &(Log, u8)| matches!(log, Log::Started | Log::Uncertain);
    if let Some(step) = to.row.log.iter().position(open) {
        let phase = match to.row.log[step].0 {
            Log::Started => Phase::Runs,
            Log::Nothing | Log::Completed | Log::Failed | Log::Uncertain => Phase::Asks,
        };
        let step = u8::try_from(step).unwrap_or(u8::MAX);
        to.workers[who] = Worker { phase, step, ..mine };
    }
}

fn resolves(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let happened = from.effects[usize::from(from.workers[who].step)] > 0;
    let truth = if happened { Told::Done } else { Told::NotDone };
    for told in [truth, Told::Unknown] {
        let mut to = *from;
        let written = holds(from, scope, who);
        match told {
            _ if !written => to.workers[who] = Worker::default(),
            Told::Done => write(&mut to, scope, who, Log::Completed),
            Told::NotDone => write(&mut to, scope, who, Log::Failed),
            Told::Unknown => {
                to.notice(Broken::FencedWrote, !to.workers[who].own);
                happens(&mut to, JobEvent::Unsure);
                to.workers[who] = Worker::default();
            }
        }
        found.push((Step::Resolved { who, told, written }, to));
    }
}

/// What can happen to whoever has a job.
fn ends(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mine = from.workers[who];
    let mut crashed = *from;
    crashed.workers[who] = Worker::default();
    crashed.trouble = true;
    found.push((Step::Crash { who }, crashed));
    let held = from.row.worker && (mine.fenced_in || !scope.on(Rule::RenewalNamesTheFence));
    let mut renewed = *from;
    if held {
        renewed.row.due = Due::Later;
        renewed.notice(Broken::Lie, !mine.own);
    } else {
        renewed.workers[who] = Worker::default();
    }
    if renewed != *from {
        found.push((Step::Renew { who, held }, renewed));
    }
    if holds(from, scope, who) {
        let mut to = crashed;
        to.notice(Broken::FencedWrote, !mine.own);
        (to.row.worker, to.row.due) = (false, Due::Now);
        found.push((Step::LetGo { who }, to));
    }
}

fn world(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    if from.row.due == Due::Later {
        let mut to = *from;
        to.row.due = Due::Now;
        let at_work = |worker: &Worker| worker.phase != Phase::Idle && worker.own;
        to.trouble |= from.workers.iter().any(at_work);
        found.push((Step::TimePasses, to));
    }
    if from.is_over() {
        return;
    }
    let mut to = *from;
    to.change_hands(scope.on(Rule::PersonRaisesTheFence));
    to.trouble = true;
    let said = to;
    close_started(&mut to);
    happens(&mut to, JobEvent::Cancel);
    found.push((Step::Cancel, to));
    if from.row.status != JobStatus::AwaitingApproval {
        return;
    }
    let asked = |(log, _): &(Log, u8)| *log == Log::Uncertain;
    let Some(step) = from.row.log.iter().position(asked) else { return };
    let due = if scope.on(Rule::ApprovedIsDue) { Due::Now } else { Due::Never };
    let mut to = said;
    ended(&mut to, step, Log::Completed);
    to.told_happened[step] = true;
    happens(&mut to, JobEvent::PersonApproved);
    to.row.due = due;
    found.push((Step::SayHappened, to));
    if from.told_run[step] {
        // Once is enough to see what comes of it.
        return;
    }
    let mut to = said;
    to.row.log[step] = (Log::Failed, 0);
    to.told_run[step] = true;
    happens(&mut to, JobEvent::PersonApproved);
    to.row.due = due;
    found.push((Step::SayRun, to));
}
