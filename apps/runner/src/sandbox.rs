//! Confinement of a worker before it reads the model of a client.
//!
//! The worker loads the engine's library first, and then gives up these rights for good, in all
//! threads that it will start:
//!
//! | part of the kernel | what the worker can no longer do |
//! |---|---|
//! | Landlock | open, create, rename or remove files, except to read [`READABLE`]; use TCP; signal or trace other processes; reach abstract sockets |
//! | seccomp | start programs and processes; trace or signal other processes; create sockets except Unix sockets; change owners, modes and times of files; use io_uring, mounts and other namespaces |
//! | working directory | find files by relative paths without `..`: the directory is empty and removed |
//!
//! The worker still talks to the daemon: Landlock does not restrict files without a path, such as
//! memfds, and its access rights up to ABI 7 do not restrict connections to Unix sockets with a
//! path. The worker needs such a connection after a restart of the daemon.

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError,
    RulesetStatus, Scope, path_beneath_rules,
};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Is, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};
use std::collections::BTreeMap;

/// Files and directories that engines and the client library read: the numbers of cores and memory
/// nodes.
const READABLE: [&str; 3] = ["/proc/cpuinfo", "/sys/devices/system/cpu", "/sys/devices/system/node"];
/// The version of Landlock whose rights the worker gives up. Version 9 would also restrict the
/// connection to the daemon.
const LANDLOCK: ABI = ABI::V7;

/// System calls that the worker does not need, whatever the arguments.
const DENIED: &[i64] = &[
    // Programs, and the memory and descriptors of other processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Signals with data, or to a descriptor or a thread of any process.
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
    libc::SYS_pidfd_send_signal,
    libc::SYS_tkill,
    // Other ways to make system calls, and parts of the kernel with many faults.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // File attributes, which Landlock does not protect, and files without a path.
    libc::SYS_fchmodat,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_open_by_handle_at,
    // Other views of the file system, and the machine.
    libc::SYS_chroot,
    libc::SYS_pivot_root,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
];
/// Older calls, which newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const DENIED_OLD: &[i64] = &[
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_chmod,
    libc::SYS_chown,
    libc::SYS_lchown,
    libc::SYS_utime,
    libc::SYS_utimes,
    libc::SYS_futimesat,
    libc::SYS_kexec_file_load,
];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_OLD: &[i64] = &[];
/// `fchmodat2`, which has the same number on all architectures.
const FCHMODAT2: i64 = 452;
/// The bit of a number that marks calls of the x32 interface, and the numbers that only this
/// interface has. The filter sees them as calls of x86-64.
#[cfg(target_arch = "x86_64")]
const X32: (i64, std::ops::Range<i64>) = (0x4000_0000, 512..548);

/// Confines this process. Call it before the first thread starts, because Landlock before ABI 8
/// confines only the calling thread and its later children.
///
/// Returns the parts of the confinement that the kernel does not support. The worker then runs with
/// the others.
pub fn close() -> Vec<String> {
    let mut missing = Vec::new();
    if let Err(error) = leave_directory() {
        missing.push(format!("it has no empty working directory ({error}): set TMPDIR to a writable directory"));
    }
    match restrict_files() {
        Ok(RulesetStatus::FullyEnforced) => {}
        Ok(RulesetStatus::PartiallyEnforced) => {
            missing.push(format!("the kernel's Landlock is older than ABI {LANDLOCK} (Linux 6.15)"));
        }
        Ok(RulesetStatus::NotEnforced) => {
            missing.push(
                "the kernel or a filter of the service offers no Landlock, so files are not restricted: enable it (Linux 5.13, lsm=; SystemCallFilter=)".into(),
            );
        }
        Err(error) => missing.push(format!("Landlock, which restricts files, failed ({error})")),
    }
    if let Err(error) = restrict_calls() {
        missing.push(format!("seccomp, which restricts system calls, failed ({error})"));
    }
    missing
}

/// Changes to an empty directory, and removes it.
fn leave_directory() -> std::io::Result<()> {
    let folder = tempfile::Builder::new().prefix("tensorlend-runner-").tempdir()?;
    std::env::set_current_dir(folder.path())?;
    folder.close()
}

fn restrict_files() -> Result<RulesetStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        // Paths that do not exist, such as in a container, are left out.
        .add_rules(path_beneath_rules(READABLE, AccessFs::ReadFile | AccessFs::ReadDir))?;
    Ok(ruleset.restrict_self()?.ruleset)
}

fn restrict_calls() -> Result<(), seccompiler::Error> {
    let own = u64::from(std::process::id());
    let rule = |conditions: &[(u8, Is, u64)]| -> Result<Vec<SeccompRule>, seccompiler::Error> {
        let conditions = conditions
            .iter()
            .map(|(argument, is, value)| SeccompCondition::new(*argument, Length::Dword, is.clone(), *value));
        Ok(vec![SeccompRule::new(conditions.collect::<Result<_, _>>()?)?])
    };
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> =
        DENIED.iter().chain(DENIED_OLD).chain([&FCHMODAT2]).map(|&call| (call, vec![])).collect();
    denied.insert(libc::SYS_socket, rule(&[(0, Is::Ne, libc::AF_UNIX as u64)])?);
    denied.insert(libc::SYS_kill, rule(&[(0, Is::Ne, own)])?);
    denied.insert(libc::SYS_tgkill, rule(&[(0, Is::Ne, own)])?);
    denied.insert(libc::SYS_prlimit64, rule(&[(0, Is::Ne, 0), (0, Is::Ne, own)])?);
    // A thread is not a process.
    let thread = libc::CLONE_THREAD as u64;
    denied.insert(libc::SYS_clone, rule(&[(0, Is::MaskedEq(thread), 0)])?);
    #[cfg(target_arch = "x86_64")]
    {
        let (bit, own) = X32;
        let also: Vec<i64> = denied.keys().copied().chain(own).map(|call| call | bit).collect();
        denied.extend(also.into_iter().map(|call| (call, vec![])));
    }
    // A filter cannot read the flags of clone3. The C library then calls clone.
    apply([(libc::SYS_clone3, vec![])].into(), libc::ENOSYS)?;
    apply(denied, libc::EPERM)
}

/// Lets these system calls fail with this error.
fn apply(calls: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<(), seccompiler::Error> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let refuse = SeccompAction::Errno(errno as u32);
    let filter: BpfProgram = SeccompFilter::new(calls, SeccompAction::Allow, refuse, architecture)?.try_into()?;
    apply_filter_all_threads(&filter)
}
