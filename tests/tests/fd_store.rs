//! `tensorlendd --fd-store`: a daemon without a service manager is killed, and the next one continues with all tensors.
#![allow(unsafe_code)]

use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tensorlend::{Client, DType, Start};
use tensorlend_tests::stored::{Machine, end, lacks_descriptors};
use tensorlend_tests::{PATIENCE, eventually, own_store, run, signal, skip_without};

const MODES: [&str; 2] = ["user", "system"];

fn publish(client: &Client, name: &str, value: u64) {
    let mut draft = client.create(DType::U64, &[1000u64]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft.publish(name).unwrap();
}

fn value(client: &Client, name: &str) -> u64 {
    let lease = client.get(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    let values = lease.as_slice::<u64>().unwrap();
    assert!(values.iter().all(|it| *it == values[0]), "torn");
    values[0]
}

#[test]
fn tensors_of_live_and_dead_clients_outlive_the_daemon() {
    for mode in MODES {
        let mut machine = Machine::start(mode);
        let (a, b) = (machine.client(), machine.client());
        let mut dead = machine.agent();
        let sum = dead.ok("put of-the-dead 3000000 7");
        dead.kill();
        for name in 0..100 {
            publish(&a, &format!("n/{name}"), name);
        }
        let stream = a.stream("frames").capacity(8).open().unwrap();
        let mut frames = b.subscription("frames").start_at(Start::Oldest).open().unwrap();
        let held = b.get("n/3").unwrap();
        for round in 0..3 {
            machine.restart_daemon();
            assert_eq!(held.as_slice::<u64>().unwrap()[0], 3);
            for name in 0..100 {
                let expected = if name == 7 { 7 + round } else { name };
                assert_eq!(value(&b, &format!("n/{name}")), expected);
            }
            publish(&b, "n/7", 8 + round);
            assert_eq!(value(&a, "n/7"), 8 + round);
            stream.send(a.create(DType::U64, &[10u64]).unwrap()).unwrap();
            assert_eq!(frames.recv_timeout(PATIENCE).unwrap().sequence(), round);
            assert!(machine.agent().ok("sum of-the-dead").ends_with(&sum));
        }
        // The store has nothing after the end of the last client and the deletion of all names.
        drop((held, stream, frames));
        a.delete_stream("frames").unwrap();
        for entry in a.list("*").unwrap() {
            a.delete(&entry.name).unwrap();
        }
        drop((a, b));
        let watcher = machine.client();
        eventually("the return of all memory", || {
            let stat = watcher.stat().unwrap();
            (stat.bytes_in_use, stat.segments, stat.clients) == (0, 0, 1)
        });
        // A namespace without clients and names ends, with its directory. The daemon stores nothing else then.
        drop(watcher);
        eventually("an empty store", || {
            machine.kill_daemon();
            let is_empty = machine.stored().is_empty();
            machine.start_daemon();
            is_empty
        });
    }
}

#[test]
fn the_daemon_stores_everything_again_when_the_store_was_killed() {
    for mode in MODES {
        let mut machine = Machine::start(mode);
        let client = machine.client();
        publish(&client, "before", 1);
        for round in 0..3 {
            end(&mut machine.store, Signal::KILL);
            // The daemon serves its clients without a store.
            let name = format!("without-a-store/{round}");
            let mut dead = machine.agent();
            dead.ok(&format!("put {name} 1000 {round}"));
            dead.kill();
            machine.start_store();
            let runs_again = "the fd store runs again";
            eventually("the daemon's reconnection", || machine.log().matches(runs_again).count() == round + 1);
            machine.restart_daemon();
            assert_eq!(value(&client, "before"), 1);
            machine.agent().ok(&format!("sum {name}"));
            publish(&client, "after", round as u64);
            assert_eq!(value(&machine.client(), "after"), round as u64);
        }
    }
}

/// Starts a store with room for 32 descriptors, and a daemon.
fn start_a_small_store(machine: &mut Machine) {
    let program = machine.program();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64; exec \"$@\"", "sh"]).arg(program.get_program());
    command.arg("--fd-store").arg(machine.path("store")).stdin(Stdio::null()).stdout(Stdio::null());
    machine.store = Some(command.spawn().unwrap());
    machine.start_daemon();
}

