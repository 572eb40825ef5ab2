//! Kills a process at every crash point, between any two of its steps. The others continue, nothing is torn, and all
//! resources of the dead process are freed.

#[cfg(feature = "crash-points")]
#[path = "crash_points/listed.rs"]
mod listed;
#[cfg(feature = "crash-points")]
#[path = "crash_points/paused.rs"]
mod paused;
#[path = "crash_points/subscribers.rs"]
mod subscribers;
#[path = "crash_points/takeover.rs"]
mod takeover;
#[path = "crash_points/windows.rs"]
mod windows;

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_layout::number::CellNo;
use tensorlend_layout::wire::Request;
use tensorlend_tests::background::Home;
use tensorlend_tests::filled::{self, put};
use tensorlend_tests::hand::Hand;
use tensorlend_tests::keeper::Service;
use tensorlend_tests::{Agent, Daemon, PATIENCE, cold, eventually, everything, is_full, queued, skip, witness};

/// Passages at which to kill: the first, and a later one. By default each crash point is tested at one of the two, which
/// its name determines, so that a new crash point does not change what others test.
const PASSAGES: [u64; 2] = [1, 2];
/// Crash points that need the victim's slow extra work.
const MANY: [&str; 6] = [
    "return: taken out of use",
    "cells: mapped",
    "cells: taken over",
    "daemon: cells lent",
    "daemon: table built",
    "daemon: table published",
];
/// Turns that the bystander must complete after a death.
const TURNS: u64 = 30;
/// Time after which the daemon has finished its work for a guest that has ended. Reached only in a failure: every crash
/// point is passed.
const UNPASSED: Duration = Duration::from_mins(1);
/// Small segments, so that memory is lent and returned all the time.
const CONFIG: &str =
    "[pool]\nsegment_bytes = \"2MiB\"\nspare_segments = 1\nidle_bytes_max = 0\nbytes_max = \"100MiB\"\n";

/// The folder of a build with the feature `crash-points`; `find` reports if there is none.
struct Build(PathBuf);

impl Build {
    fn find() -> Option<Self> {
        let folder = std::env::var_os("TENSORLEND_TEST_BUILD");
        if folder.is_none() {
            skip(
                "TENSORLEND_TEST_BUILD does not name a folder with the programs of `cargo build -p tensorlend-tests -p \
                 tensorlend-daemon --bins --features tensorlend-tests/crash-points,tensorlend-daemon/crash-points`, as \
                 scripts/test makes one",
            );
        }
        Some(Self(folder?.into()))
    }

    fn worker(&self) -> Command {
        Command::new(self.0.join("tensorlend-worker"))
    }

    /// Returns the crash points, by number.
    fn points(&self) -> Vec<String> {
        let output = tensorlend_tests::run(self.worker().arg("points"));
        let points: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
        assert!(points.len() > 50, "this build cannot kill itself: {points:?}");
        points
    }

    fn daemon(&self) -> Daemon {
        Daemon::start_as(CONFIG, |_| Command::new(self.0.join("tensorlendd")))
    }

    fn agent(&self, what: &str, socket: &Path) -> Agent {
        let mut command = self.worker();
        command.arg(what).arg(socket);
        Agent::steer(command)
    }

    /// Starts a client that uses every feature.
    fn everything(&self, socket: &Path, point: &str, crash: Option<&str>) -> Agent {
        let mut command = self.worker();
        command.arg("everything").arg(socket).envs(crash.map(|plan| ("TENSORLEND_CRASH", plan)));
        if MANY.contains(&point) {
            command.arg("many");
        }
        Agent::steer(command)
    }
}

fn is_daemons(point: &str) -> bool {
    point.starts_with("daemon")
}

/// Returns true if only clients with device memory pass the crash point.
fn is_devices(point: &str) -> bool {
    point.starts_with("device")
}

/// Returns true if only children of a fork pass the crash point.
fn is_childs(point: &str) -> bool {
    point.starts_with("child: ")
}

/// Returns true if only clients that release memory for spill pass the crash point.
fn is_releases(point: &str) -> bool {
    point.starts_with("release: ")
}

/// Returns true if only a client that starts a daemon passes the crash point, or the processes that it starts.
fn is_starts(point: &str) -> bool {
    point.starts_with("start: ") || point.starts_with("background: ")
}

