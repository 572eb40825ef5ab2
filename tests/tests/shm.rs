//! `tensorlend shm`: real processes hold shared memory in each way, and the command finds the memory and its holders,
//! removes what nobody holds, and measures what a program holds twice.

#[path = "shm/program.rs"]
mod program;

use globset::Glob;
use serde_json::Value;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tensorlend_os::file_lease::WriteLease;
use tensorlend_shm::{Options, Outcome, State, reclaim};
use tensorlend_tests::sharer::{Race, racing};
use tensorlend_tests::users::{Programs, as_user};
use tensorlend_tests::{binary, budget, eventually, run, skip_without, skip_without_root};

/// Returns a command of the tool. It finds no daemon, and starts none.
fn shm(args: &[&str]) -> Command {
    let mut command = Command::new(binary("tensorlend"));
    command.env("TENSORLEND_SOCKET", "/nonexistent/socket").arg("shm").args(args);
    command
}

/// Files of /dev/shm whose names begin with a prefix of this test. They are removed at the end.
struct Prefix(String);

impl Prefix {
    fn new(test: &str) -> Self {
        Self(format!("tensorlend-test-{}-{test}-", std::process::id()))
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new("/dev/shm").join(self.name(name))
    }

    fn name(&self, name: &str) -> String {
        format!("{}{name}", self.0)
    }

    fn create(&self, name: &str, bytes: usize) -> PathBuf {
        std::fs::write(self.path(name), vec![1; bytes]).unwrap();
        self.path(name)
    }

    /// Returns the objects of the command line's JSON whose names begin with the prefix.
    fn objects(&self) -> Vec<Value> {
        let done = run(&mut shm(&["--json", "--name", &format!("{}*", self.0)]));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let listing: Value = serde_json::from_slice(&done.stdout).unwrap();
        listing["objects"].as_array().unwrap().clone()
    }

