//! Sends (mesh.md §4 and §5). The decision is the outbox's; here a request becomes a draft, and the
//! table's answer becomes HTTP.

use std::collections::{BTreeSet, HashMap};

use semel_api::json::Object;
use semel_api::problem::Problem;
use semel_api::route::{Call, Reply};
use semel_core::canonical::Meta;
use semel_core::code::Code;
use semel_core::envelope::{Destination, DestinationKind, Priority};
use semel_core::fingerprint::{BodyHash, Fingerprint};
use semel_core::id::ClientMessageId;
use semel_core::limits::BODY_BYTES_MAX;
use semel_core::outbox::{Accept, Conflict};
use semel_core::refusal::Refusal;
use semel_store::StoreError;
use serde_json::{Map, Value, json};

use super::Daemon;
use super::metrics::SendResult;
use crate::limits::{CANDIDATES_MAX, MENTIONS_MAX};
use crate::link::LinkState;
use crate::outbox::{NewSend, SendAnswer};
use crate::store::outbox::{Accepted, Draft, FoundRow};
use crate::store::peer::Peer;

/// `POST /v1/send`.
pub(super) async fn send(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let to = call.body.text("to").unwrap_or_default();
    deliver(call, to).await
}

/// `POST /v1/topic/post`: a send to a topic.
pub(super) async fn post(mut call: Call<Daemon>) -> Result<Reply, Problem> {
    let topic = call.body.text("topic").unwrap_or_default();
    let name = topic.strip_prefix('#').unwrap_or(&topic);
    let to = format!("#{name}");
    deliver(call, to).await
}

async fn deliver(mut call: Call<Daemon>, to: String) -> Result<Reply, Problem> {
    let header = call.headers.text("idempotency-key");
    let field = call.body.text("client_message_id");
    let client_message_id = ClientMessageId::of_request(header.as_deref(), field.as_deref())?;
    let target = Target::read(&to)?;
    let body = call.body.bytes()?.ok_or_else(|| {
        Problem::new(Code::MissingField, "one of message and body_base64 is needed")
    })?;
    let daemon = &call.state;
    check_size(daemon, &body)?;
    let priority = call.body.text("priority").and_then(|word| Priority::parse(&word));
    let reply_to_id = call.body.text("reply_to_id");
    let meta = call.body.object("meta").unwrap_or_default();
    let mentions = call.body.names("mentions");
    let named = Named::find(daemon, &target, &mentions).await?;
    let Mentioning { meta, mentions_given, unresolved } = with_mentions(&named, meta, mentions)?;
    let kind = target.kind();
    let (mut resolved, mut candidates) = target.resolve(&named);
    if let (Ok(_), Some((refusal, peers))) = (&resolved, unresolved) {
        (resolved, candidates) = (Err(refusal), peers);
    }
    let body_hash = BodyHash::of(&body);
    let priority = priority.unwrap_or(Priority::Next);
    let draft = Draft { reply_to_id, priority, meta, mentions_given, body, body_hash };
    let send = NewSend { client_message_id, to_given: to, resolved, draft };
    let answered = daemon.engine.outbox.send(send).await;
    let answered = answered.map_err(|error| refused(daemon, error))?;
    answer(daemon, kind, answered, candidates)
}

/// Why a row was not taken. Where there is no room it is said what is full.
pub(super) fn refused(daemon: &Daemon, error: StoreError) -> Problem {
    if matches!(error, StoreError::Full) {
        return Problem::new(Code::InsufficientStorage, daemon.engine.outbox.why_full());
    }
    error.into()
}

/// Whom the names in a send mean.
struct Named {
    peers: HashMap<String, Vec<Peer>>,
    /// Whether the broker could be asked about names that nobody has.
    is_asked: bool,
}

impl Named {
    /// All of them are looked up together, so that the broker is asked at most once.
    async fn find(
        daemon: &Daemon,
        target: &Target,
        mentions: &[String],
    ) -> Result<Self, StoreError> {
        let to = match target {
            Target::Known(_) => None,
            Target::Named(name) => Some(name.as_str()),
        };
        let mentioned = mentions.iter().filter_map(|mention| mention.strip_prefix('@'));
        let names: BTreeSet<&str> = to.into_iter().chain(mentioned).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let peers = daemon.engine.peers_of(&names, CANDIDATES_MAX).await?;
        let is_asked = daemon.link.borrow().state == LinkState::Connected;
        let peers = names.into_iter().map(str::to_owned).zip(peers).collect();
        Ok(Self { peers, is_asked })
    }

    fn peers(&self, name: &str) -> &[Peer] {
        self.peers.get(name).map_or(&[], Vec::as_slice)
    }

    /// The one member of that name; never the first of several (traps.md 17).
    fn one(&self, name: &str, pointer: &str) -> Result<&Peer, Refusal> {
        match self.peers(name) {
            [peer] => Ok(peer),
            [] if self.is_asked => {
                let detail = format!("no member of the mesh is called {name:?}");
                Err(Refusal::at(Code::RecipientNotFound, pointer, detail))
            }
            [] => {
                let detail = format!(
                    "no known member is called {name:?}, and the broker cannot be asked now: try \
                     again later, or use a public key"
                );
                Err(Refusal::at(Code::RecipientNotFound, pointer, detail))
            }
            _ => {
                let detail = format!("several members are called {name:?}: use a public key");
                Err(Refusal::at(Code::AmbiguousName, pointer, detail))
            }
        }
    }
}

