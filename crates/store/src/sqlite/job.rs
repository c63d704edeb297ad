//! A write on its way through a group, whatever its type: run it, keep its result, answer later.

use std::cell::Cell;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::{Connection, ErrorCode};
use tokio::sync::oneshot;

use crate::{Fate, StoreError};

/// A write's view of the database, inside the group's transaction.
pub struct Tx<'a> {
    pub(super) connection: &'a Connection,
    /// Whether nothing more is to be in this transaction.
    pub(super) is_last: &'a Cell<bool>,
}

impl Tx<'_> {
    /// The transaction is committed after this write, whoever else waits to share it.
    pub fn commit_next(&self) {
        self.is_last.set(true);
    }
}

impl Deref for Tx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// A write on its way through a group.
pub(super) trait Job: Send {
    /// Runs the write and keeps its result; says how it went.
    fn run(&mut self, tx: &Tx<'_>) -> Ran;

    /// The write succeeded, and is undone all the same for this reason.
    fn overrule(&mut self, error: StoreError);

    /// The commit is on disk: the caller is answered, also when somebody else who is told of it
    /// panics.
    fn committed(self: Box<Self>);

    /// The group did not commit.
    fn failed(self: Box<Self>, error: StoreError);
}

/// How a write went, as far as the group must know.
pub(super) enum Ran {
    Kept,
    Undo,
    /// To be undone, because there is no room.
    Full,
    /// The disk or the file is not to be trusted any more.
    Broken(Arc<str>),
}

/// Writes that are handed in one after the other, without waiting for each: once one of them was
/// not kept, none behind it is.
#[derive(Debug, Default)]
pub struct Sequence {
    handed_in: AtomicU64,
    /// The first that was not kept; 0 while all are. Only the writer's thread looks at it.
    ended_at: AtomicU64,
}

/// The place of a write in its sequence.
pub(super) struct Place {
    sequence: Arc<Sequence>,
    number: u64,
}

impl Place {
    pub(super) fn next(sequence: &Arc<Sequence>) -> Self {
        let number = sequence.handed_in.fetch_add(1, Ordering::Relaxed) + 1;
        Self { sequence: Arc::clone(sequence), number }
    }

    /// Those before this one may be run again and are kept.
    fn end_here(&self) {
        if self.is_reached() {
            self.sequence.ended_at.store(self.number, Ordering::Relaxed);
        }
    }

    fn is_reached(&self) -> bool {
        let ended_at = self.sequence.ended_at.load(Ordering::Relaxed);
        ended_at == 0 || self.number < ended_at
    }
}

pub(super) struct Awaited<T, F, Then> {
    pub(super) f: F,
    pub(super) place: Option<Place>,
    /// Told of the result once that is on disk, whether or not the caller is still there.
    pub(super) then: Then,
    pub(super) result: Option<Result<T, StoreError>>,
    pub(super) reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F, Then> Job for Awaited<T, F, Then>
where
    F: FnMut(&Tx<'_>) -> Result<T, StoreError> + Send,
    Then: FnOnce(&T) + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> Ran {
        let is_reached = self.place.as_ref().is_none_or(Place::is_reached);
        let result = if is_reached { call(&mut self.f, tx) } else { Err(StoreError::Behind) };
        let ran = judge(&result);
        if result.is_err() {
            self.end_sequence();
        }
        self.result = Some(result);
        ran
    }

    fn overrule(&mut self, error: StoreError) {
        self.end_sequence();
        self.result = Some(Err(error));
    }

    fn committed(self: Box<Self>) {
        let never_run = || StoreError::Uncertain { cause: "it was committed without a run".into() };
        let (then, result) = (self.then, self.result.unwrap_or_else(|| Err(never_run())));
        let told = match &result {
            Ok(result) => catch_unwind(AssertUnwindSafe(|| then(result))),
            Err(_) => Ok(()),
        };
        // A caller that went away does not want the answer.
        let _ = self.reply.send(result);
        told.unwrap_or_else(|panic| resume_unwind(panic));
    }

    fn failed(self: Box<Self>, error: StoreError) {
        self.end_sequence();
        // A write that was undone for a reason of its own keeps that reason, unless nothing
        // definite may be said any more.
        let own = self.result.and_then(Result::err).filter(|_| error.fate() == Fate::Undone);
        let _ = self.reply.send(Err(own.unwrap_or(error)));
    }
}

impl<T, F, Then> Awaited<T, F, Then> {
    fn end_sequence(&self) {
        if let Some(place) = &self.place {
            place.end_here();
        }
    }
}

pub(super) struct Riding<F>(pub(super) F);

impl<F> Job for Riding<F>
where
    F: FnMut(&Tx<'_>) -> Result<(), StoreError> + Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> Ran {
        let result = call(&mut self.0, tx);
        if let Err(error) = &result {
            self.log(error);
        }
        judge(&result)
    }

    fn overrule(&mut self, error: StoreError) {
        self.log(&error);
    }

    fn committed(self: Box<Self>) {}

    fn failed(self: Box<Self>, error: StoreError) {
        self.log(&error);
    }
}

impl<F> Riding<F> {
    /// Nobody waits for a riding write, so its failure is handled by being logged.
    fn log(&self, error: &StoreError) {
        let write = std::any::type_name::<F>();
        tracing::warn!(write, error = error.chain(), "a write that rode along was lost");
    }
}

fn call<T, F>(f: &mut F, tx: &Tx<'_>) -> Result<T, StoreError>
where
    F: FnMut(&Tx<'_>) -> Result<T, StoreError>,
{
    // Sound although `f` may be left half changed: a write that failed is never run again.
    catch_unwind(AssertUnwindSafe(|| f(tx))).unwrap_or(Err(StoreError::Panicked))
}

fn judge<T>(result: &Result<T, StoreError>) -> Ran {
    match result {
        Ok(_) => Ran::Kept,
        Err(StoreError::Sqlite(error)) if is_broken(error) => Ran::Broken(cause(error)),
        Err(StoreError::Full) => Ran::Full,
        Err(_) => Ran::Undo,
    }
}

/// Errors after which the file's state is anybody's guess.
pub(super) fn is_broken(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    )
}

pub(super) fn cause(error: &rusqlite::Error) -> Arc<str> {
    error.to_string().into()
}
