//! The stages of `semel gear-shim`; what each is for is said in [`super`].

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::sched::CloneFlags;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};
use semel_core::hex::Hex;
use semel_gear::line::{Direction, Key, Signer};
use semel_gear::message::{FromGear, Handover};
use serde::Serialize;
use zeroize::Zeroizing;

use super::{Ability, Init, Inside, Outer, confine, count, network, read_frame};
use crate::limits::{HANDOVER_BYTES_MAX, ORPHANS_INTERVAL};

type Failed = Box<dyn std::error::Error>;

/// How a stage ends that could not do its part.
pub const FAILED: i32 = 125;

/// A stage of the shim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Outside of the namespaces.
    Outer,
    /// Process 1 in them.
    Init,
    /// What becomes the gear.
    Inside,
}

impl Stage {
    /// By its name on the command line.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Outer, Self::Init, Self::Inside].into_iter().find(|stage| stage.name() == name)
    }

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Outer => "outer",
            Self::Init => "init",
            Self::Inside => "inside",
        }
    }

    /// Whose fault it is when the stage fails: until the last one nothing is the gear's.
    const fn class(self) -> &'static str {
        match self {
            Self::Outer | Self::Init => "resource_limit",
            Self::Inside => "gear_bug",
        }
    }
}

/// Runs a stage; comes back with the exit code. The last stage comes back only when it failed.
pub fn run(stage: Stage) -> i32 {
    let mut key = None;
    let ended = match stage {
        Stage::Outer => outer(&mut key),
        Stage::Init => init(&mut key),
        Stage::Inside => inside(&mut key).map(|never| match never {}),
    };
    ended.unwrap_or_else(|error| {
        let text = format!("{} of the sandbox: {error}", stage.name());
        say_failed(key.as_deref(), stage.class(), &text);
        FAILED
    })
}

/// Nothing of the gear has run yet, so its key can say so for it: a definite error.
fn say_failed(key: Option<&str>, class: &str, text: &str) {
    let key = key.and_then(|key| Hex::<32>::parse(key).ok());
    let line = key.and_then(|key| {
        let message = FromGear::Error {
            class: class.to_owned(),
            code: "sandbox_failed".to_owned(),
            message: text.to_owned(),
            retry_after_ms: None,
        };
        let document = serde_json::to_string(&message).ok()?;
        Signer::new(Key::new(key.0), Direction::FromGear).line(&document)
    });
    // An engine that is gone hears nothing.
    let _ = match line {
        Some(line) => io::stdout().write_all(&line).and_then(|()| io::stdout().flush()),
        None => writeln!(io::stderr(), "semel gear-shim: {text}"),
    };
}

/// Standard input without a buffer: what follows our frame is for the next stage.
fn input() -> io::Result<File> {
    Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// The group is asked to end before it is killed. That is for the gear; these stages stay, so that
/// they see it end. What is started from here has no signal blocked.
fn stay() -> Result<(), Failed> {
    let mut signals = SigSet::empty();
    for signal in [NixSignal::SIGTERM, NixSignal::SIGINT, NixSignal::SIGHUP, NixSignal::SIGQUIT] {
        signals.add(signal);
    }
    Ok(signals.thread_block()?)
}

fn next(stage: Stage) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(super::COMMAND).arg(stage.name()).env_clear();
    command
}

fn outer(key: &mut Option<String>) -> Result<i32, Failed> {
    stay()?;
    confine::go_first();
    confine::close_others()?;
    let frame: Outer = read_frame(&mut input()?)?;
    *key = frame.key;
    if frame.namespaces {
        enter_namespaces()?;
    } else {
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    }
    let child = next(Stage::Init).spawn()?;
    let status = guard(&child)?;
    if !frame.namespaces {
        kill_descendants()?;
    }
    Ok(code(status))
}

/// The operator's own number is 0 in there, and the only one: it owns the operator's files, and has
/// no power over anything else.
pub(super) fn enter_namespaces() -> Result<(), Failed> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    nix::sched::unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS,
    )
    .map_err(|errno| {
        format!(
            "this host gives no user namespace ({errno}): user.max_user_namespaces may be 0, or \
             user namespaces are not allowed here; `semel doctor` shows what can be enforced"
        )
    })?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("0 {} 1", user.as_raw()))?;
    std::fs::write("/proc/self/gid_map", format!("0 {} 1", group.as_raw()))?;
    Ok(())
}

