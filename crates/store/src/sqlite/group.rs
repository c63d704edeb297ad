//! The writes of one transaction, and how one of them is undone without the others.
//!
//! **Savepoints only where one is needed.** A savepoint around every write would undo the one at
//! fault, and costs a fifth of the throughput, because SQLite then copies every page that a write
//! touches. Failures are rare, so a group first runs without. When a write fails, the group is
//! rolled back and run again, now each write in its savepoint; the one that failed is left out and
//! keeps its error. So a write may run twice, and must be a function of the database alone.
//!
//! **The autocommit guard.** After SQLite has ended the transaction, the next statement would run,
//! and commit, alone while its caller hears an error. So autocommit is looked at after every write.
//!
//! `SQLITE_FULL` from COMMIT is definite: the commit frame is the last thing written to the log,
//! and without it no recovery takes the group (docs/decisions/003).

use std::cell::Cell;
use std::sync::Arc;

use rusqlite::{Connection, ErrorCode, Statement};

use super::job::{Job, Ran, Tx, cause, is_broken};
use super::log::Size;
use crate::{StoreError, limits};

/// Why a group was not committed.
pub(super) enum Lost {
    /// Definitely undone.
    Undone(fn(Arc<str>) -> StoreError, Arc<str>),
    /// Nobody can know.
    Uncertain(Arc<str>),
}

/// The writes of one transaction.
pub(super) struct Group<'c, 's> {
    connection: &'c Connection,
    statements: &'s mut Statements<'c>,
    /// Those that succeeded, in order: what is run again after a failure.
    kept: Vec<Box<dyn Job>>,
    /// Those that failed, with their errors.
    undone: Vec<Box<dyn Job>>,
    guard: Guard,
    /// What the connection had changed before.
    changes_before: u64,
    /// A write wants the group to be committed after it.
    is_last: Cell<bool>,
}

/// How a write of the group is undone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// With the whole group, which then runs again.
    Group,
    /// By its own savepoint.
    Savepoint,
}

impl<'c, 's> Group<'c, 's> {
    pub(super) fn new(connection: &'c Connection, statements: &'s mut Statements<'c>) -> Self {
        let (kept, undone) = (Vec::new(), Vec::new());
        let changes_before = connection.total_changes();
        let (guard, is_last) = (Guard::Group, Cell::new(false));
        Self { connection, statements, kept, undone, guard, changes_before, is_last }
    }

    /// Whether nothing more is to be added: it has changed enough, or a write has asked for it.
    pub(super) fn is_full(&self) -> bool {
        self.is_last.get() || self.size() == Size::Large
    }

    pub(super) fn size(&self) -> Size {
        if self.rows() >= limits::GROUP_ROWS { Size::Large } else { Size::Small }
    }

    /// Rows that were changed, what was undone included.
    fn rows(&self) -> u64 {
        self.connection.total_changes().saturating_sub(self.changes_before)
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len() + self.undone.len()
    }

    pub(super) fn into_jobs(self) -> impl Iterator<Item = Box<dyn Job>> {
        self.kept.into_iter().chain(self.undone)
    }

    pub(super) fn begin(&mut self) -> Result<(), Lost> {
        self.statements.begin.execute([]).map(drop).map_err(|error| lost_before_commit(&error))
    }

    /// Runs a write. `Err` when the whole group is lost.
    pub(super) fn add(&mut self, mut job: Box<dyn Job>, rows_max: u64) -> Result<(), Lost> {
        let ran = match self.guard {
            Guard::Group => self.run(job.as_mut(), rows_max),
            Guard::Savepoint => self.run_in_savepoint(job.as_mut(), rows_max),
        };
        match ran {
            Ok(Kept::Yes) => self.kept.push(job),
            Ok(Kept::No) => self.undone.push(job),
            Err(lost) => {
                self.undone.push(job);
                return Err(self.undo(lost));
            }
        }
        if self.guard == Guard::Group && matches!(ran, Ok(Kept::No)) {
            self.run_again(rows_max)?;
        }
        Ok(())
    }