    /// Removes the orphans of this prefix. Returns the JSON of each object.
    fn reclaim(&self) -> Vec<Value> {
        let done = run(&mut shm(&["--json", "--reclaim", "--older", "1ms", "--name", &format!("{}*", self.0)]));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let lines = String::from_utf8(done.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Prefix {
    fn drop(&mut self) {
        for entry in std::fs::read_dir("/dev/shm").unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&self.0) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// A process that holds an object until it is dropped.
struct Sharer(Child);

impl Sharer {
    fn start(words: &[&str]) -> Self {
        let mut command = Command::new(binary("tensorlend-worker"));
        command.arg("sharer").args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    fn holding(words: &[&str]) -> Self {
        let mut it = Self::start(words);
        it.0.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        it
    }
}

impl Drop for Sharer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// Returns an object's kind, state, and the holders with the way in which they hold it.
fn facts(object: &Value) -> (&str, &str, Vec<(u64, bool, bool)>) {
    let holder = |holder: &Value| {
        let is = |key: &str| holder[key].as_bool().unwrap();
        (holder["pid"].as_u64().unwrap(), is("is_mapped"), is("is_open"))
    };
    let holders = object["holders"].as_array().unwrap().iter().map(holder).collect();
    (object["kind"].as_str().unwrap(), object["state"].as_str().unwrap(), holders)
}

#[test]
fn an_orphan_has_its_size_and_is_removed() {
    let prefix = Prefix::new("orphan");
    let path = prefix.create("a", 5 << 20);
    let objects = prefix.objects();
    let (kind, state, holders) = facts(&objects[0]);
    // Some machines hide processes even from root. Then no file is called an orphan.
    let wanted = if tensorlend_shm::machine().unseen.any() { "unknown" } else { "orphaned" };
    assert_eq!((kind, state, holders.len()), ("shm", wanted, 0));
    assert_eq!((&objects[0]["size_bytes"], &objects[0]["resident_bytes"]), (&(5 << 20).into(), &(5 << 20).into()));
    let done = prefix.reclaim();
    assert_eq!((done.len(), &done[0]["removed"]), (1, &true.into()), "{done:?}");
    assert!(!path.exists() && prefix.objects().is_empty());
}

#[test]
fn a_held_file_is_in_use_and_stays() {
    let prefix = Prefix::new("held");
    let mapped = prefix.create("mapped", 8192);
    let open = prefix.create("open", 8192);
    let young = prefix.create("sem.young", 32);
    let (mapper, opener) =
        (Sharer::holding(&["mapped", mapped.to_str().unwrap()]), Sharer::holding(&["open", open.to_str().unwrap()]));
    let mut objects = prefix.objects();
    objects.sort_by_key(|object| object["name"].as_str().unwrap().to_owned());
    let (mapper, opener) = ((u64::from(mapper.0.id()), mapper), (u64::from(opener.0.id()), opener));
    assert_eq!(facts(&objects[0]), ("shm", "in-use", vec![(mapper.0, true, false)]));
    assert_eq!(facts(&objects[1]), ("shm", "in-use", vec![(opener.0, false, true)]));
    let text = run(&mut shm(&["--name", &format!("{}*", prefix.0)]));
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.starts_with("shared memory: 20.0 KiB in 3 objects (shm 20.0 KiB)"), "{text}");
    assert!(text.contains(&format!("{} ", mapper.0)) && text.contains("(mapped, uid "), "{text}");
    // Without --older, files of the last minute stay.
    let done = run(&mut shm(&["--reclaim", "--name", &format!("{}*", prefix.0)]));
    let done = String::from_utf8(done.stdout).unwrap();
    assert!(done.contains("reclaimed 0 B in 0 objects") && done.contains("--older") && young.exists(), "{done}");
    let done = prefix.reclaim();
    assert_eq!(done.len(), 1, "the scan sees the holders of the others: {done:?}");
    assert!(mapped.exists() && open.exists() && !young.exists());
}

/// A scan shows neither a descriptor in the queue of a socket nor the processes of another pid namespace. The kernel counts
/// them.
#[test]
fn a_file_with_an_invisible_holder_stays() {
    let prefix = Prefix::new("queue");
    let path = prefix.create("a", 4096);
    let mut scan = tensorlend_shm::machine();
    let holder = Sharer::holding(&["mapped", path.to_str().unwrap()]);
    scan.objects.retain(|object| object.name == prefix.name("a"));
    assert!(scan.objects[0].holders.is_empty(), "the scan was before the mapping");
    let mut outcomes = Vec::new();
    let options = Options { older: Duration::ZERO, settle: Duration::ZERO, ..Options::default() };
    reclaim(&scan, &options, &mut |outcome: Outcome| outcomes.push(outcome)).unwrap();
    assert!(outcomes[0].kept.as_ref().is_some_and(|reason| reason.contains("opened or mapped")), "{outcomes:?}");
    assert!(path.exists());
    drop(holder);
    reclaim(&scan, &options, &mut |_| {}).unwrap();
    assert!(!path.exists());
}

/// A user cannot read the processes of others. The kernel's lease tells whether one of them holds the file.
#[test]
fn a_user_removes_only_files_of_their_own() {
    const USER: u32 = 64_041;
    if skip_without("setpriv") || skip_without_root() {
        return;
    }
    let programs = Programs::copy(&["tensorlend"]);
    let prefix = Prefix::new("user");
    let [own, held, other] = ["own", "held", "other"].map(|name| prefix.create(name, 4096));
    for path in [&own, &held] {
        std::os::unix::fs::chown(path, Some(USER), Some(USER)).unwrap();
    }
    let _root = Sharer::holding(&["mapped", held.to_str().unwrap()]);
    let glob = format!("{}*", prefix.0);
    let of_user = |args: &[&str]| {
        let mut command = as_user(USER, &programs.path("tensorlend"));
        run(command.arg("shm").args(args).args(["--json", "--name", &glob]))
    };
    let listing: Value = serde_json::from_slice(&of_user(&[]).stdout).unwrap();
    let states: Vec<&Value> = listing["objects"].as_array().unwrap().iter().map(|object| &object["state"]).collect();
    assert_eq!(states, ["unknown"; 3]);
    assert!(listing["orphaned_bytes"].is_null() && listing["unreadable"].as_u64() > Some(0), "{listing}");
    let done = of_user(&["--reclaim", "--older", "1ms"]);
    let done = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.lines().count(), 2, "{done}");
    assert!(!own.exists() && held.exists() && other.exists(), "{done}");
    assert_eq!(of_user(&["--reclaim", "--all-users"]).status.code(), Some(2));
}

#[test]
fn memory_without_a_name_has_its_holder() {
    let prefix = Prefix::new("nameless");
    let deleted = Sharer::holding(&["deleted", prefix.path("gone").to_str().unwrap()]);
    let memfd = Sharer::holding(&["memfd", &prefix.name("memfd")]);
    let objects = prefix.objects();
    let of =
        |kind: &str| objects.iter().map(facts).find(|facts| facts.0 == kind).unwrap_or_else(|| panic!("{objects:?}"));
    assert_eq!(of("deleted"), ("deleted", "in-use", vec![(u64::from(deleted.0.id()), true, false)]));
    assert_eq!(of("memfd"), ("memfd", "in-use", vec![(u64::from(memfd.0.id()), false, true)]));
    assert_eq!(objects.len(), 2);
    let pid = memfd.0.id().to_string();
    let done = run(&mut shm(&["--json", "--pid", &pid]));
    let listing: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(
        listing["objects"].as_array().unwrap().iter().any(|object| object["name"] == prefix.name("memfd").as_str())
    );
}

#[test]
fn the_memory_of_a_daemon_names_the_daemon() {
    let daemon = tensorlend_tests::Daemon::start("");
    let client = daemon.client();
    client.put("x", &[1u8; 64]).unwrap();
    let scan = tensorlend_shm::machine();
    let is_its = |object: &&tensorlend_shm::Object| object.daemon_pid == Some(daemon.pid());
    let names: Vec<&str> = scan.objects.iter().filter(is_its).map(|object| object.name.as_str()).collect();
    for wanted in ["tensorlend-directory", "tensorlend-segment", "tensorlend-leases"] {
        assert!(names.contains(&wanted), "{names:?}");
    }
}

#[test]
fn a_segment_of_system_v_is_removed_unless_it_is_attached() {
    /// Creates a segment, attaches it, and waits for the end of the input.
    const ATTACH: &str = "\
import ctypes, sys
libc = ctypes.CDLL(None)
id = libc.shmget(0, 4096, 0o1600)
libc.shmat.restype = ctypes.c_void_p
libc.shmat(id, None, 0)
print(id, flush=True)
sys.stdin.read()
libc.shmctl(id, 0, None)
";
    if skip_without("python3") || skip_without("ipcmk") {
        return;
    }
    let created = String::from_utf8(run(Command::new("ipcmk").args(["-M", "8192"])).stdout).unwrap();
    let orphan = created.trim().rsplit(' ').next().unwrap().to_owned();
    let mut command = Command::new("python3");
    let mut attached = command.args(["-c", ATTACH]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut id = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(attached.stdout.as_mut().unwrap()), &mut id).unwrap();
    let segment = |id: &str| {
        let prefix = format!("sysv-{} ", id.trim());
        tensorlend_shm::machine().objects.into_iter().find(|object| object.name.starts_with(&prefix))
    };
    let held = segment(&id).unwrap();
    assert_eq!((held.state, held.holders[0].pid, held.holders[0].is_mapped), (State::InUse, attached.id(), true));
    let found = segment(&orphan).unwrap();
    assert_eq!((found.state, found.size_bytes, found.holders.len()), (State::Orphaned, 8192, 0));
    for id in [&orphan, &id] {
        let glob = format!("sysv-{} *", id.trim());
        assert!(run(&mut shm(&["--reclaim", "--older", "1ms", "--name", &glob])).status.success());
    }
    // The kernel counts the age in seconds.
    eventually("the orphan has been removed", || {
        run(&mut shm(&["--reclaim", "--older", "1ms", "--name", &format!("sysv-{orphan} *")]));
        segment(&orphan).is_none()
    });
    assert!(segment(&id).is_some());
    drop(attached.stdin.take());
    attached.wait().unwrap();
}

/// Openers race with the removal of each file: the remover begins when all of them open and close this very file.
struct Racers {
    folder: tempfile::TempDir,
    race: Race,
    openers: Vec<Sharer>,
}

impl Racers {
    const NUMBER: usize = 2;

    fn start(prefix: &Prefix) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("race"), vec![0; 4096]).unwrap();
        std::fs::write(folder.path().join("prefix"), prefix.path("").to_str().unwrap()).unwrap();
        let race = Race::open(folder.path());
        let start = |number: usize| Sharer::start(&["race", folder.path().to_str().unwrap(), &number.to_string()]);
        let openers = (0..Self::NUMBER).map(start).collect();
        Self { folder, race, openers }
    }

    /// Makes all openers race for a file, and waits until each has opened it.
    fn race_for(&self, number: u64) {
        let before: Vec<u64> = (0..Self::NUMBER).map(|opener| self.race.opened(opener).read()).collect();
        self.race.file().set(number);
        let has_begun =
            |opener: usize| self.race.at(opener).read() == number && self.race.opened(opener).read() > before[opener];
        let since = std::time::Instant::now();
        while !(0..Self::NUMBER).all(has_begun) {
            assert!(since.elapsed() < tensorlend_tests::PATIENCE, "an opener does not race");
            std::hint::spin_loop();
        }
    }

    /// Returns the numbers of opened and of lost files.
    fn end(mut self) -> (u64, u64) {
        self.race.over().set(1);
        self.openers.clear();
        let sum = |of: &dyn Fn(usize) -> u64| (0..Self::NUMBER).map(of).sum();
        let opened = sum(&|opener| self.race.opened(opener).read());
        (opened, sum(&|opener| self.race.lost(opener).read()))
    }
}

impl Drop for Racers {
    fn drop(&mut self) {
        self.race.over().set(1);
    }
}

/// Runs this number of races. Returns the numbers of opened, lost, kept and removed files.
fn races(test: &str, number: u64, settle: Duration) -> (u64, u64, usize, usize) {
    let prefix = Prefix::new(test);
    let racers = Racers::start(&prefix);
    let inodes: Vec<u64> = (1..=number)
        .map(|number| {
            prefix.create(&format!("{number:04}"), 4096);
            std::fs::metadata(racing(racers.folder.path(), number)).unwrap().ino()
        })
        .collect();
    let names = Glob::new(&format!("{}*", prefix.0)).unwrap().compile_matcher();
    let mut scan = tensorlend_shm::machine();
    scan.objects.retain(|object| names.is_match(&object.name));
    scan.objects.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(scan.objects.len() as u64, number);
    let next = std::cell::Cell::new(1);
    // The reclaim calls this before it looks at a file, and again before it removes it.
    let is_interrupted = || {
        if next.get() <= number && racing(racers.folder.path(), next.get()).exists() {
            racers.race_for(next.get());
        }
        next.set(next.get() + 1);
        false
    };
    let mut outcomes: Vec<Outcome> = Vec::new();
    for batch in scan.objects.chunks(250) {
        let first = batch[0].name.rsplit('-').next().unwrap().parse().unwrap();
        next.set(first);
        let scan = tensorlend_shm::Scan { objects: batch.to_vec(), ..scan.clone() };
        let options = Options {
            older: Duration::ZERO,
            settle,
            is_interrupted: &|| {
                if next.get() < first + batch.len() as u64 { is_interrupted() } else { false }
            },
            ..Options::default()
        };
        reclaim(&scan, &options, &mut |outcome| outcomes.push(outcome)).unwrap();
    }
    let (opened, lost) = racers.end();
    let kept: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.kept.is_some()).collect();
    for outcome in &kept {
        let at: usize = outcome.name.rsplit('-').next().unwrap().parse().unwrap();
        let inode = std::fs::metadata(Path::new("/dev/shm").join(&outcome.name)).unwrap().ino();
        assert_eq!(inode, inodes[at - 1], "{outcome:?}");
    }
    let (kept, removed) = (kept.len(), outcomes.len() - kept.len());
    println!("{number} races: opened {opened}, lost {lost}, kept {kept}, removed {removed}");
    (opened, lost, kept, removed)
}

