//! Who attacks whom, and what is promised there.

use crate::attacks::Class;

pub const DAEMON: u32 = 64_101;
pub const ALICE: u32 = 64_102;
pub const MALLORY: u32 = 64_103;
pub const CAROL: u32 = 64_104;

/// Who attacks whom, and how the victim is kept.
#[derive(Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    /// Users of the daemon, the victim, the attacker; none: everybody is the user who runs the test.
    pub users: Option<[u32; 3]>,
    pub system: bool,
    pub hardened: bool,
    /// Classes in which not one breach is allowed.
    pub promised: &'static [Class],
    /// Attacks that have to succeed, to show that a breach would be seen here.
    pub shows: &'static [&'static str],
}

pub const ALL: &[Class] = &[Class::Lent, Class::Trace, Class::Daemon];
pub const UNTRACED: &[Class] = &[Class::Lent, Class::Daemon];

/// What root can do to anybody. What is left to it is what seals forbid, and what nobody can be stopped by.
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
        // Root may do everything: what this shows is that the test sees it.
        let by_root =
            Setting { name: "system, root", users: Some([DAEMON, ALICE, 0]), promised: &[], shows: BY_ROOT, ..system };
        all.splice(0..0, [system, same, hardened]);
        all.push(by_root);
    }
    all
}
