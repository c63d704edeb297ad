//! What can happen next.

use semel_jobs::dispatch::{Attempts, Content, Dispatch, Logged, dispatch};
use semel_jobs::gear::manifest::Recovery;
use semel_jobs::life::{JobEvent, JobStatus, next};
use semel_jobs::limits::{ATTEMPTS_MAX, DEATHS_MAX};

use crate::scope::{Losses, Rule, Scope};
use crate::state::{
    Broken, Due, Log, Person, Phase, RECOVERY, STEPS, State, WORKERS, Word, Worker,
};
use crate::step::{End, Step, Told};

/// Everything that can happen in this state.
pub(crate) fn steps(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    found.clear();
    if !from.row.made {
        return submits(from, scope, found);
    }
    for who in 0..WORKERS {
        match from.workers[who].phase {
            Phase::Idle => claims(from, scope, who, found),
            Phase::Runs => {
                let mut to = *from;
                let worker = &mut to.workers[who];
                worker.phase = Phase::Acted;
                let count = &mut to.effects[usize::from(worker.step)];
                *count = (*count + 1).min(2);
                found.push((Step::Effect { who }, to));
                records(from, scope, who, &[End::Failed, End::Lost], found);
                undone(from, scope, who, &[End::Failed, End::Lost], found);
                ends(from, scope, who, found);
            }
            Phase::Acted => {
                records(from, scope, who, &[End::Done, End::Lost], found);
                undone(from, scope, who, &[End::Done, End::Lost], found);
                ends(from, scope, who, found);
            }
            Phase::HasDone => writes_again(from, scope, who, End::Done, found),
            Phase::HasFailed => writes_again(from, scope, who, End::Failed, found),
            Phase::HasLost => writes_again(from, scope, who, End::Lost, found),
            Phase::Leaves => {
                lets_go(from, scope, who, found);
                crash(from, who, found);
            }
            // That its process could be killed does not help who waits.
            Phase::Hangs => {}
            Phase::Asks => {
                resolves(from, scope, who, found);
                ends(from, scope, who, found);
            }
            Phase::Undone => {
                let mut to = *from;
                let taken = from.row.worker && from.row.status == JobStatus::Executing;
                if taken && !scope.on(Rule::FencesAreDrawn) {
                    to.workers[who].fenced_in = true;
                    go_on(&mut to, who);
                } else {
                    to.workers[who] = Worker::default();
                }
                found.push((Step::Settle { who }, to));
            }
            Phase::Unheard => {
                settle(from, scope, who, found);
                crash(from, who, found);
            }
        }
    }
    world(from, scope, found);
}

/// It is made, and may be begun at once. An engine that hears nothing of a submission and finds
/// nothing submits it again.
fn submits(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    (to.row.made, to.row.due) = (true, Due::Ready);
    found.push((Step::Submit, to));
    let who = 0;
    claimed(&mut to, scope, who);
    found.push((Step::SubmitBegun { who }, to));
    to.workers[who] = Worker { phase: Phase::Unheard, fenced_in: true, own: true, step: 0 };
    to.trouble = true;
    found.push((Step::SubmitUnheard { who }, to));
}

fn claims(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let row = &from.row;
    let is_due = match row.due {
        Due::Ready => true,
        Due::Now => !row.worker || scope.on(Rule::DeadAreFollowed),
        Due::Later => row.worker && !scope.on(Rule::LeaseIsKept),
        Due::Never => false,
    };
    let busy = from.workers.iter().filter(|worker| worker.phase != Phase::Idle).count();
    if !is_due || busy >= scope.workers {
        return;
    }
    let mut to = *from;
    claimed(&mut to, scope, who);
    found.push((Step::Claim { who }, to));
    if to.workers[who].phase != Phase::Idle {
        to.workers[who] = Worker { phase: Phase::Unheard, fenced_in: true, own: true, step: 0 };
        to.trouble = true;
        found.push((Step::ClaimUnheard { who }, to));
    }
    let mut to = *from;
    to.workers[who] = Worker { phase: Phase::Undone, ..Worker::default() };
    to.trouble = true;
    found.push((Step::ClaimUndone { who }, to));
}

