//! A daemon, its honest clients, and an attacker among them.

use crate::attacks::Result;
use crate::settings::{CAROL, Setting};
use crate::stage::Stage;
use std::fmt::Write as _;
use std::time::Duration;
use tensorlend_tests::{Agent, Daemon, eventually};

/// Maximum delay of an honest process by an attack. It is well below 45 s, after which the kernel breaks a file lease
/// by itself and would hide the stall.
const STALLED: Duration = Duration::from_secs(30);

/// Bytes of an attacked tensor ("prey"): large enough for its own segment.
const PREY: u64 = 1 << 20;

/// A daemon, its honest clients, and an attacker among them.
pub struct Scene<'s> {
    stage: &'s Stage,
    setting: Setting,
    daemon: Daemon,
    victim: Agent,
    witness: Agent,
    tried: usize,
}

impl<'s> Scene<'s> {
    pub fn new(stage: &'s Stage, setting: Setting) -> Self {
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

    /// Carries one attack out on a new tensor, and checks whether an honest client was harmed.
    pub fn try_one(&mut self, attack: &str) -> Result {
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
            // An honest client was harmed, even if the attacker did not notice.
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
                // Root would succeed and destroy the sheets, so its attack takes the segment only.
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
                // A newcomer must open everything: directory, sheets, segments.
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

    /// The attacker exits, but leaves a process or a descriptor that can still write. The next clients get the freed
    /// memory; the attack then writes.
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
        // A segment is lent again to the same user only, so the attacker's own user is the one at risk.
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
        heirs.into_iter().for_each(Agent::exit);
        // The memory is freed once the kernel reports no writers; the next attack needs some.
        eventually("the return of the heirs' memory", || {
            let room = format!("put room {} 0", 8 * PREY);
            self.victim.ask(&room).is_ok()
        });
        self.victim.ok("delete room");
        Result::breach_if(wrong > 0, &format!("{wrong} of {} tensors of its heirs changed", sums.len()))
    }

    /// Checks that a client which connects now can open and use everything.
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

    /// Checks that honest clients see the same bytes by old and new leases, and that producer and daemon still work.
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
