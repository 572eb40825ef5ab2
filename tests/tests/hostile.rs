//! The hostile matrix: every attack on memory that was lent, carried out by processes of their own, against memory that
//! is not protected (where it has to succeed), and against tensorlend in its modes (where it must not).
//!
//! `cargo test -p tensorlend-tests --test hostile -- --nocapture` prints the table.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{Agent, Daemon, open_to_all, skip, skip_without};

const DAEMON: u32 = 64_101;
const ALICE: u32 = 64_102;
const MALLORY: u32 = 64_103;
const CAROL: u32 = 64_104;

/// How long an honest process may be held up by an attack; well below the 45 seconds after which the kernel breaks a
/// file lease by itself, and would hide that somebody was stalled by it.
const STALLED: Duration = Duration::from_secs(30);

/// Bytes of a prey: a segment of its own.
const PREY: u64 = 1 << 20;

/// What may come of an attack in a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    /// By what was lent.
    Lent,
    /// By what one may do to a process of the same user that lets itself be traced.
    Trace,
    /// The same, aimed at the daemon, which does not.
    Daemon,
}

const ATTACKS: [(&str, Class); 25] = [
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

/// What each attack is, for the table.
fn meaning(attack: &str) -> &'static str {
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

/// Who attacks whom, and how the victim is kept.
#[derive(Clone, Copy)]
struct Setting {
    name: &'static str,
    /// Users of the daemon, the victim, the attacker; none: everybody is the user who runs the test.
    users: Option<[u32; 3]>,
    system: bool,
    hardened: bool,
    /// Classes in which not one breach is allowed.
    promised: &'static [Class],
    /// Attacks that have to succeed, to show that a breach would be seen here.
    shows: &'static [&'static str],
}

const ALL: &[Class] = &[Class::Lent, Class::Trace, Class::Daemon];
const UNTRACED: &[Class] = &[Class::Lent, Class::Daemon];

/// What root can do to anybody. What is left to it is what seals forbid, and what nobody can be stopped by.
const BY_ROOT: &[&str] = &[
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

fn settings(root: bool) -> Vec<Setting> {
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

#[derive(Clone, PartialEq, Eq, Debug)]
enum Result {
    Breach(String),
    Held(String),
    Impossible(String),
}

impl Result {
    fn of(answer: &str) -> Self {
        let (kind, text) = answer.split_once(' ').unwrap_or((answer, ""));
        match kind {
            "breach" => Self::Breach(text.to_owned()),
            "held" => Self::Held(text.to_owned()),
            "impossible" => Self::Impossible(text.to_owned()),
            _ => panic!("an attacker answers {answer}"),
        }
    }

    fn breach_if(breached: bool, what: &str) -> Self {
        if breached { Self::Breach(what.to_owned()) } else { Self::Held(what.to_owned()) }
    }
}

/// What every setting has: programs, and a folder for sockets and pipes.
struct Stage {
    programs: Programs,
    folder: TempDir,
}

impl Stage {
    fn new() -> Self {
        let programs = Programs::copy(&["tensorlendd", "tensorlend-agent", "tensorlend-attacker"]);
        let folder = tempfile::Builder::new().prefix("tensorlend-hostile-").tempdir().unwrap();
        open_to_all(folder.path());
        Self { programs, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, program: &str, uid: Option<u32>) -> Command {
        let program = self.programs.path(program);
        match uid {
            Some(uid) if uid != 0 => as_user(uid, &program),
            _ => Command::new(program),
        }
    }

    fn attacker(&self, uid: Option<u32>) -> Agent {
        Agent::steer(self.command("tensorlend-attacker", uid))
    }

    fn agent(&self, uid: Option<u32>) -> Agent {
        Agent::steer(self.command("tensorlend-agent", uid))
    }

    /// Two pipes by which a process that was left behind is told to write, and tells that it has.
    fn ghost(&self, round: &str) -> Ghost {
        let pipe = |name: &str| {
            let path = self.path(&format!("{name}-{round}"));
            assert!(Command::new("mkfifo").arg("--mode=0666").arg(&path).status().unwrap().success());
            // mkfifo's mode is not under a umask; the folder is everybody's.
            path
        };
        Ghost { go: pipe("go"), done: pipe("done") }
    }
}

struct Ghost {
    go: PathBuf,
    done: PathBuf,
}

impl Ghost {
    fn order(&self, how: &str) -> String {
        format!("ghost {how} {} {}", self.go.display(), self.done.display())
    }

    fn strike(&self) {
        std::fs::write(&self.go, b"x").unwrap();
        assert_eq!(std::fs::read(&self.done).unwrap().len(), 1, "what was left behind has written");
    }
}

/// One attack on memory that is not protected.
fn control(stage: &Stage, victim: &mut Agent, socket: &Path, uid: Option<u32>, attack: &str, round: usize) -> Result {
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
            // What needs no address is told by who did it; all else by the victim's own eyes.
            if matches!(mine, Result::Breach(_)) && !matches!(name, "proc_fd" | "pidfd_getfd") {
                assert!(matches!(changed(victim), Result::Breach(_)), "{attack} claims what the victim does not see");
            }
            mine
        }
    }
}

/// A daemon, its honest clients, and an attacker among them.
struct Scene<'s> {
    stage: &'s Stage,
    setting: Setting,
    daemon: Daemon,
    victim: Agent,
    witness: Agent,
    tried: usize,
}

