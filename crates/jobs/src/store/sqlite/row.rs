//! From columns to a job and back. An impossible combination is corrupt, not a panic.

use rusqlite::Row;
use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{UuidId, kind};
use semel_store::StoreError;
use uuid::Uuid;

use crate::dispatch::ExecutionStatus;
use crate::gear::FailureClass;
use crate::gear::grants::Grants;
use crate::life::JobStatus;
use crate::plan::PlanText;
use crate::policy::Verdict;
use crate::store::corrupt;
use crate::store::{Execution, Job, JobNo, JobState, Priority, Source};

pub(super) type Id = UuidId<kind::Job>;

/// As the file keeps an id.
pub(super) fn key(id: Id) -> [u8; 16] {
    *id.as_uuid().as_bytes()
}

pub(super) fn id_of(bytes: [u8; 16]) -> Id {
    Id::new(Uuid::from_bytes(bytes))
}

fn moment(ms: Option<i64>) -> Option<UnixMs> {
    ms.map(UnixMs)
}

fn small(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// The columns in the order in which every statement here lists them.
pub(super) fn job(row: &Row<'_>) -> Result<Job, StoreError> {
    let no: i64 = row.get(0)?;
    let wrong = |what: &str, text: &str| corrupt("job", no, format!("{text:?} is no {what}"));
    let source: String = row.get(6)?;
    let priority: i64 = row.get(7)?;
    let status: String = row.get(15)?;
    let class: Option<String> = row.get(30)?;
    let class = class.map(|text| FailureClass::parse(&text).ok_or_else(|| wrong("class", &text)));
    let consent = row.get::<_, Option<String>>(38)?;
    let consent = consent.map(|text| Verdict::parse(&text).ok_or_else(|| wrong("verdict", &text)));
    let grants = row.get::<_, Option<String>>(39)?;
    let grants = grants.map(|text| Grants::of_json(&text).ok_or_else(|| wrong("grants", &text)));
    let state = JobState {
        plan: row.get::<_, Option<String>>(13)?.map(PlanText::from),
        plan_no: small(row.get(14)?),
        status: JobStatus::parse(&status).ok_or_else(|| wrong("status", &status))?,
        step_index: small(row.get(16)?),
        revision_count: small(row.get(17)?),
        replan_count: small(row.get(18)?),
        fence: row.get(19)?,
        worker: row.get(20)?,
        deaths: small(row.get(21)?),
        ready: row.get(22)?,
        due_at: moment(row.get(23)?),
        held_by: row.get(24)?,
        budget_ms: row.get(25)?,
        deadline_at: moment(row.get(26)?),
        question: row.get(27)?,
        expires_at: moment(row.get(28)?),
        answer: row.get(12)?,
        error: row.get(29)?,
        failure_class: class.transpose()?,
        failed_action: row.get(31)?,
        entries: row.get(32)?,
        started_at: moment(row.get(33)?),
        completed_at: moment(row.get(34)?),
        home: row.get(36)?,
        consent: consent.transpose()?,
    };
    Ok(Job {
        no: JobNo(no),
        id: id_of(row.get(1)?),
        root_id: id_of(row.get(2)?),
        retry_of: row.get::<_, Option<[u8; 16]>>(3)?.map(id_of),
        parent_id: row.get::<_, Option<[u8; 16]>>(4)?.map(id_of),
        depth: small(row.get(5)?),
        source: Source::parse(&source).ok_or_else(|| wrong("source", &source))?,
        priority: Priority::of_rank(priority)
            .ok_or_else(|| wrong("priority", &priority.to_string()))?,
        conversation: row.get(8)?,
        request: row.get(9)?,
        carries_plan: row.get(10)?,
        key: row.get(11)?,
        asker: row.get(37)?,
        grants: grants.transpose()?,
        created_at: UnixMs(row.get(35)?),
        state,
    })
}

pub(super) fn execution(row: &Row<'_>) -> Result<Execution, StoreError> {
    let step_id: String = row.get(0)?;
    let status: String = row.get(6)?;
    let wrong = || corrupt("execution_log", &step_id, format!("{status:?} is no status"));
    Ok(Execution {
        job_no: JobNo(row.get(1)?),
        plan_no: small(row.get(2)?),
        gear: row.get(3)?,
        action: row.get(4)?,
        fingerprint: Hex(row.get(5)?),
        status: ExecutionStatus::parse(&status).ok_or_else(wrong)?,
        attempts: small(row.get(7)?),
        certain: row.get(8)?,
        result: row.get(9)?,
        artifact: row.get::<_, Option<[u8; 32]>>(10)?.map(Hex),
        error: row.get(11)?,
        started_at: UnixMs(row.get(12)?),
        completed_at: moment(row.get(13)?),
        via: row.get(14)?,
        step_id,
    })
}
