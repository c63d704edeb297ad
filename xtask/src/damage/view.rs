//! What a home shows to whoever uses it: messages, sends, jobs, topics and queues. Two views of the
//! same home are equal, whatever happened to it in between.

use std::collections::{BTreeMap, BTreeSet};

use semel_client::Client;
use serde_json::Value;

/// By the number or name of each thing, everything that is said of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct View {
    /// Whether the daemon has found its broker.
    pub(crate) connected: bool,
    pub(crate) things: BTreeMap<String, Value>,
}

/// What a list is called, where it is, what its things are named by, and what may differ: numbers
/// of this host, which count anew when an inbox is filled again.
const LISTS: [(&str, &str, &str, &[&str]); 5] = [
    ("message", "/v1/inbox?limit=500", "client_message_id", &["id", "received_at"]),
    ("send", "/v1/outbox?limit=500", "client_message_id", &[]),
    ("job", "/v1/jobs?limit=100", "id", &[]),
    ("topic", "/v1/topic/list", "name", &["created_at"]),
    ("queue", "/v1/queue/list", "name", &[]),
];

/// Of a field that is not as it was.
const VALUE_CHARS_MAX: usize = 80;

impl View {
    /// As it is now; an error says what did not answer.
    pub(crate) async fn of(client: &Client) -> Result<Self, String> {
        let mut things = BTreeMap::new();
        for (list, path, named_by, differs) in LISTS {
            for mut item in pages(client, path).await? {
                let name = item[named_by].as_str().ok_or_else(|| format!("{list}: {item}"))?;
                let name = format!("{list} {name}");
                if let Some(item) = item.as_object_mut() {
                    item.retain(|field, _| !differs.contains(&field.as_str()));
                }
                if list == "job" {
                    let id = item["id"].as_str().unwrap_or_default();
                    item = get(client, &format!("/v1/jobs/{id}")).await?;
                }
                if things.insert(name.clone(), item).is_some() {
                    return Err(format!("{name} is there twice"));
                }
            }
        }
        let health = get(client, "/v1/health").await?;
        Ok(Self { connected: health["connected"] == true, things })
    }

    /// What this view lacks, has besides, or says otherwise than the other, in a few words.
    pub(crate) fn differs_from(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        if self.connected != other.connected {
            found.push(format!("connected: {}", self.connected));
        }
        for (name, thing) in &other.things {
            match self.things.get(name) {
                None => found.push(format!("{name} is gone")),
                Some(now) if now != thing => found.push(format!("{name}: {}", fields(now, thing))),
                Some(_) => {}
            }
        }
        let new = self.things.keys().filter(|name| !other.things.contains_key(*name));
        found.extend(new.map(|name| format!("{name} is new")));
        found
    }
}

/// The fields that are not as they were, and what they are now.
fn fields(now: &Value, was: &Value) -> String {
    let (Some(now), Some(was)) = (now.as_object(), was.as_object()) else {
        return "it is something else".to_owned();
    };
    let names: BTreeSet<&String> = now.keys().chain(was.keys()).collect();
    let differ = names.into_iter().filter(|name| now.get(*name) != was.get(*name));
    let told = differ.map(|name| {
        let value = now.get(name).map(Value::to_string).unwrap_or_default();
        format!("{name} is {}", value.chars().take(VALUE_CHARS_MAX).collect::<String>())
    });
    told.collect::<Vec<_>>().join(", ")
}

async fn get(client: &Client, path: &str) -> Result<Value, String> {
    let answer = client.get(path).await.map_err(|error| format!("{path}: {error}"))?;
    if answer.is_success() {
        Ok(answer.body)
    } else {
        Err(format!("{path}: {} {}", answer.status, answer.body))
    }
}

async fn pages(client: &Client, first: &str) -> Result<Vec<Value>, String> {
    let (mut items, mut next) = (Vec::new(), Some(first.to_owned()));
    while let Some(path) = next {
        let page = get(client, &path).await?;
        let found = page["items"].as_array().ok_or_else(|| format!("{path}: {page}"))?;
        items.extend(found.iter().cloned());
        next = page["next"].as_str().map(str::to_owned);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn view(things: &[(&str, Value)]) -> View {
        let things = things.iter().map(|(name, thing)| ((*name).to_owned(), thing.clone()));
        View { connected: true, things: things.collect() }
    }

    #[test]
    fn what_differs_is_told() {
        let was = view(&[("send a", json!({"body": 1})), ("send b", json!({}))]);
        assert!(was.differs_from(&was).is_empty());
        let now = view(&[("send a", json!({"body": 2})), ("send c", json!({}))]);
        let now = View { connected: false, ..now };
        let told = now.differs_from(&was);
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told[1] == "send a: body is 2" && told[2].contains("send b is gone"), "{told:?}");
    }
}
