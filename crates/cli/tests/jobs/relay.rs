//! Between an engine and its daemon: what they say to each other can be cut.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// Where a call is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The daemon never hears of it.
    Before,
    /// The daemon has answered, and the engine never hears of that.
    After,
}

/// A socket in front of a daemon's.
pub(crate) struct Relay {
    pub(crate) socket: PathBuf,
    cut: Arc<Mutex<Option<(&'static str, Cut)>>>,
    seen: Arc<watch::Sender<Vec<(String, bool)>>>,
}

impl Relay {
    pub(crate) fn start(folder: &Path, daemon: &str) -> Self {
        let socket = folder.join("relay");
        let listener = UnixListener::bind(&socket).unwrap();
        let cut = Arc::new(Mutex::new(None));
        let seen = Arc::new(watch::channel(Vec::new()).0);
        let (cuts, sees, daemon) = (Arc::clone(&cut), Arc::clone(&seen), daemon.to_owned());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, daemon.clone(), Arc::clone(&cuts), Arc::clone(&sees)));
            }
        });
        Self { socket, cut, seen }
    }

    /// Cuts calls of this path from now on, or none.
    pub(crate) fn cut(&self, cut: Option<(&'static str, Cut)>) {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
    }

    /// Waits until a call of this path was cut, or went through.
    pub(crate) async fn saw(&self, path: &str, was_cut: bool) {
        let mut seen = self.seen.subscribe();
        let is =
            |all: &Vec<(String, bool)>| all.iter().any(|(of, cut)| of == path && *cut == was_cut);
        // A message that was taken from a queue comes back after a minute.
        let patience = 2 * crate::process::PATIENCE;
        let waited = tokio::time::timeout(patience, seen.wait_for(is)).await;
        assert!(waited.is_ok(), "no call of {path}");
    }
}

async fn carry(
    mut engine: UnixStream,
    daemon: String,
    cut: Arc<Mutex<Option<(&'static str, Cut)>>>,
    seen: Arc<watch::Sender<Vec<(String, bool)>>>,
) -> Option<()> {
    let mut head = vec![0; 4096];
    let read = engine.read(&mut head).await.ok()?;
    head.truncate(read);
    let text = String::from_utf8_lossy(&head).into_owned();
    let path = text.split([' ', '?']).nth(1)?.to_owned();
    let cut = *cut.lock().unwrap_or_else(PoisonError::into_inner);
    let how = cut.filter(|(of, _)| *of == path).map(|(_, how)| how);
    let tell = |was_cut: bool| seen.send_modify(|all| all.push((path.clone(), was_cut)));
    if how == Some(Cut::Before) {
        tell(true);
        // Until the engine is gone.
        let _ = engine.read_to_end(&mut Vec::new()).await;
        return None;
    }
    let mut daemon = UnixStream::connect(daemon).await.ok()?;
    daemon.write_all(&head).await.ok()?;
    if how == Some(Cut::After) {
        let mut more = vec![0; 4096];
        loop {
            tokio::select! {
                read = engine.read(&mut more) => {
                    let read = read.ok().filter(|read| *read > 0)?;
                    daemon.write_all(&more[..read]).await.ok()?;
                }
                answered = daemon.readable() => {
                    answered.ok()?;
                    break;
                }
            }
        }
        tell(true);
        let _ = engine.read_to_end(&mut Vec::new()).await;
        return None;
    }
    tell(false);
    copy_bidirectional(&mut engine, &mut daemon).await.ok()?;
    Some(())
}