/// The row is this worker's, which makes its first move.
fn claimed(to: &mut State, scope: &Scope, who: usize) {
    to.change_hands(scope.on(Rule::ClaimRaisesTheFence));
    to.workers[who] = Worker { fenced_in: true, own: true, ..Worker::default() };
    let row = &mut to.row;
    // One that only waited for its turn is not what its worker died of.
    let ran = |(log, _): &(Log, u8)| matches!(log, Log::Started | Log::Uncertain);
    let waited = row.status == JobStatus::Executing && !row.log.iter().any(ran);
    row.deaths += u8::from(row.worker && !waited);
    (row.worker, row.due) = (true, Due::Later);
    if u32::from(row.deaths) >= DEATHS_MAX && scope.on(Rule::DeathsAreCounted) {
        close_started(to);
        happens(to, JobEvent::WorkersDied);
        to.workers[who] = Worker::default();
    } else {
        if row.status == JobStatus::Pending {
            happens(to, JobEvent::ClaimPlan);
            happens(to, JobEvent::Approved);
        }
        if !scope.on(Rule::DoneIsDone) {
            to.row.log = [(Log::Nothing, 0); STEPS];
        }
        follow(to, scope, who, Moment::Later);
    }
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
                    to.row.worker = false;
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
        to.row.deaths = 0;
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

/// The gear has ended, and nothing of that is written.
fn undone(from: &State, scope: &Scope, who: usize, ends: &[End], found: &mut Vec<(Step, State)>) {
    if !scope.undoes(from) {
        return;
    }
    for end in ends.iter().copied() {
        let mut to = *from;
        to.workers[who].phase = match end {
            End::Done => Phase::HasDone,
            End::Failed => Phase::HasFailed,
            End::Lost => Phase::HasLost,
        };
        to.trouble = true;
        found.push((Step::RecordUndone { who, end }, to));
    }
}

/// What was looked for and is not there is written again.
fn writes_again(from: &State, scope: &Scope, who: usize, end: End, to: &mut Vec<(Step, State)>) {
    records(from, scope, who, &[end], to);
    crash(from, who, to);
    renews(from, scope, who, to);
}

/// What was written is looked for. Nobody but the holder writes while a turn lasts, so it is there
/// if nobody else has had one since; if not, it is tried again.
fn settle(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    let mine = to.workers[who];
    if !scope.on(Rule::UnheardIsLookedUp) && holds(from, scope, who) {
        begin(&mut to, scope, who, usize::from(mine.step));
    } else if mine.own || (!scope.on(Rule::LookNamesTheFence) && from.row.worker) {
        go_on(&mut to, who);
    } else if holds(from, scope, who) {
        to.notice(Broken::FencedWrote, true);
    } else {
        to.workers[who] = Worker::default();
    }
    found.push((Step::Settle { who }, to));
    if !scope.on(Rule::LookIsTriedOn) {
        let mut to = *from;
        to.workers[who].phase = Phase::Hangs;
        found.push((Step::SettleFails { who }, to));
    }
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
        if written && scope.losses == Losses::Every {
            to.workers[who] = Worker { phase: Phase::Unheard, ..from.workers[who] };
            to.trouble = true;
            found.push((Step::ResolvedUnheard { who, told }, to));
        }
    }
}

/// What can happen to whoever has a job.
fn ends(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    crash(from, who, found);
    renews(from, scope, who, found);
    lets_go(from, scope, who, found);
}

fn crash(from: &State, who: usize, found: &mut Vec<(Step, State)>) {
    let mut to = *from;
    to.workers[who] = Worker::default();
    to.trouble = true;
    found.push((Step::Crash { who }, to));
}

/// A renewal that is not written is none, whether that is heard or not.
fn renews(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    let mine = from.workers[who];
    let held = from.row.worker && (mine.fenced_in || !scope.on(Rule::RenewalNamesTheFence));
    let mut renewed = *from;
    if held {
        renewed.row.due = Due::Later;
        renewed.notice(Broken::Lie, !mine.own);
    } else {
        renewed.workers[who] = Worker::default();
    }
    if renewed == *from {
        return;
    }
    found.push((Step::Renew { who, held }, renewed));
    if held {
        found.push((
            Step::RenewUnheard { who },
            State { trouble: true, seen: from.seen, ..renewed },
        ));
    }
}

