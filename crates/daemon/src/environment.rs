//! What a daemon does where it runs, when nobody says otherwise (daemon.md, "Environment
//! defaults"). Pure: the command line collects the facts.

use std::collections::BTreeMap;

use semel_core::status;

use crate::config::Config;

/// The variables that say something; the command line reads these and no others.
pub const VARIABLES: &[&str] = &[
    "CI",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "BUILDKITE",
    "CIRCLECI",
    "JENKINS_URL",
    "KUBERNETES_SERVICE_HOST",
    "RUNPOD_POD_ID",
];

/// Set by continuous integration, whatever the value; `CI` itself counts when it is `true`.
const CI: &[&str] = &["GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI", "JENKINS_URL"];

/// What is known about the host.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// Those of [`VARIABLES`] that are set and not empty.
    pub variables: BTreeMap<String, String>,
    /// Whether `/.dockerenv` exists.
    pub dockerenv: bool,
    /// The text of `/proc/self/cgroup`, or nothing.
    pub cgroup: String,
    /// `--container`.
    pub container_flag: bool,
    /// `--persistent` or `--ephemeral`.
    pub identity_flag: Option<IdentityKind>,
}

status! {
    /// Whether the member outlives the process.
    pub enum IdentityKind {
        /// Its keys are on disk.
        Persistent = "persistent",
        /// Its keys are in memory only.
        Ephemeral = "ephemeral",
    }
}

/// A part of the host that is on or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    /// It is there.
    On,
    /// It is not.
    Off,
}

impl Switch {
    const fn of(on: bool) -> Self {
        if on { Self::On } else { Self::Off }
    }
}

/// Where a daemon can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Bare metal or a virtual machine.
    Host,
    /// Docker and its kin, or what `--container` says is one.
    Container,
    /// A pod of Kubernetes.
    Kubernetes,
    /// A rented pod, which may come back without its disk.
    RunPod,
    /// Continuous integration: a host that others used before and will use after.
    Ci,
}

/// What a daemon does there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Environment {
    /// Where it is.
    pub place: Place,
    /// Whether its keys are kept.
    pub identity: IdentityKind,
    /// Loopback TCP, beside the socket.
    pub tcp: Switch,
    /// What is worth a line in the log.
    pub remark: Option<&'static str>,
}

/// The table, row for row, then what the flags change.
pub fn environment(facts: &Facts) -> Environment {
    use IdentityKind::{Ephemeral, Persistent};
    use Switch::{Off, On};
    let place = place(facts);
    #[rustfmt::skip]
    let (identity, tcp) = match place {
        Place::Host       => (Persistent, On ),
        Place::Container  => (Persistent, Off),
        Place::Kubernetes => (Persistent, Off),
        Place::RunPod     => (Persistent, Off),
        Place::Ci         => (Ephemeral,  Off),
    };
    let remark = match (place, facts.identity_flag) {
        (Place::Ci, Some(Persistent)) => {
            Some("persistent in CI: the keys stay on a host that others use")
        }
        (Place::RunPod, None) => {
            Some("persistent on RunPod: a pod that comes back without its disk is a new member")
        }
        (
            Place::Host | Place::Container | Place::Kubernetes | Place::RunPod | Place::Ci,
            Some(Persistent | Ephemeral) | None,
        ) => None,
    };
    let identity = facts.identity_flag.unwrap_or(identity);
    Environment { place, identity, tcp, remark }
}

impl Environment {
    /// The same with what the user's configuration decides.
    pub fn with(self, config: &Config) -> Self {
        let tcp = config.ipc.tcp_enabled.map_or(self.tcp, Switch::of);
        Self { tcp, ..self }
    }
}

/// CI first: its jobs run in containers, and what matters then is that others run there too.
fn place(facts: &Facts) -> Place {
    let is_set = |name: &str| facts.variables.contains_key(name);
    let ci = facts.variables.get("CI").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    if ci || CI.iter().any(|name| is_set(name)) {
        Place::Ci
    } else if is_set("RUNPOD_POD_ID") {
        Place::RunPod
    } else if is_set("KUBERNETES_SERVICE_HOST") {
        Place::Kubernetes
    } else if facts.container_flag || facts.dockerenv || in_container(&facts.cgroup) {
        Place::Container
    } else {
        Place::Host
    }
}

