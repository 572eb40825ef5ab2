//! Limits, refusals and the daemon's own lifetime.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use std::os::fd::AsFd;
use std::time::Duration;
use tensorlend::{Client, DType};
use tensorlend_layout::wire::{Hello, PROTOCOL_VERSION, Refusal, Reply, Request, decode, encode};
use tensorlend_os::memfd::{self, Access};
use tensorlend_tests::hand::{self, Hand};
use tensorlend_tests::{Daemon, binary, eventually, run};

const MB: u64 = 1 << 20;

#[test]
fn a_full_pool_is_an_error_that_costs_nothing() {
    let daemon = Daemon::start("[pool]\nbytes_max = \"256MiB\"\n");
    let client = daemon.client();
    let mut kept = Vec::new();
    let error = loop {
        match client.create(DType::U8, &[30 * MB]) {
            Ok(mut draft) => {
                draft.bytes_mut().fill(kept.len() as u8);
                draft.publish(&format!("t{}", kept.len())).unwrap();
                kept.push(kept.len() as u8);
            }
            Err(e) => break e,
        }
    };
    assert!(error.is_limit(), "{error}");
    assert!(error.to_string().contains("pool.bytes_max"), "{error}");
    assert_eq!(kept.len(), 8, "eight segments of 30 MiB, and no room for a ninth");
    for value in &kept {
        assert!(client.get(&format!("t{value}")).unwrap().bytes().iter().all(|b| b == value));
    }
    assert!(client.create(DType::U8, [1u64 << 50]).unwrap_err().is_limit());
    client.delete("t0").unwrap();
    client.create(DType::U8, &[30 * MB]).unwrap();
}

/// The error, its sizes, its reason, and the remedy.
#[test]
fn errors_name_sizes_and_remedies() {
    let daemon = Daemon::start("[pool]\nbytes_max = \"64MiB\"\nsegment_bytes = \"16MiB\"\n");
    let client = daemon.client();
    let full = client.create(DType::U8, &[256 * MB]).unwrap_err().to_string();
    let wanted = "the pool would pass its limit of 64 MiB (0 bytes in use, 256 MiB more requested): raise pool.bytes_max \
                  in the daemon's configuration, delete values, or request less";
    assert!(full.contains(wanted), "{full}");
    let late = client.wait_for("late", Some(Duration::from_millis(1))).unwrap_err().to_string();
    assert_eq!(late, "timed out after 1 ms waiting for \"late\": no process has published it (see `tensorlend ls`)");
    let shape = client.create(DType::U8, &[1; 17]).unwrap_err().to_string();
    assert!(shape.ends_with("it has more than 16 dimensions: correct its shape, strides or length"), "{shape}");
}

#[test]
fn too_many_names_and_sessions() {
    let daemon = Daemon::start("[namespace_default]\nnames_max = 1024\n[uid]\nsessions_max = 8\n");
    let client = daemon.client();
    let error = (0..).find_map(|i| client.put(&format!("n{i}"), &[i]).err()).unwrap();
    assert!(error.is_limit() && error.to_string().contains("names_max"), "{error}");
    assert_eq!(client.list("*").unwrap().len(), 1024);
    client.delete("n7").unwrap();
    client.put("another", &[0u8]).unwrap();

    let mut sessions = Vec::new();
    let error = loop {
        match Client::builder().socket(daemon.socket()).connect() {
            Ok(session) => sessions.push(session),
            Err(e) => break e,
        }
    };
    assert!(error.is_limit() && error.to_string().contains("sessions_max"), "{error}");
    sessions.pop();
    eventually("room for a session", || Client::builder().socket(daemon.socket()).connect().is_ok());
}

/// Sends a hand-made hello.
fn hello(daemon: &Daemon, change: impl FnOnce(&mut Hello)) -> Reply {
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(daemon.socket()).unwrap()).unwrap();
    let mut hello = Hello::new(None, "by hand");
    change(&mut hello);
    tensorlend_os::packet::send(socket.as_fd(), &encode(&Request::Hello(hello)), &[], SendFlags::empty()).unwrap();
    decode(&tensorlend_os::packet::receive(&socket, RecvFlags::empty()).unwrap().bytes).unwrap()
}

#[test]
fn another_version_is_refused_by_name() {
    let daemon = Daemon::start("");
    let newer = hello(&daemon, |h| (h.protocol_min, h.protocol_max) = (PROTOCOL_VERSION + 1, PROTOCOL_VERSION + 3));
    assert!(matches!(newer, Reply::Refused(Refusal::Protocol { .. })), "{newer:?}");
    let layout = hello(&daemon, |h| h.layout_hash ^= 1);
    assert!(matches!(layout, Reply::Refused(Refusal::Layout { .. })), "{layout:?}");
    let namespace = hello(&daemon, |h| h.namespace = Some("secret".into()));
    assert!(matches!(namespace, Reply::Refused(Refusal::Namespace(_))), "{namespace:?}");
    let good = hello(&daemon, |h| h.protocol_max += 5);
    assert!(matches!(good, Reply::Welcome(_)), "{good:?}");
}

