//! What a process gives up before it becomes a gear. Each of these holds for root too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::libc;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::CapabilitySet;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::super::reach::{self, Number, OF_SYSTEM, Opened};
use super::Limits;

type Failed = Box<dyn std::error::Error>;

/// Devices that hold nothing.
const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];

/// Numbers of calls in the kernel's other interface for 64-bit machines begin here.
const X32: i64 = 0x4000_0000;

/// When the host runs out of memory the kernel ends a gear, and not the engine with everything that
/// it runs: who used the memory loses an attempt, nobody else does.
pub(super) fn go_first() {
    // A host without this file ends whom it likes.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Closes what whoever started the engine has left open: standard input, output and errors stay.
pub(super) fn close_others() -> Result<(), Failed> {
    let mut open = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        open.extend(entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    for descriptor in open.into_iter().filter(|descriptor| *descriptor > 2) {
        // The folder itself was one of them and is closed already.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

pub(super) fn set_limits(limits: &Limits) -> Result<(), Failed> {
    for (resource, most) in [
        (Resource::As, limits.memory_bytes),
        (Resource::Cpu, limits.cpu_s.saturating_add(1)),
        (Resource::Nproc, limits.processes),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, limits.open_files),
        (Resource::Core, 0),
        (Resource::Memlock, 0),
        (Resource::Msgqueue, 0),
    ] {
        // More than the operator's own limit is not to be had.
        let own = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let most = most.min(own);
        // At the lower one a process is told which limit it was, at the upper one it is killed.
        let told = if resource == Resource::Cpu { most.saturating_sub(1).max(1) } else { most };
        setrlimit(resource, Rlimit { current: Some(told), maximum: Some(most) })?;
    }
    Ok(())
}

/// Nothing that is run from here on has a capability, whatever its owner's number is in here.
pub(super) fn drop_capabilities() -> Result<(), Failed> {
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::clear_ambient_capability_set()?;
    for capability in CapabilitySet::all().iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // A kernel that does not know it, and a process that never had one.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::PERM) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// What was opened for a gear, before it shuts itself in.
#[derive(Default)]
pub(super) struct Grounds {
    read: Vec<Opened>,
    write: Vec<Opened>,
    kept_from: Vec<Number>,
}

impl Grounds {
    /// Opens what it may read and write. A path that leads through a link, and one of the engine's
    /// own folders under whatever name, is none of it.
    pub(super) fn open(
        read: &[PathBuf],
        write: &[PathBuf],
        kept_from: &[Number],
    ) -> Result<Self, Failed> {
        let open = |path: &PathBuf| -> Result<Opened, Failed> {
            let opened = reach::open(path);
            let opened = opened.map_err(|error| format!("{}: {error}", path.display()))?;
            match kept_from.contains(&opened.number) {
                true => Err(format!("{} is kept from every gear", path.display()).into()),
                false => Ok(opened),
            }
        };
        Ok(Self {
            read: read.iter().map(open).collect::<Result<_, _>>()?,
            write: write.iter().map(open).collect::<Result<_, _>>()?,
            kept_from: kept_from.to_vec(),
        })
    }
}

/// Files: Landlock. The rights that ABI 3 knows are demanded, newer ones are taken where they are.
pub(super) fn restrict_files(grounds: Grounds) -> Result<(), Failed> {
    let all = AccessFs::from_all(ABI::V5);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V3))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)?
        .scope(Scope::from_all(ABI::V6))?
        .create()?;
    let look = AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute;
    let devices = BitFlags::from(AccessFs::ReadFile) | AccessFs::WriteFile;
    let change = all & !BitFlags::from(AccessFs::Execute);
    let change = change & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::MakeSock);
    let system = OF_SYSTEM.iter().map(|path| (Path::new(path), look));
    let devices = DEVICES.iter().map(|path| (Path::new(path), devices));
    let system = system.chain(devices).filter_map(|(path, access)| {
        // What the system does not have is not needed; what was declared has to be there.
        reach::open_of_system(path).ok().map(|opened| (opened, access))
    });
    let read = grounds.read.into_iter().map(|opened| (opened, look));
    let write = grounds.write.into_iter().map(|opened| (opened, change));
    for (opened, access) in system.chain(read).chain(write) {
        // Of the system too: who moved the home into it since it was looked at gave it away.
        if grounds.kept_from.contains(&opened.number) {
            return Err("a folder of the system holds the engine's home".into());
        }
        // A rule for a file may not speak of folders.
        let access = match opened.is_folder {
            true => access,
            false => access & AccessFs::from_file(ABI::V5),
        };
        rules = rules.add_rule(PathBeneath::new(opened.file, access))?;
    }
    match rules.restrict_self()?.ruleset {
        RulesetStatus::NotEnforced => Err("Landlock is not enforced".into()),
        RulesetStatus::PartiallyEnforced | RulesetStatus::FullyEnforced => Ok(()),
    }
}

