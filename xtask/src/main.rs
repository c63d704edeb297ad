//! The repository's own commands (`cargo xtask …`): reads the arguments and calls the module that
//! does the work.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's command answers on the terminal"
)]

mod bench;
mod chaos;
mod ci;
mod damage;
mod deny;
mod generate;
mod powerloss;
mod random;
mod repo;
mod servers;
mod test;
mod tidy;

use std::process::ExitCode;

use chaos::{Blow, Plant, Trouble};

const USAGE: &str = "\
usage: cargo xtask <command>

  test [-- ARGS]   start private servers, run every test (ARGS go to the test runner)
  ci               what CI runs: format, deny, clippy, tidy, test
  bench [NAME…] [--quick] [--long]
                   start private servers, fetch peers, run the benchmarks; show the ratios
  chaos [--minutes N] [--seed S] [--plant NAME] [--storm terminate|cancel]
                   kill, stop and cut off real processes under load; check what they promise;
                   with a bug planted (ack, dedupe, drop, begin, settle, fence, claim,
                   stderr, order), check that it is found; with a storm,
                   sessions with PostgreSQL are ended, or statements cancelled, all the time
  chaos --jobs N [--seed S] [--homes | --clocks]
                   two engines do N jobs while their sessions with PostgreSQL are ended every
                   30 ms; an outside server counts the effects. With --homes each has gears and
                   secrets of its own, and one is killed for good; with --clocks only their clocks
                   step
  damage [--trials N] [--seed S]
                   damage copies of a used home, file by file; check that the program reports every
                   damage
  powerloss [--images N] [--seed S]
                   cut the power anywhere in a recorded workload; check what is left on the disk
  deny             check licences, bans and sources of all dependencies (deny.toml)
  tidy             check the rules of the repository
  gen [--check]    rewrite generated files (or only say whether they are current)";

/// Exit code for a command line that we do not understand, as shells and `clap` have it.
const EXIT_USAGE: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Test { runner_args: Vec<String> },
    Ci,
    Bench { args: Vec<String> },
    Chaos { minutes: u64, seed: Option<u64>, plant: Option<Plant>, storm: Option<Blow> },
    ChaosJobs { jobs: u64, seed: Option<u64>, trouble: Trouble },
    Damage { trials: u64, seed: Option<u64> },
    Powerloss { images: u64, seed: Option<u64> },
    Deny,
    Tidy,
    Generate { check: bool },
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(command) = parse(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    };
    let result = match command {
        Command::Test { runner_args } => Ok(test::run(&runner_args)),
        Command::Ci => ci::run(),
        Command::Bench { args } => bench::run(&args),
        Command::Chaos { minutes, seed, plant, storm } => chaos::run(minutes, seed, plant, storm),
        Command::ChaosJobs { jobs, seed, trouble } => chaos::run_jobs(jobs, seed, trouble),
        Command::Damage { trials, seed } => damage::run(trials, seed),
        Command::Powerloss { images, seed } => powerloss::run(images, seed),
        Command::Deny => deny::run(),
        Command::Tidy => tidy::run(),
        Command::Generate { check } => generate::run(check).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

/// `None` is a command line that the usage text does not offer.
fn parse(args: &[String]) -> Option<Command> {
    let (name, rest) = args.split_first()?;
    let words: Vec<&str> = rest.iter().map(String::as_str).collect();
    match (name.as_str(), words.as_slice()) {
        ("test", []) => Some(Command::Test { runner_args: Vec::new() }),
        ("test", ["--", ..]) => Some(Command::Test { runner_args: rest[1..].to_vec() }),
        ("ci", []) => Some(Command::Ci),
        ("bench", words) => {
            let is_known = |word: &&str| !word.starts_with('-') || bench::OPTIONS.contains(word);
            words.iter().all(is_known).then(|| Command::Bench { args: rest.to_vec() })
        }
        ("chaos", words) if words.contains(&"--jobs") => {
            let is_trouble = |word: &&str| ["--homes", "--clocks"].contains(word);
            let (named, others): (Vec<&str>, Vec<&str>) =
                words.iter().partition(|word| is_trouble(word));
            let (jobs, seed) = amount_and_seed("--jobs", 0, &others)?;
            let trouble = match named.as_slice() {
                [] => Trouble::Sessions,
                ["--homes"] => Trouble::Homes,
                ["--clocks"] => Trouble::Clocks,
                _ => return None,
            };
            Some(Command::ChaosJobs { jobs, seed, trouble })
        }
        ("chaos", words) => {
            let (plant, words) = named("--plant", words)?;
            let (storm, words) = named("--storm", &words)?;
            let plant = plant.map_or(Some(None), |name| Plant::parse(name).map(Some))?;
            let storm = storm.map_or(Some(None), |name| Blow::parse(name).map(Some))?;
            let (minutes, seed) = amount_and_seed("--minutes", 1, &words)?;
            Some(Command::Chaos { minutes, seed, plant, storm })
        }
        ("damage", words) => {
            let (trials, seed) = amount_and_seed("--trials", damage::TRIALS, words)?;
            Some(Command::Damage { trials, seed })
        }
        ("powerloss", words) => {
            let (images, seed) = amount_and_seed("--images", powerloss::IMAGES, words)?;
            Some(Command::Powerloss { images, seed })
        }
        ("deny", []) => Some(Command::Deny),
        ("tidy", []) => Some(Command::Tidy),
        ("gen", []) => Some(Command::Generate { check: false }),
        ("gen", ["--check"]) => Some(Command::Generate { check: true }),
        _ => None,
    }
}

/// The word behind `name`, if it is there once, and all other words.
fn named<'a>(name: &str, words: &[&'a str]) -> Option<(Option<&'a str>, Vec<&'a str>)> {
    let (found, others): (Vec<_>, Vec<_>) = words.chunks(2).partition(|pair| pair[0] == name);
    match found.as_slice() {
        [] => Some((None, others.concat())),
        [[_, word]] => Some((Some(word), others.concat())),
        _ => None,
    }
}

