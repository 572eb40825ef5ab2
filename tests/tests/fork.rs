//! A fork: the session stays with the parent. The child reads under its parent's leases, gets errors from every other
//! operation, and harms neither the parent's memory nor its own.
//!
//! There is no harness (see Cargo.toml): a process that forks and continues must have one thread.
#![allow(unsafe_code)]

#[path = "fork/child.rs"]
mod child;

use child::{Child, VALUE, comes_back, forked, write_a_lot};
use std::io::{Write, pipe};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::time::Duration;
use tensorlend::{Client, DType, Draft, Error, History, Lease, Length, Start, Stream, Subscription, Version};
use tensorlend_os::socket_file::{Lock, Purpose};
use tensorlend_tests::{Daemon, PATIENCE, eventually, harness};

const MOMENT: Option<Duration> = Some(Duration::from_millis(50));

/// The byte that a child writes over its own memory.
const MINE: u8 = 0xA5;

/// Address and length of the parent's mapped sheets and segments.
static PARENTS: OnceLock<Vec<(usize, usize)>> = OnceLock::new();

/// All objects of a session.
struct Everything {
    client: Client,
    lease: Lease,
    drafts: Vec<Draft>,
    stream: Stream,
    subscription: Subscription,
    history: History,
}

impl Everything {
    fn new(daemon: &Daemon) -> Self {
        let client = daemon.client();
        client.put("x", &[1u64, 2, 3]).unwrap();
        client.append("list", draft(&client, 0)).unwrap();
        let stream = client.stream("stream").open().unwrap();
        let subscription = client.subscription("stream").pollable().open().unwrap();
        stream.send(draft(&client, 0)).unwrap();
        Self {
            lease: client.get("x").unwrap(),
            drafts: (1..=6).map(|value| draft(&client, value)).collect(),
            history: client.keep("history", 2).unwrap(),
            stream,
            subscription,
            client,
        }
    }

    /// Uses every object of the session.
    fn works(&mut self, round: u64) {
        let client = &self.client;
        assert_eq!(self.lease.as_slice::<u64>().unwrap(), [1, 2, 3]);
        assert!(self.lease.validate());
        let draft = self.drafts.remove(0);
        draft.publish("draft").unwrap();
        assert_eq!(client.get("draft").unwrap().as_slice::<u64>().unwrap(), [round; 8]);
        client.put("x", &[round]).unwrap();
        client.put(&format!("new {round}"), &[round]).unwrap();
        assert_eq!(client.get("x").unwrap().as_slice::<u64>().unwrap(), [round]);
        assert_eq!(self.stream.subscribers(), 1);
        assert_eq!(self.stream.send(self::draft(client, round)).unwrap(), round);
        // Each round receives the message of the previous round, so a message is in flight at each fork.
        assert_eq!(self.subscription.recv().unwrap().sequence(), round - 1);
        self.history.publish(self::draft(client, round)).unwrap();
        client.append("list", self::draft(client, round)).unwrap();
        assert_eq!(client.length("list"), round + 1);
        client.ping().unwrap();
        // The parent caches this slot for its thread's next draft; the child must not use it.
        drop(self::draft(client, round));
        let fresh = self::draft(client, round + 1);
        assert_eq!(fresh.spec().shape, [8]);
        drop(fresh);
    }
}

fn draft(client: &Client, value: u64) -> Draft {
    let mut draft = client.create(DType::U64, &[8]).unwrap();
    draft.as_mut_slice::<u64>().unwrap().fill(value);
    draft
}

fn refused<T>(call: &str, result: tensorlend::Result<T>) {
    match result {
        Err(Error::Forked) => {}
        Err(e) => panic!("{call} in the child: {e}"),
        Ok(_) => panic!("{call} in the child was carried out"),
    }
}

