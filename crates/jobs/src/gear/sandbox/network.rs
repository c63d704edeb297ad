//! The network inside: a loopback that carries connections to the engine's proxy, and nothing else.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType};

use super::PROXY_PORT;
use crate::limits::PROXY_CONNECTIONS_MAX;

/// The name of the proxy's socket in its folder.
pub(crate) const SOCKET: &str = "proxy";

/// Brings the loopback of a new network namespace up.
pub(super) fn loopback_up() -> io::Result<()> {
    // No protocol is the first one: routes and interfaces.
    let socket = rustix::net::socket(AddressFamily::NETLINK, SocketType::RAW, None)?;
    // A header (length, RTM_NEWLINK, request and answer, number, sender), then which interface
    // (the first is the loopback) and which of its flags (up).
    let mut message = Vec::with_capacity(32);
    message.extend_from_slice(&32_u32.to_ne_bytes());
    message.extend_from_slice(&16_u16.to_ne_bytes());
    message.extend_from_slice(&5_u16.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&0_u32.to_ne_bytes());
    message.extend_from_slice(&1_i32.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    message.extend_from_slice(&1_u32.to_ne_bytes());
    rustix::net::send(&socket, &message, SendFlags::empty())?;
    let mut answer = [0; 128];
    let (_, received) = rustix::net::recv(&socket, &mut answer, RecvFlags::empty())?;
    // The answer's header has 16 bytes, then comes 0 or an error below it.
    let code = answer.get(16..20).filter(|_| received >= 20).and_then(|code| code.try_into().ok());
    match code.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code.saturating_neg())),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Carries connections to the engine's proxy, from now on.
pub(super) fn carry(folder: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", PROXY_PORT))?;
    // A socket's address is short; through the open folder any path will do.
    let folder = std::fs::File::open(folder)?;
    let open = Arc::new(AtomicUsize::new(0));
    thread::Builder::new().spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { continue };
            let path = format!("/proc/self/fd/{}/{SOCKET}", folder.as_raw_fd());
            if open.fetch_add(1, Ordering::Relaxed) >= PROXY_CONNECTIONS_MAX {
                open.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let counted = Arc::clone(&open);
            let carried = thread::Builder::new().spawn(move || {
                // Either side may go away at any time; there is nobody to tell.
                let _ = both_ways(&stream, &path);
                counted.fetch_sub(1, Ordering::Relaxed);
            });
            if carried.is_err() {
                open.fetch_sub(1, Ordering::Relaxed);
            }
        }
    })?;
    Ok(())
}

fn both_ways(inside: &TcpStream, path: &str) -> io::Result<()> {
    let proxy = UnixStream::connect(path)?;
    let (mut to, mut from) = (proxy.try_clone()?, inside.try_clone()?);
    let out = thread::Builder::new().spawn(move || {
        let copied = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Write).and(copied.map(drop))
    })?;
    let copied = io::copy(&mut &proxy, &mut &*inside);
    inside.shutdown(Shutdown::Write)?;
    // The other way has ended by itself or ends now.
    let _ = out.join();
    copied.map(drop)
}
