//! What an operation costs beside ten thousand, a hundred thousand and a million things that are
//! stored already: processor time of ours and of the database, and bytes on disk. Stores are opened
//! while they are empty and stay open, so that every statement was prepared on empty tables.

mod broker;
mod cpu;
mod disk;
mod home;
mod jobs;
mod registrar;

use anyhow::{Context, Result};

use crate::report::{Bar, Rounds, Unit, publish};
use crate::{facts, plan};
use cpu::Meter;
use disk::Disk;

/// How much is stored when it is measured. The last is for a long run.
const SIZES: [usize; 4] = [10_000, 100_000, 1_000_000, 10_000_000];

/// How much dearer everything may be beside the most than beside the least.
const GROWTH_MAX: f64 = 1.3;

/// What is measured at each size, by the names of its rows.
type Names = [&'static str; 4];

macro_rules! at_each_size {
    ($what:literal) => {
        [
            concat!($what, ", 10,000 stored"),
            concat!($what, ", 100,000 stored"),
            concat!($what, ", 1,000,000 stored"),
            concat!($what, ", 10,000,000 stored"),
        ]
    };
}
use at_each_size;

/// How a subject's rows are called, and how far it is taken.
struct Labels {
    operations: &'static [Names],
    /// Bytes on disk of each thing that is stored.
    bytes: Names,
}

/// Something that stores more and more.
trait Subject {
    /// Stores until there are so many.
    async fn grow(&mut self, to: usize) -> Result<()>;

    /// Does the operation of this number, and says how often.
    async fn operate(&mut self, number: usize) -> Result<usize>;
}

/// Not interleaved: each row is compared with the same one beside less. What the server does by
/// itself, such as cleaning up after what was stored, meets one round and not the median.
pub(crate) fn run() -> Result<()> {
    let folder = tempfile::tempdir_in(plan::target())?;
    let server = std::env::var("SEMEL_TEST_POSTGRES")
        .context("SEMEL_TEST_POSTGRES is not set: run `cargo xtask bench`")?;
    let machine = facts::machine(folder.path())?;
    let (mut rounds, mut bars) = (Rounds::default(), Vec::new());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    home::run(folder.path(), &mut rounds, &mut bars)?;
    runtime.block_on(async {
        let meter = Meter::new(&server).await?;
        for place in [Disk::File(folder.path().to_owned()), Disk::Server(server.clone())] {
            let (labels, disk, subject) = broker::begin(&place).await?;
            grown(&meter, labels, &disk, subject, &mut rounds, &mut bars).await?;
            let (labels, disk, subject) = registrar::begin(&place).await?;
            grown(&meter, labels, &disk, subject, &mut rounds, &mut bars).await?;
            let (labels, disk, subject) = jobs::begin(&place).await?;
            grown(&meter, labels, &disk, subject, &mut rounds, &mut bars).await?;
        }
        anyhow::Ok(())
    })?;
    publish("growth", &machine, &rounds, &bars)
}

#[expect(clippy::cast_precision_loss, reason = "a cost needs no 53 bits")]
async fn grown(
    meter: &Meter,
    labels: &Labels,
    disk: &Disk,
    mut subject: impl Subject,
    rounds: &mut Rounds,
    bars: &mut Vec<Bar>,
) -> Result<()> {
    let count = if plan::get().long { SIZES.len() } else { SIZES.len() - 1 };
    for (at, size) in SIZES.into_iter().enumerate().take(count) {
        let size = plan::amount(size);
        subject.grow(size).await?;
        for _ in 0..plan::rounds() {
            for (number, names) in labels.operations.iter().enumerate() {
                let before = meter.cpu_us()?;
                let done = subject.operate(number).await?;
                let cost = (meter.cpu_us()? - before) as f64 / done.max(1) as f64;
                rounds.value(names[at], Unit::CpuUs, cost);
            }
        }
        rounds.value(labels.bytes[at], Unit::Bytes, disk.bytes().await? as f64 / size as f64);
    }
    for names in labels.operations.iter().chain([&labels.bytes]) {
        bars.push(Bar::at_most(names[count - 1], GROWTH_MAX, names[0]));
    }
    Ok(())
}
