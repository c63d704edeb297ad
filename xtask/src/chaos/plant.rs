//! Bugs that are built in on purpose, to see that the checker finds them: `--cfg semel_plant="…"`
//! for our own crates, in a folder of its own, so that no other build ever has them.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::repo;

/// What is planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// The broker answers before it has committed.
    Ack,
    /// An inbox stores what it has already.
    Dedupe,
    /// What was on the wire of a lost connection is not sent again.
    Drop,
}

impl Plant {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        [Self::Ack, Self::Dedupe, Self::Drop].into_iter().find(|plant| plant.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Dedupe => "dedupe",
            Self::Drop => "drop",
        }
    }

    /// The violation that must be found.
    pub(crate) fn finding(self) -> &'static str {
        match self {
            Self::Ack | Self::Drop => "lost",
            Self::Dedupe => "duplicated",
        }
    }

    /// The program with the bug in it. A wrapper tells the compiler, and only for the workspace:
    /// flags for everything would build every dependency again.
    pub(crate) fn build(self) -> Result<PathBuf> {
        let target = repo::root().join("target").join("plant");
        fs::create_dir_all(&target)?;
        let wrapper = target.join(format!("rustc-{}", self.name()));
        let script = format!("#!/bin/sh\nexec \"$@\" --cfg 'semel_plant=\"{}\"'\n", self.name());
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, Permissions::from_mode(0o755))?;
        let mut cargo = repo::cargo(&["build", "--package", "semel"]);
        cargo.env("CARGO_TARGET_DIR", &target).env("RUSTC_WORKSPACE_WRAPPER", &wrapper);
        repo::succeed(&mut cargo)?;
        let built = target.join("debug").join("semel");
        // The next plant is built to the same place.
        let kept = target.join(format!("semel-{}", self.name()));
        fs::copy(&built, &kept).context("the planted program was not built")?;
        Ok(kept)
    }
}