#[test]
fn no_opened_file_loses_its_name() {
    let number = budget(1000, 9000);
    let (opened, lost, kept, removed) = races("races", number, tensorlend_shm::SETTLE);
    assert_eq!(lost, 0);
    assert!(opened > number && kept > 0 && removed > 0, "both sides win some races: {opened} {kept} {removed}");
}

/// The test above can fail: the same openers lose files to a remover that only asks first whether a file is held, and to
/// one that removes the name under the lease without renaming the file first.
#[test]
fn simpler_removers_take_opened_files() {
    for keeps_lease in [false, true] {
        let prefix = Prefix::new(if keeps_lease { "lease" } else { "ask" });
        let racers = Racers::start(&prefix);
        let lost = || (0..Racers::NUMBER).map(|opener| racers.race.lost(opener).read()).sum::<u64>();
        let number = (1..=5000).find(|&number| {
            let path = prefix.create(&format!("{number:04}"), 4096);
            racers.race_for(number);
            if let Some(lease) = WriteLease::take(std::fs::File::open(&path).unwrap().into()).unwrap() {
                let lease = keeps_lease.then_some(lease);
                rustix::fs::unlink(&path).unwrap();
                drop(lease);
            }
            lost() > 0
        });
        println!("keeps the lease: {keeps_lease}, first loss in race {number:?}");
        assert!(number.is_some(), "no opener lost a file");
    }
}

