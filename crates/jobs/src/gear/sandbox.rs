//! What a gear's process may do (jobs.md §8).
//!
//! The engine starts this program again as `semel gear-shim` and writes three frames to its stdin;
//! each stage reads its own and no byte more, what follows is the gear's:
//!
//! 1. *outer* makes new namespaces (user, process ids, network, IPC, host name) and waits. When the
//!    engine closes its end of stderr, by intent or by dying, everything inside is killed.
//! 2. *init* is process 1 in there: it adopts orphans, and the kernel kills whatever is left when
//!    it ends, whatever session or group that has made for itself. It carries the declared network
//!    to the engine's proxy.
//! 3. *inside* gives up capabilities, sets limits, shuts itself in (Landlock, seccomp) and becomes
//!    the gear.
//!
//! Nothing here runs between `fork` and `exec`, and nothing needs unsafe code: each stage is a
//! process of one thread when it changes itself.

mod confine;
pub mod count;
mod network;
pub mod probe;
pub mod shim;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use zeroize::Zeroizing;

use semel_core::status;

use super::reach::Number;
use crate::limits::FRAME_BYTES_MAX;

status! {
    /// What a host can enforce, or not.
    pub enum Ability {
        /// Namespaces: no network, no other processes, and nothing outlives its execution.
        Namespaces = "namespaces",
        /// Landlock: no files but those that were declared.
        Files = "files",
        /// seccomp: no system calls that lead around the rest.
        SystemCalls = "system_calls",
        /// A bound on the number of processes.
        ProcessCount = "process_count",
    }
}

/// The hidden command of the shim.
pub const COMMAND: &str = "gear-shim";

/// Where the gear's network begins, inside.
pub const PROXY_PORT: u16 = 3128;

/// What one process may use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory of a process.
    pub memory_bytes: u64,
    /// Seconds of a processor.
    pub cpu_s: u64,
    /// Processes and threads at a time.
    pub processes: u64,
    /// Bytes of a file that it writes.
    pub file_bytes: u64,
    /// Bytes of all files in its folder.
    pub disk_bytes: u64,
    /// Open files of a process.
    pub open_files: u64,
}

impl Default for Limits {
    /// What a manifest that says nothing asks for.
    fn default() -> Self {
        Self {
            memory_bytes: 1 << 30,
            cpu_s: 300,
            processes: 64,
            file_bytes: 256 << 20,
            disk_bytes: 1 << 30,
            open_files: 256,
        }
    }
}

/// The first frame.
#[derive(Serialize, Deserialize)]
pub(crate) struct Outer {
    pub(crate) key: Option<String>,
    pub(crate) namespaces: bool,
}

/// The second frame.
#[derive(Serialize, Deserialize)]
pub(crate) struct Init {
    pub(crate) key: Option<String>,
    pub(crate) namespaces: bool,
    /// The folder of the proxy's socket, when there is a network.
    pub(crate) proxy: Option<PathBuf>,
    pub(crate) processes: u64,
}

/// The third frame.
#[derive(Serialize, Deserialize)]
pub(crate) struct Inside {
    /// Without a key the program is no gear, and nothing is handed over.
    pub(crate) key: Option<String>,
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    /// Read and run.
    pub(crate) read: Vec<PathBuf>,
    /// Read and write.
    pub(crate) write: Vec<PathBuf>,
    pub(crate) limits: Limits,
    pub(crate) network: bool,
    /// What it may not open, whatever else it may.
    pub(crate) kept_from: Vec<Number>,
    /// What the operator does without.
    pub(crate) waived: Vec<String>,
}

/// A document with its length before it.
pub(crate) fn frame(document: &impl Serialize) -> io::Result<Zeroizing<Vec<u8>>> {
    let bytes = Zeroizing::new(serde_json::to_vec(document)?);
    let length = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= FRAME_BYTES_MAX);
    let length = length.ok_or(io::ErrorKind::FileTooLarge)?;
    let mut frame = Zeroizing::new(Vec::with_capacity(bytes.len() + 4));
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&bytes);
    Ok(frame)
}

/// Reads one frame and not a byte more; `from` must not read ahead.
fn read_frame<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = Zeroizing::new(vec![0; length]);
    from.read_exact(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// The name of a proxy's socket in its folder.
pub(crate) const fn proxy_socket() -> &'static str {
    network::SOCKET
}
