//! A process in the sandbox, from its start until nothing of it is left.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal};
use semel_gear::limits::LINE_BYTES_MAX;
use semel_gear::line::Breach;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use zeroize::Zeroizing;

use super::groups::{Groups, Leaf, Network};
use super::reach::Number;
use super::room::Lives;
use super::sandbox::shim::Stage;
use super::sandbox::{Ability, COMMAND, Init, Inside, Limits, Outer, frame};
use crate::limits::{GEAR_QUEUE_BYTES_MAX, GEAR_QUEUE_MAX, KILL_TIMEOUT, STDERR_BYTES_MAX};

/// What is to be run, and how.
pub(crate) struct Start<'a> {
    pub(crate) shim: &'a Path,
    /// A gear has one; another program gets nothing handed over.
    pub(crate) key: Option<String>,
    pub(crate) secrets: BTreeMap<String, String>,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) folder: PathBuf,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) read: Vec<PathBuf>,
    pub(crate) write: Vec<PathBuf>,
    pub(crate) limits: Limits,
    /// The folder of the proxy's socket, when there is a network.
    pub(crate) proxy: Option<PathBuf>,
    /// What it may not open, whatever else it may: the engine's home and what is above it.
    pub(crate) kept_from: Vec<Number>,
    pub(crate) waived: Vec<String>,
    /// Counts it for as long as it is there.
    pub(crate) lives: Lives,
    /// Where limits hold for all that it starts together, if the host has that.
    pub(crate) groups: Option<Arc<Groups>>,
}

impl Start<'_> {
    /// What the three stages of the shim read, one after the other.
    fn frames(self) -> io::Result<(Vec<Zeroizing<Vec<u8>>>, Lives)> {
        let namespaces = !self.waived.iter().any(|name| name == Ability::Namespaces.as_str());
        let network = self.proxy.is_some();
        let (key, processes) = (self.key.clone(), self.limits.processes);
        let frames = vec![
            frame(&Outer { key: key.clone(), namespaces })?,
            frame(&Init { key, namespaces, proxy: self.proxy, processes })?,
            frame(&Inside {
                key: self.key,
                secrets: self.secrets,
                program: self.program,
                arguments: self.arguments,
                folder: self.folder,
                environment: self.environment,
                read: self.read,
                write: self.write,
                limits: self.limits,
                network,
                kept_from: self.kept_from,
                waived: self.waived,
            })?,
        ];
        Ok((frames, self.lives))
    }
}

/// A running process. Dropped, its line of life is cut and it is killed from inside; only
/// [`Running::kill`] waits until it is gone.
pub(crate) struct Running {
    held: Held,
    group: Option<Pid>,
    input: Option<mpsc::Sender<Waiting>>,
    /// Room for what waits to be read by it, in bytes.
    unread: Arc<Semaphore>,
    output: ChildStdout,
    buffer: Vec<u8>,
    errors: Errors,
}

/// A line that waits to be read, with the room that it takes until it was.
type Waiting = (Zeroizing<Vec<u8>>, OwnedSemaphorePermit);

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// It waits to be read.
    Waits,
    /// Nobody is there any more who could read it.
    Gone,
    /// So much waits already that whoever is there does not read.
    Unread,
}

/// The engine's end of stderr: what was said there last, and the line of life of everything inside.
struct Errors {
    tail: Arc<Mutex<Vec<u8>>>,
    reading: JoinHandle<()>,
    /// Nothing more comes.
    whole: watch::Receiver<bool>,
}

/// What is left of a process until it is gone.
struct Held {
    child: Option<Child>,
    lives: Option<Lives>,
    leaf: Option<Arc<Leaf>>,
}

impl Held {
    fn new(child: Child, lives: Lives, leaf: Option<Arc<Leaf>>) -> Self {
        Self { child: Some(child), lives: Some(lives), leaf }
    }

    /// Nobody needs it any more.
    fn ends(&mut self) {
        self.lives.iter_mut().for_each(Lives::ends);
    }

    async fn wait(&mut self) -> Option<ExitStatus> {
        self.child.as_mut()?.wait().await.ok()
    }
}

