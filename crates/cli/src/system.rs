//! What the machine gives: randomness, a clock's ids, and the end of the process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::mint::IdMint;
use semel_store::StoreError;
use semel_vital::Vital;
use semel_wire::place::{Plain, may_be_plain};
use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};
use zeroize::Zeroizing;

use crate::exit::{Exit, Failure};
use crate::log;

/// Nobody can know what is on disk: end, before anybody is told anything, and let recovery by key
/// decide after the restart; or an operator, when a file is damaged.
pub(crate) fn end(error: &StoreError) {
    let is_damaged = matches!(error, StoreError::Damaged { .. });
    // Whatever becomes of the words.
    let _end = End(if is_damaged { Exit::Refused } else { Exit::Unavailable });
    let why = if is_damaged { "a file is damaged" } else { "a commit's outcome is unknown" };
    let (chain, text) = (error.chain(), format!("error: {error}"));
    log::last_words(move || {
        tracing::error!(error = chain, "the process ends: {why}");
        log::say(&text);
        let when =
            if is_damaged { "to check it" } else { "if it ends like this again, check the file" };
        log::say(&format!("{when}: semel daemon recover, semel job check, or semel doctor"));
    });
}

struct End(Exit);

impl Drop for End {
    fn drop(&mut self) {
        exit(self.0);
    }
}

#[expect(clippy::exit, reason = "only the command line ends the process, and here it must")]
fn exit(how: Exit) -> ! {
    std::process::exit(how.code());
}

/// New ids from the machine's clock and randomness.
pub(crate) fn mint() -> Arc<IdMint> {
    Arc::new(IdMint::new(Arc::new(SystemClock::new()), Box::new(random)))
}

/// Bits that nobody can guess. Without a source of them nothing here is safe to do.
pub(crate) fn random() -> u128 {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        tracing::error!("the system has no source of randomness");
        exit(Exit::Unavailable);
    }
    u128::from_ne_bytes(bytes)
}

/// 32 of them: a token, a challenge.
pub(crate) fn random_bytes() -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&random().to_ne_bytes());
    bytes[16..].copy_from_slice(&random().to_ne_bytes());
    bytes
}

/// The same, wiped when nobody needs it any more: a key.
pub(crate) fn secret() -> Zeroizing<[u8; 32]> {
    Zeroizing::new(random_bytes())
}

pub(crate) fn now() -> UnixMs {
    SystemClock::new().wall()
}

pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Threads beside those of the runtime that every command needs.
pub(crate) const COMMAND_THREADS: usize = 2;

/// The same of what serves: each of its files has some.
pub(crate) const SERVING_THREADS: usize = 40;

/// Refuses to go on where so many threads cannot be started: a runtime would panic, and a file that
/// cannot be opened for want of them would look damaged.
pub(crate) fn refuse_few_threads(beside: usize) -> Result<(), Failure> {
    let wanted = std::thread::available_parallelism().map_or(1, usize::from) + beside;
    let gate = Arc::new(Mutex::new(()));
    let all_at_once = gate.lock().unwrap_or_else(PoisonError::into_inner);
    let waits = || {
        let gate = Arc::clone(&gate);
        std::thread::Builder::new().spawn(move || drop(gate.lock()))
    };
    let started: std::io::Result<Vec<_>> = (0..wanted).map(|_| waits()).collect();
    drop(all_at_once);
    let told = |error| {
        let text = format!(
            "error: no thread can be started: {error}\nthis user may have too few of them: see \
             ulimit -u, or TasksMax of the service"
        );
        Failure::new(Exit::Unavailable, text)
    };
    for thread in started.map_err(told)? {
        // It does nothing that could panic.
        let _ = thread.join();
    }
    Ok(())
}

/// A file that has reached the limit of its size (`ulimit -f`) is a write that fails, and not a
/// signal that ends the process without a word.
pub(crate) fn outlive_large_files() -> std::io::Result<()> {
    // The handler stays for as long as the process does.
    signal(SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw())).map(drop)
}

/// SIGTERM and SIGINT both mean: finish what is under way, then end.
pub(crate) fn stopped() -> std::io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// SIGHUP means: read again what can be. From this call on it ends nothing any more.
pub(crate) fn hung_up() -> Result<Signal, Failure> {
    signal(SignalKind::hangup())
        .map_err(|error| Failure::new(Exit::Failed, format!("error: signals: {error}")))
}

/// An address for the local API, which is for programs on this machine alone.
pub(crate) fn on_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text.parse().map_err(|_| "is not like 127.0.0.1:7118".to_owned())?;
    match may_be_plain(address.ip(), Plain::LoopbackOnly) {
        true => Ok(address),
        false => Err("is not an address of this machine alone, such as 127.0.0.1:7118".to_owned()),
    }
}

/// How long a process that has lost a part takes to stop.
const STOP_MAX: Duration = Duration::from_secs(10);

/// Stops in order, and says what it had to stop for. Others may wait for ever for a part that is
/// gone, so that they get some time and no more: they are recovered like after a kill.
pub(crate) async fn stop_after(
    ended: Option<Failure>,
    stop: impl Future<Output = Result<(), Failure>>,
) -> Result<(), Failure> {
    let Some(failure) = ended else { return stop.await };
    let limit = if failure.exit == Exit::Broken { STOP_MAX } else { Duration::MAX };
    match tokio::time::timeout(limit, stop).await {
        Ok(Ok(())) => {}
        Ok(Err(also)) => tracing::error!(also.text, "it did not stop in order"),
        Err(_) => tracing::error!("it did not stop in time"),
    }
    Err(failure)
}

/// How long the files of a process are closed, before it ends without.
const CLOSE_MAX: Duration = Duration::from_secs(10);

/// Closes a file in order, where a command ends: in `Drop`, because commands end in many places.
/// What takes too long is left as it is; the next start finds its log and goes on from there.
pub(crate) fn close(closing: impl Future<Output = ()>) {
    let Ok(runtime) = Handle::try_current() else { return };
    let closed = tokio::task::block_in_place(|| {
        runtime.block_on(async { tokio::time::timeout(CLOSE_MAX, closing).await })
    });
    if closed.is_err() {
        tracing::error!("a file was not closed in time: its log stays beside it");
    }
}

/// One more part of this owner, which panics once SIGUSR2 comes: tests ask for it, to see from
/// outside what follows. No release has it.
#[cfg(debug_assertions)]
#[expect(clippy::panic, reason = "that is what it is for")]
pub(crate) fn plant(vital: &Vital, owner: &str) {
    if std::env::var("SEMEL_TEST_PANIC").as_deref() != Ok(owner) {
        return;
    }
    let asked = signal(SignalKind::user_defined2());
    drop(vital.spawn("planted", async {
        match asked {
            Ok(mut asked) => drop(asked.recv().await),
            Err(error) => tracing::error!(%error, "nothing is planted"),
        }
        panic!("a test has asked for it");
    }));
}

#[cfg(not(debug_assertions))]
pub(crate) fn plant(_: &Vital, _: &str) {}

/// What this machine is called.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    if name.is_empty() { "a host".to_owned() } else { name }
}