/// What `to` says.
enum Target {
    Known(Destination),
    Named(String),
}

impl Target {
    fn read(to: &str) -> Result<Self, Refusal> {
        let known = |kind, reference: &str| {
            Destination::new(kind, reference)
                .map(Self::Known)
                .map_err(|refusal| Refusal { pointer: "/to".to_owned(), ..refusal })
        };
        if let Some(topic) = to.strip_prefix('#') {
            known(DestinationKind::Topic, topic)
        } else if let Some(queue) = to.strip_prefix("queue:") {
            known(DestinationKind::Queue, queue)
        } else if let Some(name) = to.strip_prefix('@') {
            Ok(Self::Named(name.to_owned()))
        } else if is_key(to) {
            known(DestinationKind::Dm, to)
        } else {
            let detail = "must be #topic, @name, queue:name or a public key of 64 lower-case \
                          hexadecimal digits";
            Err(Refusal::at(Code::InvalidField, "/to", detail))
        }
    }

    fn kind(&self) -> DestinationKind {
        match self {
            Self::Known(destination) => destination.kind(),
            Self::Named(_) => DestinationKind::Dm,
        }
    }

    /// What it means now. A name that means nothing is no error yet: a retry is compared with what
    /// it meant the first time. With it, those that an ambiguous name might mean.
    fn resolve(self, named: &Named) -> (Result<Destination, Refusal>, Vec<Peer>) {
        match self {
            Self::Known(destination) => (Ok(destination), Vec::new()),
            Self::Named(name) => {
                let peers = named.peers(&name);
                let resolved = named
                    .one(&name, "/to")
                    .and_then(|peer| Destination::new(DestinationKind::Dm, peer.pubkey.as_str()));
                let candidates = if resolved.is_ok() { Vec::new() } else { peers.to_vec() };
                (resolved, candidates)
            }
        }
    }
}

