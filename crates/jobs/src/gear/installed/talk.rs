//! The conversation of one execution, and what its end means.

use std::path::{Path, PathBuf};
use std::time::Duration;

use semel_gear::line::Breach;
use semel_gear::message::{ErrorText, FromGear, ResolvedState, ToGear};
use serde_json::Value;
use tokio::time::sleep;

use super::super::builtin::files;
use super::super::document::is_plain;
use super::super::process::Sent;
use super::super::{
    Call, Desk, Ended, Failure, FailureClass, Later, Output, Report, Resolution, Stop, SubJob,
    SubJobEnded, beneath,
};
use super::hide::Veil;
use super::{Worker, bug};
use crate::limits::{
    GEAR_LINES_MAX, LAST_WORDS_CHARS_MAX, REPORT_BYTES_MAX, STOP_GRACE, STOP_MESSAGE_GRACE,
};

/// How a conversation ended.
pub(super) enum Talked {
    Result {
        value: Value,
        artifact: Option<String>,
    },
    Error(Failure),
    /// It broke the protocol.
    Breach(Failure),
    /// It is gone.
    Gone,
    /// It was told to stop and gave no answer in time.
    Stopped,
}

/// What became of something that was said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// It is read, or nobody is there to read it.
    Fine,
    /// It does not fit into a line.
    TooLong,
    /// What was said before is not read.
    Unread,
}

/// Told to stop: by a message, then by a signal, then by force (jobs.md §6).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    No,
    Told,
    Signalled,
}

impl Worker {
    /// Says something. One that is gone is noticed at its end.
    pub(super) fn say(&mut self, message: &ToGear) -> Said {
        let document = serde_json::to_string(message).ok();
        let Some(line) = document.and_then(|document| self.signer.line(&document)) else {
            return Said::TooLong;
        };
        match self.running.send(line) {
            Sent::Waits | Sent::Gone => Said::Fine,
            Sent::Unread => Said::Unread,
        }
    }