impl<'s> Scene<'s> {
    fn new(stage: &'s Stage, setting: Setting) -> Self {
        let mut config = String::from("[pool]\nsegment_bytes = \"1MiB\"\nbytes_max = \"64MiB\"\n");
        let mut daemon_uid = None;
        if let Some([daemon, alice, mallory]) = setting.users {
            daemon_uid = Some(daemon);
            let _ = write!(config, "[namespace.lab]\nwriters = [\"{alice}\", \"{mallory}\"]\n");
        } else {
            let own = rustix::process::getuid().as_raw();
            let _ = write!(config, "[namespace.lab]\nwriters = [\"{own}\"]\n");
        }
        let config = format!("mode = \"{}\"\n{config}", if setting.system { "system" } else { "user" });
        let daemon = Daemon::start_as(&config, |_| stage.command("tensorlendd", daemon_uid));
        let (victim, witness) = (Self::honest(stage, &daemon, setting, 1), Self::honest(stage, &daemon, setting, 1));
        Self { stage, setting, daemon, victim, witness, tried: 0 }
    }

    fn uid(&self, whose: usize) -> Option<u32> {
        self.setting.users.map(|users| users[whose])
    }

    fn honest(stage: &Stage, daemon: &Daemon, setting: Setting, whose: usize) -> Agent {
        let mut agent = stage.agent(setting.users.map(|users| users[whose]));
        let how = if setting.hardened { "connect-hardened" } else { "connect" };
        agent.ok(&format!("{how} {} lab", daemon.socket().display()));
        agent
    }

    /// Carries one attack out on a tensor of its own, and looks whether anybody honest noticed.
    fn try_one(&mut self, attack: &str) -> Result {
        self.tried += 1;
        let prey = format!("prey/{}", self.tried);
        let sum = self.victim.ok(&format!("put {prey} {PREY} {}", self.tried));
        let held = self.victim.ok(&format!("hold {prey}"));
        let address =
            held.split_once(' ').and_then(|(at, _)| u64::from_str_radix(at.strip_prefix("0x")?, 16).ok()).unwrap();
        self.witness.ok(&format!("hold {prey}"));
        let result = self.attack(attack, &prey, address);
        let seen = self.aftermath(&prey, &sum);
        self.victim.ok(&format!("release {prey}"));
        self.witness.ok(&format!("release {prey}"));
        self.victim.ok(&format!("delete {prey}"));
        match (result, seen) {
            // Somebody honest was harmed, whatever the attacker knows of it.
            (Result::Held(_), Err(harm)) => Result::Breach(harm),
            (result, _) => result,
        }
    }