/// Returns true if only the processes of [`takeover`] pass the crash point.
fn is_takeovers(point: &str) -> bool {
    ["next: ", "resume: ", "store: "].iter().any(|kind| point.starts_with(kind))
}

/// Returns the number of turns that the bystander has done, and how many of them were consistent.
fn turns(bystander: &mut Agent) -> (u64, u64) {
    let said = bystander.ok("turns");
    let (all, whole) = said.split_once(' ').expect("two numbers");
    (all.parse().unwrap(), whole.parse().unwrap())
}

/// Waits until the bystander has done [`TURNS`] more consistent turns.
fn makes_progress(bystander: &mut Agent, point: &str) {
    let (before, started) = (turns(bystander).1, Instant::now());
    while turns(bystander).1 < before + TURNS {
        assert!(started.elapsed() < PATIENCE, "{point}: the others do not go on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that another client reads everything whole, and can write everything.
fn look_around(watcher: &Client, point: &str) {
    for info in watcher.list("*").unwrap() {
        match watcher.get(&info.name) {
            Ok(lease) => {
                filled::value(&lease).unwrap_or_else(|torn| panic!("{point}: {}: {torn}", info.name));
            }
            Err(e) => assert!(e.is_not_found(), "{point}: {}: {e}", info.name),
        }
    }
    for name in ["everything/0", "everything/new", "fresh"] {
        put(watcher, name, 5).unwrap_or_else(|e| panic!("{point}: {name}: {e}"));
        let lease = watcher.get(name).unwrap_or_else(|e| panic!("{point}: {name}: {e}"));
        assert_eq!(filled::value(&lease), Ok(5), "{point}: {name}");
    }
    // The bystander may have replaced it already.
    put(watcher, witness::SHARED[0], 5).unwrap_or_else(|e| panic!("{point}: a shared name: {e}"));
    take_all_jobs(watcher, point);
    watcher.append("everything", filled::filled(watcher, 5).unwrap()).unwrap();
    for item in watcher.get_all("everything").unwrap() {
        filled::value(item.as_tensor().unwrap()).unwrap_or_else(|torn| panic!("{point}: an item: {torn}"));
    }
}

/// Checks that the items of the victim's queue wait, and that another client can confirm them.
fn take_all_jobs(watcher: &Client, point: &str) {
    let jobs = watcher.queue(everything::JOBS).unwrap();
    assert_eq!(jobs.claimed().unwrap(), 0, "{point}: a client that has ended has claims");
    while jobs.waiting().unwrap() > 0 {
        match jobs.get(Duration::ZERO) {
            Ok(job) => {
                filled::value(job.value().tensor().unwrap()).unwrap_or_else(|torn| panic!("{point}: a job: {torn}"));
                assert!(job.done().unwrap(), "{point}: a job's claim");
            }
            // The last item had no value: its producer was killed before it wrote the value.
            Err(e) => assert!(e.is_timeout(), "{point}: {e}"),
        }
    }
}

/// Deletes everything with a name, and waits until all memory is freed.
fn nothing_is_left(connect: impl Fn() -> Client, watcher: Client, point: &str) {
    for info in watcher.list("*").unwrap() {
        watcher.delete(&info.name).unwrap();
    }
    for stream in watcher.streams("*").unwrap() {
        watcher.delete_stream(&stream.name).unwrap();
    }
    for list in watcher.lists("*").unwrap() {
        watcher.clear(&list.name).unwrap();
    }
    drop(watcher);
    let last = connect();
    eventually(&format!("{point}: the return of everything"), || {
        let stat = last.stat().unwrap();
        (stat.bytes_in_use, stat.segments, stat.clients, stat.frozen, stat.names) == (0, 0, 1, 0, 0)
    });
}

/// Returns true if the crash point was passed this often.
fn client_dies_at(build: &Build, number: usize, point: &str, passage: u64) -> bool {
    let daemon = build.daemon();
    let mut bystander = build.agent("bystander", &daemon.socket());
    makes_progress(&mut bystander, point);
    // `/` always exists, so passages count from the victim's start.
    let plan = format!("{number}:{passage}:/");
    let mut victim = build.everything(&daemon.socket(), point, Some(&plan));
    let status = victim.wait();
    if status.success() {
        return false;
    }
    assert_eq!(status.signal(), Some(9), "{point}, passage {passage}: {status}");
    makes_progress(&mut bystander, point);
    let watcher = daemon.client();
    eventually(&format!("{point}: the victim's end"), || watcher.stat().unwrap().clients == 3);
    look_around(&watcher, point);
    makes_progress(&mut bystander, point);
    assert_eq!(bystander.ok("end"), "ended", "{point}");
    assert!(bystander.wait().success(), "{point}");
    nothing_is_left(|| daemon.client(), watcher, point);
    true
}

/// Kills a process at every crash point of a kind, and returns the number of kills.
fn kill_at_each(build: &Build, of_kind: impl Fn(&str) -> bool, dies_at: impl Fn(usize, &str, u64) -> bool) -> u32 {
    let points = build.points();
    let (mut kills, mut not_passed) = (0, Vec::new());
    // Selects a single crash point, for debugging.
    let only = std::env::var("TENSORLEND_POINT").unwrap_or_default();
    let wanted = |point: &str| of_kind(point) && point.contains(&only);
    for (number, point) in points.iter().enumerate().filter(|(_, point)| wanted(point)) {
        let default = PASSAGES[usize::from(point.bytes().fold(0, u8::wrapping_add)) % PASSAGES.len()];
        for passage in PASSAGES.into_iter().filter(|passage| is_full() || *passage == default) {
            if dies_at(number, point, passage) {
                kills += 1;
            } else {
                not_passed.push((point, passage));
            }
        }
    }
    println!("{kills} kills at {} places", points.iter().filter(|point| wanted(point)).count());
    assert!(not_passed.is_empty(), "never passed, or not so often: {not_passed:?}");
    kills
}

#[test]
fn a_client_killed_at_any_place_leaves_nothing_behind_that_matters() {
    let Some(build) = Build::find() else { return };
    kill_at_each(
        &build,
        |point| {
            let others = [is_daemons, is_devices, is_releases, is_childs, is_starts, is_takeovers];
            !others.iter().any(|is_others| is_others(point))
        },
        |number, point, passage| client_dies_at(&build, number, point, passage),
    );
}

#[test]
fn a_child_killed_as_it_begins_leaves_its_parents_leases_to_end() {
    let Some(build) = Build::find() else { return };
    let points = build.points();
    let mut places = 0;
    for (number, point) in points.iter().enumerate().filter(|(_, point)| is_childs(point)) {
        let daemon = build.daemon();
        let mut parent = build.worker();
        parent.arg("children").arg(daemon.socket()).env("TENSORLEND_CRASH", format!("{number}:1:/"));
        assert!(Agent::steer(parent).wait().success(), "{point}: see the parent's message above");
        let watcher = daemon.client();
        eventually(&format!("{point}: the parent's end"), || watcher.stat().unwrap().clients == 1);
        nothing_is_left(|| daemon.client(), watcher, point);
        places += 1;
    }
    assert_eq!(places, 2);
}

/// A client that starts the daemon is killed, or a process that it starts. The next client is served.
#[test]
fn a_start_that_is_killed_at_any_place_is_repeated() {
    let Some(build) = Build::find() else { return };
    if Path::new("/run/tensorlend/tensorlend.sock").exists() {
        return skip("this machine has a system's daemon, so that clients start none");
    }
    let points = build.points();
    let mut places = 0;
    for (number, point) in points.iter().enumerate().filter(|(_, point)| is_starts(point)) {
        let home = Home::new("");
        let start = |plan: Option<String>| {
            let mut worker = home.command(&build.0.join("tensorlend-worker"));
            tensorlend_tests::run(worker.args(["start", "a"]).envs(plan.map(|plan| ("TENSORLEND_CRASH", plan))))
        };
        let first = start(Some(format!("{number}:1:/")));
        assert_eq!(first.status.signal(), point.starts_with("start").then_some(9), "{point}: {first:?}");
        let second = start(None);
        assert_eq!(
            String::from_utf8_lossy(&second.stdout),
            "ok\n",
            "{point}: {second:?} after {first:?}: {}",
            home.log()
        );
        eventually(&format!("{point}: one daemon"), || home.daemons().len() == 1);
        places += 1;
    }
    assert_eq!(places, 4);
}

/// Returns true if the crash point was passed this often.
fn releaser_dies_at(build: &Build, number: usize, point: &str, passage: u64) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let spill = format!("[spill]\ndirectory = \"{}\"\nbytes_max = \"1GiB\"\n", folder.path().display());
    let config = format!("{}{spill}", CONFIG.replace("100MiB", "32MiB"));
    let daemon = Daemon::start_as(&config, |_| Command::new(build.0.join("tensorlendd")));
    let plan = format!("{number}:{passage}:/");
    let mut command = build.worker();
    command.arg("cold").arg(daemon.socket()).env("TENSORLEND_CRASH", plan);
    let status = Agent::steer(command).wait();
    if status.success() {
        return false;
    }
    assert_eq!(status.signal(), Some(9), "{point}, passage {passage}: {status}");
    let watcher = daemon.client();
    eventually(&format!("{point}: the victim's end"), || watcher.stat().unwrap().clients == 1);
    let there = |number: &u8| watcher.exists(&cold::name(*number)).unwrap();
    let left: Vec<u8> = (0..cold::NAMES).filter(there).collect();
    assert!(left.len() > 1, "{point}: it had published {left:?}");
    for &number in &left {
        let lease = watcher.get(&cold::name(number)).unwrap_or_else(|e| panic!("{point}: {number}: {e}"));
        assert!(cold::is_whole(&lease, number), "{point}: {number} is torn");
    }
    for number in 0..cold::NAMES {
        cold::put(&watcher, number).unwrap_or_else(|e| panic!("{point}: {number}: {e}"));
    }
    nothing_is_left(|| daemon.client(), watcher, point);
    let last = daemon.client();
    eventually(&format!("{point}: the end of the files"), || last.stat().unwrap().bytes_spilled == 0);
    true
}

#[test]
fn a_client_killed_while_it_lets_go_of_memory_leaves_its_values() {
    let Some(build) = Build::find() else { return };
    kill_at_each(&build, is_releases, |number, point, passage| releaser_dies_at(&build, number, point, passage));
}

/// Kills the daemon. Clients continue, the next daemon recovers all state, and everything is freed in the end. Returns
/// true if the crash point was passed this often.
fn daemon_dies_at(build: &Build, mode: &str, number: usize, point: &str, passage: u64) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let begin = folder.path().join("begin");
    let plan = format!("{number}:{passage}:{}", begin.display());
    let first = Some(("TENSORLEND_CRASH".to_owned(), plan));
    let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), first);
    let mut bystander = build.agent("bystander", &daemon.socket());
    // A reader that has mapped everything that the bystander writes.
    let watcher = daemon.client();
    makes_progress(&mut bystander, point);
    std::fs::write(&begin, "").unwrap();
    let mut guest = build.everything(&daemon.socket(), point, None);
    let started = Instant::now();
    while daemon.is_running() {
        if let Some(status) = guest.ended() {
            // The daemon may still have to clean up after the guest.
            assert!(status.success(), "{point}: {status}");
            let gone = Instant::now();
            while daemon.is_running() {
                if gone.elapsed() > UNPASSED {
                    return false;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(started.elapsed() < PATIENCE, "{point}: neither the daemon nor its guest comes to an end");
        std::thread::sleep(Duration::from_millis(1));
    }
    daemon.restart();
    makes_progress(&mut bystander, point);
    assert!(!daemon.log().contains("lost"), "{point}: the log reports a loss:\n{}", daemon.log());
    assert!(guest.wait().success(), "{point}: who was answered by nobody is told so");
    for name in witness::NAMES {
        let lease = watcher.get(name).unwrap_or_else(|e| panic!("{point}: {name}: {e}"));
        filled::value(&lease).unwrap_or_else(|torn| panic!("{point}: {name}: {torn}"));
    }
    eventually(&format!("{point}: the guest's end"), || watcher.stat().unwrap().clients == 3);
    look_around(&watcher, point);
    makes_progress(&mut bystander, point);
    assert_eq!(bystander.ok("end"), "ended", "{point}");
    assert!(bystander.wait().success(), "{point}");
    nothing_is_left(|| daemon.client(), watcher, point);
    daemon.wait_kept(0);
    true
}

#[test]
fn a_daemon_killed_at_any_place_is_followed_by_one_that_knows_everything() {
    let Some(build) = Build::find() else { return };
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        kill_at_each(&build, is_daemons, |number, point, passage| daemon_dies_at(&build, mode, number, point, passage));
    }
}

#[test]
fn a_consumer_killed_at_any_step_of_a_claim_loses_no_item() {
    let Some(build) = Build::find() else { return };
    let points = build.points();
    // Consumers that end their waits are killed in another test: they have no item.
    let is_claims = |point: &str| point.starts_with("queue: ") && point != "queue: stopped";
    for (number, point) in points.iter().enumerate().filter(|(_, point)| is_claims(point)) {
        let daemon = build.daemon();
        let client = daemon.client();
        let queue = client.queue(queued::QUEUE).unwrap();
        for value in 1..=4 {
            queue.put(filled::filled(&client, value).unwrap(), None).unwrap();
        }
        let said = tempfile::NamedTempFile::new().unwrap();
        let mut command = build.worker();
        command.args(["queue", "consume"]).arg(daemon.socket()).arg(said.path());
        // It dies with its second item.
        command.env("TENSORLEND_CRASH", format!("{number}:2:/"));
        let status = Agent::steer(command).wait();
        assert_eq!(status.signal(), Some(9), "{point}: {status}");
        eventually(&format!("{point}: the end of its claims"), || queue.claimed().unwrap() == 0);
        let mut left = Vec::new();
        while let Ok(item) = queue.get(Duration::ZERO) {
            left.push(filled::value(item.value().tensor().unwrap()).unwrap());
            assert!(item.done().unwrap(), "{point}");
        }
        let said = std::fs::read_to_string(said.path()).unwrap();
        assert!(said.contains("done 1\n") && !said.contains("done 2\n"), "{point}: {said}");
        let confirmed = left == [3, 4];
        match point.as_str() {
            "queue: blocked" | "queue: claimed" | "queue: leased" => assert_eq!(left, [2, 3, 4], "{point}"),
            "queue: confirmed" => assert!(confirmed, "{point}: {left:?}"),
            // The daemon may have closed the session before it read the confirmation.
            _ => assert!(confirmed || left == [2, 3, 4], "{point}: {left:?}"),
        }
    }
}

/// The crash points of a daemon that grants, confirms or returns a claim.
const STEPS_OF_CLAIMS: [&str; 8] = [
    "daemon: request blocked",
    "daemon: blocked request answered",
    "daemon: claim granted",
    "daemon: claim given back",
    "daemon: name about to be removed",
    "daemon: tomb stored",
    "daemon: place freed",
    "daemon: item confirmed",
];

#[test]
fn a_daemon_killed_at_any_step_of_a_claim_loses_no_item_and_confirms_none_twice() {
    let Some(build) = Build::find() else { return };
    let points = build.points();
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        for point in STEPS_OF_CLAIMS {
            let number = points.iter().position(|it| it == point).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let begin = folder.path().join("begin");
            let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
            let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), Some(plan));
            let (client, other) = (daemon.client(), daemon.client());
            let queue = client.queue(queued::QUEUE).unwrap();
            for value in 0..4 {
                queue.put(filled::filled(&client, value + 1).unwrap(), None).unwrap();
            }
            // A producer and a consumer that waits for it, at another queue.
            let (theirs, waiting) = (daemon.client(), daemon.client());
            std::fs::write(&begin, "").unwrap();
            let consumer = std::thread::spawn(move || consume_all(&other));
            let waiting = std::thread::spawn(move || hand_over(&theirs, &waiting));
            eventually(&format!("{point}: the daemon's end"), || !daemon.is_running());
            daemon.restart();
            let (confirmed, unsure) = consumer.join().unwrap();
            waiting.join().unwrap();
            assert!(unsure.len() <= 1, "{point}: {unsure:?}");
            let mut all: Vec<u64> = confirmed.iter().chain(&unsure).copied().collect();
            all.sort_unstable();
            assert_eq!(all, [0, 1, 2, 3], "{point}: confirmed {confirmed:?}, unsure {unsure:?}");
        }
    }
}

