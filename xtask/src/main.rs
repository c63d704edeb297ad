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
mod generate;
mod powerloss;
mod random;
mod repo;
mod servers;
mod test;
mod tidy;

use std::process::ExitCode;

use chaos::Plant;

const USAGE: &str = "\
usage: cargo xtask <command>

  test [-- ARGS]   start private servers, run every test (ARGS go to the test runner)
  ci               what CI runs: format, clippy, tidy, test
  bench [NAME…] [--quick] [--long] [--readme]
                   start private servers, fetch peers, run the benchmarks; show the ratios
  chaos [--minutes N] [--seed S] [--plant ack|dedupe|drop]
                   kill, stop and cut off real processes under load; check what they promise;
                   with a bug planted, check that it is found
  powerloss [--images N] [--seed S]
                   cut the power anywhere in a recorded workload; look what the disk has left
  tidy             check the rules of the repository
  gen [--check]    rewrite what is generated (or only say whether it is current)";

/// Exit code for a command line that we do not understand, as shells and `clap` have it.
const EXIT_USAGE: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Test { runner_args: Vec<String> },
    Ci,
    Bench { args: Vec<String> },
    Chaos { minutes: u64, seed: Option<u64>, plant: Option<Plant> },
    Powerloss { images: u64, seed: Option<u64> },
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
        Command::Chaos { minutes, seed, plant } => chaos::run(minutes, seed, plant),
        Command::Powerloss { images, seed } => powerloss::run(images, seed),
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
        ("bench", _) => Some(Command::Bench { args: rest.to_vec() }),
        ("chaos", words) => {
            let planted = |pair: &&[&str]| pair[0] == "--plant";
            let (plants, others): (Vec<_>, Vec<_>) = words.chunks(2).partition(planted);
            let plant = match plants.as_slice() {
                [] => None,
                [[_, name]] => Some(Plant::parse(name)?),
                _ => return None,
            };
            let (minutes, seed) = amount_and_seed("--minutes", 1, &others.concat())?;
            Some(Command::Chaos { minutes, seed, plant })
        }
        ("powerloss", words) => {
            let (images, seed) = amount_and_seed("--images", powerloss::IMAGES, words)?;
            Some(Command::Powerloss { images, seed })
        }
        ("tidy", []) => Some(Command::Tidy),
        ("gen", []) => Some(Command::Generate { check: false }),
        ("gen", ["--check"]) => Some(Command::Generate { check: true }),
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
        Command::Chaos { minutes, seed, plant }
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
            "chaos --plant bug",
        ] {
            assert_eq!(parsed(line), None, "{line:?}");
        }
    }
}