/// The engine stops, and so does its gear.
fn lets_go(from: &State, scope: &Scope, who: usize, found: &mut Vec<(Step, State)>) {
    if !holds(from, scope, who) {
        return;
    }
    let mine = from.workers[who];
    let mut to = *from;
    to.trouble = true;
    if scope.undoes(from) {
        to.workers[who].phase = Phase::Leaves;
        found.push((Step::LetGoUndone { who }, to));
    }
    to.notice(Broken::FencedWrote, !mine.own);
    (to.row.worker, to.row.due) = (false, Due::Now);
    to.workers[who] = Worker { phase: Phase::Unheard, ..mine };
    if scope.losses == Losses::Every {
        found.push((Step::LetGoUnheard { who }, to));
    }
    to.workers[who] = Worker::default();
    found.push((Step::LetGo { who }, to));
}

fn world(from: &State, scope: &Scope, found: &mut Vec<(Step, State)>) {
    let is_kept = |worker: &Worker| worker.phase == Phase::Hangs && worker.own;
    if from.row.due == Due::Later && !from.workers.iter().any(is_kept) {
        let mut to = *from;
        to.row.due = Due::Now;
        let at_work = |worker: &Worker| worker.phase != Phase::Idle && worker.own;
        to.trouble |= from.workers.iter().any(at_work);
        let frozen = State { frozen: true, ..to };
        if scope.on(Rule::HolderStopsInTime) && from.row.worker {
            // It has not renewed: whatever its gear did by then, it does nothing more.
            for worker in to.workers.iter_mut().filter(|worker| at_work(worker)) {
                *worker = Worker::default();
            }
        }
        if from.row.worker && from.workers.iter().any(at_work) {
            found.push((Step::StandStill, frozen));
        }
        found.push((Step::TimePasses, to));
    }
    if from.is_over() {
        return;
    }
    let mut to = *from;
    to.change_hands(scope.on(Rule::PersonRaisesTheFence));
    to.trouble = true;
    close_started(&mut to);
    happens(&mut to, JobEvent::Cancel);
    found.push((Step::Cancel, to));
    let asked = asked(from);
    if let Some(person) = from.person {
        says_again(from, scope, person, asked, found);
    }
    if let Some(step) = asked {
        says(from, scope, step, found);
    }
}

/// The step that a person is asked about.
fn asked(from: &State) -> Option<usize> {
    let is_asked = |(log, _): &(Log, u8)| *log == Log::Uncertain;
    let waits = from.row.status == JobStatus::AwaitingApproval;
    waits.then(|| from.row.log.iter().position(is_asked)).flatten()
}

fn says(from: &State, scope: &Scope, step: usize, found: &mut Vec<(Step, State)>) {
    for word in [Word::Happened, Word::Run] {
        if word == Word::Run && from.told_run[step] {
            // Once is enough to see what comes of it.
            continue;
        }
        let mut to = *from;
        tell(&mut to, word, step);
        answer(&mut to, scope, word, step);
        found.push((Step::Say(word), to));
        if !scope.undoes(from) {
            continue;
        }
        let step = u8::try_from(step).unwrap_or(u8::MAX);
        to.person = Some(Person { word, step, own: false });
        found.push((Step::SayUnheard(word), to));
        let person = Some(Person { word, step, own: true });
        found.push((Step::SayUndone(word), State { person, trouble: true, ..*from }));
    }
}

/// It answers the question that it was said to, and none that came after.
fn says_again(
    from: &State,
    scope: &Scope,
    person: Person,
    asked: Option<usize>,
    found: &mut Vec<(Step, State)>,
) {
    let mut to = State { person: None, ..*from };
    let meant = person.own || !scope.on(Rule::WordNamesItsQuestion);
    let counted = asked.filter(|_| meant);
    if let Some(step) = counted {
        if step == usize::from(person.step) && person.own {
            tell(&mut to, person.word, step);
        }
        answer(&mut to, scope, person.word, step);
    }
    found.push((Step::SayAgain { counts: counted.is_some() }, to));
}

/// A person has really said this of the step.
fn tell(to: &mut State, word: Word, step: usize) {
    match word {
        Word::Happened => to.told_happened[step] = true,
        Word::Run => to.told_run[step] = true,
    }
}

/// What is written of a person's word.
fn answer(to: &mut State, scope: &Scope, word: Word, step: usize) {
    to.change_hands(scope.on(Rule::PersonRaisesTheFence));
    to.trouble = true;
    match word {
        Word::Happened => ended(to, step, Log::Completed),
        Word::Run => to.row.log[step] = (Log::Failed, 0),
    }
    happens(to, JobEvent::PersonApproved);
    to.row.due = if scope.on(Rule::ApprovedIsDue) { Due::Now } else { Due::Never };
}