#[test]
fn a_daemon_killed_while_it_appends_several_items_keeps_all_or_none() {
    let Some(build) = Build::find() else { return };
    let points = build.points();
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        for (point, passage, kept) in [("daemon: item bound", 2, 0), ("daemon: items counted", 1, 3)] {
            let number = points.iter().position(|it| it == point).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let begin = folder.path().join("begin");
            let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:{passage}:{}", begin.display()));
            let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), Some(plan));
            let client = daemon.client();
            let queue = client.queue(queued::QUEUE).unwrap();
            queue.put(filled::filled(&client, 1).unwrap(), None).unwrap();
            std::fs::write(&begin, "").unwrap();
            let drafts: Vec<_> = (2..5).map(|value| filled::filled(&client, value).unwrap()).collect();
            let unknown = queue.put_many(drafts, None).unwrap_err();
            assert!(unknown.is_disconnected(), "{point}: {unknown}");
            eventually(&format!("{point}: the daemon's end"), || !daemon.is_running());
            daemon.restart();
            eventually(&format!("{point}: the next daemon"), || queue.waiting().is_ok());
            assert_eq!(queue.waiting().unwrap(), 1 + kept, "{point}, {mode}");
            // The next items follow those that the queue has.
            let drafts = [filled::filled(&client, 5).unwrap(), filled::filled(&client, 6).unwrap()];
            assert_eq!(queue.put_many(drafts, None).unwrap(), 1 + kept..3 + kept, "{point}, {mode}");
            let mut values = Vec::new();
            while let Ok(item) = queue.get(Duration::from_millis(100)) {
                values.push(filled::value(item.value().tensor().unwrap()).unwrap());
                assert!(item.done().unwrap());
            }
            let expected: Vec<u64> = (1..2 + kept).chain(5..7).collect();
            assert_eq!(values, expected, "{point}, {mode}");
        }
    }
}

