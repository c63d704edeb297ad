//! The gears that a plan may name.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use serde_json::Value;

use super::grants::Grants;
use super::manifest::{Action, Manifest, Recovery};
use super::schema::{Budget, Schema};
use super::{Gear, ORIGIN_UNKNOWN};
use crate::course::action_name;

/// An action that is ready to be run.
pub struct Prepared {
    /// Whose it is.
    pub gear: Arc<dyn Gear>,
    /// What it says of itself.
    pub action: Arc<Action>,
    name: String,
    params: Schema,
    result: Option<Schema>,
}

/// Why an action cannot be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// There is no such gear.
    Gear,
    /// It has no such action.
    Action,
    /// It was disabled.
    Disabled,
}

/// A gear that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{gear}.{action}: its {which} is not a JSON Schema: {detail}")]
pub struct BadSchema {
    gear: String,
    action: String,
    which: &'static str,
    detail: String,
}

struct Entry {
    enabled: bool,
    gear: Arc<dyn Gear>,
    actions: HashMap<String, Arc<Prepared>>,
}

/// Gears by their names.
#[derive(Default)]
pub struct Registry {
    gears: RwLock<HashMap<String, Entry>>,
}

impl Registry {
    /// Adds a gear, or replaces the one of its name.
    pub fn put(&self, gear: Arc<dyn Gear>, enabled: bool) -> Result<(), BadSchema> {
        let manifest = gear.manifest();
        let (mut actions, mut budget) = (HashMap::new(), Budget::default());
        for (name, action) in &manifest.actions {
            let mut compile = |which, schema: &Value| {
                Schema::read(schema, &mut budget).map_err(|detail| BadSchema {
                    gear: manifest.id.clone(),
                    action: name.clone(),
                    which,
                    detail,
                })
            };
            let params = compile("params", &action.params)?;
            let result = action.result.as_ref().map(|schema| compile("result", schema));
            let (result, action) = (result.transpose()?, Arc::new(action.clone()));
            let (gear, name_owned) = (Arc::clone(&gear), name.clone());
            let prepared = Prepared { gear, action, name: name_owned, params, result };
            actions.insert(name.clone(), Arc::new(prepared));
        }
        let id = manifest.id.clone();
        self.write().insert(id, Entry { enabled, gear: Arc::clone(&gear), actions });
        Ok(())
    }

    /// Takes a gear out.
    pub fn remove(&self, gear: &str) {
        self.write().remove(gear);
    }

    /// Lets plans name a gear, or not; whether there is one of that name.
    pub fn set_enabled(&self, gear: &str, enabled: bool) -> bool {
        let mut gears = self.write();
        let Some(entry) = gears.get_mut(gear) else { return false };
        entry.enabled = enabled;
        true
    }

    /// Every gear and whether it is enabled, by name.
    pub fn list(&self) -> Vec<(Manifest, bool)> {
        let gears = self.gears.read().unwrap_or_else(PoisonError::into_inner);
        let entries = gears.values();
        let mut list: Vec<_> =
            entries.map(|entry| (entry.gear.manifest().clone(), entry.enabled)).collect();
        list.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        list
    }

    /// Everything that can be run now: `gear.action`, of gears that are enabled and lack nothing.
    pub fn ready(&self) -> Vec<String> {
        let gears = self.gears.read().unwrap_or_else(PoisonError::into_inner);
        let ready = gears.iter().filter(|(_, entry)| entry.enabled && entry.gear.is_ready());
        let names = ready.flat_map(|(id, entry)| {
            entry.actions.keys().map(move |action| format!("{id}.{action}"))
        });
        names.collect()
    }

    /// Lets gears find out as whom they act that do not know it.
    pub async fn learn_origins(&self) {
        let unknown: Vec<Arc<dyn Gear>> = {
            let gears = self.gears.read().unwrap_or_else(PoisonError::into_inner);
            let all = gears.values().map(|entry| &entry.gear);
            all.filter(|gear| gear.origin().as_deref() == Some(ORIGIN_UNKNOWN)).cloned().collect()
        };
        for gear in unknown {
            gear.learn_origin().await;
        }
    }

    /// What the gear of this name may have done by jobs of its own; nothing when it is not here.
    pub fn grants(&self, gear: &str) -> Option<Grants> {
        let gears = self.gears.read().unwrap_or_else(PoisonError::into_inner);
        gears.get(gear).map(|entry| entry.gear.grants().clone())
    }

    /// An action by its names.
    pub fn find(&self, gear: &str, action: &str) -> Result<Arc<Prepared>, Missing> {
        let gears = self.gears.read().unwrap_or_else(PoisonError::into_inner);
        let entry = gears.get(gear).ok_or(Missing::Gear)?;
        if !entry.enabled {
            return Err(Missing::Disabled);
        }
        entry.actions.get(action).cloned().ok_or(Missing::Action)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, HashMap<String, Entry>> {
        self.gears.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prepared {
    /// What follows an uncertain attempt with these parameters.
    pub fn recovery(&self, params: &Value) -> Recovery {
        self.gear.recovery(&self.name, params)
    }

    /// The breaker that decides over a call with these parameters: `gear.action`, or
    /// `gear.action place`.
    pub fn breaker(&self, params: &Value) -> String {
        let action = action_name(&self.gear.manifest().id, &self.name);
        match self.gear.place(&self.name, params) {
            Some(place) => format!("{action} {place}"),
            None => action,
        }
    }

    /// How many steps it takes to check these parameters, at the most.
    pub(crate) fn work(&self, params: &Value) -> usize {
        self.params.work(params)
    }

    /// What is wrong with these parameters; the first thing only.
    pub fn check_params(&self, params: &Value) -> Result<(), String> {
        self.params.check(params)
    }

    /// What is wrong with this result.
    pub fn check_result(&self, result: &Value) -> Result<(), String> {
        self.result.as_ref().map_or(Ok(()), |schema| schema.check(result))
    }
}
