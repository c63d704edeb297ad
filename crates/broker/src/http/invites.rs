//! Invites, and who joins by one.

use std::time::Duration;

use semel_core::code::Code;
use semel_wire::http::{self, Body, Invite, NewInvite, Problem};
use semel_wire::link;
use sha2::{Digest, Sha256};

use super::answer::{Answer, failed};
use super::{Call, auth};
use crate::store::{self, Join, Joined};

pub(super) async fn create(call: &Call) -> Result<Answer, Problem> {
    let (mesh, created_by) = auth::owner_or_operator(call).await?;
    let new = NewInvite::decode(&call.body).map_err(Problem::of)?;
    let token = link::token(&(call.broker.nonces)());
    let now = call.broker.clock.wall();
    let expires_at = now.saturating_add(Duration::from_secs(new.ttl_seconds));
    let invite = store::NewInvite {
        token_hash: token_hash(&token),
        role: new.role,
        uses: u32::try_from(new.uses).unwrap_or(u32::MAX),
        expires_at,
        created_by,
    };
    let made = call.broker.store.invite_create(mesh.mesh_id, &invite, now).await;
    if made.map_err(failed)? {
        return Ok(Answer::created(&Invite { token, expires_at, uses: new.uses }));
    }
    Err(Problem::new(Code::TooMany, "the mesh has too many invites that have not ended"))
}

pub(super) async fn join(call: &Call) -> Result<Answer, Problem> {
    let (mesh, key) = auth::joining(call).await?;
    let asked = http::Join::decode(&call.body).map_err(Problem::of)?;
    let join = Join {
        token_hash: token_hash(&asked.token),
        member_id: call.broker.mint.uuid(),
        name: asked.name,
        key_id: asked.key_id,
        pubkey: key.to_string(),
    };
    let joined = call.broker.store.join(mesh.mesh_id, &join, call.broker.clock.wall()).await;
    let welcome =
        |member_id| http::Joined { mesh_id: mesh.mesh_id, member_id, slug: mesh.slug.clone() };
    let refused = |code, detail: &str| Err(Problem::new(code, detail));
    match joined.map_err(failed)? {
        Joined::New(member_id) => Ok(Answer::created(&welcome(member_id))),
        Joined::Again(member_id) => Ok(Answer::ok(&welcome(member_id))),
        Joined::Already => {
            refused(Code::AlreadyMember, "this key is a member already, not by this invite")
        }
        Joined::Inactive => refused(Code::MemberInactive, "the member was revoked or has left"),
        Joined::InviteInvalid => refused(Code::InviteInvalid, "the invite lets nobody in"),
        Joined::KeyIdTaken => refused(Code::KeyIdTaken, "another key has this key_id"),
    }
}

/// What the store knows of a token. It has 256 random bits, so that a plain hash hides it.
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}