/// Publishes names until the store is full. Returns the number of names.
fn fill(machine: &Machine) -> u64 {
    let mut count = 0;
    while !lacks_descriptors(&machine.log()) {
        // The descriptors of the name's memory stay when its client has ended.
        publish(&machine.client(), &format!("n/{count}"), count);
        count += 1;
    }
    count
}

#[test]
fn a_larger_store_gets_what_the_full_one_did_not_have() {
    let mut machine = Machine::configured("system");
    start_a_small_store(&mut machine);
    let count = fill(&machine);
    end(&mut machine.store, Signal::KILL);
    machine.start_store();
    eventually("the daemon's reconnection", || machine.log().contains("the fd store runs again"));
    machine.restart_daemon();
    let client = machine.client();
    for name in 0..count {
        assert_eq!(value(&client, &format!("n/{name}")), name);
    }
}

#[test]
fn a_full_store_gets_the_rest_when_it_has_room() {
    let mut machine = Machine::configured("system");
    start_a_small_store(&mut machine);
    let count = fill(&machine);
    let client = machine.client();
    publish(&client, "precious", 7);
    for name in 0..count {
        client.delete(&format!("n/{name}")).unwrap();
    }
    drop(client);
    eventually("the missing descriptors", || !lacks_descriptors(&machine.log()));
    machine.restart_daemon();
    assert_eq!(value(&machine.client(), "precious"), 7);
}

/// The descriptors that a full store does not have can all be removed before the store gets them.
#[test]
fn a_shortage_ends_with_the_memory_that_was_missing() {
    let mut machine = Machine::configured("system");
    start_a_small_store(&mut machine);
    for _shortage in 0..2 {
        let count = fill(&machine);
        let client = machine.client();
        for name in 0..count {
            client.delete(&format!("n/{name}")).unwrap();
        }
        drop(client);
        eventually("the end of the shortage", || !lacks_descriptors(&machine.log()));
    }
}

/// A store that has ended has nothing, whatever happens to the memory that it lacked.
#[test]
fn a_shortage_does_not_end_with_the_store() {
    let mut machine = Machine::configured("system");
    start_a_small_store(&mut machine);
    let count = fill(&machine);
    let client = machine.client();
    end(&mut machine.store, Signal::KILL);
    eventually("the end of the store", || machine.log().contains("has ended"));
    for name in 0..count {
        client.delete(&format!("n/{name}")).unwrap();
    }
    drop(client);
    // Each attempt to connect comes after one in which the end of a shortage could be logged.
    machine.start_store();
    eventually("the daemon's reconnection", || machine.log().contains("the fd store runs again"));
    let log = machine.log();
    let (ended, again) = (log.find("has ended").unwrap(), log.find("the fd store runs again").unwrap());
    assert!(!log[ended..again].contains("the fd store has all"), "{log}");
}

#[test]
fn the_log_counts_the_names_that_a_full_store_has_lost() {
    let mut machine = Machine::configured("system");
    start_a_small_store(&mut machine);
    let count = fill(&machine);
    let all = count + 5;
    for name in count..all {
        publish(&machine.client(), &format!("n/{name}"), name);
    }
    machine.restart_daemon();
    let reader = machine.client();
    let is_lost = |name: &u64| match reader.get(&format!("n/{name}")) {
        Ok(lease) => {
            assert_eq!(lease.as_slice::<u64>().unwrap()[0], *name);
            false
        }
        Err(error) => {
            assert!(matches!(error, tensorlend::Error::NotFound(_)), "{error}");
            true
        }
    };
    let lost = (0..all).filter(is_lost).count();
    assert!(lost > 0, "the store kept all descriptors");
    let line = format!("names lost at the restart: {lost};");
    assert!(machine.log().contains(&line), "{lost} names are lost:\n{}", machine.log());
    // A program may publish a lost name again.
    for name in 0..all {
        publish(&reader, &format!("n/{name}"), name);
        assert_eq!(value(&machine.client(), &format!("n/{name}")), name);
    }
}

