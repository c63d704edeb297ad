//! sqlxmq's users run its migrations themselves; they come with its package.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

fn main() -> Result<()> {
    let cargo = std::env::var("CARGO")?;
    let platform = std::env::var("TARGET")?;
    let asked = ["metadata", "--format-version=1", "--locked", "--filter-platform", &platform];
    let output = Command::new(cargo).args(asked).output()?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("a list of packages")?;
    let package = packages.iter().find(|package| package["name"] == "sqlxmq");
    let manifest = package.and_then(|package| package["manifest_path"].as_str());
    let manifest = Path::new(manifest.context("sqlxmq is a dependency")?);
    let folder = manifest.with_file_name("migrations");
    let mut files = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<PathBuf>>>()?;
    files.retain(|file| file.to_string_lossy().ends_with(".up.sql"));
    files.sort();
    let mut schema = String::new();
    for file in files {
        schema += &std::fs::read_to_string(file)?;
        schema += "\n";
    }
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("schema.sql"), schema)?;
    Ok(())
}
