//! Files that steps gave: kept beside the workspaces, by job and under the hash of what is in them,
//! for as long as the job is. What a gear does to its workspace afterwards changes nothing of them.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use semel_core::hex::Hex;
use semel_core::id::JobId;
use semel_store::StoreError;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::{Engine, Inner};
use crate::gear::{Failure, FailureClass, beneath, package, quota};
use crate::limits::{ARTIFACT_BYTES_MAX, FOLDERS_MAX, JOB_FILES_BYTES_MAX, SWEEP_MAX};
use crate::store::{Job, Kept};

/// A file that was kept.
pub(super) struct Artifact {
    /// As the step calls it, in the workspace.
    name: String,
    pub(super) hash: Hex<32>,
    bytes: u64,
}

impl Artifact {
    /// What is known of it, for the step's result.
    pub(super) fn told(&self, mut value: Map<String, Value>) -> Value {
        value.insert("artifact".to_owned(), self.name.clone().into());
        value.insert("sha256".to_owned(), self.hash.to_string().into());
        value.insert("bytes".to_owned(), self.bytes.into());
        Value::Object(value)
    }
}

/// The files of a job and of those that repeat it.
fn folder(workspaces: &Path, root: JobId) -> PathBuf {
    workspaces.join("artifacts").join(root.to_string())
}

/// Keeps a file of the job's workspace.
pub(super) async fn keep(
    workspaces: &Path,
    root: JobId,
    path: PathBuf,
) -> Result<Artifact, Failure> {
    let (workspace, folder) = (workspaces.join(root.to_string()), folder(workspaces, root));
    let kept = tokio::task::spawn_blocking(move || {
        let mut source = open(&workspace, &path).map_err(|error| {
            Failure::new(FailureClass::GearBug, "invalid_artifact", error.to_string())
        })?;
        let room = quota::room_of_job(&workspace, JOB_FILES_BYTES_MAX);
        let copied = room.and_then(|room| copy(&mut source, &folder, room));
        let (hash, bytes) = copied.map_err(|error| {
            let is_large = error.kind() == io::ErrorKind::FileTooLarge;
            let code = if is_large { "artifact_too_large" } else { "artifact_not_kept" };
            let code = if quota::is_of_job(&error) { "disk_limit" } else { code };
            Failure::new(FailureClass::ResourceLimit, code, error.to_string())
        })?;
        Ok(Artifact { name: path.to_string_lossy().into_owned(), hash, bytes })
    });
    kept.await.unwrap_or_else(|error| {
        Err(Failure::new(FailureClass::GearBug, "artifact_not_kept", error.to_string()))
    })
}

/// One descriptor for the look, the hash and the copy: what was checked is what is kept (trap 61).
fn open(folder: &Path, path: &Path) -> io::Result<File> {
    beneath::plain_file(&beneath::folder(folder)?, path)
}