/// The daemon is killed at arbitrary moments, while clients publish new names and larger tensors, so that it stores
/// descriptors all the time. A name whose publication has returned is never lost.
#[test]
fn a_daemon_killed_while_it_stores_loses_nothing() {
    let mut machine = Machine::start("system");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = machine.client();
        let over = &over;
        let writer = scope.spawn(move || {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                // A call fails if the daemon dies, and the next one dies before it has responded.
                let Ok(mut draft) = client.create(DType::U64, &[1000 << (number % 10)]) else { continue };
                draft.as_mut_slice::<u64>().unwrap().fill(number);
                if draft.publish(&format!("n/{}", number % 200)).is_ok() {
                    number += 1;
                }
            }
            (client, number)
        });
        for round in 0..6 {
            std::thread::sleep(Duration::from_millis(10 * round));
            machine.restart_daemon();
        }
        over.store(true, Ordering::Relaxed);
        let (writer, count) = writer.join().unwrap();
        assert!(count > 0, "nothing was published");
        drop(writer);
        machine.restart_daemon();
        let reader = machine.client();
        for name in 0..count.min(200) {
            let last = (0..count).rev().find(|number| number % 200 == name).unwrap();
            assert_eq!(value(&reader, &format!("n/{name}")), last);
        }
    });
}