impl Drop for Held {
    /// It counts until it is gone, whoever has forgotten it.
    fn drop(&mut self) {
        self.ends();
        let Some(mut child) = self.child.take() else { return };
        let is_gone = child.try_wait().is_ok_and(|status| status.is_some());
        if let (false, Ok(runtime)) = (is_gone, Handle::try_current()) {
            let (lives, leaf) = (self.lives.take(), self.leaf.take());
            runtime.spawn(async move {
                let _ = child.wait().await;
                drop((lives, leaf));
            });
        }
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Running {
    /// Starts a process.
    pub(crate) fn start(start: Start<'_>) -> io::Result<Self> {
        let mut child = Command::new(start.shim)
            .arg(COMMAND)
            .arg(Stage::Outer.name())
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let missing = || io::Error::from(io::ErrorKind::BrokenPipe);
        let mut stdin = child.stdin.take().ok_or_else(missing)?;
        let output = child.stdout.take().ok_or_else(missing)?;
        let errors = Errors::of(child.stderr.take().ok_or_else(missing)?);
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let (input, mut lines) = mpsc::channel::<Waiting>(GEAR_QUEUE_MAX);
        let network = if start.proxy.is_some() { Network::Proxy } else { Network::None };
        let leaf = start.groups.as_ref().and_then(|groups| groups.leaf(&start.limits, network));
        let leaf = leaf.map(Arc::new);
        let entering = leaf.clone().zip(child.id());
        let (frames, lives) = start.frames()?;
        // It ends with the process: then nobody reads, or nobody is left to send.
        tokio::spawn(async move {
            use tokio::io::AsyncWriteExt;
            // It does nothing and starts nobody before it has read its frame. The kernel may take a
            // while for it: other tasks go on.
            if let Some((leaf, pid)) = entering {
                let _ = tokio::task::spawn_blocking(move || leaf.put(pid)).await;
            }
            for frame in frames {
                if stdin.write_all(&frame).await.is_err() {
                    return;
                }
            }
            while let Some((line, _room)) = lines.recv().await {
                if stdin.write_all(&line).await.is_err() {
                    return;
                }
            }
        });
        let (held, input) = (Held::new(child, lives, leaf), Some(input));
        let unread = Arc::new(Semaphore::new(GEAR_QUEUE_BYTES_MAX));
        Ok(Self { held, group, input, unread, output, buffer: Vec::new(), errors })
    }

    /// Sends a line; never waits. What waits is held in memory, so a process that does not read
    /// what it is sent gets no more; one line always fits.
    pub(crate) fn send(&self, line: Vec<u8>) -> Sent {
        let Some(input) = &self.input else { return Sent::Gone };
        let line = Zeroizing::new(line);
        let bytes = u32::try_from(line.len().min(GEAR_QUEUE_BYTES_MAX)).unwrap_or(u32::MAX);
        let Ok(room) = Arc::clone(&self.unread).try_acquire_many_owned(bytes) else {
            return if input.is_closed() { Sent::Gone } else { Sent::Unread };
        };
        match input.try_send((line, room)) {
            Ok(()) => Sent::Waits,
            Err(TrySendError::Closed(_)) => Sent::Gone,
            Err(TrySendError::Full(_)) => Sent::Unread,
        }
    }

    /// Closes its input once everything was written.
    pub(crate) fn close_input(&mut self) {
        self.input = None;
    }

    /// The next line without its end, with a bound; `None` at the end. Nothing is lost when this is
    /// dropped while it waits.
    pub(crate) async fn line(&mut self) -> Result<Option<Vec<u8>>, Breach> {
        let mut looked = 0;
        loop {
            let new = self.buffer.get(looked..).unwrap_or_default();
            if let Some(at) = new.iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(looked + at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Ok(Some(line));
            }
            looked = self.buffer.len();
            if looked >= LINE_BYTES_MAX {
                return Err(Breach::Oversized);
            }
            match self.output.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) if self.buffer.is_empty() => return Ok(None),
                Ok(0) | Err(_) => return Err(Breach::Malformed),
                Ok(_) => {}
            }
        }
    }

    /// What it writes, as it comes; nothing at the end.
    pub(crate) async fn bytes(&mut self) -> Vec<u8> {
        self.buffer.clear();
        // A pipe that broke is one that ended.
        let _ = self.output.read_buf(&mut self.buffer).await;
        std::mem::take(&mut self.buffer)
    }

    /// The process that all others of the sandbox are below.
    pub(crate) fn id(&self) -> Option<u32> {
        self.held.child.as_ref()?.id()
    }

    /// Asks the process and its group to end.
    pub(crate) fn terminate(&self) {
        if let Some(group) = self.group {
            // It may be gone already.
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
    }

    /// What it said last on stderr.
    pub(crate) fn last_words(&self) -> String {
        let tail = self.errors.tail.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&tail).trim().to_owned()
    }

