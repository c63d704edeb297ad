//! A disk that can be full: a small file system in memory, whose size is set to what is on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::repo;

/// More than a long run writes.
const ROOM: &str = "4g";

/// What may be left free of a disk that is nearly full, at the most.
const SPARE_KIB_MAX: u64 = 4096;
const SPARE_KIB_STEP: usize = 128;

/// Mounted as long as it lives.
pub(crate) struct SmallDisk {
    at: PathBuf,
}

impl SmallDisk {
    /// `None` where we may not mount: only root may, and not in every container.
    pub(crate) fn mount(at: &Path) -> Result<Option<Self>> {
        fs::create_dir_all(at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o"]).arg(format!("size={ROOM},mode=0700"));
        let output = mount.arg("tmpfs").arg(at).output();
        let mounted = output.is_ok_and(|output| output.status.success());
        Ok(mounted.then(|| Self { at: at.to_owned() }))
    }

    /// Nothing more fits. A disk that grew meanwhile cannot be made smaller than it is.
    pub(crate) fn fill(&self) -> Result<()> {
        for spare_kib in (0..SPARE_KIB_MAX).step_by(SPARE_KIB_STEP) {
            let disk = rustix::fs::statvfs(&self.at).context("how full the disk is")?;
            let used_kib = (disk.f_blocks - disk.f_bfree) * disk.f_frsize / 1024;
            let size = format!("{}k", used_kib + spare_kib);
            if self.remount(&size).output()?.status.success() {
                return Ok(());
            }
        }
        bail!("the disk at {} cannot be made full", self.at.display())
    }

    pub(crate) fn empty(&self) -> Result<()> {
        repo::succeed(&mut self.remount(ROOM))
    }

    /// What is on it, to where it stays.
    pub(crate) fn keep(&self) -> Result<()> {
        let kept = self.at.with_extension("kept");
        repo::succeed(Command::new("cp").arg("-a").arg(&self.at).arg(kept))
    }

    fn remount(&self, size: &str) -> Command {
        let mut remount = Command::new("mount");
        remount.arg("-o").arg(format!("remount,size={size}")).arg(&self.at);
        remount
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Whoever still uses it is about to end.
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}