/// A file that was kept, and its length; nothing when there is none here.
async fn kept(workspaces: &Path, root: JobId, hash: Hex<32>) -> io::Result<Option<(File, u64)>> {
    let folder = folder(workspaces, root);
    let opened = tokio::task::spawn_blocking(move || {
        let file = open(&folder, Path::new(&hash.to_string()))?;
        let bytes = file.metadata()?.len();
        io::Result::Ok((file, bytes))
    });
    match opened.await? {
        Ok(opened) => Ok(Some(opened)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl Engine {
    /// A file that a step gave, of a job or of one that repeats it, and its length; nothing when it
    /// is not in this engine's home.
    pub async fn artifact(&self, root: JobId, hash: Hex<32>) -> io::Result<Option<(File, u64)>> {
        kept(&self.inner.options.workspaces, root, hash).await
    }
}

fn copy(source: &mut File, folder: &Path, room: u64) -> io::Result<(Hex<32>, u64)> {
    beneath::make_private(folder)?;
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| io::ErrorKind::Other)?;
    let temporary = folder.join(format!(".{:016x}", u64::from_be_bytes(random)));
    let mut new = std::fs::OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(&temporary)?;
    let mut hash = Sha256::new();
    let most = room.min(ARTIFACT_BYTES_MAX);
    let copied = beneath::copy(source, &mut file, most, |piece| hash.update(piece));
    let copied = copied.map_err(|error| quota::told(error, room));
    let copied = copied.and_then(|bytes| {
        let hash: Hex<32> = Hex(hash.finalize().into());
        file.sync_all()?;
        // What is there under its hash is the same file.
        std::fs::rename(&temporary, folder.join(hash.to_string()))?;
        File::open(folder)?.sync_all()?;
        Ok((hash, bytes))
    });
    if copied.is_err() {
        // Gone already when only the last sync failed.
        let _ = std::fs::remove_file(&temporary);
    }
    copied
}

/// Gives up a workspace in which nothing is left: a folder of its own would cost more than the job.
/// Whoever needs it again makes it again, so that the job may still go on after this.
pub(super) async fn give_up_empty(workspaces: &Path, root: JobId) {
    let folder = workspaces.join(root.to_string());
    if let Err(error) = tokio::fs::remove_dir(&folder).await {
        let kinds = [io::ErrorKind::NotFound, io::ErrorKind::DirectoryNotEmpty];
        if !kinds.contains(&error.kind()) {
            tracing::warn!(%root, folder = %folder.display(), %error, "a folder was not removed");
        }
    }
}

/// The same, if any of its steps has worked with files as far as is known here.
pub(super) async fn give_up_unused(inner: &Inner, kept: &Kept) {
    let mut steps = kept.executions.iter();
    let may_have_files = steps.any(|line| {
        let found = inner.parts.gears.find(&line.gear, &line.action);
        found.map_or(true, |prepared| prepared.gear.needs_workspace())
    });
    if may_have_files {
        give_up_empty(&inner.options.workspaces, kept.job.root_id).await;
    }
}

/// The same, if somebody has ended the job while it ran.
pub(super) async fn give_up_ended(inner: &Inner, job: &Job) {
    if let Ok(Some(now)) = inner.parts.store.job(job.id).await
        && now.job.state.status.is_terminal()
    {
        give_up_empty(&inner.options.workspaces, job.root_id).await;
    }
}

/// Removes the files of a job that is not kept any longer, its workspace among them.
pub(super) async fn remove(workspaces: &Path, root: JobId) {
    let folders = [workspaces.join(root.to_string()), folder(workspaces, root)];
    let removing = move || folders.iter().for_each(|folder| package::remove(folder));
    if tokio::task::spawn_blocking(removing).await.is_err() {
        tracing::warn!(%root, "the files of a job were not removed");
    }
}

/// Removes the files of jobs that the store does not know any more: the engine of another home has
/// swept them, or this one was ended before it had removed what they left.
pub(super) async fn remove_left(inner: &Inner) -> Result<(), StoreError> {
    let workspaces = inner.options.workspaces.clone();
    let listed = tokio::task::spawn_blocking(move || folders(&workspaces)).await;
    // They were there when the store is asked, and a folder is made after its job.
    let listed = listed.map_err(|_| StoreError::Stopped)?;
    for some in listed.chunks(usize::try_from(SWEEP_MAX).unwrap_or(1)) {
        let known = inner.parts.store.known(some.to_vec()).await?;
        for root in some.iter().filter(|root| !known.contains(root)) {
            tracing::info!(%root, "files of an unknown job are removed");
            remove(&inner.options.workspaces, *root).await;
        }
    }
    Ok(())
}

/// The jobs that have files here.
fn folders(workspaces: &Path) -> Vec<JobId> {
    let places = [workspaces.to_owned(), workspaces.join("artifacts")];
    let entries = places.iter().flat_map(|place| std::fs::read_dir(place).into_iter().flatten());
    let names = entries.flatten().map(|entry| entry.file_name());
    let jobs = names.filter_map(|name| name.to_str().and_then(JobId::parse));
    let mut jobs: Vec<JobId> = jobs.take(FOLDERS_MAX).collect();
    jobs.sort_unstable();
    jobs.dedup();
    jobs
}