/// A private name of a reclaim that does not run any more.
const KILLED: &str = ".tensorlend-reclaim-4294967295";

#[test]
fn a_name_that_a_killed_reclaim_has_changed_comes_back() {
    let prefix = Prefix::new("killed");
    let private = prefix.create(&format!("a{KILLED}"), 4096);
    prefix.create(&format!("b{KILLED}"), 4096);
    let _held = Sharer::holding(&["mapped", private.to_str().unwrap()]);
    let glob = format!("{}*", prefix.0);
    run(&mut shm(&["--reclaim", "--name", "other*"]));
    assert!(private.exists(), "another name was selected");
    let done = run(&mut shm(&["--reclaim", "--name", &glob]));
    let done = String::from_utf8(done.stdout).unwrap();
    assert!(done.contains("b (shm, 4.0 KiB): it has changed a short time ago"), "{done}");
    assert!(prefix.path("a").exists() && prefix.path("b").exists() && !private.exists());
}

#[test]
fn root_renames_no_file_that_a_user_has_planted() {
    if skip_without_root() {
        return;
    }
    let prefix = Prefix::new("planted");
    let private = prefix.create(&format!("a{KILLED}"), 4096);
    std::os::unix::fs::chown(&private, Some(64_041), None).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", prefix.path(&format!("b{KILLED}"))).unwrap();
    prefix.reclaim();
    assert!(private.exists() && !prefix.path("a").exists(), "a file of another user");
    let options = ["--reclaim", "--all-users", "--name", &format!("{}*", prefix.0)];
    assert!(run(&mut shm(&options)).status.success());
    assert!(prefix.path("a").exists() && prefix.path(&format!("b{KILLED}")).is_symlink());
}

