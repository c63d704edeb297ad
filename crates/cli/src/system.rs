//! What the machine gives: randomness, a clock's ids, and the end of the process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use semel_core::clock::{Clock, SystemClock, UnixMs};
use semel_core::mint::IdMint;
use semel_store::StoreError;
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

use crate::exit::Exit;

/// Nobody can know what is on disk: end, before anybody is told anything, and let recovery by key
/// decide after the restart.
pub(crate) fn end(error: &StoreError) {
    tracing::error!(error = error.chain(), "the process ends: a commit's outcome is unknown");
    exit();
}

#[expect(clippy::exit, reason = "only the command line ends the process, and here it must")]
fn exit() -> ! {
    std::process::exit(Exit::Unavailable.code());
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
        exit();
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

/// What this machine is called.
pub(crate) fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    if name.is_empty() { "a host".to_owned() } else { name }
}