/// Waits for a child, and takes note of orphans that have ended. When the engine's end of stderr is
/// closed, the child is killed; in the outer stage it is process 1 of the namespace, and is gone
/// only when everything in there is.
fn guard(child: &Child) -> Result<WaitStatus, Failed> {
    let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("no child")?;
    let ended = rustix::process::pidfd_open(main, PidfdFlags::empty())?;
    let engine = io::stderr();
    let tv_nsec = i64::from(ORPHANS_INTERVAL.subsec_nanos());
    let interval = Timespec { tv_sec: 0, tv_nsec };
    loop {
        let mut ready = [
            PollFd::new(&ended, PollFlags::IN),
            PollFd::from_borrowed_fd(engine.as_fd(), PollFlags::empty()),
        ];
        match rustix::event::poll(&mut ready, Some(&interval)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        if ready[1].revents().intersects(PollFlags::ERR | PollFlags::HUP) {
            // It may have ended just now.
            let _ = rustix::process::kill_process(main, Signal::KILL);
            let (_, status) =
                rustix::process::waitpid(Some(main), WaitOptions::empty())?.ok_or("no child")?;
            return Ok(status);
        }
        while let Some((pid, status)) = rustix::process::wait(WaitOptions::NOHANG)? {
            if pid == main {
                return Ok(status);
            }
        }
    }
}

fn init(key: &mut Option<String>) -> Result<i32, Failed> {
    stay()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let frame: Init = read_frame(&mut input()?)?;
    *key = frame.key;
    // Root is not counted by the limit of processes; the namespace's own numbers are then all there
    // is. On older kernels the number is the whole host's: what is not bounded is told at install.
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if let Some(most) = count::most_numbers(frame.namespaces, &release, frame.processes) {
        let _ = std::fs::write(count::FILE, most.to_string());
    }
    if let Some(folder) = &frame.proxy {
        network::loopback_up()?;
        network::carry(folder)?;
    }
    let child = next(Stage::Inside).spawn()?;
    Ok(code(guard(&child)?))
}

/// Without a namespace: kills everything that descends from here. Whoever loses its parent comes to
/// this process, so it is enough to kill children until there are none, and then nothing is left.
fn kill_descendants() -> Result<(), Failed> {
    let own = rustix::process::getpid().as_raw_pid();
    loop {
        for pid in children(own)?.into_iter().filter_map(Pid::from_raw) {
            // It may be gone already.
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(rustix::io::Errno::CHILD) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// The children of this process, quickly: one that forks and ends must not be gone again. A kernel
/// without this list is asked for every process.
fn children(own: i32) -> io::Result<Vec<i32>> {
    let list = std::fs::read_to_string(format!("/proc/{own}/task/{own}/children"));
    if let Ok(list) = list {
        return Ok(list.split(' ').filter_map(|pid| pid.parse().ok()).collect());
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok());
        found.extend(pid.filter(|pid| parent_of(*pid) == Some(own)));
    }
    Ok(found)
}

/// The parent of a process.
fn parent_of(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

enum Never {}

fn inside(key: &mut Option<String>) -> Result<Never, Failed> {
    let mut frame: Inside = read_frame(&mut input()?)?;
    *key = frame.key.clone();
    if frame.waived.iter().any(|waived| waived == Ability::Namespaces.as_str()) {
        // Everything of the operator would count, and a gear would begin at its limit.
        frame.limits.processes = u64::MAX;
    }
    if let Some(key) = frame.key {
        hand_over(&Handover { key, secrets: frame.secrets })?;
    }
    let must = |ability: Ability, done: Result<(), Failed>| match done {
        Err(_) if frame.waived.iter().any(|waived| waived == ability.as_str()) => Ok(()),
        done => done,
    };
    let mut command = Command::new(&frame.program);
    command.args(&frame.arguments).env_clear().envs(&frame.environment);
    std::env::set_current_dir(&frame.folder)?;
    confine::set_limits(&frame.limits)?;
    confine::drop_capabilities()?;
    let grounds = confine::Grounds::open(&frame.read, &frame.write, &frame.kept_from)?;
    must(Ability::Files, confine::restrict_files(grounds))?;
    must(Ability::SystemCalls, confine::restrict_calls(frame.network))?;
    Err(command.exec().into())
}

/// The key and the secrets, on descriptor 3: in no variable, in no file, and gone once read.
fn hand_over(handover: &impl Serialize) -> Result<(), Failed> {
    let document = Zeroizing::new(serde_json::to_vec(handover)?);
    if document.len() > HANDOVER_BYTES_MAX {
        return Err("the secrets are too long".into());
    }
    // Without CLOEXEC, on purpose: this process has one thread and becomes the gear.
    let (read, write) = rustix::pipe::pipe()?;
    if read.as_raw_fd() != 3 {
        return Err("descriptor 3 is taken".into());
    }
    File::from(write).write_all(&document)?;
    // The gear closes it.
    std::mem::forget(read);
    Ok(())
}

fn code(status: WaitStatus) -> i32 {
    let signal = || 128 + status.terminating_signal().unwrap_or(0);
    status.exit_status().unwrap_or_else(signal)
}