#[test]
fn a_name_that_no_reclaim_can_change_has_a_reason() {
    let prefix = Prefix::new("names");
    let strange = OsString::from_vec([prefix.path("").as_os_str().as_bytes(), b"\xff\x1b[31m"].concat());
    std::fs::write(&strange, [1; 4096]).unwrap();
    prefix.create(&"x".repeat(255 - prefix.0.len()), 4096);
    let done = run(&mut shm(&["--reclaim", "--older", "1ms", "--name", &format!("{}*", prefix.0)]));
    let done = String::from_utf8(done.stdout).unwrap();
    assert!(done.contains("its name is not UTF-8") && done.contains("its name is too long"), "{done}");
    assert!(Path::new(&strange).exists() && !done.contains('\x1b'), "{done}");
}

#[test]
fn a_holder_is_found_in_each_thread_and_without_the_mount() {
    /// Opens a file, and ends the main thread.
    const EXIT: &str = "\
import ctypes, os, sys, threading
def hold():
    print('ready', flush=True)
    sys.stdin.read()
    os._exit(0)
file = open(sys.argv[1])
threading.Thread(target=hold).start()
ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)
";
    /// Opens a file in a thread that has descriptors of its own.
    const UNSHARE: &str = "\
import ctypes, os, sys, threading
def hold():
    ctypes.CDLL(None).unshare(0x400)
    file = open(sys.argv[1])
    print('ready', flush=True)
    threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
