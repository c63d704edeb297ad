//! The gears of a home: those that are built in, and those that were installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Gear;
use super::builtin::files::Files;
use super::builtin::http::{Http, HttpSettings};
use super::builtin::mesh::{Mesh, MeshPort};
use super::builtin::notify::Notify;
use super::builtin::shell::Shell;
use super::builtin::wait::Wait;
use super::groups::Groups;
use super::installed::{Environment, Installed};
use super::package::{self, PackageError, State};
use super::registry::{BadSchema, Registry};

/// What gears reach the world through.
#[derive(Clone)]
pub struct Ports {
    /// The daemon of a mesh.
    pub mesh: Option<Arc<dyn MeshPort>>,
    /// How requests leave this host.
    pub http: HttpSettings,
    /// The engine's variables, for gears that declare them.
    pub environment: Environment,
    /// Where limits hold for all processes of a gear together, if the host has that.
    pub groups: Option<Arc<Groups>>,
}

impl Default for Ports {
    /// No mesh, no TLS, no variables.
    fn default() -> Self {
        let http = HttpSettings::default();
        Self { mesh: None, http, environment: Arc::new(|_| None), groups: None }
    }
}

/// Why there are no gears.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A gear that cannot be used.
    #[error(transparent)]
    Schema(#[from] BadSchema),
    /// The folder of gears cannot be read.
    #[error(transparent)]
    Package(#[from] PackageError),
}

/// The gears that are built in, and whether each is enabled when nobody says so.
const BUILT_IN: [(&str, bool); 6] = [
    ("files", true),
    ("http", true),
    ("mesh", true),
    ("notify", true),
    ("shell", false),
    ("wait", true),
];

/// Whether a gear of this name is built in, and then whether it is enabled unless somebody says
/// otherwise.
pub fn built_in(id: &str) -> Option<bool> {
    BUILT_IN.iter().find(|(name, _)| *name == id).map(|(_, enabled)| *enabled)
}

/// The gears of the home `root`. `shim` is this program's own file: gears are started through its
/// hidden command `gear-shim`.
pub fn load(root: &Path, shim: PathBuf, ports: Ports) -> Result<Registry, LoadError> {
    let registry = Registry::default();
    Loader::new(root, shim, ports).refresh(&registry)?;
    Ok(registry)
}

/// Keeps a registry in step with a home.
pub struct Loader {
    root: PathBuf,
    shim: PathBuf,
    ports: Ports,
    /// What was loaded, as it was then.
    seen: Mutex<BTreeMap<String, State>>,
}

impl Loader {
    /// For the home `root`.
    pub fn new(root: &Path, shim: PathBuf, ports: Ports) -> Self {
        Self { root: root.to_owned(), shim, ports, seen: Mutex::default() }
    }

    /// Brings a registry up to date with what was installed, enabled and disabled since. A gear
    /// that cannot be read is left out, with a warning: one bad gear stops no engine.
    pub fn refresh(&self, registry: &Registry) -> Result<(), LoadError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, usual) in BUILT_IN {
            let state = package::state(&self.root, id)?;
            let enabled = state.map_or(usual, |state| state.enabled);
            let now = State { enabled, sha256: String::new(), waived: Vec::new() };
            if seen.get(id) == Some(&now) {
                continue;
            }
            if !registry.set_enabled(id, enabled) {
                registry.put(self.made(id), enabled)?;
            }
            seen.insert(id.to_owned(), now);
        }
        let installed = package::installed(&self.root)?;
        for id in installed.iter().filter(|id| built_in(id).is_none()) {
            match self.refresh_installed(registry, id, &mut seen) {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(gear = id, %error, "a gear cannot be used");
                    registry.remove(id);
                    seen.remove(id);
                }
            }
        }
        seen.retain(|id, _| {
            let stays = built_in(id).is_some() || installed.contains(id);
            if !stays {
                registry.remove(id);
            }
            stays
        });
        Ok(())
    }

    fn refresh_installed(
        &self,
        registry: &Registry,
        id: &str,
        seen: &mut BTreeMap<String, State>,
    ) -> Result<(), LoadError> {
        let changed = || PackageError::Changed { id: id.to_owned() };
        let state = package::state(&self.root, id)?.ok_or_else(changed)?;
        match seen.get(id) {
            Some(before) if *before == state => return Ok(()),
            Some(before) if before.sha256 == state.sha256 => {
                registry.set_enabled(id, state.enabled);
            }
            Some(_) | None => {
                let environment = Arc::clone(&self.ports.environment);
                let gear = Installed::open(&self.root, id, self.shim.clone(), environment)?
                    .in_groups(self.ports.groups.clone());
                // The folder's name and the manifest's are one.
                if gear.manifest().id != id {
                    return Err(changed().into());
                }
                registry.put(Arc::new(gear), state.enabled)?;
            }
        }
        seen.insert(id.to_owned(), state);
        Ok(())
    }

    fn made(&self, id: &str) -> Arc<dyn Gear> {
        match id {
            "files" => Arc::new(Files::new()),
            "http" => Arc::new(Http::new(self.ports.http.clone())),
            "mesh" => Arc::new(Mesh::new(self.ports.mesh.clone())),
            "notify" => Arc::new(Notify::new()),
            "shell" => {
                Arc::new(Shell::new(&self.root, self.shim.clone(), self.ports.groups.clone()))
            }
            _ => Arc::new(Wait::new()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gear::registry::Missing;

    #[test]
    fn built_in_gears_follow_their_switches() {
        let home = tempfile::tempdir().expect("a folder");
        let loader = Loader::new(home.path(), PathBuf::from("semel"), Ports::default());
        let registry = Registry::default();
        loader.refresh(&registry).expect("loaded");
        let names: Vec<String> = registry.list().into_iter().map(|(gear, _)| gear.id).collect();
        assert_eq!(names, BUILT_IN.map(|(name, _)| name));
        for (gear, _) in registry.list() {
            assert!(built_in(&gear.id).is_some());
            for action in gear.actions.keys() {
                let found = registry.find(&gear.id, action).map(drop);
                let expected = if gear.id == "shell" { Err(Missing::Disabled) } else { Ok(()) };
                assert_eq!(found, expected, "{}.{action}", gear.id);
            }
        }
        let on = State { enabled: true, sha256: String::new(), waived: Vec::new() };
        package::set_state(home.path(), "shell", &on).expect("kept");
        let off = State { enabled: false, ..on };
        package::set_state(home.path(), "http", &off).expect("kept");
        loader.refresh(&registry).expect("loaded");
        assert!(registry.find("shell", "run").is_ok());
        assert_eq!(registry.find("http", "request").map(drop), Err(Missing::Disabled));
    }
}
