//! The attacks by name, and their results.

use std::fmt::Write as _;

/// The means of an attack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Memory and descriptors that the daemon lent.
    Lent,
    /// Access to a traceable process of the same user.
    Trace,
    /// The same access to the daemon, which is not traceable.
    Daemon,
}

pub const ATTACKS: [(&str, Class); 25] = [
    ("write", Class::Lent),
    ("reopen", Class::Lent),
    ("fchmod", Class::Lent),
    ("mprotect", Class::Lent),
    ("pkey_mprotect", Class::Lent),
    ("ftruncate", Class::Lent),
    ("punch", Class::Lent),
    ("madv_remove", Class::Lent),
    ("add_seals", Class::Lent),
    ("userfaultfd", Class::Lent),
    ("stall", Class::Lent),
    ("accomplice", Class::Lent),
    ("jam", Class::Lent),
    ("inherited (fork)", Class::Lent),
    ("inherited (CLONE_VM)", Class::Lent),
    ("kept", Class::Lent),
    ("proc_fd", Class::Trace),
    ("pidfd_getfd", Class::Trace),
    ("proc_mem", Class::Trace),
    ("process_vm_writev", Class::Trace),
    ("ptrace", Class::Trace),
    ("daemon: pidfd_getfd", Class::Daemon),
    ("daemon: proc_mem", Class::Daemon),
    ("daemon: process_vm_writev", Class::Daemon),
    ("daemon: ptrace", Class::Daemon),
];

/// Returns the description of an attack for the table.
pub fn meaning(attack: &str) -> &'static str {
    match attack {
        "write" => "pwrite to the lent descriptors",
        "reopen" => "open /proc/self/fd/N read-write, write, map writable",
        "fchmod" => "fchmod 0666 and reopen; else 0000, to lock the daemon out",
        "mprotect" => "make the read-only mapping writable",
        "pkey_mprotect" => "the same through a protection key",
        "ftruncate" => "cut the file short under its readers",
        "punch" => "fallocate PUNCH_HOLE",
        "madv_remove" => "MADV_REMOVE",
        "add_seals" => "F_ADD_SEALS, to stop the producer",
        "userfaultfd" => "UFFDIO_COPY into a read-only mapping's holes",
        "stall" => "F_SETLEASE on all that was lent, to stall whoever opens it",
        "accomplice" => "pass all descriptors to another user, who tries the ten above",
        "jam" => "clear O_NONBLOCK on shared wake descriptors, and fill them",
        "inherited (fork)" => "die; a forked child writes through the inherited mapping",
        "inherited (CLONE_VM)" => "die; a CLONE_VM child writes",
        "kept" => "hang up, keep the mapping, write",
        "proc_fd" => "open /proc/PID/fd/N of the victim",
        "pidfd_getfd" => "take the victim's descriptors",
        "proc_mem" => "write /proc/PID/mem of the victim",
        "process_vm_writev" => "write the victim's memory",
        "ptrace" => "attach to the victim, POKEDATA",
        "daemon: pidfd_getfd" => "take the daemon's descriptors",
        "daemon: proc_mem" => "open /proc/PID/mem of the daemon",
        "daemon: process_vm_writev" => "write the daemon's memory",
        "daemon: ptrace" => "attach to the daemon",
        _ => unreachable!("every attack is told"),
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Result {
    Breach(String),
    Held(String),
    Impossible(String),
}

impl Result {
    pub fn of(answer: &str) -> Self {
        let (kind, text) = answer.split_once(' ').unwrap_or((answer, ""));
        match kind {
            "breach" => Self::Breach(text.to_owned()),
            "held" => Self::Held(text.to_owned()),
            "impossible" => Self::Impossible(text.to_owned()),
            _ => panic!("an attacker answers {answer}"),
        }
    }

    pub fn breach_if(breached: bool, what: &str) -> Self {
        if breached { Self::Breach(what.to_owned()) } else { Self::Held(what.to_owned()) }
    }
}

/// Returns the table as Markdown: a row for each attack, a column for each setting.
pub fn table(columns: &[&str], rows: &[Vec<Result>]) -> String {
    let mut text =
        format!("| attack | {} | what it is |\n|---|{}---|\n", columns.join(" | "), "---|".repeat(columns.len()));
    for ((attack, _), row) in ATTACKS.iter().zip(rows) {
        let cells = row.iter().map(|result| match result {
            Result::Breach(_) => "**breach**",
            Result::Held(_) => "held",
            Result::Impossible(_) => "not here",
        });
        let _ = writeln!(text, "| {attack} | {} | {} |", cells.collect::<Vec<_>>().join(" | "), meaning(attack));
    }
    text
}