sys.stdin.read()
os._exit(0)
";
    const UNMOUNT: &str = "exec 3<\"$0\"; umount -l /dev/shm && echo ready; cat";
    if skip_without("python3") || skip_without("unshare") || skip_without_root() {
        return;
    }
    let prefix = Prefix::new("hidden");
    let python = |program| ["python3", "-c", program];
    let unmount = ["unshare", "--mount", "sh", "-c", UNMOUNT];
    for words in [python(EXIT).as_slice(), &python(UNSHARE), &unmount] {
        let path = prefix.create(words[0], 4096);
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(&path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = Sharer(command.spawn().unwrap());
        if holder.0.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).is_err() {
            tensorlend_os::skip::skip("root may not unmount here");
            continue;
        }
        eventually("the holder is seen", || {
            let objects = prefix.objects();
            let object = objects.iter().find(|object| object["name"] == prefix.name(words[0]).as_str()).unwrap();
            facts(object).2.iter().any(|(pid, _, is_open)| *pid == u64::from(holder.0.id()) && *is_open)
        });
    }
}

#[test]
fn a_file_with_the_name_of_a_memfd_is_none() {
    if skip_without_root() {
        return;
    }
    let name = format!("memfd:tensorlend-test-{}", std::process::id());
    let path = Path::new("/").join(&name);
    std::fs::write(&path, [1; 4096]).unwrap();
    let holder = Sharer::holding(&["mapped", path.to_str().unwrap()]);
    let pid = holder.0.id();
    std::fs::remove_file(&path).unwrap();
    let scan = tensorlend_shm::machine();
    let found = scan.objects.iter().find(|object| object.holders.iter().any(|holder| holder.pid == pid));
    assert!(found.is_none_or(|object| !object.is_tensorlend()), "{found:?}");
}

#[test]
fn a_segment_that_a_process_has_used_since_the_scan_stays() {
    const USE: &str = "\
import ctypes, sys
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
libc.shmdt.argtypes = [ctypes.c_void_p]
libc.shmdt(libc.shmat(int(sys.argv[1]), None, 0))
";
    if skip_without("python3") || skip_without("ipcmk") {
        return;
    }
    let created = String::from_utf8(run(Command::new("ipcmk").args(["-M", "8192"])).stdout).unwrap();
    let id = created.trim().rsplit(' ').next().unwrap().to_owned();
    let scan = || {
        let mut scan = tensorlend_shm::machine();
        scan.objects.retain(|object| object.name.starts_with(&format!("sysv-{id} ")));
        scan
    };
    let before = scan();
    assert!(run(Command::new("python3").args(["-c", USE, &id])).status.success());
    let options = Options { older: Duration::ZERO, settle: Duration::ZERO, ..Options::default() };
    let mut outcomes = Vec::new();
    reclaim(&before, &options, &mut |outcome: Outcome| outcomes.push(outcome)).unwrap();
    assert!(outcomes[0].kept.as_ref().is_some_and(|reason| reason.contains("just used")), "{outcomes:?}");
    let now = scan();
    assert_eq!(now.objects.len(), 1);
    reclaim(&now, &options, &mut |_| {}).unwrap();
    assert!(scan().objects.is_empty());
}