/// Calls every operation of a session.
fn ask_for_everything(mut all: Everything) {
    let client = &all.client;
    refused("create", client.create(DType::U8, &[1]));
    refused("put", client.put("x", &[9u8]));
    refused("get", client.get("x"));
    refused("get_dataset", client.get_dataset("x"));
    refused("get_value", client.get_value("x"));
    refused("get_into", client.get_into("x", &mut [0; 24]));
    refused("exists", client.exists("x"));
    refused("version", client.version("x"));
    refused("wait_for", client.wait_for("x", MOMENT));
    refused("wait_newer", client.wait_newer("x", Version::NONE, MOMENT));
    refused("wait_value", client.wait_value("x", Version::NONE, MOMENT));
    refused("delete", client.delete("x"));
    refused("rename", client.rename("x", "y"));
    refused("copy", client.copy("x", "y"));
    refused("list", client.list("*"));
    refused("streams", client.streams("*"));
    refused("lists", client.lists("*"));
    refused("info", client.info("x"));
    refused("stream", client.stream("another").open());
    refused("subscribe", client.subscribe("stream"));
    refused("subscription", client.subscription("stream").start_at(Start::Oldest).wait(MOMENT.unwrap()).open());
    refused("delete_stream", client.delete_stream("stream"));
    refused("keep", client.keep("another", 2));
    refused("versions", client.versions("history"));
    refused("append_names", client.append_names("list", &["x"]));
    refused("wait_length", client.wait_length("list", Length::AtLeast(1), MOMENT));
    refused("get_all", client.get_all("list"));
    refused("range", client.get_range("list", 0..1));
    refused("clear", client.clear("list"));
    refused("rename_list", client.rename_list("list", "another"));
    refused("stat", client.stat());
    refused("ping", client.ping());
    refused("leased", client.instruments().leased());
    assert_eq!(client.length("list"), 0);

    let mut draft = || all.drafts.pop().unwrap();
    refused("append", client.append("list", draft()));
    refused("dataset", client.dataset().add("a", draft()).and_then(|dataset| dataset.publish("dataset")));
    refused("publish", draft().publish("x"));
    refused("send", all.stream.send(draft()));
    refused("publish in a history", all.history.publish(draft()));
    assert_eq!(all.stream.subscribers(), 0);
    refused("try_recv", all.subscription.try_recv());
    refused("recv", all.subscription.recv());
    refused("recv_timeout", all.subscription.recv_timeout(MOMENT.unwrap()));

    assert!(all.lease.validate());
    assert!(!all.lease.as_slice::<u64>().unwrap().is_empty());
    // The address of a draft is reserved: the access must panic with a message before it touches memory.
    std::panic::set_hook(Box::new(|_| {}));
    assert!(catch_unwind(AssertUnwindSafe(|| draft().bytes_mut().len())).is_err());
    let _ = std::panic::take_hook();
    // Not dropped here, so that the thread's destructors find a live session.
    std::mem::forget(all);
}

/// Maps the child's own memory at the addresses of the parent's mappings, then drops all of the parent's objects.
fn drop_everything(all: Everything) {
    let inherited = mapped();
    assert!(
        inherited.iter().any(|&(start, bytes)| (start..start + bytes).contains(&all.lease.bytes().as_ptr().addr()))
    );
    let lost = PARENTS.get().unwrap().iter().filter(|it| !inherited.contains(it));
    assert!(lost.clone().count() >= 2, "the child has none of what the parent writes");
    for &(start, bytes) in lost {
        let (anonymous, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        let reserved = anonymous | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE this maps new memory or fails; it changes no existing mapping.
        let got = unsafe { libc::mmap(start as *mut _, bytes, access, reserved, -1, 0) };
        assert_eq!(got, libc::MAP_FAILED, "the place of the parent's memory is free for the child's next mapping");
        // SAFETY: this replaces the child's reservation, which nothing uses: the check above shows that the parent's
        // memory is not mapped there.
        let got = unsafe { libc::mmap(start as *mut _, bytes, access, anonymous | libc::MAP_FIXED, -1, 0) };
        assert_eq!(got.addr(), start);
        // SAFETY: mapped above with this length, writable, and referenced by nothing else.
        unsafe { got.cast::<u8>().write_bytes(MINE, bytes) };
    }
    drop(all);
    assert_eq!(mapped(), inherited, "other values may read there");
    my_memory_is_whole();
    extern "C" fn at_exit() {
        my_memory_is_whole();
    }
    // SAFETY: the function has no arguments, and cannot unwind into C: a panic in it ends the process.
    let registered = unsafe { libc::atexit(at_exit) };
    assert_eq!(registered, 0);
}

fn my_memory_is_whole() {
    let inherited = mapped();
    for &(start, bytes) in PARENTS.get().unwrap().iter().filter(|it| !inherited.contains(it)) {
        // SAFETY: mapped by `drop_everything`, readable, initialized, and no longer written. If something had unmapped
        // it, the resulting SIGSEGV would fail the test.
        let mine = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
        assert!(mine.chunks(4096).all(|page| page == &[MINE; 4096][..page.len()]), "written to at {start:x}");
    }
}

/// Opens another session while the process still has the inherited one.
fn connect_anew(all: Everything, daemon: &Daemon) {
    let own = daemon.client();
    assert_eq!(own.get("draft").unwrap().as_slice::<u64>().unwrap().len(), 8);
    own.put("the child's", &[7u8]).unwrap();
    refused("get", all.client.get("the child's"));
    drop(all);
    assert_eq!(own.get("the child's").unwrap().bytes(), [7]);
}

/// Forks once. The child runs `child` with its copy of everything and exits like a C program, with its thread's
/// destructors; then the parent uses its own copy.
fn in_turn(mut all: Everything, round: u64, case: &str, child: impl FnOnce(Everything)) -> Everything {
    println!("{case}");
    // SAFETY: this process has one thread, so the child inherits no held lock and no half-done operation.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no fork");
    if pid == 0 {
        // SAFETY: touches no memory. The alarm kills a child that hangs.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        let done = catch_unwind(AssertUnwindSafe(|| child(all))).is_ok();
        // SAFETY: the only thread ends here; this test is about the destructors that `exit` runs.
        unsafe { libc::exit(i32::from(!done)) }
    }
    let mut status = 0;
    // SAFETY: waits for the child created above, and writes to a local variable.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "{case}: the child ended with status {status:#x}");
    all.works(round);
    all
}

/// Returns the mappings of the daemon's memory.
fn mapped() -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let address = |text| usize::from_str_radix(text, 16).unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:tensorlend"))
        .map(|line| {
            let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
            (address(from), address(to) - address(from))
        })
        .collect()
}

