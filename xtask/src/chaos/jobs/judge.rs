//! What jobs.md promises, checked against what happened: a step that cannot be repeated was done
//! once, or somebody is asked; nothing that was accepted is lost; nothing runs after a confirmed
//! cancel; and what was said not to exist does not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::outside::Request;

/// Violations that are told in words.
const EXAMPLES_MAX: usize = 20;
/// How long after the confirmation of a cancel a request that was already sent may arrive, and how
/// long it may still be waited for.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
const LEFT_WITHIN: Duration = Duration::from_secs(3);
/// The claim of an engine that hears nothing: then it stops what it runs.
const CLAIM: Duration = Duration::from_millis(super::engines::LEASE_MS);
/// How long it may take until the end of an attempt is noticed.
const NOTICED_WITHIN: Duration = Duration::from_secs(1);

/// When an engine could not hear what others say.
#[derive(Debug, Default)]
pub(crate) struct Deaf {
    /// One stood still as a whole, for longer than a claim lasts.
    pub(crate) stood_still: Vec<(Instant, Instant)>,
    /// The store was away, or one was cut off from it. Whose sessions are ended hears again as soon
    /// as it has a new one, and finds what it missed.
    pub(crate) cut_off: Vec<(Instant, Instant)>,
}

impl Deaf {
    /// Until when a step may still be waited for whose cancel was confirmed then.
    fn leaves_by(&self, confirmed: Instant) -> Instant {
        let soon = confirmed + LEFT_WITHIN;
        let meets = |(from, until): &&(Instant, Instant)| *from < soon && confirmed < *until;
        let cut_off = self.cut_off.iter().find(meets).map(|_| soon + CLAIM);
        let thawed = self.stood_still.iter().filter(meets).map(|(_, until)| *until + LEFT_WITHIN);
        thawed.chain(cut_off).fold(soon, Instant::max)
    }
}

/// What a caller was told of a submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// `201` or `200`, with this id.
    Accepted(String),
    /// That nothing was written.
    Undone,
    /// That nobody knows, or nothing at all.
    Unknown,
}

/// A job, as its caller knows it.
#[derive(Debug, Clone)]
pub(crate) struct Submitted {
    pub(crate) name: String,
    pub(crate) said: Said,
    /// Whether its step may be run again by itself after an attempt of which nothing is known.
    pub(crate) is_repeatable: bool,
    /// When a cancel was confirmed.
    pub(crate) cancelled: Option<Instant>,
    /// Whether somebody has asked for that and was not told that it did not count.
    pub(crate) may_be_cancelled: bool,
    /// How often a person has said that it is to be run again.
    pub(crate) runs_granted: u64,
    /// Whether a person has said that it was done.
    pub(crate) has_happened: bool,
    /// Whether the only engine that can do it may be gone for ever.
    pub(crate) may_fail: bool,
}

/// Where a job stands in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Completed,
    /// It waits for a person.
    Asked,
    Cancelled,
    Failed,
    /// It waits for an engine.
    Pending,
    /// It is under way, or nobody knows it.
    Nowhere,
}

impl Standing {
    /// Whether nothing more happens to it, when its only engine may be gone or not.
    pub(crate) fn is_over(self, may_fail: bool) -> bool {
        match self {
            Self::Completed | Self::Asked | Self::Cancelled | Self::Failed => true,
            Self::Pending => may_fail,
            Self::Nowhere => false,
        }
    }
}

/// What was promised and is not so.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Done more often than anybody allowed.
    pub(crate) twice: u64,
    /// Two attempts of one step at a time.
    pub(crate) overlapping: u64,
    /// Accepted, and neither ended nor asked about; or completed, and never done.
    pub(crate) lost: u64,
    /// Failed, although nothing was wrong with it.
    pub(crate) failed: u64,
    /// Went on after its cancel was confirmed.
    pub(crate) after_cancel: u64,
    /// Said to be undone, and done.
    pub(crate) undone_but_done: u64,
    /// Done, and nobody has submitted it.
    pub(crate) invented: u64,
    /// Neither ended nor asked about in the end, whoever heard of it.
    pub(crate) unfinished: u64,
    /// Waiting for a person: no violation.
    pub(crate) asked: u64,
    pub(crate) completed: u64,
    pub(crate) examples: Vec<String>,
}

impl Verdict {
    pub(crate) fn is_clean(&self) -> bool {
        let (asked, completed) = (self.asked, self.completed);
        *self == Self { asked, completed, ..Self::default() }
    }

    /// Jobs in the engines' lists to which something must still happen, and what is wrong with
    /// those of which no caller was told.
    pub(crate) fn add(&mut self, unfinished: Vec<String>, strangers: Vec<String>) {
        self.unfinished += unfinished.len() as u64;
        self.undone_but_done += strangers.len() as u64;
        self.examples.extend(unfinished.into_iter().map(|id| format!("never ended: {id}")));
        self.examples.extend(strangers);
        self.examples.truncate(EXAMPLES_MAX);
    }

