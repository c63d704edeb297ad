//! What host and gear say to each other; the words are those of jobs.md §8.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is handed over on the private descriptor, before the first line.
#[derive(Serialize, Deserialize)]
pub struct Handover {
    /// The process's key, hexadecimal.
    pub key: String,
    /// Its secrets, by name.
    pub secrets: BTreeMap<String, String>,
}

/// What the host says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToGear {
    /// Run an action.
    Execute {
        /// The name of the effect, the same in every attempt.
        execution_id: String,
        /// Which attempt, from 1.
        attempt: u32,
        /// Which action.
        action: String,
        /// What it is given.
        params: Value,
    },
    /// Stop, and soon.
    Cancel {
        /// Why.
        reason: String,
    },
    /// Say what became of an earlier attempt.
    Resolve {
        /// The name of the effect.
        execution_id: String,
        /// Which action it was.
        action: String,
        /// What it was given.
        params: Value,
    },
    /// A sub-job is over: with a result, or with a problem.
    SubJobEnded {
        /// Which one.
        number: u32,
        /// What it gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Value>,
        /// Why it gave nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<ErrorText>,
    },
}

/// What went wrong, in words that programs and people know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorText {
    /// `transient`, `user_error`, `resource_limit`, `gear_bug`.
    pub class: String,
    /// A stable word.
    pub code: String,
    /// One sentence.
    pub message: String,
}

/// What the gear says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum FromGear {
    /// A line for the job's log.
    Log {
        /// What it says.
        message: String,
        /// Whether it tells of an effect on the world.
        #[serde(default)]
        side_effect: bool,
    },
    /// How far it is.
    Progress {
        /// 0 to 100.
        percent: u8,
        /// What it is at.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// A job that it needs done.
    CreateSubJob {
        /// The how-manieth of this execution, from 0.
        number: u32,
        /// What is to be done.
        asked: Value,
    },
    /// It is done: with a value, or with a file of its workspace.
    Result {
        /// The document.
        #[serde(default)]
        value: Value,
        /// The file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact: Option<String>,
    },
    /// It is not done, and has had no effect.
    Error {
        /// As in [`ErrorText`].
        class: String,
        /// As in [`ErrorText`].
        code: String,
        /// As in [`ErrorText`].
        message: String,
        /// When to try again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// What became of the attempt that was asked about.
    Resolved {
        /// Whether it happened.
        state: ResolvedState,
        /// What it gave, when it happened.
        #[serde(default)]
        value: Value,
        /// The file that it gave.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifact: Option<String>,
    },
}

/// What a gear knows of an earlier attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResolvedState {
    /// It happened.
    Done,
    /// It has not happened and will not.
    NotDone,
    /// Nobody can tell.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_words_on_the_wire() {
        let said = |message: FromGear| serde_json::to_value(message).expect("a document");
        let log = FromGear::Log { message: "a".to_owned(), side_effect: true };
        assert_eq!(said(log), json!({"type": "log", "message": "a", "side_effect": true}));
        let done = FromGear::Result { value: json!(1), artifact: None };
        assert_eq!(said(done), json!({"type": "result", "value": 1}));
        let read = |document: Value| serde_json::from_value::<FromGear>(document);
        let file = read(json!({"type": "result", "artifact": "out.bin"})).expect("a file");
        let expected = FromGear::Result { value: Value::Null, artifact: Some("out.bin".into()) };
        assert_eq!(file, expected);
        let asked = read(json!({"type": "resolved", "state": "not_done"}));
        let expected = ResolvedState::NotDone;
        let expected = FromGear::Resolved { state: expected, value: Value::Null, artifact: None };
        assert_eq!(asked.expect("an answer"), expected);
        for unknown in [
            json!({"type": "result", "valu": 1}),
            json!({"type": "execute"}),
            json!({"message": "a"}),
            json!({"type": "progress", "percent": 300}),
        ] {
            assert!(read(unknown.clone()).is_err(), "{unknown}");
        }
    }
}
