//! A whole home as people run it: sends that go through the outbox, the broker and the inbox of one
//! `semel up`, its start and its memory beside what they have left in all three.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::runtime::Runtime;

use super::cpu::cpu_us_of;
use super::{GROWTH_MAX, Names, SIZES, at_each_size};
use crate::daemon::load::{End, load_after};
use crate::plan;
use crate::program::{Running, SETTLED, said, semel, unlimited};
use crate::report::{Bar, Rounds, Unit};

const CONNECTIONS: usize = 64;
/// Sends that are measured at each size.
const MEASURED: usize = 20_000;
const DRAIN_LOOK: Duration = Duration::from_millis(100);
const SECOND: &str = "1 s";

const SEND: Names = at_each_size!("a send to the inbox, `semel up`");
const BYTES: Names = at_each_size!("a send on disk in three files, `semel up`");
const READY: Names = at_each_size!("`semel up` ready");
const RESIDENT: Names = at_each_size!("`semel up` resident after a start");

/// Starts the program anew at each size.
pub(super) fn run(folder: &Path, rounds: &mut Rounds, bars: &mut Vec<Bar>) -> Result<()> {
    let (semel, home) = (semel()?, folder.join("home"));
    drop(Running::up(&semel, &home)?);
    unlimited(&home)?;
    rounds.wanted(SECOND, 1000.0);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let count = if plan::get().long { SIZES.len() } else { SIZES.len() - 1 };
    let mut sent = 0;
    for (at, size) in SIZES.into_iter().enumerate().take(count) {
        let size = plan::amount(size);
        let up = Running::up(&semel, &home)?;
        sent = send(&runtime, (&semel, &home), &up, sent, size.saturating_sub(sent))?;
        drop(up);
        let start = Instant::now();
        let up = Running::up(&semel, &home)?;
        rounds.value(READY[at], Unit::Ms, start.elapsed().as_secs_f64() * 1000.0);
        std::thread::sleep(SETTLED);
        rounds.value(RESIDENT[at], Unit::Mb, up.mb("VmRSS:")?);
        let (before, more) = (cpu_us_of(up.id())?, plan::amount(MEASURED));
        sent = send(&runtime, (&semel, &home), &up, sent, more)?;
        let used = cpu_us_of(up.id())? - before;
        rounds.value(SEND[at], Unit::CpuUs, ratio(used, more));
        drop(up);
        rounds.value(BYTES[at], Unit::Bytes, ratio(bytes(&home)?, sent));
    }
    for names in [&SEND, &BYTES, &RESIDENT] {
        bars.push(Bar::at_most(names[count - 1], GROWTH_MAX, names[0]));
    }
    bars.push(Bar::at_most(READY[count - 1], 1.0, SECOND));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "a cost needs no 53 bits")]
fn ratio(of: u64, to: usize) -> f64 {
    of as f64 / to.max(1) as f64
}

/// So many more, until all have arrived. How many there are then.
fn send(
    runtime: &Runtime,
    (semel, home): (&Path, &Path),
    up: &Running,
    sent: usize,
    more: usize,
) -> Result<usize> {
    let (socket, to) = (Path::new(up.said("socket")?), up.said("pubkey")?);
    runtime.block_on(load_after(socket, CONNECTIONS, to, sent, End::Sends(more)))?;
    loop {
        let status = said(semel, home, &["daemon", "status", "--mesh", "local", "--json"])?;
        let status: Value = serde_json::from_str(&status)?;
        let left = |field: &str| status.get(field).and_then(Value::as_u64);
        if (left("queue_depth"), left("inflight")) == (Some(0), Some(0)) {
            return Ok(sent + more);
        }
        std::thread::sleep(DRAIN_LOOK);
    }
}

/// Of the three databases, when nobody has them open.
fn bytes(home: &Path) -> Result<u64> {
    let mut bytes = 0;
    for file in ["broker/broker.db", "daemon/local/outbox.db", "daemon/local/inbox.db"] {
        bytes += std::fs::metadata(home.join(file)).context(file)?.len();
    }
    Ok(bytes)
}