/// The store must not fail for lack of memory while daemons die, so it allocates its tables at the start. A library that is loaded
/// before libc counts its later calls of malloc(3).
#[test]
fn the_store_allocates_nothing_after_its_start() {
    if skip_without("gcc") {
        return;
    }
    let mut machine = Machine::configured("system");
    let (library, counts) = (machine.path("allocations.so"), machine.path("counts"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fd_store/allocations.c");
    let built = run(Command::new("gcc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let start = |machine: &mut Machine| {
        let mut program = machine.program();
        program.arg("--fd-store").arg(machine.path("store")).env("LD_PRELOAD", &library).env("COUNT_WHILE", &counts);
        let before = machine.log().matches("stores up to").count();
        machine.store = Some(program.spawn().unwrap());
        eventually("the store's start", || machine.log().matches("stores up to").count() > before);
    };
    let counted = |machine: &mut Machine| {
        end(&mut machine.daemon, Signal::TERM);
        end(&mut machine.store, Signal::TERM);
        let log = machine.log();
        let last = log.lines().filter_map(|line| line.strip_prefix("allocations: ")).next_back();
        last.expect("the library prints its count").parse::<u64>().unwrap()
    };
    // The store's start allocates memory, and the library counts it.
    std::fs::write(&counts, "").unwrap();
    start(&mut machine);
    assert!(counted(&mut machine) > 0);

    std::fs::remove_file(&counts).unwrap();
    start(&mut machine);
    // The store has handled a daemon, so its start is over.
    machine.start_daemon();
    std::fs::write(&counts, "").unwrap();
    machine.restart_daemon();
    let client = machine.client();
    for round in 0..3 {
        let other = machine.client();
        for name in 0..50 {
            publish(&other, &format!("of-{round}/{name}"), name);
        }
        machine.restart_daemon();
        assert_eq!(value(&client, &format!("of-{round}/7")), 7);
        for entry in client.list("*").unwrap() {
            client.delete(&entry.name).unwrap();
        }
    }
    std::fs::remove_file(&counts).unwrap();
    assert_eq!(counted(&mut machine), 0);
}

#[test]
fn a_daemon_waits_for_its_store_at_the_start() {
    let mut machine = Machine::start("user");
    end(&mut machine.daemon, Signal::TERM);
    end(&mut machine.store, Signal::TERM);
    assert!(!machine.path("store").exists(), "the store removes its socket");
    std::thread::scope(|scope| {
        let store = machine.program().arg("--fd-store").arg(machine.path("store")).stdin(Stdio::null()).spawn();
        let mut store = Some(store.unwrap());
        signal(store.as_ref().unwrap().id(), Signal::STOP);
        let continued = store.as_ref().unwrap().id();
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            signal(continued, Signal::CONT);
        });
        machine.start_daemon();
        publish(&machine.client(), "x", 5);
        end(&mut machine.daemon, Signal::KILL);
        assert!(machine.stored().iter().any(|name| name.starts_with("tl.segment.")), "{:?}", machine.stored());
        end(&mut store, Signal::KILL);
    });
}

/// The daemon starts the store next to its socket, starts another one when it is killed, and finds it after its own death.
#[test]
fn a_users_daemon_starts_a_store_itself() {
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    let (a, b) = (machine.client(), machine.client());
    let mut dead = machine.agent();
    let sum = dead.ok("put of-the-dead 3000000 7");
    dead.kill();
    publish(&a, "x", 1);
    let stream = a.stream("frames").open().unwrap();
    let mut frames = b.subscription("frames").pollable().open().unwrap();
    assert!(frames.try_recv().unwrap().is_none());
    let held = b.get("x").unwrap();
    for round in 0..4 {
        machine.kill_daemon();
        let store = own_store(&machine.path("socket")).expect("the store outlives the daemon");
        machine.start_daemon();
        assert_eq!((held.as_slice::<u64>().unwrap()[0], value(&a, "x")), (1, round + 1));
        publish(&b, "x", round + 2);
        assert!(machine.agent().ok("sum of-the-dead").ends_with(&sum));
        // A subscriber that sleeps in epoll is woken through the daemon's wake descriptor, which the store had.
        stream.send(a.create(DType::U64, &[10u64]).unwrap()).unwrap();
        let wait = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let mut polled = [rustix::event::PollFd::new(&frames, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut polled, Some(&wait)), Ok(1));
        assert_eq!(frames.try_recv().unwrap().unwrap().sequence(), round);
        assert!(frames.try_recv().unwrap().is_none());
        if round % 2 == 1 {
            let starts = machine.log().matches("the fd store runs again").count();
            signal(store, Signal::KILL);
            eventually("another store", || machine.log().matches("the fd store runs again").count() > starts);
        }
    }
    drop((held, stream, frames));
    a.delete_stream("frames").unwrap();
    for entry in a.list("*").unwrap() {
        a.delete(&entry.name).unwrap();
    }
    drop((a, b));
    // A store ends at once if the daemon leaves nothing in it.
    eventually("an end without a store", || {
        if machine.daemon.is_none() {
            machine.start_daemon();
        }
        end(&mut machine.daemon, Signal::TERM);
        std::thread::sleep(Duration::from_millis(100));
        own_store(&machine.path("socket")).is_none()
    });
    assert!(!machine.path("socket.store").exists());
}

/// A store that cannot start is no reason for a daemon not to serve.
#[test]
fn a_daemon_serves_without_a_store_that_cannot_start() {
    let mut machine = Machine::with_own_store("user");
    let place = machine.path("socket.store");
    std::fs::write(&place, "somebody's").unwrap();
    machine.start_daemon();
    let client = machine.client();
    publish(&client, "x", 1);
    assert!(machine.log().contains("does not start"), "{}", machine.log());
    assert_eq!(std::fs::read_to_string(&place).unwrap(), "somebody's");
    std::fs::remove_file(&place).unwrap();
    eventually("a store", || machine.log().contains("the fd store runs again"));
    machine.restart_daemon();
    assert_eq!((value(&client, "x"), value(&machine.client(), "x")), (1, 1));
}

/// A live store may have the former daemon's descriptors. A daemon that cannot get them does not start.
#[test]
fn a_daemon_waits_for_a_store_that_answers_late() {
    let mut machine = Machine::with_own_store("user");
    machine.start_daemon();
    publish(&machine.client(), "x", 7);
    machine.kill_daemon();
    let store = own_store(&machine.path("socket")).expect("the store outlives the daemon");
    signal(store, Signal::STOP);
    let mut daemon = machine.program();
    daemon.arg("--config").arg(machine.path("config.toml")).arg("--socket").arg(machine.path("socket"));
    assert_eq!(daemon.status().unwrap().code(), Some(1), "{}", machine.log());
    assert!(machine.log().contains("TL-1119"), "{}", machine.log());
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        signal(store, Signal::CONT);
    });
    machine.start_daemon();
    late.join().unwrap();
    assert_eq!(value(&machine.client(), "x"), 7);
}