    /// Hears what it says until it has answered, is gone, or had to be stopped.
    pub(super) async fn talk(&mut self, desk: &dyn Desk, mut stop: Stop) -> Talked {
        self.executions += 1;
        let mut stopping = Stopping::No;
        let mut waiting = Box::pin(sleep(Duration::MAX));
        let mut sub_job: Option<(u32, Later<'_, SubJobEnded>)> = None;
        let mut over = Box::pin(self.disk.until_over());
        let mut lines = 0_u32;
        loop {
            let is_full = desk.is_full();
            tokio::select! {
                () = async { desk.room().await }, if is_full => {}
                heard = self.hear(), if !is_full => {
                    lines += 1;
                    if lines > GEAR_LINES_MAX {
                        return Talked::Breach(bug("too_many_lines", "it writes too much"));
                    }
                    match heard {
                        Err(talked) => return talked,
                        Ok(FromGear::CreateSubJob { number, asked }) if sub_job.is_none() => {
                            let asked = self.veil().value(asked);
                            sub_job = Some((number, desk.sub_job(SubJob { number, asked })));
                        }
                        Ok(message) => {
                            if let Some(talked) = self.heard(desk, message) {
                                return talked;
                            }
                        }
                    }
                }
                (number, ended) = next_ended(&mut sub_job) => {
                    sub_job = None;
                    match self.say(&sub_job_ended(number, ended)) {
                        Said::Fine => {}
                        Said::TooLong => {
                            let text = "a sub-job's result is too large";
                            return Talked::Breach(bug("sub_job_too_large", text));
                        }
                        Said::Unread => {
                            let text = "it asks, and does not read the answers";
                            return Talked::Breach(bug("protocol_violation", text));
                        }
                    }
                }
                failure = &mut over => return Talked::Breach(failure),
                () = stop.stopped(), if stopping == Stopping::No => {
                    stopping = Stopping::Told;
                    self.was_stopped = true;
                    // One that does not read it hears the signal.
                    let _ = self.say(&ToGear::Cancel { reason: "stopped".to_owned() });
                    waiting = Box::pin(sleep(STOP_MESSAGE_GRACE));
                }
                () = &mut waiting, if stopping != Stopping::No => {
                    if stopping == Stopping::Signalled {
                        return Talked::Stopped;
                    }
                    stopping = Stopping::Signalled;
                    self.running.terminate();
                    waiting = Box::pin(sleep(STOP_GRACE.saturating_sub(STOP_MESSAGE_GRACE)));
                }
            }
        }
    }

    /// The next thing that it says, once that was proven.
    async fn hear(&mut self) -> Result<FromGear, Talked> {
        let breach = |breach: Breach| Talked::Breach(bug("protocol_violation", breach.to_string()));
        let line = self.running.line().await.map_err(breach)?.ok_or(Talked::Gone)?;
        drop(self.silent.take());
        let document = self.verifier.document(&line).map_err(breach)?;
        let number = self.verifier.last();
        serde_json::from_str(document).map_err(|_| breach(Breach::Unknown { number }))
    }

    /// What a message means, when it is the last one.
    fn heard(&self, desk: &dyn Desk, message: FromGear) -> Option<Talked> {
        match message {
            FromGear::Log { message, side_effect } => {
                let message = cut(self.without_secrets(message));
                desk.report(Report::Log { message, side_effect });
                None
            }
            FromGear::Progress { percent, message } => {
                let message = message.map(|message| cut(self.without_secrets(message)));
                desk.report(Report::Progress { percent: percent.min(100), message });
                None
            }
            FromGear::Result { value, artifact: None } => {
                let value = self.veil().value(value);
                Some(Talked::Result { value, artifact: None })
            }
            FromGear::Result { value: Value::Null, artifact } => {
                Some(Talked::Result { value: Value::Null, artifact })
            }
            FromGear::Error { class, code, message, retry_after_ms } => {
                let class = match FailureClass::parse(&class) {
                    None | Some(FailureClass::PlanRejected) => FailureClass::GearBug,
                    Some(class) => class,
                };
                let message = cut(self.without_secrets(message));
                // A name with a hole in it would be no name.
                let named = !self.veil().is_in(&code);
                let code = if named { cut(code) } else { "gear_error".to_owned() };
                let mut failure = Failure::new(class, &code, message);
                failure.retry_after = retry_after_ms.map(Duration::from_millis);
                Some(Talked::Error(failure))
            }
            FromGear::Result { .. } | FromGear::Resolved { .. } | FromGear::CreateSubJob { .. } => {
                let text = "it sent something that was not requested";
                Some(Talked::Breach(bug("protocol_violation", text)))
            }
        }
    }

    /// What the end of a conversation means for the attempt.
    pub(super) async fn ended(&mut self, talked: Talked, call: &Call) -> Ended {
        match talked {
            Talked::Result { value, artifact: None } => Ended::Done(Output::Value(value)),
            Talked::Result { artifact: Some(path), .. } => match self.artifact(&path, call).await {
                Ok(path) => Ended::Done(Output::Artifact(path)),
                // It was done; what came of it cannot be taken.
                Err(text) => Ended::Uncertain(bug("bad_artifact", cut(self.without_secrets(text)))),
            },
            Talked::Error(failure) => Ended::Failed(failure),
            Talked::Breach(failure) => Ended::Uncertain(failure),
            Talked::Stopped => {
                let text = "it was told to stop, gave no answer in time, and was killed";
                Ended::Uncertain(Failure::new(FailureClass::Transient, "stopped", text))
            }
            Talked::Gone => {
                let code = self.running.ended().await;
                let words = self.veil().tail(self.running.last_words());
                Ended::Uncertain(crashed(code, &words))
            }
        }
    }

    pub(super) async fn hear_resolved(&mut self, mut stop: Stop, call: &Call) -> Resolution {
        let mut lines = 0_u32;
        let mut over = Box::pin(self.disk.until_over());
        loop {
            let heard = tokio::select! {
                heard = self.hear() => heard,
                () = stop.stopped() => return Resolution::Unknown,
                failure = &mut over => {
                    let (code, why) = (failure.code, failure.message);
                    tracing::warn!(code, why, "a gear was stopped while it was asked");
                    return Resolution::Unknown;
                }
            };
            lines += 1;
            match heard {
                Ok(FromGear::Log { .. } | FromGear::Progress { .. }) if lines < GEAR_LINES_MAX => {}
                Ok(FromGear::Resolved { state, value, artifact }) => match (state, artifact) {
                    (ResolvedState::NotDone, _) => return Resolution::NotDone,
                    (ResolvedState::Done, None) => {
                        let value = self.veil().value(value);
                        return Resolution::Done(Output::Value(value));
                    }
                    (ResolvedState::Done, Some(path)) => {
                        let kept = self.artifact(&path, call).await.map(Output::Artifact);
                        return kept.map_or(Resolution::Unknown, Resolution::Done);
                    }
                    (ResolvedState::Unknown, _) => return Resolution::Unknown,
                },
                Ok(_) | Err(_) => return Resolution::Unknown,
            }
        }
    }

    /// A file that it names as its result: a plain one of its folder, with no link on the way. That
    /// of a warm one is copied to the workspace, to a place of its step.
    async fn artifact(&self, path: &str, call: &Call) -> Result<PathBuf, String> {
        let relative = Path::new(path);
        // It is shown with the result, and one with a hole in it would name no file.
        if self.veil().is_in(path) {
            return Err("a file's name has a secret in it".to_owned());
        }
        if !is_plain(relative) {
            return Err(format!("{path:?} is not a file of the workspace"));
        }
        let wrong = |error: std::io::Error| format!("{path:?}: {error}");
        let opened = beneath::folder(&self.folder);
        let mut found =
            opened.and_then(|folder| beneath::plain_file(&folder, relative)).map_err(wrong)?;
        // A warm one did not need it until now.
        beneath::make_private(&call.workspace).map_err(wrong)?;
        let workspace = std::fs::canonicalize(&call.workspace).map_err(wrong)?;
        if workspace == self.folder {
            return Ok(relative.to_owned());
        }
        let name = relative.file_name().unwrap_or(relative.as_os_str()).to_string_lossy();
        let step = call.execution_id.split_once(':').map_or("", |(_, step)| step);
        let kept = format!("gear/{step}/{name}");
        let place = kept.clone();
        let copied = move || files::keep(&workspace, &place, &mut found);
        let copied = tokio::task::spawn_blocking(copied).await;
        copied.map_err(std::io::Error::other).and_then(|copied| copied).map_err(wrong)?;
        Ok(kept.into())
    }

    /// A text in which no secret is to be read (trap 38).
    fn without_secrets(&self, text: String) -> String {
        self.veil().text(text)
    }

    fn veil(&self) -> Veil {
        Veil::over(&self.secrets)
    }
}

async fn next_ended(sub_job: &mut Option<(u32, Later<'_, SubJobEnded>)>) -> (u32, SubJobEnded) {
    match sub_job {
        Some((number, ended)) => (*number, ended.await),
        None => std::future::pending().await,
    }
}

fn sub_job_ended(number: u32, ended: SubJobEnded) -> ToGear {
    let (value, error) = match ended {
        SubJobEnded::Completed(value) => (Some(value), None),
        SubJobEnded::Failed(failure) => {
            let Failure { code, message, .. } = failure;
            let class = failure.class.as_str().to_owned();
            (None, Some(ErrorText { class, code, message }))
        }
    };
    ToGear::SubJobEnded { number, value, error }
}

/// How a process ended that said nothing.
fn crashed(code: Option<i32>, words: &str) -> Failure {
    let skipped = words.chars().count().saturating_sub(LAST_WORDS_CHARS_MAX);
    let plain = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let words: String = words.chars().skip(skipped).map(plain).collect();
    let words = if words.is_empty() { String::new() } else { format!("; it said: {words}") };
    match code {
        // 128 and the number of the signal.
        Some(152) => {
            let text = format!("it used up its processor time{words}");
            Failure::new(FailureClass::ResourceLimit, "cpu_limit", text)
        }
        Some(code @ 129..=192) => {
            bug("gear_crashed", format!("it was ended by signal {}{words}", code - 128))
        }
        Some(code) => bug("gear_crashed", format!("it ended with code {code}{words}")),
        None => bug("gear_crashed", format!("it was killed{words}")),
    }
}

/// A text that is short enough to be kept.
fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(REPORT_BYTES_MAX));
    text
}
