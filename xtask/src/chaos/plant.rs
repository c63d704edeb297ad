//! Bugs that are built in on purpose, to see that the checker finds them: `--cfg semel_plant="…"`
//! for our own crates, in a folder of its own, so that no other build ever has them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use crate::repo;
use crate::servers::Servers;

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The broker answers before it has committed.
    Ack,
    /// An inbox stores what it has already.
    Dedupe,
    /// What was on the wire of a lost connection is not sent again.
    Drop,
    /// The claim of an id stands alone when its BEGIN is refused.
    Begin,
    /// A move that may be written is written again without a look.
    Settle,
    /// An engine that cannot renew its claims goes on.
    Fence,
    /// Claims of two engines cannot be told from each other.
    Claim,
    /// A log line that cannot be written ends whoever writes it.
    Stderr,
    /// Of what was put off, whoever is answered first is taken for the first.
    Order,
}

const ALL: [Plant; 9] = [
    Plant::Ack,
    Plant::Dedupe,
    Plant::Drop,
    Plant::Begin,
    Plant::Settle,
    Plant::Fence,
    Plant::Claim,
    Plant::Stderr,
    Plant::Order,
];

/// What finds a planted bug, and as what.
pub(crate) enum Found {
    /// A usual run: there is the violation in the report.
    Run { finding: &'static str },
    /// So many jobs that engines fight for.
    Jobs { finding: &'static str, jobs: u64 },
    /// What no run hits in minutes: a test that puts the fault at its place.
    Test(Harness),
}

/// A test that must fail in a build with the bug.
#[derive(Clone, Copy)]
pub(crate) struct Harness {
    package: &'static str,
    binary: &'static [&'static str],
    pub(crate) name: &'static str,
}

const ACCEPT: Harness = Harness {
    package: "semel-broker",
    binary: &["--test", "it"],
    name: "faults::an_accept_is_whole_or_not_there",
};
const PUT_OFF: Harness = Harness {
    package: "semel-broker",
    binary: &["--lib"],
    name: "pipeline::tests::two_transactions_in_a_row_keep_the_order",
};
const MOVE: Harness = Harness {
    package: "semel-jobs",
    binary: &["--test", "engine"],
    name: "lost::a_record_that_the_store_gave_up_is_found",
};

/// While sessions are ended every 30 ms, engines lose the answers to some of their claims.
const JOBS: u64 = 5000;

impl Plant {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|plant| plant.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Dedupe => "dedupe",
            Self::Drop => "drop",
            Self::Begin => "begin",
            Self::Settle => "settle",
            Self::Fence => "fence",
            Self::Claim => "claim",
            Self::Stderr => "stderr",
            Self::Order => "order",
        }
    }

    /// What finds it.
    pub(crate) fn found_by(self) -> Found {
        let usual = |finding| Found::Run { finding };
        match self {
            Self::Ack | Self::Drop => usual("/violations/lost"),
            Self::Dedupe => usual("/violations/duplicated"),
            Self::Fence => usual("/jobs/overlapping"),
            Self::Stderr => usual("/faults/ended_by_themselves"),
            Self::Claim => Found::Jobs { finding: "/twice", jobs: JOBS },
            Self::Begin => Found::Test(ACCEPT),
            Self::Order => Found::Test(PUT_OFF),
            Self::Settle => Found::Test(MOVE),
        }
    }

    /// Whether that test fails in a build with the bug.
    pub(crate) fn fails(self, harness: Harness) -> Result<bool> {
        let (_, mut build) = self.cargo(&["test", "--package", harness.package, "--no-run"])?;
        repo::succeed(&mut build)?;
        let servers = Servers::start()?;
        let Harness { package, binary, name } = harness;
        let words = [&["test", "--package", package], binary, &["--", name]].concat();
        let (_, mut test) = self.cargo(&words)?;
        let status = test.envs(servers.environment()).status()?;
        Ok(!status.success())
    }

    /// The program with the bug in it.
    pub(crate) fn build(self) -> Result<PathBuf> {
        let (target, mut cargo) = self.cargo(&["build", "--package", "semel"])?;
        repo::succeed(&mut cargo)?;
        let built = target.join("debug").join("semel");
        // The next plant is built to the same place.
        let kept = target.join(format!("semel-{}", self.name()));
        fs::copy(&built, &kept).context("the planted program was not built")?;
        Ok(kept)
    }

    /// Cargo in a folder of its own. A wrapper tells the compiler of the bug, and only for the
    /// workspace: flags for everything would build every dependency again.
    fn cargo(self, words: &[&str]) -> Result<(PathBuf, Command)> {
        let target = repo::root().join("target").join("plant");
        fs::create_dir_all(&target)?;
        let wrapper = target.join(format!("rustc-{}", self.name()));
        let script = format!("#!/bin/sh\nexec \"$@\" --cfg 'semel_plant=\"{}\"'\n", self.name());
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
        let mut cargo = repo::cargo(words);
        cargo.env("CARGO_TARGET_DIR", &target).env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
        Ok((target, cargo))
    }
}
