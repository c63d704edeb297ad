//! From columns to a job and back. An impossible combination is corrupt, not a panic.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{UuidId, kind};
use semel_store::StoreError;
use tokio_postgres::Row;
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

fn moment(ms: Option<i64>) -> Option<UnixMs> {
    ms.map(UnixMs)
}

pub(super) fn small(value: i64) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// As the database counts.
pub(super) fn count(length: usize) -> i64 {
    i64::try_from(length).unwrap_or(i64::MAX)
}

/// A hash as the database keeps it.
pub(super) fn hash(bytes: &[u8]) -> Option<Hex<32>> {
    bytes.try_into().ok().map(Hex)
}

/// The columns in the order in which every statement here lists them.
pub(super) fn job(row: &Row) -> Result<Job, StoreError> {
    let no: i64 = row.try_get(0)?;
    let wrong = |what: &str, text: &str| corrupt("job", no, format!("{text:?} is no {what}"));
    let source: &str = row.try_get(6)?;
    let priority: i64 = row.try_get(7)?;
    let status: &str = row.try_get(15)?;
    let class: Option<&str> = row.try_get(30)?;
    let class = class.map(|text| FailureClass::parse(text).ok_or_else(|| wrong("class", text)));
    let consent = row.try_get::<_, Option<String>>(38)?;
    let consent = consent.map(|text| Verdict::parse(&text).ok_or_else(|| wrong("verdict", &text)));
    let grants = row.try_get::<_, Option<String>>(39)?;
    let grants = grants.map(|text| Grants::of_json(&text).ok_or_else(|| wrong("grants", &text)));
    let state = JobState {
        plan: row.try_get::<_, Option<&str>>(13)?.map(PlanText::from),
        plan_no: small(row.try_get(14)?),
        status: JobStatus::parse(status).ok_or_else(|| wrong("status", status))?,
        step_index: small(row.try_get(16)?),
        revision_count: small(row.try_get(17)?),
        replan_count: small(row.try_get(18)?),
        fence: row.try_get(19)?,
        worker: row.try_get(20)?,
        deaths: small(row.try_get(21)?),
        ready: row.try_get(22)?,
        due_at: moment(row.try_get(23)?),
        held_by: row.try_get(24)?,
        budget_ms: row.try_get(25)?,
        deadline_at: moment(row.try_get(26)?),
        question: row.try_get(27)?,
        expires_at: moment(row.try_get(28)?),
        answer: row.try_get(12)?,
        error: row.try_get(29)?,
        failure_class: class.transpose()?,
        failed_action: row.try_get(31)?,
        entries: row.try_get(32)?,
        started_at: moment(row.try_get(33)?),
        completed_at: moment(row.try_get(34)?),
        home: row.try_get(36)?,
        consent: consent.transpose()?,
    };
    Ok(Job {
        no: JobNo(no),
        id: Id::new(row.try_get(1)?),
        root_id: Id::new(row.try_get(2)?),
        retry_of: row.try_get::<_, Option<Uuid>>(3)?.map(Id::new),
        parent_id: row.try_get::<_, Option<Uuid>>(4)?.map(Id::new),
        depth: small(row.try_get(5)?),
        source: Source::parse(source).ok_or_else(|| wrong("source", source))?,
        priority: Priority::of_rank(priority)
            .ok_or_else(|| wrong("priority", &priority.to_string()))?,
        conversation: row.try_get(8)?,
        request: row.try_get(9)?,
        carries_plan: row.try_get(10)?,
        key: row.try_get(11)?,
        asker: row.try_get(37)?,
        grants: grants.transpose()?,
        created_at: UnixMs(row.try_get(35)?),
        state,
    })
}

/// The root's id is the last column but one.
pub(super) fn execution(row: &Row) -> Result<(Id, Execution), StoreError> {
    let step_id: String = row.try_get(0)?;
    let status: &str = row.try_get(6)?;
    let wrong = |what: &str| corrupt("execution_log", &step_id, what);
    let artifact: Option<&[u8]> = row.try_get(10)?;
    let artifact = artifact.map(|bytes| hash(bytes).ok_or_else(|| wrong("no hash of a file")));
    let execution = Execution {
        job_no: JobNo(row.try_get(1)?),
        plan_no: small(row.try_get(2)?),
        gear: row.try_get(3)?,
        action: row.try_get(4)?,
        fingerprint: hash(row.try_get(5)?).ok_or_else(|| wrong("no fingerprint"))?,
        status: ExecutionStatus::parse(status).ok_or_else(|| wrong("no such status"))?,
        attempts: small(row.try_get(7)?),
        certain: row.try_get(8)?,
        result: row.try_get(9)?,
        artifact: artifact.transpose()?,
        error: row.try_get(11)?,
        started_at: UnixMs(row.try_get(12)?),
        completed_at: moment(row.try_get(13)?),
        via: row.try_get(15)?,
        step_id: step_id.clone(),
    };
    Ok((Id::new(row.try_get(14)?), execution))
}
