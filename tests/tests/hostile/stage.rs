//! Programs, folders and pipes; and the attacks on unprotected memory.

use crate::attacks::Result;
use crate::settings::CAROL;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{Agent, open_to_all};

/// Shared by all settings: programs, and a folder for sockets and pipes.
pub struct Stage {
    programs: Programs,
    folder: TempDir,
}

impl Stage {
    pub fn new() -> Self {
        let programs = Programs::copy(&["tensorlendd", "tensorlend-agent", "tensorlend-attacker"]);
        let folder = tempfile::Builder::new().prefix("tensorlend-hostile-").tempdir().unwrap();
        open_to_all(folder.path());
        Self { programs, folder }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, program: &str, uid: Option<u32>) -> Command {
        let program = self.programs.path(program);
        match uid {
            Some(uid) if uid != 0 => as_user(uid, &program),
            _ => Command::new(program),
        }
    }

    pub fn attacker(&self, uid: Option<u32>) -> Agent {
        Agent::steer(self.command("tensorlend-attacker", uid))
    }

    pub fn agent(&self, uid: Option<u32>) -> Agent {
        Agent::steer(self.command("tensorlend-agent", uid))
    }

    /// Creates two pipes for a process that outlives its client. Through the first pipe the test orders the process to
    /// write; through the second the process reports that it has written.
    pub fn ghost(&self, round: &str) -> Ghost {
        let pipe = |name: &str| {
            let path = self.path(&format!("{name}-{round}"));
            assert!(Command::new("mkfifo").arg("--mode=0666").arg(&path).status().unwrap().success());
            // The umask does not apply to mkfifo's --mode, and any user may enter the folder.
            path
        };
        Ghost { go: pipe("go"), done: pipe("done") }
    }
}

pub struct Ghost {
    go: PathBuf,
    done: PathBuf,
}

impl Ghost {
    pub fn order(&self, how: &str) -> String {
        format!("ghost {how} {} {}", self.go.display(), self.done.display())
    }

    pub fn strike(&self) {
        std::fs::write(&self.go, b"x").unwrap();
        assert_eq!(std::fs::read(&self.done).unwrap().len(), 1, "what was left behind has written");
    }
}

/// Carries out one attack on unprotected memory.
pub fn control(
    stage: &Stage,
    victim: &mut Agent,
    socket: &Path,
    uid: Option<u32>,
    attack: &str,
    round: usize,
) -> Result {
    let address = victim.ok("fresh");
    let pid = victim.pid();
    let mut attacker = stage.attacker(uid);
    attacker.ok(&format!("take-unprotected {}", socket.display()));
    let changed = |victim: &mut Agent| {
        let seen = victim.ok("look");
        Result::breach_if(seen != "same", &seen)
    };
    match attack {
        "stall" => {
            let granted = attacker.ok("stall");
            if granted == "0" {
                return Result::Impossible("no lease on a file is granted here".into());
            }
            Result::breach_if(victim.ok("stalled") == "true", &format!("{granted} leases granted"))
        }
        "jam" => {
            attacker.ok("jam");
            Result::breach_if(victim.ok("would-block") == "true", "the victim's next ring blocks for ever")
        }
        "accomplice" => {
            let mut accomplice = stage.attacker(uid.map(|_| CAROL));
            let socket = stage.path(&format!("accomplice-{round}"));
            accomplice.ok(&format!("listen {}", socket.display()));
            attacker.ok(&format!("pass {}", socket.display()));
            accomplice.ok("accept");
            Result::of(&accomplice.ok("battery"))
        }
        "inherited (fork)" | "inherited (CLONE_VM)" => {
            let ghost = stage.ghost(&round.to_string());
            attacker.ok("hoard-unprotected");
            attacker.tell(&ghost.order(if attack.contains("fork") { "fork" } else { "vm" }));
            attacker.exit();
            victim.ok("recycle");
            ghost.strike();
            changed(victim)
        }
        "kept" => {
            attacker.ok("hoard-unprotected");
            attacker.ok("leave");
            victim.ok("recycle");
            attacker.ok("strike");
            changed(victim)
        }
        _ => {
            let (_, name) = attack.split_once(": ").unwrap_or(("", attack));
            let mine = Result::of(&attacker.ok(&format!("attack {name} {pid} {address}")));
            // The attacker itself reports results that involve no address; the victim's memory confirms all others.
            if matches!(mine, Result::Breach(_)) && !matches!(name, "proc_fd" | "pidfd_getfd") {
                assert!(matches!(changed(victim), Result::Breach(_)), "{attack} claims what the victim does not see");
            }
            mine
        }
    }
}