/// Calls that lead around the rest, or that Landlock does not see. `chmod` and its kind are among
/// them, on open files too: they would reach every file of the operator, and of root the system.
#[rustfmt::skip]
const FORBIDDEN: &[i64] = &[
    // Other processes.
    libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_process_vm_writev, libc::SYS_kcmp,
    libc::SYS_pidfd_getfd, libc::SYS_process_madvise, libc::SYS_perf_event_open,
    // Namespaces and mounts.
    libc::SYS_unshare, libc::SYS_setns, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root,
    libc::SYS_chroot, libc::SYS_open_tree, libc::SYS_move_mount, libc::SYS_fsopen,
    libc::SYS_fsconfig, libc::SYS_fsmount, libc::SYS_fspick, libc::SYS_mount_setattr,
    libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at,
    // Ways into the kernel that have their own rules.
    libc::SYS_bpf, libc::SYS_userfaultfd, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register, libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key,
    libc::SYS_fanotify_init, libc::SYS_fanotify_mark, libc::SYS_quotactl, libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_memfd_secret, libc::SYS_personality,
    // Memory that is counted for no process.
    libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_shmat, libc::SYS_shmctl, libc::SYS_msgget,
    libc::SYS_semget, libc::SYS_mq_open,
    // The machine.
    libc::SYS_reboot, libc::SYS_swapon, libc::SYS_swapoff, libc::SYS_sethostname,
    libc::SYS_setdomainname, libc::SYS_init_module, libc::SYS_finit_module,
    libc::SYS_delete_module, libc::SYS_kexec_load, libc::SYS_kexec_file_load,
    libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime, libc::SYS_adjtimex,
    libc::SYS_vhangup, libc::SYS_nfsservctl,
    // What Landlock does not see: changes of files that may not be opened are told all the same.
    libc::SYS_inotify_init1, libc::SYS_inotify_add_watch,
    libc::SYS_fchmod, libc::SYS_fchmodat, SYS_FCHMODAT2, libc::SYS_fchown, libc::SYS_fchownat,
    libc::SYS_setxattr, libc::SYS_lsetxattr, libc::SYS_fsetxattr,
    libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr,
    SYS_SETXATTRAT, SYS_REMOVEXATTRAT, SYS_FILE_SETATTR,
];

/// Newer than the library's list.
const SYS_FCHMODAT2: i64 = 452;
const SYS_SETXATTRAT: i64 = 463;
const SYS_REMOVEXATTRAT: i64 = 466;
const SYS_FILE_SETATTR: i64 = 469;

/// Attributes of a file that is open, also for reading alone: flags, version, extended ones, and
/// that it can never be written again (`fs-verity`) or is encrypted.
#[rustfmt::skip]
const ATTRIBUTES: [u64; 7] = [
    0x4008_6602, 0x4004_6602, 0x4008_7602, 0x4004_7602, 0x401c_5820, 0x4080_6685, 0x800c_6613,
];

/// Leases hold up whoever opens the file, and notes tell of changes: `F_SETLEASE`, `F_NOTIFY`, and
/// `F_SETDELEG`.
const WATCHES: [u64; 3] = [1024, 1026, 1040];

/// Older spellings that newer machines do not have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const FORBIDDEN_HERE: &[i64] = &[
    libc::SYS_chmod, libc::SYS_chown, libc::SYS_lchown, libc::SYS_utime, libc::SYS_utimes,
    libc::SYS_futimesat, libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt,
    libc::SYS_inotify_init, libc::SYS_uselib, libc::SYS_ustat, libc::SYS_sysfs, libc::SYS__sysctl,
    // The same under the numbers of x32, which older kernels take without the bit, too.
    521, 528, 539, 540,
];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[i64] = &[];