    fn say(&mut self, what: &str, job: &Submitted) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(format!("{what}: {} ({:?})", job.name, job.said));
        }
    }
}

/// Replays what callers were told against the requests and where the jobs stand, by their ids.
pub(crate) fn judge(
    submitted: &[Submitted],
    requests: &[Request],
    standings: &HashMap<String, Standing>,
    deaf: &Deaf,
) -> Verdict {
    let mut verdict = Verdict::default();
    let mut done: HashMap<&str, Vec<&Request>> = HashMap::new();
    for request in requests {
        done.entry(request.name.as_str()).or_default().push(request);
    }
    for job in submitted {
        let requests = done.remove(job.name.as_str()).unwrap_or_default();
        if overlap(&requests, &deaf.stood_still) {
            verdict.overlapping += 1;
            verdict.say("two attempts at a time", job);
        }
        if !job.is_repeatable && requests.len() as u64 > 1 + job.runs_granted {
            verdict.twice += 1;
            let keys: Vec<&str> = requests.iter().map(|request| request.key.as_str()).collect();
            verdict.say(&format!("done twice, as {keys:?}"), job);
        }
        let Said::Accepted(id) = &job.said else {
            if job.said == Said::Undone && !requests.is_empty() {
                verdict.undone_but_done += 1;
                verdict.say("said to be undone, and done", job);
            }
            continue;
        };
        match standings.get(id).copied().unwrap_or(Standing::Nowhere) {
            Standing::Completed if requests.is_empty() && !job.has_happened => {
                verdict.lost += 1;
                verdict.say("completed, and never done", job);
            }
            Standing::Completed => verdict.completed += 1,
            Standing::Asked => verdict.asked += 1,
            Standing::Cancelled if job.may_be_cancelled => {}
            // It takes so long that three engines were killed over it: then it is given up.
            Standing::Failed if job.is_repeatable || job.may_fail => {}
            Standing::Failed => {
                verdict.failed += 1;
                verdict.say("failed", job);
            }
            // For a day the only engine that can do it may come back (decision 015).
            Standing::Pending if job.may_fail => {}
            Standing::Cancelled | Standing::Pending | Standing::Nowhere => {
                verdict.lost += 1;
                verdict.say("lost", job);
            }
        }
        let goes_on = |request: &&Request, confirmed: Instant| {
            request.arrived > confirmed + ON_ITS_WAY
                || request.waited_until > deaf.leaves_by(confirmed)
        };
        if let Some(confirmed) = job.cancelled
            && requests.iter().any(|request| goes_on(request, confirmed))
        {
            verdict.after_cancel += 1;
            verdict.say("went on after its cancel", job);
        }
    }
    verdict.invented = done.len() as u64;
    verdict
}