/// The next daemon drops the unfinished item, which ends with its owner's session, and keeps the list and its other items.
#[test]
fn a_daemon_killed_while_it_appends_an_ephemeral_item_keeps_the_other_items() {
    let Some(build) = Build::find() else { return };
    let number = build.points().iter().position(|it| it == "daemon: item bound").unwrap();
    for mode in ["mode = \"system\"\n", "mode = \"user\"\n"] {
        let folder = tempfile::tempdir().unwrap();
        let begin = folder.path().join("begin");
        let plan = ("TENSORLEND_CRASH".to_owned(), format!("{number}:1:{}", begin.display()));
        let mut daemon = Service::start_with(mode, build.0.join("tensorlendd"), Some(plan));
        let client = daemon.client();
        client.append("list", filled::filled(&client, 1).unwrap()).unwrap();
        let other = Hand::join(&daemon.socket(), None).unwrap();
        std::fs::write(&begin, "").unwrap();
        let append = Request::ListAppendEphemeral { list: "list".into(), cells: vec![CellNo::new(0)] };
        assert!(other.ask(&append).is_err(), "the daemon is killed before it replies");
        eventually("the daemon's end", || !daemon.is_running());
        drop(other);
        daemon.restart();
        assert_eq!(client.append("list", filled::filled(&client, 2).unwrap()).unwrap(), 1, "{mode}");
        let items = client.get_all("list").unwrap();
        let values: Vec<_> = items.iter().map(|item| filled::value(item.as_tensor().unwrap()).unwrap()).collect();
        assert_eq!(values, [1, 2], "{mode}");
    }
}