/// How much of it, and which.
fn amount_and_seed(name: &str, otherwise: u64, words: &[&str]) -> Option<(u64, Option<u64>)> {
    let (mut amount, mut seed) = (otherwise, None);
    for pair in words.chunks(2) {
        match pair {
            [word, number] if *word == name => amount = number.parse().ok()?,
            ["--seed", number] => seed = Some(number.parse().ok()?),
            _ => return None,
        }
    }
    Some((amount, seed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Option<Command> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    fn chaos(minutes: u64, seed: Option<u64>, plant: Option<Plant>) -> Command {
        Command::Chaos { minutes, seed, plant, storm: None }
    }

    #[test]
    fn known_commands_are_understood() {
        assert_eq!(parsed("test"), Some(Command::Test { runner_args: Vec::new() }));
        let runner_args = vec!["-p".to_owned(), "semel-core".to_owned()];
        assert_eq!(parsed("test -- -p semel-core"), Some(Command::Test { runner_args }));
        assert_eq!(parsed("ci"), Some(Command::Ci));
        let args = vec!["--quick".to_owned()];
        assert_eq!(parsed("bench --quick"), Some(Command::Bench { args }));
        assert_eq!(parsed("chaos"), Some(chaos(1, None, None)));
        assert_eq!(parsed("chaos --seed 7 --minutes 30"), Some(chaos(30, Some(7), None)));
        for line in ["chaos --seed 2 --plant dedupe", "chaos --plant dedupe --seed 2"] {
            assert_eq!(parsed(line), Some(chaos(1, Some(2), Some(Plant::Dedupe))), "{line}");
        }
        let cancels = Some(Blow::Cancel);
        let storm = Command::Chaos { minutes: 10, seed: None, plant: None, storm: cancels };
        assert_eq!(parsed("chaos --minutes 10 --storm cancel"), Some(storm));
        assert_eq!(parsed("chaos --storm hail"), None);
        let jobs = |trouble| Some(Command::ChaosJobs { jobs: 5000, seed: Some(3), trouble });
        assert_eq!(parsed("chaos --jobs 5000 --seed 3"), jobs(Trouble::Sessions));
        assert_eq!(parsed("chaos --homes --jobs 5000 --seed 3"), jobs(Trouble::Homes));
        assert_eq!(parsed("chaos --jobs 5000 --clocks --seed 3"), jobs(Trouble::Clocks));
        assert_eq!(parsed("chaos --jobs 5000 --clocks --homes"), None);
        let damage = Command::Damage { trials: 50, seed: Some(3) };
        assert_eq!(parsed("damage --trials 50 --seed 3"), Some(damage));
        let powerloss = Command::Powerloss { images: 50, seed: None };
        assert_eq!(parsed("powerloss --images 50"), Some(powerloss));
        assert_eq!(parsed("tidy"), Some(Command::Tidy));
        assert_eq!(parsed("gen"), Some(Command::Generate { check: false }));
        assert_eq!(parsed("gen --check"), Some(Command::Generate { check: true }));
    }

    #[test]
    fn everything_else_is_a_usage_error() {
        for line in [
            "",
            "deploy",
            "test semel-core",
            "ci now",
            "tidy x",
            "gen --chek",
            "chaos 5",
            "chaos --images 5",
            "bench --help",
            "chaos --plant bug",
        ] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }
}