/// Whether one of them, in the order of their arrival, came while the one before it was waited for.
/// An engine that stands still as a whole cannot stop what it runs.
fn overlap(requests: &[&Request], stood_still: &[(Instant, Instant)]) -> bool {
    let pairs = requests.iter().zip(requests.iter().skip(1));
    pairs.into_iter().any(|(one, next)| {
        let met =
            |(from, until): &(Instant, Instant)| *from < next.arrived && next.arrived < *until;
        next.arrived + NOTICED_WITHIN < one.waited_until && !stood_still.iter().any(met)
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::now;
    use super::*;

    fn job(name: &str, said: Said) -> Submitted {
        let name = name.to_owned();
        Submitted {
            name,
            said,
            is_repeatable: false,
            may_fail: false,
            cancelled: None,
            may_be_cancelled: false,
            runs_granted: 0,
            has_happened: false,
        }
    }

    fn accepted(name: &str) -> Submitted {
        job(name, Said::Accepted(format!("id of {name}")))
    }

    fn request(name: &str) -> Request {
        let arrived = now();
        let key = format!("{name}:step");
        Request { name: name.to_owned(), key, arrived, waited_until: arrived }
    }

    fn judged(jobs: &[Submitted], requests: &[Request], standing: Standing) -> Verdict {
        let standings = jobs.iter().map(|job| (format!("id of {}", job.name), standing));
        judge(jobs, requests, &standings.collect(), &Deaf::default())
    }

    #[test]
    fn a_job_that_was_done_once_or_is_asked_about() {
        let found = judged(&[accepted("a")], &[request("a")], Standing::Completed);
        assert!(found.is_clean() && found.completed == 1, "{found:?}");
        for requests in [vec![], vec![request("a")]] {
            let found = judged(&[accepted("a")], &requests, Standing::Asked);
            assert!(found.is_clean() && found.asked == 1, "{found:?}");
        }
    }

    #[test]
    fn a_step_done_twice_unless_a_person_said_so() {
        let twice = [request("a"), request("a")];
        assert_eq!(judged(&[accepted("a")], &twice, Standing::Completed).twice, 1);
        let allowed = Submitted { runs_granted: 1, ..accepted("a") };
        assert!(judged(&[allowed], &twice, Standing::Completed).is_clean());
    }

    #[test]
    fn a_step_that_may_be_repeated_has_one_attempt_at_a_time() {
        let put = Submitted { is_repeatable: true, ..accepted("a") };
        let (first, second) = (request("a"), request("a"));
        let judged = |waits: Duration| {
            let first = Request { waited_until: first.arrived + waits, ..first.clone() };
            let jobs = std::slice::from_ref(&put);
            judged(jobs, &[first, second.clone()], Standing::Completed)
        };
        assert!(judged(Duration::ZERO).is_clean());
        assert_eq!(judged(NOTICED_WITHIN * 3).overlapping, 1);
    }

    #[test]
    fn a_job_that_is_gone_or_was_never_done_or_failed() {
        let jobs = [accepted("a")];
        assert_eq!(judged(&jobs, &[], Standing::Completed).lost, 1);
        let told = Submitted { has_happened: true, ..accepted("a") };
        assert!(judged(&[told], &[], Standing::Completed).is_clean());
        assert_eq!(judged(&jobs, &[request("a")], Standing::Nowhere).lost, 1);
        assert_eq!(judge(&jobs, &[request("a")], &HashMap::new(), &Deaf::default()).lost, 1);
        assert_eq!(judged(&jobs, &[], Standing::Cancelled).lost, 1, "nobody cancelled it");
        assert_eq!(judged(&jobs, &[], Standing::Failed).failed, 1);
        assert_eq!(judged(&jobs, &[], Standing::Pending).lost, 1);
        let of_gone = [Submitted { may_fail: true, ..accepted("a") }];
        assert!(judged(&of_gone, &[], Standing::Pending).is_clean());
        assert_eq!(judged(&of_gone, &[], Standing::Nowhere).lost, 1);
    }

    #[test]
    fn what_was_said_to_be_undone_or_that_nobody_asked_for() {
        let undone = job("a", Said::Undone);
        assert!(judged(std::slice::from_ref(&undone), &[], Standing::Nowhere).is_clean());
        let found = judged(&[undone], &[request("a")], Standing::Completed);
        assert_eq!(found.undone_but_done, 1);
        let unknown = job("a", Said::Unknown);
        assert!(judged(&[unknown], &[request("a")], Standing::Completed).is_clean());
        assert_eq!(judged(&[], &[request("a")], Standing::Completed).invented, 1);
    }

    #[test]
    fn what_the_engines_list_and_nobody_accounts_for() {
        let one = || vec!["a".to_owned()];
        for (unfinished, strangers) in [(one(), Vec::new()), (Vec::new(), one())] {
            let mut verdict = Verdict::default();
            let counts = (unfinished.len() as u64, strangers.len() as u64);
            verdict.add(unfinished, strangers);
            assert!(!verdict.is_clean() && verdict.examples.len() == 1, "{verdict:?}");
            assert_eq!((verdict.unfinished, verdict.undone_but_done), counts);
        }
    }

    #[test]
    fn a_request_that_goes_on_after_its_cancel() {
        let confirmed = now();
        let cancelled = Some(confirmed);
        let cancelled = Submitted { cancelled, may_be_cancelled: true, ..accepted("a") };
        let at = |arrives: Duration, stays: Duration| Request {
            arrived: confirmed + arrives,
            waited_until: confirmed + stays,
            ..request("a")
        };
        let judged =
            |request| judged(std::slice::from_ref(&cancelled), &[request], Standing::Cancelled);
        assert!(judged(at(Duration::ZERO, Duration::ZERO)).is_clean());
        assert_eq!(judged(at(ON_ITS_WAY * 2, ON_ITS_WAY * 2)).after_cancel, 1);
        assert_eq!(judged(at(Duration::ZERO, LEFT_WITHIN * 2)).after_cancel, 1);
    }

    #[test]
    fn who_hears_nothing_leaves_when_its_claim_ends() {
        let confirmed = now();
        let (before, soon) = (confirmed - LEFT_WITHIN, confirmed + LEFT_WITHIN);
        let heard = Deaf::default();
        assert_eq!(heard.leaves_by(confirmed), soon);
        let earlier = Deaf { cut_off: vec![(before, before + LEFT_WITHIN / 2)], ..heard };
        assert_eq!(earlier.leaves_by(confirmed), soon);
        let cut_off = Deaf { cut_off: vec![(before, soon)], ..Deaf::default() };
        assert_eq!(cut_off.leaves_by(confirmed), soon + CLAIM);
        let stood_still = Deaf { stood_still: vec![(before, soon)], ..Deaf::default() };
        assert_eq!(stood_still.leaves_by(confirmed), soon + LEFT_WITHIN);
    }
}
