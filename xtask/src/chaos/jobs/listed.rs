//! Every job that the engines know, as they list them: also those of which no caller heard.

use std::collections::{HashMap, HashSet};

use semel_client::Client;
use semel_core::clock::UnixMs;
use semel_core::rfc3339;
use serde_json::Value;

use super::judge::{Said, Submitted};
use super::person::name;

/// Where something is still to happen.
const UNFINISHED: [&str; 4] = ["pending", "planning", "validating", "executing"];
/// How much later than its deadline a job may be found unfinished by a look.
const LATE_MS: i64 = 60_000;

/// A job in the list.
#[derive(Debug, Clone)]
pub(crate) struct Listed {
    pub(crate) id: String,
    status: String,
    deadline: Option<UnixMs>,
}

impl Listed {
    fn of(job: &Value) -> Option<Self> {
        let text = |name: &str| job[name].as_str().map(str::to_owned);
        let deadline = job["deadline_at"].as_str().and_then(rfc3339::parse);
        Some(Self { id: text("id")?, status: text("status")?, deadline })
    }

    fn is_late(&self, now: UnixMs) -> bool {
        self.deadline.is_some_and(|deadline| deadline.0 < now.0 - LATE_MS)
    }

    /// Whether something must still happen to it; not if an engine may be gone for which it waits,
    /// and its time has not passed.
    fn is_left(&self, may_wait: bool, now: UnixMs) -> bool {
        let is_unfinished = UNFINISHED.contains(&self.status.as_str());
        is_unfinished && !(may_wait && self.status == "pending" && !self.is_late(now))
    }
}

/// Every page of a list, by the first engine that gives all of them.
pub(crate) async fn listed(engines: &[Client], query: &str) -> Option<Vec<Listed>> {
    for engine in engines {
        if let Some(jobs) = pages(engine, query).await {
            return Some(jobs);
        }
    }
    None
}

async fn pages(engine: &Client, query: &str) -> Option<Vec<Listed>> {
    let mut jobs = Vec::new();
    let mut next = Some(format!("/v1/jobs?limit=500{query}"));
    while let Some(address) = next {
        let page = engine.get(&address).await.ok().filter(semel_client::Answer::is_success)?;
        jobs.extend(page.body["items"].as_array()?.iter().filter_map(Listed::of));
        next = page.body["next"].as_str().map(str::to_owned);
    }
    Some(jobs)
}

/// Jobs to which something must still happen; nothing when no engine can say.
pub(crate) async fn unfinished(
    engines: &[Client],
    may_wait: bool,
    now: UnixMs,
) -> Option<Vec<Listed>> {
    let mut left = Vec::new();
    for status in UNFINISHED {
        let jobs = listed(engines, &format!("&status={status}")).await?;
        left.extend(jobs.into_iter().filter(|job| job.is_left(may_wait, now)));
    }
    Some(left)
}

/// What is wrong with jobs of which no caller was told: one that was said to be undone, a second
/// one under a name, one that nobody has submitted.
pub(crate) async fn strangers(
    engines: &[Client],
    all: &[Listed],
    submitted: &[Submitted],
) -> Vec<String> {
    let told = submitted.iter().filter_map(|job| match &job.said {
        Said::Accepted(id) => Some(id.as_str()),
        Said::Undone | Said::Unknown => None,
    });
    let told: HashSet<&str> = told.collect();
    let mut wrong = Vec::new();
    let by_name: HashMap<&str, &Submitted> =
        submitted.iter().map(|job| (job.name.as_str(), job)).collect();
    let mut seen = HashSet::new();
    for job in all.iter().filter(|job| !told.contains(job.id.as_str())) {
        let Some(name) = name_of(engines, &job.id).await else { continue };
        let what = match by_name.get(name.as_str()).map(|job| &job.said) {
            Some(Said::Unknown) if seen.insert(name.clone()) => continue,
            Some(Said::Unknown | Said::Accepted(_)) => "is there twice",
            Some(Said::Undone) => "was said to be undone, and is there",
            None => "was submitted by nobody",
        };
        wrong.push(format!("{name} {what}: {}", job.id));
    }
    wrong
}

async fn name_of(engines: &[Client], id: &str) -> Option<String> {
    for engine in engines {
        if let Ok(job) = engine.get(&format!("/v1/jobs/{id}")).await
            && job.is_success()
        {
            return name(&job.body);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// An engine that lists these jobs, by id and name, one on a page.
    async fn engine(jobs: &'static [(&'static str, &'static str)]) -> Client {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(head).unwrap();
                let path = head.split(' ').nth(1).unwrap();
                let body = answer(jobs, path).to_string();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                stream.write_all(text.as_bytes()).await.unwrap();
            }
        });
        Client::tcp(address, "token")
    }

    fn answer(jobs: &[(&str, &str)], path: &str) -> Value {
        if let Some((_, name)) = jobs.iter().find(|(id, _)| path == format!("/v1/jobs/{id}")) {
            let url = format!("http://outside/{name}");
            return json!({"plan": {"steps": [{"params": {"url": url}}]}});
        }
        let page = path.rsplit_once("&page=").map_or(0, |(_, page)| page.parse().unwrap());
        let next = (page + 1 < jobs.len()).then(|| format!("/v1/jobs?limit=500&page={}", page + 1));
        json!({"items": [{"id": jobs[page].0, "status": "completed"}], "next": next})
    }

    fn submitted(name: &str, said: Said) -> Submitted {
        Submitted {
            name: name.to_owned(),
            said,
            is_repeatable: false,
            cancelled: None,
            may_be_cancelled: false,
            runs_granted: 0,
            has_happened: false,
            may_fail: false,
        }
    }

    /// Each of them is wrong in its own way, or in none.
    #[tokio::test]
    async fn every_job_that_the_engines_list_is_judged() {
        let engines = [engine(&[
            ("1", "told"),
            ("2", "told"),
            ("3", "undone"),
            ("4", "unknown"),
            ("5", "unknown"),
            ("6", "nobodys"),
        ])
        .await];
        let all = listed(&engines, "").await.unwrap();
        assert_eq!(all.len(), 6, "every page is read");
        let submitted = [
            submitted("told", Said::Accepted("1".to_owned())),
            submitted("undone", Said::Undone),
            submitted("unknown", Said::Unknown),
        ];
        let wrong = strangers(&engines, &all, &submitted).await;
        assert_eq!(
            wrong,
            [
                "told is there twice: 2",
                "undone was said to be undone, and is there: 3",
                "unknown is there twice: 5",
                "nobodys was submitted by nobody: 6",
            ]
        );
    }

    #[test]
    fn what_is_left_and_what_may_wait() {
        let now = UnixMs(1_800_000_000_000);
        let job = |status: &str, deadline: Option<i64>| {
            let deadline = deadline.map(|ms| rfc3339::format(UnixMs(now.0 + ms)));
            Listed::of(&json!({"id": "a", "status": status, "deadline_at": deadline})).unwrap()
        };
        for status in ["completed", "failed", "cancelled", "awaiting_approval"] {
            assert!(!job(status, None).is_left(false, now), "{status}");
        }
        for status in UNFINISHED {
            assert!(job(status, Some(LATE_MS)).is_left(false, now), "{status}");
            let waits = status == "pending";
            assert_eq!(job(status, None).is_left(true, now), !waits, "{status}");
            assert!(job(status, Some(-2 * LATE_MS)).is_left(true, now), "{status} and late");
        }
    }
}
