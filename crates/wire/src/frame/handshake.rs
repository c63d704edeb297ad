//! The handshake (broker.md): `challenge` → `hello` → `hello_ack`. What the signature covers is
//! in `semel-crypto`; here it is bytes.

use semel_core::clock::UnixMs;
use semel_core::hex::Hex;
use semel_core::id::{BrokerId, InstanceId, MemberId};
use semel_core::refusal::Refusal;

use crate::codec::{Fields, Object, Record};
use crate::limits::{NAME_BYTES_MAX, RETIRE_MAX};

/// The broker's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Challenge {
    /// Fresh for this connection.
    pub nonce: Hex<32>,
    /// The process that asks; a signature for it is worth nothing elsewhere.
    pub broker_id: BrokerId,
    /// The broker's clock.
    pub time: UnixMs,
}

impl Record for Challenge {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            nonce: fields.take("nonce")?,
            broker_id: fields.take("broker_id")?,
            time: fields.take("time")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("nonce", &self.nonce);
        object.put("broker_id", &self.broker_id);
        object.put("time", &self.time);
    }
}

/// The daemon's first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// The mesh that it wants to join, by slug.
    pub mesh: String,
    /// Its ed25519 public key.
    pub pubkey: Hex<32>,
    /// The name of that key in the mesh.
    pub key_id: String,
    /// The folder that it owns (mesh.md §10).
    pub instance_id: InstanceId,
    /// Which machine it runs on, where it can tell.
    pub host_fingerprint: Option<Hex<32>>,
    /// The version of the daemon, for logs.
    pub version: String,
    /// The daemon's clock.
    pub time: UnixMs,
    /// Its own nonce: by it a daemon recognises its own hello in `4003`.
    pub nonce: Hex<16>,
    /// Instances whose outbox it adopted and that must never be heard again.
    pub retire: Vec<InstanceId>,
    /// Over the challenge and all of the above but `version`.
    pub signature: Hex<64>,
}

impl Record for Hello {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            mesh: fields.name("mesh", NAME_BYTES_MAX)?,
            pubkey: fields.take("pubkey")?,
            key_id: fields.name("key_id", NAME_BYTES_MAX)?,
            instance_id: fields.take("instance_id")?,
            host_fingerprint: fields.take_optional("host_fingerprint")?,
            version: fields.name("version", NAME_BYTES_MAX)?,
            time: fields.take("time")?,
            nonce: fields.take("nonce")?,
            retire: fields.optional_list("retire", RETIRE_MAX)?.unwrap_or_default(),
            signature: fields.take("signature")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("mesh", &self.mesh);
        object.put("pubkey", &self.pubkey);
        object.put_text("key_id", &self.key_id);
        object.put("instance_id", &self.instance_id);
        object.put_optional("host_fingerprint", self.host_fingerprint.as_ref());
        object.put_text("version", &self.version);
        object.put("time", &self.time);
        object.put("nonce", &self.nonce);
        if !self.retire.is_empty() {
            object.put_list("retire", &self.retire);
        }
        object.put("signature", &self.signature);
    }
}

/// The broker's answer, after the raised epoch is committed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloAck {
    /// Who the daemon is in this mesh.
    pub member_id: MemberId,
    /// The epoch of this connection (mesh.md §10).
    pub session_epoch: i64,
    /// Changes when the broker's store was restored from a backup.
    pub store_epoch: String,
    /// The broker's clock.
    pub server_time: UnixMs,
    /// The number that the next message of the mesh gets. A daemon that has received a higher one
    /// knows that the broker's store was put back as it was before, and that nobody said so.
    pub next_seq: i64,
}

impl Record for HelloAck {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            member_id: fields.take("member_id")?,
            session_epoch: fields.take("session_epoch")?,
            store_epoch: fields.name("store_epoch", NAME_BYTES_MAX)?,
            server_time: fields.take("server_time")?,
            next_seq: fields.take("next_seq")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("member_id", &self.member_id);
        object.put("session_epoch", &self.session_epoch);
        object.put_text("store_epoch", &self.store_epoch);
        object.put("server_time", &self.server_time);
        object.put("next_seq", &self.next_seq);
    }
}