/// Starts a daemon, and a session with all objects in this single-threaded process.
fn begin() -> (Daemon, Everything) {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 1, "a process that forks and goes on must have one thread");
    let daemon = Daemon::start("");
    let all = Everything::new(&daemon);
    PARENTS.set(mapped()).unwrap();
    assert!(PARENTS.get().unwrap().len() >= 5, "directory, catalogue, leases, records, segment");
    (daemon, all)
}

fn end(daemon: &Daemon, all: Everything) {
    drop(all);
    let watcher = daemon.client();
    eventually("the end of the parent's session", || watcher.stat().unwrap().clients == 1);
}

fn a_child_is_refused_everything() {
    let (daemon, all) = begin();
    let all = in_turn(all, 1, "a child is refused everything", ask_for_everything);
    end(&daemon, all);
}

fn what_a_child_drops_harms_nobody() {
    let (daemon, all) = begin();
    let all = in_turn(all, 1, "what a child drops harms nobody", drop_everything);
    end(&daemon, all);
}

fn a_child_has_a_session_of_its_own() {
    let (daemon, mut all) = begin();
    all.works(1);
    let all = in_turn(all, 2, "a child has a session of its own", |all| connect_anew(all, &daemon));
    assert_eq!(all.client.get("the child's").unwrap().bytes(), [7]);
    end(&daemon, all);
}

/// One parent forks several times, with a message in flight each time.
fn a_parent_goes_on_after_several_forks() {
    let (daemon, mut all) = begin();
    for round in 1..=3 {
        all = match round % 3 {
            1 => in_turn(all, round, "a child is refused everything", ask_for_everything),
            2 => in_turn(all, round, "what a child drops harms nobody", drop_everything),
            _ => in_turn(all, round, "a child has a session of its own", |all| connect_anew(all, &daemon)),
        };
    }
    end(&daemon, all);
}

/// Starts a daemon, and an owner with one published value.
fn owner() -> (Daemon, Client) {
    let daemon = Daemon::start("");
    let owner = daemon.client();
    owner.put("x", &VALUE).unwrap();
    (daemon, owner)
}

fn a_child_reads_after_its_parent_has_released() {
    let (daemon, owner) = owner();
    let reader = daemon.client();
    let lease = reader.get("x").unwrap();
    let mut child = Child::fork(|| || lease.validate() && lease.as_slice::<u64>().unwrap() == VALUE);
    let mut second = Child::fork(|| {
        // A child of the child reads, too.
        let mut grandchild = Child::fork(|| || lease.validate() && lease.as_slice::<u64>().unwrap() == VALUE);
        assert_eq!(grandchild.report(), '1');
        move || {
            grandchild.finish();
            true
        }
    });
    assert_eq!((child.report(), second.report()), ('1', '1'));
    drop(lease);
    owner.delete("x").unwrap();
    write_a_lot(&owner);
    assert!(owner.instruments().leased().unwrap() > 0, "children read");
    child.finish();
    write_a_lot(&owner);
    assert!(owner.instruments().leased().unwrap() > 0, "another child, and its child, read");
    second.finish();
    comes_back(&owner);
    // The reader's entries are usable again.
    for _ in 0..5000 {
        owner.put("x", &VALUE).unwrap();
        assert_eq!(reader.get("x").unwrap().as_slice::<u64>().unwrap(), VALUE);
    }
}

