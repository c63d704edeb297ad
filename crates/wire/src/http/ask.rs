//! What is asked of the broker's HTTP API.

use semel_core::hex::Hex;
use semel_core::limits::REF_BYTES_MAX;
use semel_core::refusal::Refusal;

use super::Role;
use crate::codec::{Fields, Object, Record, invalid, under};
use crate::limits::{
    INVITE_TTL_SECONDS_MAX, INVITE_USES_MAX, JOIN_NAME_BYTES_MAX, NAME_BYTES_MAX, PROFILE_BYTES_MAX,
};
use crate::link::checked_token;

/// An operator makes a mesh.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewMesh {
    /// Its name.
    pub slug: String,
    /// What its owner is called.
    pub owner_name: String,
    /// The owner's public key.
    pub owner_pubkey: Hex<32>,
}

impl Record for NewMesh {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self {
            slug: fields.new_name("slug", NAME_BYTES_MAX)?,
            owner_name: fields.new_name("owner_name", JOIN_NAME_BYTES_MAX)?,
            owner_pubkey: fields.take("owner_pubkey")?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("slug", &self.slug);
        object.put_text("owner_name", &self.owner_name);
        object.put("owner_pubkey", &self.owner_pubkey);
    }
}

/// An owner invites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewInvite {
    /// How many may join; 1 when absent.
    pub uses: u64,
    /// For how long; a day when absent.
    pub ttl_seconds: u64,
    /// What they may do; `member` when absent.
    pub role: Role,
}

impl Record for NewInvite {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let uses = fields.optional_number("uses", 1, INVITE_USES_MAX)?;
        let ttl_seconds = fields.optional_number("ttl_seconds", 1, INVITE_TTL_SECONDS_MAX)?;
        let role = fields.take_optional("role")?;
        Ok(Self {
            uses: uses.unwrap_or(1),
            ttl_seconds: ttl_seconds.unwrap_or(24 * 60 * 60),
            role: role.unwrap_or(Role::Member),
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put("uses", &self.uses);
        object.put("ttl_seconds", &self.ttl_seconds);
        object.put("role", &self.role);
    }
}

/// Somebody joins.
#[derive(Clone, PartialEq, Eq)]
pub struct Join {
    /// Of the invite.
    pub token: String,
    /// What others will call it, if nobody who is active is called so.
    pub name: String,
    /// Names its key.
    pub key_id: String,
}

impl Record for Join {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let token: String = fields.take("token")?;
        Ok(Self {
            token: checked_token(token).map_err(|refusal| under("token", refusal))?,
            name: fields.new_name("name", JOIN_NAME_BYTES_MAX)?,
            key_id: fields.new_name("key_id", NAME_BYTES_MAX)?,
        })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("token", &self.token);
        object.put_text("name", &self.name);
        object.put_text("key_id", &self.key_id);
    }
}

/// Debug output goes to logs, and a token must not.
impl std::fmt::Debug for Join {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Join").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What a member says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// A few sentences.
    pub summary: Option<String>,
    /// A word or two.
    pub status: Option<String>,
}

impl Record for Profile {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        let profile = Self {
            summary: fields.optional_name("summary", PROFILE_BYTES_MAX)?,
            status: fields.optional_name("status", NAME_BYTES_MAX)?,
        };
        let mut text = String::new();
        let mut object = Object::open(&mut text);
        profile.write(&mut object);
        object.close();
        if text.len() > PROFILE_BYTES_MAX {
            let detail = format!("a profile has at most {PROFILE_BYTES_MAX} bytes");
            return Err(invalid(&detail));
        }
        Ok(profile)
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_optional("summary", self.summary.as_ref());
        object.put_optional("status", self.status.as_ref());
    }
}

/// A member makes a topic or a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewName {
    /// Any text without control characters and without those that turn text or cannot be seen.
    pub name: String,
}

impl Record for NewName {
    fn read(fields: &mut Fields<'_>) -> Result<Self, Refusal> {
        Ok(Self { name: fields.new_name("name", REF_BYTES_MAX)? })
    }

    fn write(&self, object: &mut Object<'_>) {
        object.put_text("name", &self.name);
    }
}