#[test]
fn a_daemon_serves_at_a_path_that_is_too_long_for_a_store() {
    let machine = Machine::with_own_store("user");
    let rest = 106 - machine.folder().as_os_str().len() - 1;
    let socket = machine.path(&"s".repeat(rest));
    let mut daemon = Some(
        machine
            .program()
            .arg("--config")
            .arg(machine.path("config.toml"))
            .arg("--socket")
            .arg(&socket)
            .spawn()
            .unwrap(),
    );
    eventually("the daemon", || Client::builder().socket(&socket).connect().is_ok());
    assert!(machine.log().contains("too long for that of an fd store"), "{}", machine.log());
    end(&mut daemon, Signal::TERM);
}

/// Another process may wait for the end of a file that the daemon has inherited: a pipe, or a lock.
#[test]
fn the_daemons_store_has_none_of_its_files() {
    let mut machine = Machine::with_own_store("user");
    let mut daemon = Command::new("sh");
    daemon.args(["-c", "exec 9>\"$0\" && exec \"$@\""]).arg(machine.path("lock"));
    daemon.arg(tensorlend_tests::binary("tensorlendd")).arg("--config").arg(machine.path("config.toml"));
    let daemon = daemon.arg("--socket").arg(machine.path("socket")).stdin(Stdio::null()).spawn().unwrap();
    machine.daemon = Some(daemon);
    eventually("the daemon", || Client::builder().socket(machine.path("socket")).connect().is_ok());
    let client = machine.client();
    publish(&client, "x", 1);
    machine.kill_daemon();
    let store = own_store(&machine.path("socket")).expect("the store outlives the daemon");
    let files = std::fs::read_dir(format!("/proc/{store}/fd")).unwrap();
    let files: Vec<PathBuf> = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).collect();
    assert!(files.iter().any(|file| file.to_string_lossy().contains("tensorlend-segment")), "{files:?}");
    assert!(!files.contains(&machine.path("lock")), "{files:?}");
    let name = std::fs::read_to_string(format!("/proc/{store}/comm")).unwrap();
    assert_eq!(name.trim(), "tl-fd-store");
}

#[test]
fn a_store_ends_when_no_daemon_comes() {
    let machine = Machine::with_own_store("user");
    let mut store = machine.program();
    let mut store = store.arg("--fd-store").arg(machine.path("store")).args(["--fd-store-idle", "1"]).spawn().unwrap();
    eventually("its end", || store.try_wait().unwrap().is_some_and(|ended| ended.success()));
    assert!(!machine.path("store").exists());
}

#[test]
fn without_any_store_a_restart_ends_the_sessions() {
    let mut machine = Machine::with_own_store("user");
    std::fs::write(machine.path("config.toml"), "mode = \"user\"\nfd_store = \"none\"\n").unwrap();
    machine.start_daemon();
    let client = machine.client();
    publish(&client, "x", 1);
    let held = client.get("x").unwrap();
    machine.kill_daemon();
    assert_eq!(own_store(&machine.path("socket")), None);
    machine.start_daemon();
    let error = client.stat().unwrap_err();
    assert!(matches!(error, tensorlend::Error::Disconnected { .. } | tensorlend::Error::SessionEnded), "{error}");
    assert_eq!(held.as_slice::<u64>().unwrap()[0], 1, "what is mapped can be read");
    assert!(machine.client().get("x").unwrap_err().is_not_found());
}

