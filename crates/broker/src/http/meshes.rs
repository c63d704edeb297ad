//! Meshes: an operator makes them, members look at them.

use semel_core::code::Code;
use semel_crypto::keys::PublicKey;
use semel_wire::http::{Body, MeshMade, MeshView, NewMesh, Problem, Role};

use super::answer::{Answer, failed};
use super::{Call, auth};
use crate::accept::DedupeMode;
use crate::store::{Mesh, NewMember};

pub(super) async fn create(call: &Call) -> Result<Answer, Problem> {
    auth::operator(call)?;
    let new = NewMesh::decode(&call.body).map_err(Problem::of)?;
    let pubkey = PublicKey::from_bytes(new.owner_pubkey).map_err(|refusal| {
        let pointer = Some("/owner_pubkey".to_owned());
        Problem { pointer, ..Problem::of(refusal) }
    })?;
    let mint = &call.broker.mint;
    let owner = NewMember {
        member_id: mint.uuid(),
        name: new.owner_name,
        role: Role::Owner,
        key_id: mint.client_message_id().to_string(),
        pubkey: pubkey.to_string(),
    };
    let (mesh_id, now) = (mint.uuid(), call.broker.clock.wall());
    let made = call.broker.store.mesh_create(mesh_id, &new.slug, &owner, now).await;
    if made.map_err(failed)? {
        let member_id = owner.member_id;
        return Ok(Answer::created(&MeshMade { mesh_id, slug: new.slug, member_id }));
    }
    Err(Problem::new(Code::MeshExists, "there is a mesh of that name already"))
}

pub(super) async fn show(call: &Call) -> Result<Answer, Problem> {
    auth::member(call).await.map(|asking| Answer::ok(&view(asking.mesh)))
}

fn view(mesh: Mesh) -> MeshView {
    MeshView {
        mesh_id: mesh.mesh_id,
        slug: mesh.slug,
        dedupe_retention_days: match mesh.dedupe {
            DedupeMode::Permanent => None,
            DedupeMode::RetentionScoped { days } => Some(u64::from(days)),
        },
        message_retention_days: u64::from(mesh.message_retention_days),
        rate_limit: u64::from(mesh.rate_limit),
        rate_window_ms: u64::from(mesh.rate_window_ms),
        inline_bytes: u64::from(mesh.inline_bytes),
        blob_bytes: mesh.blob_bytes,
    }
}
