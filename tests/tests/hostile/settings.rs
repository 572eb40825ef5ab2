//! Combinations of attacker, victim and mode, and the guarantees of each.

use crate::attacks::Class;

pub const DAEMON: u32 = 64_101;
pub const ALICE: u32 = 64_102;
pub const MALLORY: u32 = 64_103;
pub const CAROL: u32 = 64_104;

/// The users of attacker and victim, and the victim's protection.
#[derive(Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    /// Uids of the daemon, the victim, the attacker; none: all are the user who runs the test.
    pub users: Option<[u32; 3]>,
    pub system: bool,
    pub hardened: bool,
    /// Classes without a single permitted breach.
    pub promised: &'static [Class],
    /// Attacks that must succeed, to show that the test detects a breach.
    pub shows: &'static [&'static str],
}

pub const ALL: &[Class] = &[Class::Lent, Class::Trace, Class::Daemon];
pub const UNTRACED: &[Class] = &[Class::Lent, Class::Daemon];

/// Attacks by which root breaches everything. The others fail because of seals, or prove nothing.
pub const BY_ROOT: &[&str] = &[
    "write",
    "reopen",
    "fchmod",
    "mprotect",
    "pkey_mprotect",
    "punch",
    "madv_remove",
    "userfaultfd",
    "pidfd_getfd",
    "proc_mem",
    "process_vm_writev",
    "ptrace",
    "daemon: pidfd_getfd",
    "daemon: proc_mem",
    "daemon: process_vm_writev",
    "daemon: ptrace",
];

pub fn settings(root: bool) -> Vec<Setting> {
    let user = Setting {
        name: "user mode",
        users: root.then_some([ALICE; 3]),
        system: false,
        hardened: false,
        promised: UNTRACED,
        shows: &[],
    };
    let mut all = vec![user, Setting { name: "user mode, hardened", hardened: true, promised: ALL, ..user }];
    if root {
        let system = Setting {
            name: "system, other user",
            users: Some([DAEMON, ALICE, MALLORY]),
            system: true,
            promised: ALL,
            ..user
        };
        let same =
            Setting { name: "system, same user", users: Some([DAEMON, ALICE, ALICE]), promised: UNTRACED, ..system };
        let hardened = Setting { name: "system, same user, hardened", hardened: true, promised: ALL, ..same };
        // Root may do everything; this setting shows that the test detects breaches.
        let by_root =
            Setting { name: "system, root", users: Some([DAEMON, ALICE, 0]), promised: &[], shows: BY_ROOT, ..system };
        all.splice(0..0, [system, same, hardened]);
        all.push(by_root);
    }
    all
}
