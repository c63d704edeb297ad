//! A first mesh, made before anybody is in it.

use semel_core::clock::UnixMs;
use semel_core::id::MeshId;
use semel_store::{StoreError, either};

use super::{NewInvite, Store};

impl Store {
    /// Makes a mesh with an invite for its owner. `false` when the slug is taken.
    pub async fn mesh_create_invited(
        &self,
        mesh_id: MeshId,
        slug: &str,
        invite: &NewInvite,
        now: UnixMs,
    ) -> Result<bool, StoreError> {
        either!(self.mesh_create_invited(mesh_id, slug, invite, now))
    }
}