fn is_key(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn with_candidates(refusal: Refusal, candidates: &[Peer]) -> Problem {
    let problem = Problem::from(refusal);
    if problem.code != Code::AmbiguousName {
        return problem;
    }
    let candidate = |peer: &Peer| {
        let member_id = peer.member_id.to_string();
        json!({"name": peer.name, "pubkey": peer.pubkey, "member_id": member_id})
    };
    problem.with("candidates", candidates.iter().map(candidate).collect::<Vec<_>>())
}

/// What the broker would refuse for its size is refused here, once that is known.
pub(super) fn check_size(daemon: &Daemon, body: &[u8]) -> Result<(), Problem> {
    let told = daemon.link.borrow().inline_bytes();
    // In base64 there is room for more than a body may have.
    let max = told.unwrap_or(u64::MAX).min(BODY_BYTES_MAX as u64);
    if body.len() as u64 <= max {
        return Ok(());
    }
    let who = if told == Some(max) { "the broker's limit is" } else { "the limit is" };
    let detail = format!("the body has {} bytes, {who} {max}", body.len());
    Err(Problem::new(Code::PayloadTooLarge, detail))
}

/// A meta with its mentions.
struct Mentioning {
    /// Keys in the place of names, as far as they could be resolved.
    meta: Meta,
    /// As the caller wrote them, sorted, if there are names among them.
    mentions_given: Option<String>,
    /// The first that could not be resolved, and whom it might mean. As with a destination it is
    /// no error yet: a retry is compared with what it meant the first time.
    unresolved: Option<(Refusal, Vec<Peer>)>,
}

/// Mentions travel as the reserved meta key of that name: keys, each once, sorted.
fn with_mentions(
    named: &Named,
    mut meta: Map<String, Value>,
    mentions: Vec<String>,
) -> Result<Mentioning, Problem> {
    if mentions.is_empty() && !meta.contains_key("mentions") {
        let meta = Meta::new(&meta)?;
        return Ok(Mentioning { meta, mentions_given: None, unresolved: None });
    }
    let mut keys = match meta.remove("mentions") {
        None => BTreeSet::new(),
        Some(value) => reserved(&value)?,
    };
    let given: BTreeSet<&String> = keys.iter().chain(&mentions).collect();
    let has_names = mentions.iter().any(|mention| mention.starts_with('@'));
    let mentions_given = has_names.then(|| json!(given).to_string());
    let mut unresolved = None;
    for (index, mention) in mentions.into_iter().enumerate() {
        let pointer = format!("/mentions/{index}");
        if is_key(&mention) {
            keys.insert(mention);
        } else if let Some(name) = mention.strip_prefix('@') {
            let peers = named.peers(name);
            match named.one(name, &pointer) {
                Ok(peer) => drop(keys.insert(peer.pubkey.clone())),
                Err(refusal) => drop(unresolved.get_or_insert((refusal, peers.to_vec()))),
            }
        } else {
            let detail = "must be @name or a public key of 64 lower-case hexadecimal digits";
            return Err(Refusal::at(Code::InvalidField, pointer, detail).into());
        }
    }
    if !keys.is_empty() {
        meta.insert("mentions".to_owned(), keys.into_iter().collect::<Vec<_>>().into());
    }
    Ok(Mentioning { meta: Meta::new(&meta)?, mentions_given, unresolved })
}

/// Mentions that the caller wrote into meta: public keys, and nothing else.
fn reserved(value: &Value) -> Result<BTreeSet<String>, Refusal> {
    let items = value.as_array().filter(|items| items.len() <= MENTIONS_MAX);
    let keys: Option<BTreeSet<String>> = items.and_then(|items| {
        let key = |item: &Value| item.as_str().filter(|key| is_key(key)).map(str::to_owned);
        items.iter().map(key).collect()
    });
    keys.ok_or_else(|| {
        let detail = format!("is reserved: an array of at most {MENTIONS_MAX} public keys");
        Refusal::at(Code::InvalidField, "/meta/mentions", detail)
    })
}

fn answer(
    daemon: &Daemon,
    kind: DestinationKind,
    answered: SendAnswer,
    candidates: Vec<Peer>,
) -> Result<Reply, Problem> {
    let SendAnswer { client_message_id, outbox_id, accepted } = answered;
    let count = |result| daemon.metrics.sent(kind, result);
    match accepted {
        Accepted::Unresolved(refusal) => {
            count(SendResult::Refused);
            Err(with_candidates(refusal, &candidates))
        }
        Accepted::Inserted { fingerprint } => {
            count(SendResult::Queued);
            let id = outbox_id.to_string();
            Ok(accepted_reply(Accept::Insert, &client_message_id, &id, fingerprint))
        }
        Accepted::Found { accept: Accept::Reused(conflict), row, fingerprint } => {
            count(SendResult::Conflict);
            Err(reused(conflict, &row, fingerprint.unwrap_or(row.request_fingerprint)))
        }
        Accepted::Found { accept: Accept::Duplicate, row, .. } => {
            count(SendResult::Duplicate);
            tracing::debug!(id = %client_message_id, "this was sent before: 200 duplicate");
            Ok(duplicate(&client_message_id, &row))
        }
        Accepted::Found {
            accept: accept @ (Accept::Insert | Accept::Queued | Accept::Inflight),
            row,
            ..
        } => {
            count(SendResult::Duplicate);
            let id = row.id.to_string();
            Ok(accepted_reply(accept, &client_message_id, &id, row.request_fingerprint))
        }
    }
}

fn accepted_reply(
    accept: Accept,
    client_message_id: &ClientMessageId,
    outbox_id: &str,
    fingerprint: Fingerprint,
) -> Reply {
    let mut out = Vec::with_capacity(256);
    let mut object = Object::open(&mut out);
    object.plain("status", accept.word());
    object.text("client_message_id", client_message_id.as_str());
    object.plain("outbox_id", outbox_id);
    object.plain("request_fingerprint", &fingerprint.to_hex());
    object.close();
    Reply::json(accept.http(), out)
}

fn duplicate(client_message_id: &ClientMessageId, row: &FoundRow) -> Reply {
    let delivery = row.delivery.as_ref();
    let broker_message_id = delivery.map(|delivery| delivery.broker_message_id.to_string());
    let mut out = Vec::with_capacity(256);
    let mut object = Object::open(&mut out);
    object.plain("status", Accept::Duplicate.word());
    object.flag("duplicate", true);
    object.text("client_message_id", client_message_id.as_str());
    object.maybe_text("broker_message_id", broker_message_id.as_deref());
    object.maybe_number("history_id", delivery.and_then(|delivery| delivery.history_id));
    object.plain("request_fingerprint", &row.request_fingerprint.to_hex());
    object.close();
    Reply::json(Accept::Duplicate.http(), out)
}

fn reused(conflict: Conflict, row: &FoundRow, fingerprint: Fingerprint) -> Problem {
    let detail = match conflict {
        Conflict::DeadMatch => "this send was given up: requeue it, or send it under another id",
        Conflict::AbortedMatch => "this id was retired: send under another id",
        Conflict::PendingMismatch
        | Conflict::InflightMismatch
        | Conflict::DoneMismatch
        | Conflict::DeadMismatch
        | Conflict::AbortedMismatch => "this id belongs to another request",
    };
    let problem = Problem::new(Code::IdempotencyKeyReused, detail)
        .with("conflict", conflict.as_str())
        .with("request_fingerprint_prefix", fingerprint.prefix());
    match (conflict, &row.delivery) {
        (Conflict::DeadMatch, _) => problem.with("reason", row.last_error.clone()),
        (Conflict::DoneMismatch, Some(delivery)) => {
            problem.with("broker_message_id", delivery.broker_message_id.to_string())
        }
        (
            Conflict::PendingMismatch
            | Conflict::InflightMismatch
            | Conflict::DoneMismatch
            | Conflict::DeadMismatch
            | Conflict::AbortedMatch
            | Conflict::AbortedMismatch,
            _,
        ) => problem,
    }
}