/// Whether a control group of this process is a container's. Names are compared whole: the
/// engine's own service (`docker.service`) runs on the host.
fn in_container(cgroup: &str) -> bool {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.flat_map(|path| path.split('/')).any(|name| {
        let is_scope = |prefix| name.starts_with(prefix) && name.ends_with(".scope");
        ["docker", "lxc", "garden", "actions_job"].contains(&name)
            || name.starts_with("kubepods")
            || name.starts_with("lxc.payload")
            || ["docker-", "libpod-", "crio-", "cri-containerd-"].into_iter().any(is_scope)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use IdentityKind::{Ephemeral, Persistent};
    use Switch::{Off, On};

    fn facts(variables: &[(&str, &str)]) -> Facts {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Facts { variables: variables.iter().map(owned).collect(), ..Facts::default() }
    }

    fn row(facts: &Facts) -> (Place, IdentityKind, Switch) {
        let found = environment(facts);
        (found.place, found.identity, found.tcp)
    }

    #[test]
    #[rustfmt::skip]
    fn the_table_of_defaults() {
        use Place::{Ci, Container, Host, Kubernetes, RunPod};
        let docker = Facts { dockerenv: true, ..Facts::default() };
        let flag = Facts { container_flag: true, ..Facts::default() };
        let ci_in_docker = Facts { dockerenv: true, ..facts(&[("CI", "true")]) };
        let both = facts(&[("RUNPOD_POD_ID", "x"), ("KUBERNETES_SERVICE_HOST", "10.0.0.1")]);
        let rows = [
            (Facts::default(),                             Host,       Persistent, On ),
            (facts(&[("CI", "false")]),                    Host,       Persistent, On ),
            (facts(&[("CI", "1")]),                        Host,       Persistent, On ),
            (docker,                                       Container,  Persistent, Off),
            (flag,                                         Container,  Persistent, Off),
            (facts(&[("KUBERNETES_SERVICE_HOST", "::1")]), Kubernetes, Persistent, Off),
            (facts(&[("RUNPOD_POD_ID", "x")]),             RunPod,     Persistent, Off),
            (both,                                         RunPod,     Persistent, Off),
            (facts(&[("CI", "true")]),                     Ci,         Ephemeral,  Off),
            (facts(&[("CI", "True")]),                     Ci,         Ephemeral,  Off),
            (facts(&[("GITHUB_ACTIONS", "true")]),         Ci,         Ephemeral,  Off),
            (facts(&[("GITLAB_CI", "true")]),              Ci,         Ephemeral,  Off),
            (facts(&[("BUILDKITE", "1")]),                 Ci,         Ephemeral,  Off),
            (facts(&[("CIRCLECI", "true")]),               Ci,         Ephemeral,  Off),
            (facts(&[("JENKINS_URL", "https://ci")]),      Ci,         Ephemeral,  Off),
            (ci_in_docker,                                 Ci,         Ephemeral,  Off),
        ];
        for (facts, place, identity, tcp) in rows {
            assert_eq!(row(&facts), (place, identity, tcp), "{facts:?}");
        }
    }

    #[test]
    fn flags_decide_the_identity_and_nothing_else() {
        let with = |facts: Facts, flag| Facts { identity_flag: Some(flag), ..facts };
        let host = with(Facts::default(), Ephemeral);
        assert_eq!(row(&host), (Place::Host, Ephemeral, On));
        let ci = with(facts(&[("CI", "true")]), Persistent);
        assert_eq!(row(&ci), (Place::Ci, Persistent, Off));
        assert!(environment(&ci).remark.is_some_and(|remark| remark.contains("CI")));
        let runpod = facts(&[("RUNPOD_POD_ID", "x")]);
        assert!(environment(&runpod).remark.is_some_and(|remark| remark.contains("RunPod")));
        for quiet in [host, with(runpod, Persistent), facts(&[("CI", "true")]), Facts::default()] {
            assert_eq!(environment(&quiet).remark, None, "{quiet:?}");
        }
    }

    #[test]
    fn a_container_is_recognised_by_its_control_group() {
        let id = "3f4b".repeat(16);
        for line in [
            format!("12:cpu,cpuacct:/docker/{id}"),
            format!("0::/system.slice/docker-{id}.scope"),
            format!("1:name=systemd:/kubepods/besteffort/pod1/{id}"),
            format!("0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-{id}.scope"),
            format!("0::/user.slice/libpod-{id}.scope/container"),
            "4:memory:/lxc/web".to_owned(),
            "0::/lxc.payload.web/init.scope".to_owned(),
        ] {
            let facts = Facts { cgroup: format!("3:x:/\n{line}\n"), ..Facts::default() };
            assert_eq!(environment(&facts).place, Place::Container, "{line}");
        }
        for line in [
            "",
            "0::/",
            "0::/init.scope",
            "0::/system.slice/docker.service",
            "0::/system.slice/containerd.service",
            "0::/user.slice/user-1000.slice/session-docker.scope",
            "docker",
        ] {
            let facts = Facts { cgroup: format!("{line}\n"), ..Facts::default() };
            assert_eq!(environment(&facts).place, Place::Host, "{line}");
        }
    }

    #[test]
    fn the_configuration_has_the_last_word() {
        let mut config = Config::default();
        let docker = environment(&Facts { dockerenv: true, ..Facts::default() });
        assert_eq!(docker.with(&config), docker);
        config.ipc.tcp_enabled = Some(true);
        assert_eq!(docker.with(&config), Environment { tcp: On, ..docker });
    }

    #[test]
    fn every_variable_that_counts_is_collected() {
        assert!(CI.iter().all(|name| VARIABLES.contains(name)));
    }
}