    /// Nobody needs it any more: another one may be waited for in its place.
    pub(crate) fn ends(&mut self) {
        self.held.ends();
    }

    /// Kills it and everything that it has started; nothing is left when this comes back. Gives its
    /// exit code, if it had ended by itself.
    pub(crate) async fn kill(mut self) -> Option<i32> {
        self.held.ends();
        let ended = self.held.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        self.errors.reading.abort();
        // Aborted is over, and only then is its end of the pipe closed.
        let _ = (&mut self.errors.reading).await;
        if timeout(KILL_TIMEOUT, self.held.wait()).await.is_err() {
            tracing::warn!("a sandbox did not end by itself and is killed");
            if let Some(group) = self.group {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            if let Some(child) = &mut self.held.child {
                let _ = child.kill().await;
            }
            if let Some(leaf) = &self.held.leaf {
                leaf.kill();
            }
        }
        if let Some(leaf) = &self.held.leaf {
            leaf.emptied().await;
        }
        ended.and_then(|status| status.code())
    }

    /// Waits until it has ended by itself and its last words were heard.
    pub(crate) async fn ended(&mut self) -> Option<i32> {
        let status = self.held.wait().await;
        // Nobody is left who could write; what was written may still have to be read.
        let _ = timeout(KILL_TIMEOUT, self.errors.whole.wait_for(|whole| *whole)).await;
        status.and_then(|status| status.code())
    }
}

impl Errors {
    fn of(mut stderr: ChildStderr) -> Self {
        let tail = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&tail);
        let (at_end, whole) = watch::channel(false);
        let reading = tokio::spawn(async move {
            let mut piece = vec![0; 8 << 10];
            // Everything is read, so that nobody has to wait; only the end is kept.
            while let Ok(read @ 1..) = stderr.read(&mut piece).await {
                let mut tail = kept.lock().unwrap_or_else(PoisonError::into_inner);
                tail.extend_from_slice(piece.get(..read).unwrap_or_default());
                let over = tail.len().saturating_sub(STDERR_BYTES_MAX);
                tail.drain(..over);
            }
            at_end.send_replace(true);
            // The line of life is held until this is aborted.
            std::future::pending::<()>().await;
        });
        Self { tail, reading, whole }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::gear::room::Lane;

    /// A process that does this instead of what the shim does.
    fn started(folder: &Path, script: &str) -> Running {
        let shim = folder.join("shim");
        fs::write(&shim, format!("#!/bin/sh\n{script}\n")).expect("a file");
        fs::set_permissions(&shim, fs::Permissions::from_mode(0o755)).expect("a mode");
        let start = Start {
            shim: &shim,
            key: None,
            secrets: BTreeMap::new(),
            program: PathBuf::new(),
            arguments: Vec::new(),
            folder: folder.to_owned(),
            environment: BTreeMap::new(),
            read: Vec::new(),
            write: Vec::new(),
            limits: Limits::default(),
            proxy: None,
            kept_from: Vec::new(),
            waived: Vec::new(),
            lives: Arc::<Lane>::default().lives(),
            groups: None,
        };
        Running::start(start).expect("a process")
    }

    #[tokio::test]
    async fn what_a_process_does_not_read_has_a_bound_in_bytes() {
        let place = tempfile::tempdir().expect("a folder");
        let running = started(place.path(), "exec sleep 1000");
        let large = || vec![b'x'; GEAR_QUEUE_BYTES_MAX / 4 + 1];
        let mut sent: Vec<Sent> = (0..4).map(|_| running.send(large())).collect();
        assert_eq!(sent.pop(), Some(Sent::Unread), "the last of them is too much");
        assert_eq!(sent, [Sent::Waits; 3]);
        assert_eq!(running.send(vec![b'x'; 10]), Sent::Waits, "there is room for a short one");
        running.kill().await;
    }

    #[tokio::test]
    async fn who_reads_gets_more_and_who_is_gone_is_no_breach() {
        let place = tempfile::tempdir().expect("a folder");
        let mut running = started(place.path(), "exec cat >/dev/null");
        let all = GEAR_QUEUE_BYTES_MAX * 4;
        for number in 0..4 {
            // One line always fits, however long it is, once those before it were read.
            while running.unread.available_permits() < GEAR_QUEUE_BYTES_MAX {
                tokio::task::yield_now().await;
            }
            assert_eq!(running.send(vec![b'x'; all]), Sent::Waits, "{number}");
        }
        running.close_input();
        assert_eq!(running.send(vec![b'x'; 10]), Sent::Gone);
        running.kill().await;
    }
}
