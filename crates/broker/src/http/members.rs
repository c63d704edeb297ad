//! Members: who is there, who goes, and what they say of themselves.

use semel_core::code::Code;
use semel_core::id::{MemberId, MeshId};
use semel_wire::http::{Body, List, MemberItem, MemberStatus, Problem, Profile};

use super::answer::{Answer, failed};
use super::query::Page;
use super::{Call, auth};
use crate::store::{Audited, Ended, Member};

pub(super) async fn list(call: &Call) -> Result<Answer, Problem> {
    let mesh = auth::member(call).await?.mesh;
    let page = Page::of(&call.query)?;
    let after = match page.after.as_deref().map(MemberId::parse) {
        Some(None) => {
            return Err(Problem::new(Code::InvalidField, "after is not a member's id"));
        }
        Some(after) => after,
        None => None,
    };
    let found = call.broker.store.member_list(mesh.mesh_id, after, page.limit + 1).await;
    let mut found = found.map_err(failed)?;
    let next = page.cut(call, &mut found, |member| member.member_id.to_string());
    Ok(Answer::ok(&List { items: found.into_iter().map(item).collect(), next }))
}

pub(super) async fn revoke(call: &Call) -> Result<Answer, Problem> {
    let (mesh, _) = auth::owner_or_operator(call).await?;
    let member_id = call.names.get(1).and_then(|name| MemberId::parse(name));
    let member_id = member_id.ok_or_else(nobody)?;
    end(call, mesh.mesh_id, member_id, MemberStatus::Revoked).await
}

pub(super) async fn leave(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    end(call, asking.mesh.mesh_id, asking.member_id, MemberStatus::Left).await
}

async fn end(
    call: &Call,
    mesh_id: MeshId,
    member_id: MemberId,
    status: MemberStatus,
) -> Result<Answer, Problem> {
    let broker = &call.broker;
    let audited = Audited { id: broker.mint.uuid(), at: broker.clock.wall() };
    let ended = broker.store.member_end(mesh_id, member_id, status, audited).await;
    match ended.map_err(failed)? {
        Ended::Done => {
            broker.sessions_changed(mesh_id);
            Ok(Answer::done())
        }
        Ended::NotActive => Err(nobody()),
        Ended::LastOwner => {
            Err(Problem::new(Code::LastOwner, "the mesh would be left without an owner"))
        }
    }
}

pub(super) async fn profile(call: &Call) -> Result<Answer, Problem> {
    let asking = auth::member(call).await?;
    let profile = Profile::decode(&call.body).map_err(Problem::of)?.encode();
    let store = &call.broker.store;
    let noted = store.member_profile(asking.mesh.mesh_id, asking.member_id, &profile).await;
    if noted.map_err(failed)? { Ok(Answer::done()) } else { Err(nobody()) }
}

fn item(member: Member) -> MemberItem {
    MemberItem {
        member_id: member.member_id,
        name: member.name,
        role: member.role,
        status: member.status,
        pubkey: member.pubkey,
        // What cannot be read is not worth the whole list.
        profile: Profile::decode(member.profile.as_bytes()).unwrap_or_default(),
        joined_at: member.joined_at,
    }
}

fn nobody() -> Problem {
    Problem::new(Code::MemberNotFound, "there is no such active member")
}