    /// Undoes everything and runs what had succeeded once more, now in savepoints.
    fn run_again(&mut self, rows_max: u64) -> Result<(), Lost> {
        self.guard = Guard::Savepoint;
        let rolled_back = self.statements.rollback.execute([]);
        rolled_back.map_err(|error| Lost::Uncertain(cause(&error)))?;
        let mut again = std::mem::take(&mut self.kept).into_iter();
        let done =
            self.begin().and_then(|()| again.by_ref().try_for_each(|job| self.add(job, rows_max)));
        // Whoever was not reached is told what became of the group, like all the others.
        self.undone.extend(again);
        done
    }

    fn run(&mut self, job: &mut dyn Job, rows_max: u64) -> Result<Kept, Lost> {
        let changes_before = self.connection.total_changes();
        let ran = job.run(&Tx { connection: self.connection, is_last: &self.is_last });
        if self.connection.is_autocommit() {
            return Err(match ran {
                Ran::Broken(cause) => Lost::Uncertain(cause),
                Ran::Kept => ended("a write ended the transaction it shares"),
                Ran::Undo => ended("sqlite ended the transaction by itself"),
                Ran::Full => Lost::Undone(|_| StoreError::Full, "no room".into()),
            });
        }
        let rows = self.connection.total_changes() - changes_before;
        match ran {
            Ran::Kept if rows <= rows_max => Ok(Kept::Yes),
            Ran::Kept => {
                job.overrule(StoreError::TooManyRows { rows, max: rows_max });
                Ok(Kept::No)
            }
            Ran::Undo | Ran::Full => Ok(Kept::No),
            Ran::Broken(cause) => Err(Lost::Uncertain(cause)),
        }
    }

    fn run_in_savepoint(&mut self, job: &mut dyn Job, rows_max: u64) -> Result<Kept, Lost> {
        let lost = |error: rusqlite::Error| lost_before_commit(&error);
        self.statements.savepoint.execute([]).map_err(lost)?;
        let kept = self.run(job, rows_max)?;
        if kept == Kept::No {
            self.statements.rollback_to.execute([]).map_err(lost)?;
        }
        self.statements.release.execute([]).map_err(lost)?;
        Ok(kept)
    }

    pub(super) fn commit(&mut self) -> Result<(), Lost> {
        self.statements.commit.execute([]).map(drop).map_err(|error| {
            match error.sqlite_error_code() {
                Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy) => {
                    self.undo(lost_before_commit(&error))
                }
                _ => Lost::Uncertain(cause(&error)),
            }
        })
    }

    /// Rolls back where that is still open; a rollback that fails leaves the group uncertain.
    fn undo(&mut self, lost: Lost) -> Lost {
        if self.connection.is_autocommit() {
            return lost;
        }
        match self.statements.rollback.execute([]) {
            Ok(_) => lost,
            Err(error) => Lost::Uncertain(cause(&error)),
        }
    }
}

/// Whether a write's rows stay in the transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Yes,
    No,
}

/// What an error means before COMMIT was tried: nothing of the group is in the log.
fn lost_before_commit(error: &rusqlite::Error) -> Lost {
    if is_broken(error) {
        return Lost::Uncertain(cause(error));
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Lost::Undone(|_| StoreError::Full, cause(error)),
        _ => Lost::Undone(|cause| StoreError::RolledBack { cause }, cause(error)),
    }
}

fn ended(why: &str) -> Lost {
    Lost::Undone(|cause| StoreError::RolledBack { cause }, why.into())
}

/// The statements around the writes, prepared once.
pub(super) struct Statements<'a> {
    begin: Statement<'a>,
    savepoint: Statement<'a>,
    release: Statement<'a>,
    rollback_to: Statement<'a>,
    commit: Statement<'a>,
    rollback: Statement<'a>,
}

impl<'a> Statements<'a> {
    pub(super) fn prepare(connection: &'a Connection) -> rusqlite::Result<Self> {
        Ok(Self {
            begin: connection.prepare("BEGIN IMMEDIATE")?,
            savepoint: connection.prepare("SAVEPOINT caller")?,
            release: connection.prepare("RELEASE caller")?,
            rollback_to: connection.prepare("ROLLBACK TO caller")?,
            commit: connection.prepare("COMMIT")?,
            rollback: connection.prepare("ROLLBACK")?,
        })
    }
}