#[test]
fn an_idle_daemon_sleeps() {
    let daemon = Daemon::start("");
    let (producer, consumer) = (daemon.client(), daemon.client());
    producer.put("x", &[1u8; 5000]).unwrap();
    let _lease = consumer.get("x").unwrap();
    // Returns the number of context switches of all threads of the daemon.
    let switches = || -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        let of_one = |thread: std::fs::DirEntry| {
            // A thread may end at this moment.
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
            let line = status.lines().find(|l| l.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        };
        threads.filter_map(|thread| of_one(thread.unwrap())).sum()
    };
    let exchange = |rounds: u32| {
        for round in 0..rounds {
            producer.put("x", &[round; 1000]).unwrap();
            assert_eq!(consumer.get("x").unwrap().as_slice::<u32>().unwrap()[0], round);
        }
    };
    // Warms up: maps every sheet, and waits for the spare segment.
    exchange(1000);
    // Earlier work may still wake the daemon on a busy machine. But if publishing or reading woke it, it would wake in
    // every attempt.
    eventually("an exchange during which the daemon sleeps", || {
        let before = switches();
        exchange(10_000);
        // Long enough that a woken daemon falls asleep again, which the counter records.
        std::thread::sleep(Duration::from_millis(500));
        switches() == before
    });
}