    fn attack(&mut self, attack: &str, prey: &str, address: u64) -> Result {
        let socket = self.daemon.socket().display().to_string();
        let mut attacker = self.stage.attacker(self.uid(2));
        attacker.ok(&format!("join {socket} lab"));
        match attack {
            "jam" => {
                self.victim.ok("stream prey-stream 4");
                attacker.ok("trap prey-stream");
                self.victim.tell("send prey-stream 1");
                match self.victim.answer_within(STALLED) {
                    Some(sent) => Result::Held(format!("sent as number {}", sent.unwrap())),
                    None => Result::Breach("the producer blocks".into()),
                }
            }
            "inherited (fork)" | "inherited (CLONE_VM)" | "kept" => self.haunt(attack, attacker),
            _ => {
                // Root would succeed, and leave no sheets to go on with.
                let what = if self.uid(2) == Some(0) { "segment" } else { "all" };
                attacker.ok(&format!("take {prey} {what}"));
                self.attack_with(attack, &mut attacker, address)
            }
        }
    }

    fn attack_with(&mut self, attack: &str, attacker: &mut Agent, address: u64) -> Result {
        match attack {
            "stall" => {
                let granted = attacker.ok("stall");
                // A newcomer needs everything opened anew: directory, sheets, segments.
                let newcomer = self.newcomer();
                match newcomer {
                    Ok(()) => Result::Held(format!("{granted} leases granted, nobody stalled")),
                    Err(harm) => Result::Breach(harm),
                }
            }
            "accomplice" => {
                let mut accomplice = self.stage.attacker(self.uid(2).map(|_| CAROL));
                let socket = self.stage.path(&format!(
                    "accomplice-{}-{}",
                    self.setting.name.replace([' ', ','], ""),
                    self.tried
                ));
                accomplice.ok(&format!("listen {}", socket.display()));
                attacker.ok(&format!("pass {}", socket.display()));
                accomplice.ok("accept");
                Result::of(&accomplice.ok("battery"))
            }
            _ => {
                let (target, name) = match attack.split_once(": ") {
                    Some((_, name)) => (format!("{} 0", self.daemon.pid()), name),
                    None => (format!("{} {address}", self.victim.pid()), attack),
                };
                Result::of(&attacker.ok(&format!("attack {name} {target}")))
            }
        }
    }

    /// A client that is gone and leaves something behind that can write; its heirs are lent what there is.
    fn haunt(&mut self, attack: &str, mut attacker: Agent) -> Result {
        attacker.ok("hoard");
        let ghost = if attack == "kept" {
            attacker.ok("leave");
            None
        } else {
            let ghost = self.stage.ghost(&format!("{}-{}", self.setting.name.replace([' ', ','], ""), self.tried));
            attacker.tell(&ghost.order(if attack.contains("fork") { "fork" } else { "vm" }));
            attacker.exit();
            attacker = self.stage.attacker(self.uid(2));
            Some(ghost)
        };
        // Segments are lent again to the same user only, so that the attacker's own user is whom it could reach.
        let mut heirs = [
            Self::honest(self.stage, &self.daemon, self.setting, 2),
            Self::honest(self.stage, &self.daemon, self.setting, 1),
        ];
        let mut sums = Vec::new();
        'full: for number in 0.. {
            for (who, heir) in heirs.iter_mut().enumerate() {
                let name = format!("heir/{who}/{number}");
                match heir.ask(&format!("put {name} 900000 {number}")) {
                    Ok(sum) => sums.push((who, name, sum)),
                    Err(refused) => {
                        assert!(refused.contains("pool.bytes_max"), "{refused}");
                        break 'full;
                    }
                }
            }
        }
        match ghost {
            Some(ghost) => ghost.strike(),
            None => drop(attacker.ok("strike")),
        }
        let wrong =
            sums.iter().filter(|(who, name, sum)| !heirs[*who].ok(&format!("sum {name}")).ends_with(sum)).count();
        for (who, name, _) in &sums {
            heirs[*who].ok(&format!("delete {name}"));
        }
        Result::breach_if(wrong > 0, &format!("{wrong} of {} tensors of its heirs changed", sums.len()))
    }

    /// Whether somebody who comes now finds everything open.
    fn newcomer(&mut self) -> std::result::Result<(), String> {
        let mut newcomer = self.stage.agent(self.uid(1));
        let prey = format!("prey/{}", self.tried);
        let name = format!("newcomer/{}", self.tried);
        let orders = [
            format!("connect {} lab", self.daemon.socket().display()),
            format!("sum {prey}"),
            format!("put {name} {PREY} 1"),
            format!("delete {name}"),
        ];
        for order in orders {
            newcomer.tell(&order);
            match newcomer.answer_within(STALLED) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(format!("a newcomer is refused {order}: {error}")),
                None => return Err(format!("a newcomer is stalled: {order}")),
            }
        }
        Ok(())
    }

    /// What the honest see: the same bytes by old and new leases, a producer that goes on, a daemon that answers.
    fn aftermath(&mut self, prey: &str, sum: &str) -> std::result::Result<(), String> {
        let held = self.witness.ok(&format!("held {prey}"));
        if held != sum {
            return Err("a reader's bytes changed".into());
        }
        let read = self.victim.ok(&format!("sum {prey}"));
        if !read.ends_with(sum) {
            return Err("the producer's bytes changed".into());
        }
        self.newcomer()?;
        let mine = self.victim.ok(&format!("put after {PREY} {}", self.tried));
        let read = self.witness.ok("sum after");
        if !read.ends_with(&mine) {
            return Err("what is published afterwards is wrong".into());
        }
        Ok(())
    }
}

