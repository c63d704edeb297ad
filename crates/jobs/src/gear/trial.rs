//! A gear that is tried out before it is installed: the same sandbox, the same lines, a home that
//! is thrown away.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::installed::{Environment, Installed, run_folder};
use super::package::{self, PackageError, Scratch};
use super::registry::{Missing, Registry};
use super::sandbox::Ability;
use super::{Allowed, Call, Desk, Ended, Failure, FailureClass, Output, Stop};

/// A gear on trial.
pub struct Trial {
    registry: Registry,
    gear: Arc<Installed>,
    workspace: PathBuf,
    _home: Scratch,
    _made: Made,
}

/// Folders of a home that was not there before the trial: they go again, if nothing else is in
/// them.
struct Made(Vec<PathBuf>);

impl Made {
    fn by_a_trial(root: &Path) -> Self {
        let run = run_folder(root);
        let missing = run.ancestors().take_while(|path| !path.exists());
        Self(missing.map(Path::to_owned).collect())
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        for folder in &self.0 {
            if std::fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

impl Trial {
    /// The package in `source`, for the home `root`, which is kept from it as it is from every
    /// gear. It has the secrets that it declares if the operator has named all of them in `handed`;
    /// nobody has looked at what it does with them.
    pub fn new(
        root: &Path,
        source: &Path,
        shim: PathBuf,
        environment: Environment,
        waived: &[Ability],
        handed: &[String],
    ) -> Result<Self, PackageError> {
        let made = Made::by_a_trial(root);
        let home = Scratch::new(&run_folder(root), &std::process::id().to_string())?;
        let document = package::install_to_look_at(&home.0, root, source, waived)?;
        let id = document.manifest.id;
        let mut gear = Installed::open(&home.0, &id, shim, environment)?.of_home(root);
        if document.permissions.secrets.iter().all(|name| handed.contains(name)) {
            gear = gear.with_secrets_of(root);
        }
        let gear = Arc::new(gear);
        let registry = Registry::default();
        let refused = |why| PackageError::Unfit { path: source.to_owned(), why };
        registry
            .put(Arc::<Installed>::clone(&gear), true)
            .map_err(|_| refused("a schema cannot be used"))?;
        let workspace = home.0.join("workspace");
        DirBuilder::new()
            .mode(0o700)
            .create(&workspace)
            .map_err(|_| refused("no workspace can be made"))?;
        Ok(Self { registry, gear, workspace, _home: home, _made: made })
    }

    /// The gear.
    pub fn gear(&self) -> &Installed {
        &self.gear
    }

    /// Where it works.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Runs an action as the engine does: parameters and result are checked, time is limited by
    /// `timeout` or the manifest.
    pub async fn run(
        &self,
        action: &str,
        params: Value,
        timeout: Option<Duration>,
        desk: Arc<dyn Desk>,
    ) -> Ended {
        let user_error =
            |code, text: String| Ended::Failed(Failure::new(FailureClass::UserError, code, text));
        let id = &self.gear.document().manifest.id;
        let prepared = match self.registry.find(id, action) {
            Ok(prepared) => prepared,
            Err(Missing::Gear | Missing::Action | Missing::Disabled) => {
                return user_error("no_such_action", format!("there is no action {action}"));
            }
        };
        if let Err(text) = prepared.check_params(&params) {
            return user_error("invalid_params", text);
        }
        let timeout = timeout.unwrap_or(prepared.action.timeout);
        let call = Call {
            execution_id: format!("trial:{action}"),
            attempt: 1,
            action: action.to_owned(),
            params,
            workspace: self.workspace.clone(),
            timeout,
            via: None,
            allowed: Allowed::all(),
        };
        let (switch, stop) = Stop::channel();
        let mut running = prepared.gear.run(call, desk, stop);
        let ended = tokio::select! {
            ended = &mut running => ended,
            () = tokio::time::sleep(timeout) => {
                let _ = switch.send(true);
                running.await
            }
        };
        match &ended {
            Ended::Done(Output::Value(value)) => match prepared.check_result(value) {
                Ok(()) => ended,
                Err(text) => {
                    let class = FailureClass::GearBug;
                    Ended::Uncertain(Failure::new(class, "invalid_result", text))
                }
            },
            Ended::Done(Output::Artifact(_) | Output::With { .. })
            | Ended::Failed(_)
            | Ended::Uncertain(_) => ended,
        }
    }
}
