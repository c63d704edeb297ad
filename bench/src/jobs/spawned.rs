//! A gear with a program of its own, installed and run in the sandbox as everybody's are.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use semel_jobs::gear::installed::Installed;
use semel_jobs::gear::package::install;
use semel_jobs::gear::registry::Registry;
use semel_jobs::gear::sandbox::probe::missing;

use super::Gears;
use crate::program::{semel, stripped};

/// A gear of the same name and action as the one in this process.
pub(crate) async fn gears(folder: &Path, is_warm: bool) -> Result<Gears> {
    let (root, source) = (folder.join("home"), folder.join("package"));
    std::fs::create_dir_all(&root)?;
    std::fs::create_dir_all(&source)?;
    let manifest = format!(
        "id = \"bench\"\nversion = \"1\"\ncommand = [\"{{package}}/noop\"]\nwarm = {is_warm}\n\
         [actions.noop]\nabout = \"nothing\"\nrisk = \"low\"\n"
    );
    std::fs::write(source.join("gear.toml"), manifest)?;
    let noop = std::env::current_exe()?.with_file_name("noop-gear");
    // Each process has a copy of its own: what nobody runs should not be copied.
    stripped(&noop, &source.join("noop"))?;
    let shim = semel()?;
    // What this host cannot enforce is left out, as its operator would have to accept.
    let waived: Vec<_> = missing(&shim).await?.into_iter().map(|(ability, _)| ability).collect();
    install(&root, &root, &source, &waived)?;
    let gear = Installed::open(&root, "bench", shim, Arc::new(|_| None))?;
    let gears = Registry::default();
    gears.put(Arc::new(gear), true).context("the gear's schemas")?;
    // Nobody hears when a step begins.
    let (_, heard) = tokio::sync::mpsc::unbounded_channel();
    Ok((gears, heard))
}
