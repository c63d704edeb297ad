//! `cargo xtask damage`: what a disk does to a home that was used: bytes that are flipped, ends
//! that are cut off, files that are gone, empty or older than the others. Whatever it is, the
//! program goes on as if nothing were, refuses to start and names the file, or says what it has
//! lost: it never shows something else and says nothing.
//!
//! The seed decides all blows; a trial is the same again by its seed and its number.

mod blow;
mod home;
mod trial;
mod view;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::chaos::{self, Outside};
use crate::random::Random;
use crate::{repo, servers};
use home::Template;
use trial::{Drill, Ending};

/// Unless somebody says otherwise.
pub(crate) const TRIALS: u64 = 1000;

/// Trials that are told in words, of each kind of ending that should not be.
const EXAMPLES_MAX: usize = 20;
const WHY_CHARS_MAX: usize = 400;

/// Builds the program, damages copies of a home, and prints what came of it.
pub(crate) fn run(trials: u64, seed: Option<u64>) -> Result<ExitCode> {
    repo::succeed(&mut repo::cargo(&["build", "--package", "semel"]))?;
    let seed = seed.map_or_else(chaos::new_seed, Ok)?;
    eprintln!("xtask: seed {seed}, {trials} trials");
    let report = run_trials(&chaos::program()?, trials, seed)?;
    println!("{}", report.json());
    Ok(if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of all trials.
#[derive(Debug, Default)]
struct Report {
    seed: u64,
    endings: BTreeMap<&'static str, u64>,
    /// By the file that was met, too.
    files: BTreeMap<String, BTreeMap<&'static str, u64>>,
    /// Steps that were done more than once.
    twice: u64,
    examples: Vec<String>,
}

impl Report {
    fn is_fine(&self) -> bool {
        let bad = ["unnamed", "silent", "crashed"];
        self.twice == 0 && bad.iter().all(|word| !self.endings.contains_key(word))
    }

    fn json(&self) -> Value {
        json!({
            "seed": self.seed, "trials": self.endings.values().sum::<u64>(),
            "endings": self.endings, "files": self.files, "effects_twice": self.twice,
            "examples": self.examples,
        })
    }

    fn add(&mut self, about: &str, file: &str, ending: &Ending) {
        *self.endings.entry(ending.word()).or_default() += 1;
        *self.files.entry(file.to_owned()).or_default().entry(ending.word()).or_default() += 1;
        let told = match ending {
            Ending::Unnamed(why) | Ending::Silent(why) | Ending::Crashed(why) => why,
            Ending::Harmless | Ending::Refused | Ending::Said(_) => return,
        };
        let so_far = self.examples.iter().filter(|told| told.contains(ending.word())).count();
        if so_far < EXAMPLES_MAX {
            let why: String = told.chars().take(WHY_CHARS_MAX).collect();
            self.examples.push(format!("{}: {about}: {why}", ending.word()));
        }
    }
}

fn run_trials(program: &Path, trials: u64, seed: u64) -> Result<Report> {
    let folder = servers::folder()?;
    let runtime = Runtime::new().context("no runtime")?;
    let outside = runtime.block_on(Outside::start(Random::new(seed)))?;
    let (older, templates) = home::make(program, folder.path(), &outside, runtime.handle())?;
    let done = outside.requests().len();
    let report = Mutex::new(Report { seed, ..Report::default() });
    let next = AtomicU64::new(0);
    let drill = Drill { program, older: &older, outside: &outside, runtime: runtime.handle() };
    let workers = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= trials {
                    return Ok(());
                }
                one(&drill, &templates, (seed, number), folder.path(), &report)?;
            }
        };
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => anyhow::bail!("a worker of the drill panicked"),
        })
    })?;
    let mut report = report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.twice = (outside.requests().len() - done) as u64;
    Ok(report)
}

/// The trial with this number: what it is depends on the seed and the number alone.
fn one(
    drill: &Drill<'_>,
    templates: &[Template],
    (seed, number): (u64, u64),
    all: &Path,
    report: &Mutex<Report>,
) -> Result<()> {
    let mut random = Random::new(seed.wrapping_mul(1_000_003).wrapping_add(number));
    let template = random.pick(templates);
    let files = blow::files(&template.folder)?;
    let blow = blow::draw(&mut random, &files, &blow::files(drill.older)?);
    let folder = trial::folder(all, number)?;
    let ending = drill.trial(template, &blow, &folder)?;
    let about = format!("trial {number}, {} home, {:?}", template.name, blow);
    let file = blow.file.display().to_string();
    let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    report.add(&about, &file, &ending);
    fs::remove_dir_all(&folder)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_disk_does_to_a_file_is_harmless_refused_or_said() {
        let program = chaos::program().expect("the program was built with the tests");
        let report = run_trials(&program, 40, 29).expect("the drill runs");
        assert!(report.is_fine(), "{}", report.json());
    }
}