/// Older calls that make files: where their flags are and where the mode is.
#[cfg(target_arch = "x86_64")]
const CREATED_HERE: &[(i64, Option<u8>, u8)] =
    &[(libc::SYS_open, Some(1), 2), (libc::SYS_creat, None, 1), (libc::SYS_mknod, None, 1)];
#[cfg(not(target_arch = "x86_64"))]
const CREATED_HERE: &[(i64, Option<u8>, u8)] = &[];

/// The call that takes the commands for attributes: x32 has a number of its own for it.
#[cfg(target_arch = "x86_64")]
const IOCTL: &[i64] = &[libc::SYS_ioctl, 514];
#[cfg(not(target_arch = "x86_64"))]
const IOCTL: &[i64] = &[libc::SYS_ioctl];

/// System calls: seccomp, as a list of what is forbidden.
pub(super) fn restrict_calls(network: bool) -> Result<(), Failed> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    for call in FORBIDDEN.iter().chain(FORBIDDEN_HERE) {
        rules.insert(*call, Vec::new());
        rules.insert(*call | X32, Vec::new());
    }
    for call in [libc::SYS_socket, libc::SYS_socket | X32] {
        rules.insert(call, sockets(network)?);
    }
    for call in [libc::SYS_socketpair, libc::SYS_socketpair | X32] {
        rules.insert(call, datagrams()?);
    }
    let namespaces = libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET;
    let mut clones = Vec::new();
    for bit in (0..32).map(|bit| 1_i32 << bit).filter(|bit| namespaces & bit != 0) {
        let bit = u64::from(bit.cast_unsigned());
        clones.push(SeccompRule::new(vec![argument(0, SeccompCmpOp::MaskedEq(bit), bit)?])?);
    }
    for call in [libc::SYS_clone, libc::SYS_clone | X32] {
        rules.insert(call, clones.clone());
    }
    for call in IOCTL {
        rules.insert(*call, commands(&ATTRIBUTES)?);
        rules.insert(*call | X32, commands(&ATTRIBUTES)?);
    }
    for call in [libc::SYS_fcntl, libc::SYS_fcntl | X32] {
        rules.insert(call, commands(&WATCHES)?);
    }
    for (call, rules_of) in created()? {
        rules.insert(call, rules_of.clone());
        rules.insert(call | X32, rules_of);
    }
    // Times are set on open files only: with a path, the second argument is not null. On those
    // they cannot be forbidden, though some may be open to be read alone: `touch`, `cp` and `tar`
    // need it.
    for call in [libc::SYS_utimensat, libc::SYS_utimensat | X32] {
        let path = argument_long(1, SeccompCmpOp::Ne, 0)?;
        rules.insert(call, vec![SeccompRule::new(vec![path])?]);
    }
    apply(rules, libc::EPERM)?;
    // Their arguments are out of sight; without them the C library takes the older calls.
    let hidden = [libc::SYS_clone3, libc::SYS_openat2];
    let hidden = hidden.into_iter().flat_map(|call| [call, call | X32]);
    let hidden = hidden.map(|call| (call, Vec::new()));
    apply(hidden.collect(), libc::ENOSYS)
}

/// Files are made without the bits by which a program runs as the owner of its file: whoever fills
/// such a file later would lend out what he may do.
fn created() -> Result<Vec<(i64, Vec<SeccompRule>)>, Failed> {
    let has = |index: u8, bits: u64| argument(index, SeccompCmpOp::MaskedEq(bits), bits);
    let mut all = Vec::new();
    // Where the flags are, if they say whether a file is made, and where its mode is.
    let mut calls = vec![(libc::SYS_openat, Some(2), 3), (libc::SYS_mknodat, None, 2)];
    calls.extend_from_slice(CREATED_HERE);
    for (call, flags, mode) in calls {
        let mut rules = Vec::new();
        for bit in [libc::S_ISUID, libc::S_ISGID].map(u64::from) {
            let Some(flags) = flags else {
                rules.push(SeccompRule::new(vec![has(mode, bit)?])?);
                continue;
            };
            // Of a file without a name the second has more bits; this one is its own.
            for made in [0o100, 0o20_000_000] {
                rules.push(SeccompRule::new(vec![has(flags, made)?, has(mode, bit)?])?);
            }
        }
        all.push((call, rules));
    }
    Ok(all)
}

