//! Some meshes, or all of them: what was touched and is to be looked at.

use std::collections::HashSet;

use semel_core::id::MeshId;

use crate::limits::HINT_MESHES_MAX;

/// Meshes that were touched. More than can be named are all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meshes {
    /// These.
    Named(HashSet<MeshId>),
    /// Too many to name.
    All,
}

impl Default for Meshes {
    fn default() -> Self {
        Self::Named(HashSet::new())
    }
}

impl Meshes {
    /// Only this one.
    pub fn one(mesh_id: MeshId) -> Self {
        Self::Named(HashSet::from([mesh_id]))
    }

    /// Whether there is none.
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// Whether this one is among them.
    pub fn contains(&self, mesh_id: MeshId) -> bool {
        match self {
            Self::Named(meshes) => meshes.contains(&mesh_id),
            Self::All => true,
        }
    }

    /// These and those.
    pub fn add(&mut self, more: Self) {
        match (&mut *self, more) {
            (Self::Named(meshes), Self::Named(more)) => {
                meshes.extend(more);
                if meshes.len() > HINT_MESHES_MAX {
                    *self = Self::All;
                }
            }
            (_, Self::All) => *self = Self::All,
            (Self::All, Self::Named(_)) => {}
        }
    }
}
