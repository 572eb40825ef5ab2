//! Administrators connect although other users have taken everything: the daemon keeps a reserve for them. Needs root, to
//! switch users.

use std::os::fd::OwnedFd;
use std::process::Command;
use tensorlend::Client;
use tensorlend_layout::wire::{Reply, Request};
use tensorlend_tests::hand::{Hand, ask, dial, hello};
use tensorlend_tests::users::{Programs, acting_as, as_user};
use tensorlend_tests::{Daemon, binary, run, skip_without, skip_without_root};

const DAEMON: u32 = 64_001;
const ALICE: u32 = 64_002;
const BOB: u32 = 64_003;

/// The users' limits are switched off: only the totals hold.
const NO_SHARES: &str = "mode = \"system\"\n[uid]\nshare = false\nsessions_max = 100000\n";

/// A daemon with a uid of its own that may have 192 descriptors.
struct Siege {
    daemon: Daemon,
    programs: Programs,
}

impl Siege {
    fn start(config: &str) -> Option<Self> {
        if skip_without_root() || skip_without("setpriv") || skip_without("prlimit") {
            return None;
        }
        let programs = Programs::copy(&["tensorlendd", "tensorlend"]);
        let daemon = Daemon::start_as(&format!("{NO_SHARES}{config}"), |_| {
            let mut command = as_user(DAEMON, "prlimit".as_ref());
            command.arg("--nofile=192:192").arg(programs.path("tensorlendd"));
            command
        });
        Some(Self { daemon, programs })
    }

    /// Runs the tool as root, or as another user.
    fn tool(&self, uid: u32, arguments: &[&str]) -> (bool, String) {
        let mut command =
            if uid == 0 { Command::new(binary("tensorlend")) } else { as_user(uid, &self.programs.path("tensorlend")) };
        let done = run(command.arg("--socket").arg(self.daemon.socket()).args(arguments));
        let said = String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned();
        (done.status.success(), said)
    }

    /// Checks that root and the daemon's own user can look at everything, again and again, and that other users are refused.
    fn check(&self, namespace: &str) {
        let (works, said) = self.tool(BOB, &["--namespace", namespace, "ls"]);
        assert!(!works, "something was left for another user: {said}");
        for _ in 0..3 {
            for (uid, arguments) in [
                (0, &["stat"][..]),
                (0, &["doctor"]),
                (0, &["ls"]),
                (0, &["--namespace", "lab", "ls"]),
                (DAEMON, &["stat"]),
            ] {
                let (works, said) = self.tool(uid, arguments);
                // It reports the lack of descriptors as a failure.
                let works = works || arguments == ["doctor"] && said.contains("\nok       daemon  ");
                assert!(works, "{arguments:?} of uid {uid}: {said}");
            }
        }
        let (works, said) = self.tool(BOB, &["--namespace", namespace, "ls"]);
        assert!(!works, "others got in: {said}");
    }
}

/// Calls `more` until it returns an error, and returns the earlier results.
fn until_refused<T, E>(mut more: impl FnMut(usize) -> Result<T, E>) -> Vec<T> {
    (0..100_000).map_while(|round| more(round).ok()).collect()
}

#[test]
fn administrators_connect_when_others_have_all_descriptors() {
    let lab = format!("[namespace.lab]\nwriters = [\"{ALICE}\", \"{BOB}\", \"0\"]\n");
    let Some(siege) = Siege::start(&lab) else { return };
    let socket = siege.daemon.socket();
    let join = || Hand::join(&socket, Some("lab"));
    // Sessions, and then connections that never say hello.
    let mut held: (Vec<Hand>, Vec<OwnedFd>) = acting_as(ALICE, || (until_refused(|_| join()), Vec::new()));
    acting_as(ALICE, || held.1.extend((0..64).filter_map(|_| dial(&socket).ok())));
    assert!(held.0.len() >= 4, "{}", held.0.len());
    siege.check("lab");
    // The reserve is for looking: an administrator who publishes has the limits of everybody.
    let root = Client::builder().socket(&socket).namespace("lab").connect().unwrap();
    assert!(root.put("x", &[1u8; 100]).unwrap_err().is_limit());
}

#[test]
fn administrators_join_a_namespace_whose_table_of_clients_is_full() {
    let lab = format!("[namespace.lab]\nwriters = [\"{ALICE}\", \"{BOB}\", \"0\"]\nmembers_max = 8\n");
    let Some(siege) = Siege::start(&lab) else { return };
    let socket = siege.daemon.socket();
    let held = acting_as(ALICE, || until_refused(|_| Hand::join(&socket, Some("lab"))));
    assert_eq!(held.len(), 8);
    siege.check("lab");
}

#[test]
fn administrators_connect_when_others_have_all_memory() {
    let limits = "[pool]\nbytes_max = \"32MiB\"\nsegment_bytes = \"1MiB\"\nspare_segments = 0\nsheet_bytes_max = \"32MiB\"\n\
                  [namespace_default]\nnames_max = 1024\n";
    let lab = format!("{limits}[namespace.lab]\nwriters = [\"{ALICE}\", \"{BOB}\", \"0\"]\n");
    let Some(siege) = Siege::start(&lab) else { return };
    let socket = siege.daemon.socket();
    let _held = acting_as(ALICE, || {
        let greedy = Hand::join(&socket, None).unwrap();
        for log2 in (0..=17).rev() {
            until_refused(|_| greedy.segment(1, log2, |_| Ok(())));
        }
        until_refused(|_| greedy.segment(1 << 20, 0, |_| Ok(())));
        let more = until_refused(|_| {
            let session = dial(&socket)?;
            match ask(&session, &hello(None), &[])? {
                (Reply::Welcome(_), lent) => Ok((session, lent)),
                (refused, _) => Err(std::io::Error::other(format!("{refused:?}"))),
            }
        });
        assert!(matches!(greedy.ask(&Request::Ping).unwrap().0, Reply::Done));
        (greedy, more)
    });
    siege.check("lab");
}