#[test]
fn a_client_that_may_open_no_more_files_says_so_and_goes_on() {
    let daemon = Daemon::start("");
    let (mut producer, mut client) = (daemon.agent(), daemon.agent());
    let theirs = producer.ok("put theirs 3000000 1");
    producer.ok("stream camera 4");
    let own = client.ok("put own 1000 2");
    // Maps everything that reading it, and publishing a new name, needs.
    client.ok("sum own");
    client.ok("many name 4000");
    let open: Vec<u64> = std::fs::read_dir(format!("/proc/{}/fd", client.pid()))
        .unwrap()
        .map(|file| file.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    let unused = (0..1024).find(|number| !open.contains(number)).unwrap();
    client.ok(&format!("nofile {unused}"));
    let watcher = daemon.client();
    let before = watcher.stat().unwrap();
    for _ in 0..20 {
        // Each needs a descriptor: of the other's catalogue, a new segment, rings, and more cells.
        for order in ["sum theirs", "put large 100000000 3", "stream own 4", "subscribe camera", "many name 5000"] {
            let error = client.ask(order).unwrap_err();
            assert!(error.contains("ulimit"), "{order}: {error}");
        }
        // These requests need no new descriptor.
        assert!(client.ok("sum own").ends_with(&own));
        client.ok("ping");
    }
    // Returned memory counts until the daemon has verified that no process maps it.
    eventually("the return of what could not be mapped", || {
        let now = watcher.stat().unwrap();
        now.bytes_in_use <= before.bytes_in_use && now.bytes_sheets <= before.bytes_sheets
    });
    client.ok("nofile 1024");
    assert!(client.ok("sum theirs").ends_with(&theirs));
    let large = client.ok("put large 100000000 3");
    assert!(producer.ok("sum large").ends_with(&large));
    client.ok("stream own 4");
    client.ok("subscribe camera");
    client.ok("many name 5000");
    producer.ok("check-many name 5000");
}

/// Runs `step` while a daemon can open no further descriptor.
fn without_descriptors(daemon: &Daemon, step: impl FnOnce()) {
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    // The daemon has the hard limit of this process. Its descriptors from 3 on stay open.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let before = prlimit(pid, Resource::Nofile, Rlimit { current: Some(3), maximum }).unwrap();
    step();
    prlimit(pid, Resource::Nofile, before).unwrap();
}

#[test]
fn a_daemon_that_may_open_no_more_files_refuses_requests_and_ends_no_session() {
    for mode in ["mode = \"user\"\n", "mode = \"system\"\n"] {
        let daemon = Daemon::start(mode);
        let (mut producer, mut client) = (daemon.agent(), daemon.agent());
        let theirs = producer.ok("put theirs 3000000 1");
        producer.ok("stream camera 4");
        let own = client.ok("put own 1000 2");
        client.ok("sum own");
        let before = daemon.client().stat().unwrap().bytes_in_use;
        without_descriptors(&daemon, || {
            for order in ["sum theirs", "put large 100000000 3", "stream own 4", "subscribe camera", "many name 5000"] {
                let error = client.ask(order).unwrap_err();
                assert!(error.contains("LimitNOFILE"), "{order}: {error}");
                assert!(client.ok("sum own").ends_with(&own));
                client.ok("ping");
            }
        });
        let watcher = daemon.client();
        eventually("the return of what was not lent", || watcher.stat().unwrap().bytes_in_use <= before);
        assert!(client.ok("sum theirs").ends_with(&theirs), "{mode}");
        client.ok("put large 100000000 3");
        client.ok("stream own 4");
        client.ok("subscribe camera");
        client.ok("many name 5000");
        producer.ok("check-many name 5000");
    }
}

#[test]
fn a_daemon_that_may_open_no_more_files_seals_what_it_has_lent() {
    let daemon = Daemon::start("mode = \"user\"\n");
    let client = Hand::join(&daemon.socket(), None).unwrap();
    let request = Request::Segment { bytes: MB, slots_log2: 4 };
    let (reply, lent) = hand::ask(&client.socket, &request, &[]).unwrap();
    assert!(matches!(reply, Reply::Segment { .. }), "{reply:?}");
    without_descriptors(&daemon, || {
        client.acknowledge().unwrap();
        assert_eq!(client.ask(&Request::Ping).unwrap().0, Reply::Done);
    });
    for fd in lent {
        assert!(memfd::is_sealed(fd.as_fd()).unwrap());
    }
}

#[test]
fn a_daemon_stops_cleanly() {
    let mut daemon = Daemon::start("");
    let client = daemon.client();
    client.put("x", &[1u8, 2, 3]).unwrap();
    let lease = client.get("x").unwrap();
    assert!(daemon.stop().success(), "{}", daemon.log());
    assert!(daemon.socket().exists(), "the next daemon learns from it that there are clients");
    assert_eq!(lease.bytes(), [1, 2, 3], "what is mapped stays readable");
    client.put("x", &[4u8]).unwrap();
    assert_eq!(client.get("x").unwrap().bytes(), [4], "the data path needs no daemon");
    client.put("new", &[5u8]).unwrap();
    assert_eq!(client.get("new").unwrap().bytes(), [5], "nor does a new name");
    assert!(client.append("list", client.create(DType::U8, &[1]).unwrap()).unwrap_err().is_disconnected());

    let mut daemon = Daemon::start("");
    drop(daemon.client());
    let watcher = daemon.client();
    eventually("the end of the one", || watcher.stat().unwrap().clients == 1);
    drop(watcher);
    // Gives the daemon time to see the hang-up before the signal; either order is valid.
    std::thread::sleep(Duration::from_millis(100));
    assert!(daemon.stop().success(), "{}", daemon.log());
    assert!(!daemon.socket().exists(), "the socket is left behind");
}

#[test]
fn configurations_are_checked() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = || {
        let mut command = std::process::Command::new(binary("tensorlendd"));
        command.arg("--socket").arg(folder.path().join("s"));
        command
    };
    let printed = run(daemon().arg("--print-config"));
    assert!(printed.status.success());
    let file = folder.path().join("config.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    assert!(run(daemon().arg("--check-config").arg("--config").arg(&file)).status.success());
    std::fs::write(&file, "[pool]\nbytes_maximum = 3\n").unwrap();
    let wrong = run(daemon().arg("--check-config").arg("--config").arg(&file));
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert_eq!(wrong.status.code(), Some(2), "{error}");
    assert!(error.contains("bytes_maximum"), "{error}");
    let missing = run(daemon().arg("--check-config").arg("--config").arg("/nonexistent.toml"));
    assert!(!missing.status.success());
}

#[test]
fn stat_names_the_process_that_holds_what_it_has_returned() {
    let daemon = Daemon::start("");
    let hand = Hand::join(&daemon.socket(), None).unwrap();
    let (base, held) = hand.segment(MB, 0, |lent| Ok((lent.base, hand::map(&lent.segment, Access::Write)?))).unwrap();
    assert_eq!(hand.ask(&Request::ReturnSegment { base }).unwrap().0, Reply::Done);
    let stat = |arguments: &[&str]| {
        let done = run(&mut daemon.cli(arguments));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    };
    let holders = || -> Vec<serde_json::Value> {
        let stat: serde_json::Value = serde_json::from_str(&stat(&["stat", "--json"])).unwrap();
        stat["holders"].as_array().unwrap().clone()
    };
    let (own, client) = (std::process::id(), hand.welcome.client);
    eventually("one piece left: the slots are unmapped", || holders().first().is_some_and(|it| it["pieces"] == 1));
    let all = holders();
    let [holder] = &all[..] else { panic!("{all:?}") };
    assert_eq!((&holder["pid"], &holder["client"]), (&own.into(), &client.get().into()));
    assert_eq!((&holder["connected"], &holder["bytes"]), (&true.into(), &MB.into()));
    let text = stat(&["stat"]);
    assert!(
        text.contains("HOLDER") && text.contains(&format!("client {client}")) && text.contains(&own.to_string()),
        "{text}"
    );
    drop(hand);
    // Its other memory goes; the mapping stays, as a child's would.
    eventually("the end of the session", || holders().iter().all(|it| it["connected"] == false));
    assert_eq!(holders()[0]["pid"], own);
    drop(held);
    eventually("the end of the mapping", || holders().is_empty());
    assert!(!stat(&["stat"]).contains("HOLDER"));
}