/// The table as Markdown: a row for each attack, a column for each setting.
fn table(columns: &[&str], rows: &[Vec<Result>]) -> String {
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

#[test]
fn nothing_that_is_lent_can_be_turned_against_anybody() {
    let root = rustix::process::geteuid().is_root();
    if root && skip_without("setpriv") {
        return;
    }
    if !root {
        skip("system mode between users: needs root to become them");
    }
    let stage = Stage::new();
    let uid = root.then_some(ALICE);

    let mut unprotected = stage.attacker(uid);
    let socket = stage.path("unprotected");
    unprotected.ok(&format!("victim {}", socket.display()));
    let controls: Vec<Result> = ATTACKS
        .iter()
        .enumerate()
        .map(|(round, (attack, _))| control(&stage, &mut unprotected, &socket, uid, attack, round))
        .collect();
    let mut rows: Vec<Vec<Result>> = controls.iter().map(|control| vec![control.clone()]).collect();
    let mut lines = Vec::new();
    for ((attack, class), control) in ATTACKS.iter().zip(&controls) {
        match control {
            Result::Breach(_) => {}
            // Yama forbids this between processes of one user, and then it shows nothing here.
            Result::Held(why) if *class != Class::Lent && why.contains("not permitted") => {
                skip(&format!("{attack}: forbidden on this machine even against the unprotected ({why})"));
            }
            Result::Impossible(why) => skip(&format!("{attack}: {why}")),
            Result::Held(why) => panic!("{attack} does not even work on what is not protected: {why}"),
        }
    }

    let settings = settings(root);
    let (mut tried, mut breaches, mut wrong) = (0, 0, Vec::new());
    for setting in &settings {
        let mut scene = Scene::new(&stage, *setting);
        for (((attack, class), control), row) in ATTACKS.iter().zip(&controls).zip(&mut rows) {
            let result = match control {
                Result::Impossible(why) => Result::Impossible(why.clone()),
                _ => scene.try_one(attack),
            };
            let breached = matches!(result, Result::Breach(_));
            if setting.promised.contains(class) && !matches!(result, Result::Impossible(_)) {
                tried += 1;
                breaches += usize::from(breached);
                if breached {
                    wrong.push(format!("{} in {}: {result:?}", attack, setting.name));
                }
            }
            if setting.shows.contains(attack) && !breached && matches!(control, Result::Breach(_)) {
                wrong.push(format!("{attack} in {} shows nothing: {result:?}", setting.name));
            }
            lines.push(format!("{}: {attack}: {result:?}", setting.name));
            row.push(result);
        }
    }
    let columns: Vec<&str> = ["unprotected"].into_iter().chain(settings.iter().map(|setting| setting.name)).collect();
    println!("{}\n\n{}", lines.join("\n"), table(&columns, &rows));
    println!("{tried} attacks tried where none may succeed, {breaches} breaches");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
