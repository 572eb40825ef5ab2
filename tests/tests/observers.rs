//! Observers of all namespaces, as processes of several users. Needs root, to switch users.

use std::process::Command;
use tensorlend::observe::Origin;
use tensorlend::{Client, DType, Error, Refusal};
use tensorlend_tests::users::{Programs, acting_as, as_user};
use tensorlend_tests::{Daemon, run, skip_without, skip_without_root};

const ALICE: u32 = 64_022;
const WATCHER: u32 = 64_023;
const STRANGER: u32 = 64_024;

/// Returns the number of this process's descriptors of the daemon's memory.
fn descriptors() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    all.filter(|it| {
        let link = it.as_ref().ok().and_then(|it| std::fs::read_link(it.path()).ok());
        link.is_some_and(|link| link.to_string_lossy().contains("memfd:tensorlend"))
    })
    .count()
}

#[test]
fn an_observer_sees_other_users_names_and_gets_no_memory() {
    if skip_without_root() {
        return;
    }
    let daemon = Daemon::start(&format!("observers = [\"{WATCHER}\"]\n"));
    let connect = |uid| acting_as(uid, || Client::builder().socket(daemon.socket()).label("alice").connect()).unwrap();
    let (alice, reader) = (connect(ALICE), connect(ALICE));
    let mut draft = alice.create(DType::F32, [16, 4]).unwrap();
    draft.set_metadata(b"secret").unwrap();
    draft.publish("weights").unwrap();
    let stream = alice.stream("camera").open().unwrap();
    let _frames = reader.subscription("camera").open().unwrap();
    let lease = reader.get("weights").unwrap();
    let before = descriptors();
    let refused = acting_as(STRANGER, || Client::builder().socket(daemon.socket()).inspect()).unwrap_err();
    assert!(matches!(refused, Error::Refused { refusal: Refusal::NotObserver, .. }), "{refused}");
    let mut inspector = acting_as(WATCHER, || Client::builder().socket(daemon.socket()).inspect()).unwrap();
    let name = format!("uid:{ALICE}");
    let seen = inspector.observe(&name).unwrap();
    let value = &seen.values[0];
    assert_eq!(value.origin, Origin::Name("weights".into()));
    assert_eq!((value.dtype, value.shape.as_deref(), value.leases), (Some(DType::F32), Some(&[16usize, 4][..]), 1));
    assert!(value.bytes >= 256, "{value:?}");
    assert_eq!(seen.leases[0].holder, seen.clients.iter().find(|it| it.leases == 1).unwrap().number);
    assert_eq!((seen.streams[0].name.as_str(), seen.streams[0].subscribers.len()), ("camera", 1));
    assert!(seen.clients.iter().all(|it| (it.uid, it.label.as_str()) == (ALICE, "alice")), "{:?}", seen.clients);
    let stat = inspector.stat().unwrap();
    assert!(stat.uids.iter().any(|it| it.uid == ALICE) && stat.clients == 2, "{stat:?}");
    assert_eq!(descriptors(), before, "an observer gets no memory");
    let join = acting_as(WATCHER, || Client::builder().socket(daemon.socket()).namespace(&name).connect());
    assert!(join.is_err(), "an observer joins no namespace of others");
    drop((lease, stream));
}

#[test]
fn the_command_line_shows_all_namespaces_to_an_observer() {
    if skip_without_root() || skip_without("setpriv") {
        return;
    }
    let programs = Programs::copy(&["tensorlend"]);
    let daemon = Daemon::start(&format!("observers = [\"@{WATCHER}\"]\n"));
    let put = |uid, name: &str| {
        let client = acting_as(uid, || Client::builder().socket(daemon.socket()).connect()).unwrap();
        client.put(name, &[1.0f32; 8]).unwrap();
        client
    };
    let _clients = (put(ALICE, "weights"), put(STRANGER, "other"), put(STRANGER, ".hidden"));
    let ask = |uid, words: &[&str]| {
        let mut command: Command = as_user(uid, &programs.path("tensorlend"));
        run(command.args(words).arg("--socket").arg(daemon.socket()))
    };
    let listed = ask(WATCHER, &["ls", "--observe"]);
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(text.contains("weights") && text.contains("other") && !text.contains(".hidden"), "{text}");
    assert!(text.contains(&format!("uid:{ALICE}")) && text.contains("f32") && text.contains("[8]"), "{text}");
    let stat = ask(WATCHER, &["stat", "--observe", "--json"]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["namespaces"].as_array().map(Vec::len), Some(2), "{stat}");
    let top = ask(WATCHER, &["top", "--observe", "--once", "--tab", "names", "--namespace", &format!("uid:{ALICE}")]);
    assert!(String::from_utf8_lossy(&top.stdout).contains("weights"), "{top:?}");
    let refused = ask(ALICE, &["ls", "--observe"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("TL-0604"), "{refused:?}");
}
