//! Who is connected: told by name where a mesh is small, counted where it is large, and asked for.

use semel_core::hex::Hex;
use semel_core::id::MemberId;
use semel_core::refusal::Refusal;

use crate::codec::{Fields, Object, Record};
use crate::limits::{MEMBER_NAME_BYTES_MAX, PRESENCE_MEMBERS_MAX};

/// A member came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presence {
    /// Who.
    pub member_id: MemberId,
    /// What it is called.
    pub name: String,
    /// Its current key.
    pub pubkey: Hex<32>,
    /// Whether it is connected to any broker.
    pub online: bool,
}

impl Record for Presence {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            member_id: fields.take("member_id")?,
            name: fields.name("name", MEMBER_NAME_BYTES_MAX)?,
            pubkey: fields.take("pubkey")?,
            online: fields.take("online")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("member_id", &self.member_id);
        object.put_text("name", &self.name);
        object.put("pubkey", &self.pubkey);
        object.put("online", &self.online);
    }
}

/// How many members are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresenceCount {
    /// So many.
    pub online: u64,
    /// Whether they are told by name: then so many `presence` follow, which are all.
    pub names: bool,
}

impl Record for PresenceCount {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { online: fields.take("online")?, names: fields.take("names")? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("online", &self.online);
        object.put("names", &self.names);
    }
}

/// Which of these members are connected?
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceRequest {
    /// Comes back in the answer.
    pub request_id: u64,
    /// At most 500.
    pub members: Vec<MemberId>,
}

impl Record for PresenceRequest {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            members: fields.list("members", PRESENCE_MEMBERS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("members", &self.members);
    }
}

/// These are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PresenceResult {
    /// Of the question.
    pub request_id: u64,
    /// Those of the members that are connected to any broker, in the order asked.
    pub online: Vec<MemberId>,
}

impl Record for PresenceResult {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            request_id: fields.take("request_id")?,
            online: fields.list("online", PRESENCE_MEMBERS_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("request_id", &self.request_id);
        object.put_list("online", &self.online);
    }
}