/// A program with an embedded daemon: see `an_embedded_daemon_continues_after_its_program`.
#[test]
#[ignore = "started by another test"]
fn program_with_an_embedded_daemon() {
    let folder = PathBuf::from(std::env::var_os("TENSORLEND_TEST_FOLDER").unwrap());
    let socket = format!("socket = \"{}\"\n", folder.join("socket").display());
    // Without this option, the program starts the store itself.
    let store = folder.join("store");
    let store = store.exists().then(|| format!("fd_store = \"{}\"\n", store.display()));
    let config = socket + store.as_deref().unwrap_or_default();
    let config = tensorlend_daemon::Config::parse(&config).unwrap();
    let daemon = tensorlend_daemon::embedded_with(&config).unwrap();
    let client = Client::builder().socket(daemon.socket()).connect().unwrap();
    let found = client.get("of-the-program").map_or(0, |lease| lease.as_slice::<u64>().unwrap()[0]);
    publish(&client, "of-the-program", found + 1);
    // A child that outlives the program: it has copies of the program's descriptors.
    // SAFETY: the child calls only functions that are async-signal-safe, and then ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            libc::alarm(PATIENCE.as_secs() as u32);
            libc::pause();
            libc::_exit(0);
        }
    }
    std::fs::write(folder.join(format!("found-{found}.new")), child.to_string()).unwrap();
    std::fs::rename(folder.join(format!("found-{found}.new")), folder.join(format!("found-{found}"))).unwrap();
    std::thread::sleep(PATIENCE);
}

#[test]
fn an_embedded_daemon_continues_after_its_program() {
    let mut machine = Machine::start("user");
    end(&mut machine.daemon, Signal::TERM);
    continues_after_its_program(machine);
    continues_after_its_program(Machine::with_own_store("user"));
}

fn continues_after_its_program(mut machine: Machine) {
    let programs = tensorlend_tests::binary("tensorlendd");
    let path = std::env::join_paths([programs.parent().unwrap()]).unwrap();
    let program = |folder: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["program_with_an_embedded_daemon", "--exact", "--ignored"])
            .env("TENSORLEND_TEST_FOLDER", folder)
            .env("PATH", &path);
        command.stdout(Stdio::null()).spawn().unwrap()
    };
    let (mut client, mut children) = (None, Vec::new());
    for round in 0..3 {
        machine.daemon = Some(program(machine.folder()));
        eventually("the program", || machine.path(&format!("found-{round}")).exists());
        let client = client.get_or_insert_with(|| machine.client());
        // A client in another process continues, and finds the tensor of each program.
        eventually("the program's tensor", || value(client, "of-the-program") == round + 1);
        if round == 0 {
            publish(client, "of-the-client", 9);
        }
        assert_eq!(value(&machine.client(), "of-the-client"), 9);
        machine.kill_daemon();
        let child = std::fs::read_to_string(machine.path(&format!("found-{round}"))).unwrap();
        children.push(child.parse().unwrap());
    }
    // Each child has outlived its program, and has kept no later daemon from starting.
    for child in children {
        signal(child, Signal::KILL);
    }
}

#[test]
fn a_daemon_serves_its_clients_while_the_store_is_stopped() {
    let mut machine = Machine::start("system");
    let client = machine.client();
    publish(&client, "before", 1);
    let store = machine.store.as_ref().unwrap().id();
    signal(store, Signal::STOP);
    // Each client has several sheets. Their descriptors fill the socket's queue: the daemon gives the store up.
    eventually("the daemon to give the store up", || {
        drop(machine.client());
        machine.log().contains("has ended: until the next one runs")
    });
    for number in 0..50 {
        publish(&machine.client(), &format!("n/{number}"), number);
    }
    signal(store, Signal::CONT);
    eventually("the daemon's reconnection", || machine.log().contains("the fd store runs again"));
    machine.restart_daemon();
    assert_eq!(value(&client, "before"), 1);
    for number in 0..50 {
        assert_eq!(value(&client, &format!("n/{number}")), number);
    }
}