/// Passes items to a consumer until each has a response. The pauses grow, so that at some time the consumer waits.
fn hand_over(producer: &Client, consumer: &Client) {
    let (puts, gets) = (producer.queue("waits").unwrap(), consumer.queue("waits").unwrap());
    std::thread::scope(|scope| {
        let take = move || gets.get(Duration::from_secs(2)).is_ok_and(|item| item.done().is_ok());
        let consumer = scope.spawn(move || (0..20).all(|_| take()));
        for pause_ms in (1..).map(|n: u64| n.min(500)) {
            if consumer.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(pause_ms));
            // The item of a daemon that was killed may or may not be in the queue.
            if let Err(e) = puts.put(filled::filled(producer, 1).unwrap(), None) {
                assert!(e.is_disconnected(), "{e}");
            }
        }
    });
}

/// Gives an item back and confirms all items. Returns the numbers of the confirmed ones, and of those whose confirmation was
/// not answered.
fn consume_all(client: &Client) -> (Vec<u64>, Vec<u64>) {
    let queue = client.queue(queued::QUEUE).unwrap();
    let (mut confirmed, mut unsure) = (Vec::new(), Vec::new());
    queue.get(PATIENCE).unwrap().give_back().unwrap();
    while queue.waiting().unwrap() + queue.claimed().unwrap() > 0 {
        let Ok(item) = queue.get(Duration::from_millis(100)) else { continue };
        let number = item.number();
        assert!(!confirmed.contains(&number) && !unsure.contains(&number), "item {number} is delivered again");
        match item.done() {
            Ok(true) => confirmed.push(number),
            Ok(false) => panic!("another consumer has item {number}"),
            Err(e) => {
                assert!(e.is_disconnected(), "{e}");
                unsure.push(number);
            }
        }
    }
    (confirmed, unsure)
}