fn a_child_reads_after_its_parent_was_killed() {
    let (daemon, owner) = owner();
    let ((reports, report), (wait, resume)) = (pipe().unwrap(), pipe().unwrap());
    let parent = Child::fork(|| {
        let reader = daemon.client();
        let lease = reader.get("x").unwrap();
        let _stream = reader.stream("stream").open().unwrap();
        forked(report, wait, || || lease.validate() && lease.as_slice::<u64>().unwrap() == VALUE);
        // SAFETY: ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        || false
    });
    parent.wait();
    let mut child = Child { pid: 0, reports, resume };
    assert_eq!(child.report(), '1');
    eventually("the end of the parent's session", || owner.stat().unwrap().clients == 1);
    // The child's leases count, and the producer has ended.
    let ended = owner.subscribe("stream").unwrap().recv_timeout(PATIENCE / 10).unwrap_err();
    assert!(matches!(ended, Error::StreamEnded(_)), "{ended}");
    owner.delete("x").unwrap();
    write_a_lot(&owner);
    assert!(owner.instruments().leased().unwrap() > 0, "the child reads");
    child.resume.write_all(&[0]).unwrap();
    assert_eq!(child.report(), '+', "what the child reads has changed");
    comes_back(&owner);
}

fn a_child_of_a_process_without_leases_has_nothing_mapped() {
    let (daemon, owner) = owner();
    let reader = daemon.client();
    drop(reader.get("x").unwrap());
    let mut child = Child::fork(|| || mapped().is_empty());
    assert_eq!(child.report(), '1');
    child.finish();
    drop(owner);
}

fn a_child_without_a_token_is_refused_its_parents_leases() {
    let (daemon, owner) = owner();
    let lease = daemon.client().get("x").unwrap();
    assert_eq!(lease.bytes().len(), 24);
    // The pipes of the child exist before the limit; the token would need another descriptor.
    let ((reports, report), (wait, resume)) = (pipe().unwrap(), pipe().unwrap());
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads the limit into a local variable, and sets it from another; open descriptors stay open.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before), 0);
        let none = libc::rlimit { rlim_cur: 0, ..before };
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none), 0);
    }
    let pid = forked(report, wait, || {
        || {
            std::panic::set_hook(Box::new(|_| {}));
            !lease.validate() && catch_unwind(AssertUnwindSafe(|| lease.bytes().len())).is_err()
        }
    });
    // SAFETY: sets the limit from a local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const before) }, 0);
    let mut child = Child { pid, reports, resume };
    assert_eq!(child.report(), '1');
    child.finish();
    drop(lease);
    owner.delete("x").unwrap();
    assert_eq!(owner.instruments().leased().unwrap(), 0, "nobody holds it");
}

/// If the parent dies while it starts a daemon, the next process gets the lock.
fn a_child_does_not_hold_the_lock_of_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let _lock = Lock::take(&folder.path().join("s"), Purpose::Start).unwrap();
    let mut child = Child::fork(|| || true);
    child.report();
    let holds = |pid: u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
        files
            .filter_map(|file| std::fs::read_link(file.unwrap().path()).ok())
            .any(|file| file.starts_with(folder.path()))
    };
    assert!(holds(std::process::id()) && !holds(child.pid.cast_unsigned()));
    child.finish();
}

/// The tests by name, as harnesses list them.
const TESTS: [(&str, fn()); 9] = [
    ("a_child_is_refused_everything", a_child_is_refused_everything),
    ("what_a_child_drops_harms_nobody", what_a_child_drops_harms_nobody),
    ("a_child_has_a_session_of_its_own", a_child_has_a_session_of_its_own),
    ("a_parent_goes_on_after_several_forks", a_parent_goes_on_after_several_forks),
    ("a_child_reads_after_its_parent_has_released", a_child_reads_after_its_parent_has_released),
    ("a_child_reads_after_its_parent_was_killed", a_child_reads_after_its_parent_was_killed),
    ("a_child_of_a_process_without_leases_has_nothing_mapped", a_child_of_a_process_without_leases_has_nothing_mapped),
    ("a_child_does_not_hold_the_lock_of_a_start", a_child_does_not_hold_the_lock_of_a_start),
    ("a_child_without_a_token_is_refused_its_parents_leases", a_child_without_a_token_is_refused_its_parents_leases),
];

fn main() -> std::process::ExitCode {
    harness::main(&TESTS)
}
