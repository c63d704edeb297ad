//! The machine: its kernel, its disk, its clock, and what it can enforce.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock};
use semel_jobs::gear::groups;
use semel_jobs::gear::sandbox::probe;

use super::Finding;
use crate::exit::chain;
use crate::gear::shim;
use crate::system::{now, random};

/// With less than this nothing new is accepted for long.
const FREE_BYTES_LOW: u64 = 1 << 30;
const FREE_BYTES_MIN: u64 = 64 << 20;

/// Landlock keeps gears from files since then.
const KERNEL_MIN: (u32, u32) = (5, 13);

/// Every answer waits for one of them.
const SYNC_SLOW: Duration = Duration::from_millis(50);
const SYNCS: u32 = 16;

/// A file system in memory, as `statfs` knows it.
const TMPFS: i64 = 0x0102_1994;

/// 2025 to 2100: any other clock is not set.
const CLOCK_MS: std::ops::Range<i64> = 1_735_689_600_000..4_102_444_800_000;

/// How far the clock may be behind what was written with it.
const CLOCK_BACK: Duration = Duration::from_secs(60);

pub(super) async fn look(root: &Path) -> Vec<Finding> {
    let place = existing(root);
    let mut findings = vec![kernel(), disk(&place), sync(&place), clock(root)];
    findings.push(groups());
    findings.extend(sandbox().await);
    findings
}

/// The home, or the nearest folder above it that is there.
fn existing(root: &Path) -> PathBuf {
    let found = root.ancestors().find(|folder| folder.is_dir());
    found.unwrap_or(Path::new("/")).to_owned()
}

fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if version(&release) >= KERNEL_MIN {
        return Finding::sound("kernel", format!("Linux {release}"));
    }
    let (major, minor) = KERNEL_MIN;
    let detail = format!("Linux {release} cannot keep gears from files");
    Finding::warning("kernel", detail, format!("run a kernel from {major}.{minor} on for gears"))
}

fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn disk(place: &Path) -> Finding {
    let name = place.display();
    match rustix::fs::statvfs(place) {
        Err(error) => {
            let detail = format!("{name}: {error}");
            Finding::problem("disk", detail, "choose a home that can be read: --home DIR")
        }
        Ok(found) => {
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            let detail = format!("{} MB are free at {name}", free >> 20);
            let to_do = "make room, or choose another home: --home DIR";
            match free {
                _ if free < FREE_BYTES_MIN => Finding::problem("disk", detail, to_do),
                _ if free < FREE_BYTES_LOW => Finding::warning("disk", detail, to_do),
                _ => Finding::sound("disk", detail),
            }
        }
    }
}

/// What is acknowledged was synced: how long that takes is how long every answer takes.
fn sync(place: &Path) -> Finding {
    let name = place.display();
    let path = place.join(format!(".semel-doctor-{:016x}", random() >> 64));
    let took = syncs(&path);
    // It may not have been made.
    let _ = std::fs::remove_file(&path);
    let took = match took {
        Ok(took) => took,
        Err(error) => {
            let detail = format!("{name}: {error}");
            return Finding::problem(
                "fsync",
                detail,
                "choose a home on a disk that can be written",
            );
        }
    };
    let us = took.as_micros();
    let detail = format!("{us} µs on average at {name}");
    if rustix::fs::statfs(place).is_ok_and(|found| found.f_type == TMPFS) {
        let detail = format!("{name} is kept in memory: nothing there survives a power cut");
        return Finding::warning("fsync", detail, "choose a home on a disk: --home DIR");
    }
    if took > SYNC_SLOW {
        return Finding::warning(
            "fsync",
            detail,
            "choose a faster disk; every answer waits for it",
        );
    }
    Finding::sound("fsync", detail)
}

fn syncs(path: &Path) -> std::io::Result<Duration> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let clock = SystemClock::new();
    for _ in 0..SYNCS {
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
    }
    Ok(clock.monotonic() / SYNCS)
}

fn clock(root: &Path) -> Finding {
    let now = now();
    let said = semel_core::rfc3339::format(now);
    if !CLOCK_MS.contains(&now.0) {
        let detail = format!("it says {said}");
        return Finding::problem("clock", detail, "set it; ids and expiry depend on it");
    }
    let written = std::fs::metadata(root).map_or(0, |home| home.mtime().saturating_mul(1000));
    if now.saturating_add(CLOCK_BACK).0 < written {
        let detail = format!("it shows {said}, but the home was written later than that");
        return Finding::warning("clock", detail, "let the system set it (NTP)");
    }
    Finding::sound("clock", said)
}

/// No fault of the host: an engine does without. One that is run as a service may have a group that
/// whoever asks here has not.
fn groups() -> Finding {
    let detail = format!("{} (as seen from here)", groups::told(&groups::look()));
    Finding::sound("limits of gears", detail)
}

async fn sandbox() -> Vec<Finding> {
    let found = match shim() {
        Ok(shim) => probe::missing(&shim).await.map_err(|error| chain(&error)),
        Err(failure) => Err(failure.text),
    };
    let to_do = "gears need --accept-weaker-sandbox here, or a host that can enforce it";
    match found {
        Err(why) => vec![Finding::warning("sandbox", format!("unknown: {why}"), to_do)],
        Ok(missing) if missing.is_empty() => {
            vec![Finding::sound("sandbox", "this host can enforce the whole sandbox of gears")]
        }
        Ok(missing) => {
            let line = |(ability, why): &(semel_jobs::gear::sandbox::Ability, String)| {
                Finding::warning("sandbox", format!("no {}: {why}", ability.as_str()), to_do)
            };
            missing.iter().map(line).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_compared_by_its_numbers() {
        assert_eq!(version("6.14.0-1-cloud"), (6, 14));
        assert_eq!(version("5.4-rc1"), (5, 4));
        assert!(version("5.9.1") < KERNEL_MIN, "not by its letters");
        assert_eq!(version("odd"), (0, 0));
    }
}
