//! What housekeeping does at night, by hand.

use semel_broker::housekeeping::{self, SweepReport};
use semel_broker::limits::{AUDIT_LIST_MAX, ORPHANS_LISTED_MAX};
use semel_broker::store::Report;
use semel_core::id::MemberId;
use semel_core::rfc3339;
use semel_core::shown::shown;
use serde_json::json;

use super::target::{self, failed, mesh as find, now};
use crate::exit::{Exit, Failure, Form};
use crate::{print, progress};

#[derive(Debug, clap::Args)]
pub(crate) struct CheckArguments {
    /// Print one JSON line per mesh
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: target::Target,
}

#[derive(Debug, clap::Args)]
pub(crate) struct AuditArguments {
    /// The mesh
    mesh: String,
    /// Print one JSON document per line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: target::Target,
}

pub(super) async fn sweep(target: &target::Target) -> Result<(), Failure> {
    let store = target.open_used().await?;
    let meshes = store.mesh_list().await.map_err(|error| failed(&error))?;
    let shown = progress::show("sweeping");
    // Whichever clock is earlier: what is deleted does not come back.
    let theirs = store.now().await.map_err(|error| failed(&error))?;
    let now = theirs.map_or(now(), |theirs| theirs.min(now()));
    let swept = housekeeping::sweep_once(&store, &meshes, now).await;
    drop(shown);
    let SweepReport { ids, messages, audit_events, unfinished, failures } = swept;
    let what = format!("ids forgotten {ids}, messages deleted {messages}");
    print(&format!("{what}, audit events deleted {audit_events}\n"))?;
    if !failures.is_empty() {
        return Err(Failure::new(Exit::Failed, format!("error: {}", failures.join("\nerror: "))));
    }
    if unfinished > 0 {
        let text = "error: there is more to sweep\nto continue: semel broker sweep";
        return Err(Failure::new(Exit::Unavailable, text));
    }
    Ok(())
}

pub(super) async fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let store = arguments.target.open_used().await?;
    let meshes = store.mesh_list().await.map_err(|error| failed(&error))?;
    let shown = progress::show("checking");
    let reports = housekeeping::check_once(&store, &meshes, now()).await;
    drop(shown);
    let (mut wrong, mut failures) = (0, Vec::new());
    for (mesh, report) in meshes.iter().zip(reports) {
        let slug = &mesh.slug;
        let report = match report {
            Ok(report) => report,
            Err(error) => {
                failures.push(format!("{slug:?} could not be checked: {}", error.chain()));
                continue;
            }
        };
        wrong += report.findings().iter().map(|(_, count)| count).sum::<u64>();
        let orphans = match report.dedupe_without_message {
            0 => Vec::new(),
            _ => {
                let found = store.dedupe_orphans(mesh.mesh_id, ORPHANS_LISTED_MAX).await;
                found.map_err(|error| failed(&error))?
            }
        };
        let form = Form::of_flag(arguments.json);
        print(&format!("{}\n", checked(form, slug, &report, &orphans)))?;
    }
    if !failures.is_empty() {
        return Err(Failure::new(Exit::Failed, format!("error: {}", failures.join("\nerror: "))));
    }
    if wrong > 0 {
        let text = format!("error: {wrong} rows are wrong");
        return Err(Failure::new(Exit::Failed, text));
    }
    Ok(())
}

/// What was found in one mesh, and the ids that promise a message which is not there: their senders
/// can send them again.
fn checked(form: Form, slug: &str, report: &Report, orphans: &[(MemberId, String)]) -> String {
    let (findings, rows) = (report.findings(), report.rows);
    match form {
        Form::Text => {
            let found = findings.iter().filter(|(_, count)| *count > 0);
            let found: Vec<String> = found.map(|(name, count)| format!("{name} {count}")).collect();
            let found = if found.is_empty() { "consistent".to_owned() } else { found.join(", ") };
            let slug = shown(slug);
            let mut lines = vec![format!("{slug}: {rows} rows, {found}")];
            let orphan = |(member, id): &(MemberId, String)| {
                format!("{slug}: no message under the id {id:?} of {member}")
            };
            lines.extend(orphans.iter().map(orphan));
            lines.join("\n")
        }
        Form::Json => {
            let findings: serde_json::Map<_, _> =
                findings.iter().map(|(name, count)| ((*name).to_owned(), json!(count))).collect();
            let mut document = json!({"mesh": slug, "rows": rows, "findings": findings});
            if !orphans.is_empty() {
                let orphan = |(member, id): &(MemberId, String)| {
                    let member_id = member.to_string();
                    json!({"member_id": member_id, "client_message_id": id})
                };
                document["ids_without_message"] = orphans.iter().map(orphan).collect();
            }
            document.to_string()
        }
    }
}

pub(super) async fn audit(arguments: &AuditArguments) -> Result<(), Failure> {
    let store = arguments.target.open_used().await?;
    let mesh = find(&store, &arguments.mesh).await?;
    let events = store.audit_list(mesh.mesh_id, AUDIT_LIST_MAX).await;
    for event in events.map_err(|error| failed(&error))? {
        let at = rfc3339::format(event.at);
        let line = match Form::of_flag(arguments.json) {
            Form::Text => format!("{at} {} {}", event.kind, shown(&event.detail)),
            Form::Json => {
                let detail: serde_json::Value =
                    serde_json::from_str(&event.detail).unwrap_or_default();
                let id = event.id.to_string();
                json!({"id": id, "at": at, "kind": event.kind, "detail": detail}).to_string()
            }
        };
        print(&format!("{line}\n"))?;
    }
    Ok(())
}
