//! `mesh.json`: which mesh this host has joined, as whom, and where the mesh's broker is.

use semel_core::clock::UnixMs;
use semel_core::id::{MemberId, MeshId};
use semel_core::refusal::Refusal;
use semel_wire::place::{BrokerPlace, Plain};
use serde::{Deserialize, Serialize};

use super::{IdentityError, refuse_changed, said, sum};
use crate::home::{Home, HomeFile, LockedHome};
use crate::limits::MEMBER_NAME_BYTES_MAX;

const VERSION: u32 = 1;

/// A place in a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The broker's address, `ws://…` or `wss://…`.
    pub broker: String,
    /// The mesh's key; its name is the folder's.
    pub mesh_id: MeshId,
    /// The member's key.
    pub member_id: MemberId,
    /// The member's name.
    pub name: String,
    /// When it joined.
    pub joined_at: UnixMs,
    /// Who may be spoken to in plain text.
    pub plain: Plain,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u32,
    broker: String,
    mesh: String,
    mesh_id: String,
    member_id: String,
    name: String,
    joined_at: i64,
    /// Somebody has said that plain text may go to another machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    insecure_allow_plain: bool,
    /// Of all that is above.
    sha256: Option<String>,
}

impl Document {
    fn sum(&self) -> String {
        let joined_at = self.joined_at.to_string();
        let ids = [&self.broker, &self.mesh, &self.mesh_id, &self.member_id, &self.name];
        let mut parts = ids.map(String::as_str).to_vec();
        parts.push(&joined_at);
        if self.insecure_allow_plain {
            parts.push("insecure_allow_plain");
        }
        sum(&parts)
    }
}

impl Membership {
    /// What this folder has joined; `None` before it has.
    pub fn read(home: &Home) -> Result<Option<Self>, IdentityError> {
        let Some(bytes) = home.read(HomeFile::Mesh)? else { return Ok(None) };
        Self::parse(&bytes, home).map(Some).map_err(|what| malformed(home, what))
    }

    /// Records that the broker has let this member in. The identity is on disk before.
    pub fn write(&self, home: &LockedHome) -> Result<(), IdentityError> {
        let refuse = |what| malformed(home.home(), what);
        self.check().map_err(refuse)?;
        let mut document = Document {
            version: VERSION,
            broker: self.broker.clone(),
            mesh: home.home().mesh().to_string(),
            mesh_id: self.mesh_id.to_string(),
            member_id: self.member_id.to_string(),
            name: self.name.clone(),
            joined_at: self.joined_at.0,
            insecure_allow_plain: self.plain == Plain::Allowed,
            sha256: None,
        };
        document.sha256 = Some(document.sum());
        let text = serde_json::to_string_pretty(&document).map_err(|error| refuse(said(&error)))?;
        Ok(home.write(HomeFile::Mesh, format!("{text}\n").as_bytes())?)
    }

    fn parse(bytes: &[u8], home: &Home) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(bytes).map_err(|error| said(&error))?;
        if document.version != VERSION {
            let version = document.version;
            return Err(format!("version {version} is not known here; {VERSION} is"));
        }
        if document.mesh != home.mesh().as_str() {
            let (found, folder) = (&document.mesh, home.mesh().as_str());
            return Err(format!("it is about the mesh {found:?}, the folder about {folder:?}"));
        }
        let written = document.sum();
        let id = |field: &str| format!("{field} is not a UUID in lower-case hyphenated form");
        let membership = Self {
            broker: document.broker,
            mesh_id: MeshId::parse(&document.mesh_id).ok_or_else(|| id("mesh_id"))?,
            member_id: MemberId::parse(&document.member_id).ok_or_else(|| id("member_id"))?,
            name: document.name,
            joined_at: UnixMs(document.joined_at),
            plain: match document.insecure_allow_plain {
                true => Plain::Allowed,
                false => Plain::LoopbackOnly,
            },
        };
        membership.check()?;
        refuse_changed(document.sha256.as_deref(), &written).map(|()| membership)
    }

    /// Where the broker is.
    pub fn place(&self) -> Result<BrokerPlace, Refusal> {
        BrokerPlace::parse_websocket(&self.broker)
    }

    fn check(&self) -> Result<(), String> {
        self.place().map_err(|refusal| refusal.detail)?;
        match self.name.len() {
            1..=MEMBER_NAME_BYTES_MAX => Ok(()),
            _ => Err(format!("name must have 1 to {MEMBER_NAME_BYTES_MAX} bytes")),
        }
    }
}

fn malformed(home: &Home, what: String) -> IdentityError {
    IdentityError::Malformed { path: home.path(HomeFile::Mesh), what }
}