/// Sockets of this host are files that Landlock does not see, and what is not a stream could not go
/// through the proxy.
fn sockets(network: bool) -> Result<Vec<SeccompRule>, Failed> {
    if !network {
        return Ok(Vec::new());
    }
    let family = |family: i32| argument(0, SeccompCmpOp::Ne, u64::from(family.cast_unsigned()));
    let other = vec![family(libc::AF_INET)?, family(libc::AF_INET6)?];
    let mut rules = vec![SeccompRule::new(other)?];
    for kind in (0..16_u64).filter(|kind| *kind != u64::from(libc::SOCK_STREAM.cast_unsigned())) {
        let kind = argument(1, SeccompCmpOp::MaskedEq(0xf), kind)?;
        rules.push(SeccompRule::new(vec![kind])?);
    }
    Ok(rules)
}

/// A pair of datagram sockets can be sent to any socket of this host by its path; of a pair of
/// streams each is connected to the other for good.
fn datagrams() -> Result<Vec<SeccompRule>, Failed> {
    let streams =
        [libc::SOCK_STREAM, libc::SOCK_SEQPACKET].map(|kind| u64::from(kind.cast_unsigned()));
    let others = (0..16_u64).filter(|kind| !streams.contains(kind));
    let kind = |kind| Ok(SeccompRule::new(vec![argument(1, SeccompCmpOp::MaskedEq(0xf), kind)?])?);
    others.map(kind).collect()
}

/// Calls whose second argument is one of these commands.
fn commands(all: &[u64]) -> Result<Vec<SeccompRule>, Failed> {
    let rule =
        |command: &u64| Ok(SeccompRule::new(vec![argument(1, SeccompCmpOp::Eq, *command)?])?);
    all.iter().map(rule).collect()
}

fn argument(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Failed> {
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value)?)
}

fn argument_long(index: u8, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Failed> {
    Ok(SeccompCondition::new(index, SeccompCmpArgLen::Qword, op, value)?)
}

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<(), Failed> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let refuse = SeccompAction::Errno(errno.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?;
    let program = BpfProgram::try_from(filter)?;
    Ok(seccompiler::apply_filter(&program)?)
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;

    fn number(path: &Path) -> Number {
        reach::open_of_system(path).expect("it is there").number
    }

    /// Declared, and moved there after its manifest was judged: the process judges once more.
    #[test]
    fn what_every_gear_is_kept_from_is_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = std::fs::canonicalize(folder.path()).expect("it is there");
        let (home, data) = (root.join("home"), root.join("data"));
        for folder in [&home, &data] {
            std::fs::create_dir(folder).expect("a folder");
        }
        let kept = [number(&root), number(&home)];
        let open = |read: &[PathBuf], write: &[PathBuf]| {
            let opened = Grounds::open(read, write, &kept);
            opened.map(drop).map_err(|error| error.to_string())
        };
        open(from_ref(&data), from_ref(&data)).expect("it is no home");
        std::fs::rename(&home, root.join("moved")).expect("another name");
        for of_the_engine in [&root, &root.join("moved")] {
            for opened in [open(from_ref(of_the_engine), &[]), open(&[], from_ref(of_the_engine))] {
                let refused = opened.expect_err("it is the home, or holds it");
                assert!(refused.ends_with("is kept from every gear"), "{refused}");
            }
        }
    }

    /// What of this is done is done to one thread.
    #[test]
    fn a_home_that_was_moved_into_the_system_is_given_to_nobody() {
        let confined = |kept_from| {
            let confining = std::thread::spawn(move || {
                let grounds = Grounds { kept_from, ..Grounds::default() };
                drop_capabilities()
                    .and_then(|()| restrict_files(grounds))
                    .map_err(|e| e.to_string())
            });
            confining.join().expect("no panic")
        };
        confined(vec![number(Path::new("/proc"))]).expect("it is none of the system's folders");
        for system in ["/usr", "/dev/null"] {
            let refused = confined(vec![number(Path::new(system))]).expect_err(system);
            assert_eq!(refused, "a folder of the system holds the engine's home");
        }
    }
}
