//! What only the broker can do and answer at once: topics, queues, members, this member's profile.
//! Sends never come this way; they wait in the outbox. Whoever asks while the broker is away hears
//! so, because nothing here is kept for later (traps.md 11).

use std::pin::Pin;

use semel_core::clock::UnixMs;
use semel_core::refusal::Refusal;

use crate::store::peer::Peer;

/// A question to the broker that is under way.
pub type Asking<'a, T> = Pin<Box<dyn Future<Output = Result<T, RemoteError>> + Send + 'a>>;

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteError {
    /// The broker is away, or did not answer in time; for a person.
    Unavailable(String),
    /// The broker said no, with its code.
    Refused(Refusal),
}

/// A topic of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Whether this member gets what is posted to it, where that is known.
    pub subscribed: Option<bool>,
    /// When it was made, where the broker says.
    pub created_at: Option<UnixMs>,
}

/// A queue of the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Messages that wait in it, where the broker says.
    pub waiting: Option<u64>,
}

/// Whether something is deleted that others still use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anyway {
    /// It is not.
    No,
    /// It is.
    Yes,
}

/// What this member says of itself; what is not there stays as it was.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// What it does, in a few words.
    pub summary: Option<String>,
    /// How it is.
    pub status: Option<String>,
}

/// A way into the mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invite {
    /// `semel://join/…`.
    pub invite: String,
    /// How often it can be used.
    pub uses: u64,
    /// Until when.
    pub expires_at: UnixMs,
}

/// The broker's answers.
pub trait Remote: Send + Sync {
    /// Makes a topic and subscribes to it; the same again is no fault.
    fn topic_create(&self, name: String) -> Asking<'_, Topic>;
    /// From now on this member gets what is posted there.
    fn topic_subscribe(&self, name: String) -> Asking<'_, Topic>;
    /// From now on it does not.
    fn topic_unsubscribe(&self, name: String) -> Asking<'_, Topic>;
    /// A page of topics after this name.
    fn topic_list(&self, after: Option<String>, limit: i64) -> Asking<'_, Vec<Topic>>;
    /// Deletes a topic.
    fn topic_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()>;
    /// Deletes a queue.
    fn queue_delete(&self, name: String, anyway: Anyway) -> Asking<'_, ()>;
    /// Makes a queue; the same again is no fault.
    fn queue_create(&self, name: String) -> Asking<'_, Queue>;
    /// A page of queues after this name.
    fn queue_list(&self, after: Option<String>, limit: i64) -> Asking<'_, Vec<Queue>>;
    /// Everybody in the mesh.
    fn members(&self) -> Asking<'_, Vec<Peer>>;
    /// Says something else of this member.
    fn profile_set(&self, profile: Profile) -> Asking<'_, ()>;
    /// Makes a way into the mesh.
    fn invite_create(&self, uses: u64, ttl_s: u64) -> Asking<'_, Invite>;
    /// The member with this key may no longer take part.
    fn member_revoke(&self, pubkey: String) -> Asking<'_, ()>;
    /// This member leaves for good.
    fn leave(&self) -> Asking<'_, ()>;
}
