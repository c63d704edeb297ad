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
    Err(Problem::new(Code::TooMany, "the mesh has too many invites that have not expired"))
}

pub(super) async fn join(call: &Call) -> Result<Answer, Problem> {
    let (mesh, key) = auth::joining(call).await?;
    let asked = http::Join::decode(&call.body).map_err(Problem::of)?;
    let join = Join {
        token_hash: token_hash(&asked.token),
        member_id: call.broker.mint.uuid(),
        name: asked.name.clone(),
        key_id: asked.key_id,
        pubkey: key.to_string(),
    };
    let store = &call.broker.store;
    let joined = store.join(mesh.mesh_id, &join, call.broker.clock.wall()).await;
    let (mesh_id, slug) = (mesh.mesh_id, mesh.slug.clone());
    let welcome = |member_id, name| http::Joined { mesh_id, member_id, slug, name };
    let refused = |code, detail: &str| Err(Problem::new(code, detail));
    match joined.map_err(failed)? {
        Joined::New(member_id) => Ok(Answer::created(&welcome(member_id, asked.name))),
        Joined::Again(member_id) => {
            let member = store.member_by_key(mesh_id, &join.pubkey).await.map_err(failed)?;
            let name = member.map_or(asked.name, |member| member.name);
            Ok(Answer::ok(&welcome(member_id, name)))
        }
        Joined::Already => {
            refused(Code::AlreadyMember, "this key is a member already, but not by this invite")
        }
        Joined::Inactive => refused(Code::MemberInactive, "the member was revoked or has left"),
        Joined::InviteInvalid => refused(Code::InviteInvalid, "the invite is not valid"),
        Joined::KeyIdTaken => refused(Code::KeyIdTaken, "another key has this key_id"),
        Joined::NameTaken => {
            refused(Code::NameTaken, "an active member of the mesh already has this name")
        }
    }
}

/// What the store knows of a token. It has 256 random bits, so that a plain hash hides it.
pub fn token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}
