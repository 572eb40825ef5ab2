//! docs/internals/security.md has a table of the system calls that the daemon's loop, the fd store and a client make on
//! objects that other processes may hold. This test traces the three and compares: a call on such an object that the table
//! lacks is a fault.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tensorlend_tests::hand::Hand;
use tensorlend_tests::{Daemon, PATIENCE, binary, eventually, run_within, signal, skip_without};

/// A call and the kind of the object on which it acts.
type Call = (String, String);

/// Returns the table's rows for a loop.
fn table(whose: &str) -> BTreeSet<Call> {
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/internals/security.md")).unwrap();
    let (_, section) = page.split_once("\n## System calls on shared objects\n").expect("the section exists");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut calls = BTreeSet::new();
    for row in section.lines().filter(|line| line.starts_with('|')) {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        if let [loops, names, object, ..] = cells[..]
            && loops.split(", ").any(|one| one == whose || (one == "daemon" && whose == "daemon in user mode"))
        {
            calls.extend(names.split(", ").map(|name| (name.trim_matches('`').to_owned(), object.to_owned())));
        }
    }
    assert!(calls.len() > 5, "the table has rows for {whose}");
    calls
}

/// Returns a command that traces a program. The program is the started process, and the tracer its child.
fn traced(program: &Path, trace: &Path) -> Command {
    let mut command = Command::new("strace");
    command.args(["-D", "-f", "-y", "-s", "0", "-e", "signal=none", "-o"]).arg(trace).arg(program);
    command
}

/// Descriptors of a traced process whose kind their names do not show, by their numbers.
#[derive(Default)]
struct Descriptors {
    /// Memory that the process has made and has not shown to any other process.
    unshared: BTreeSet<String>,
    /// Sockets that other processes have the other ends of: connections of clients, and wake pairs.
    of_clients: BTreeSet<String>,
}

impl Descriptors {
    /// Records the effect of a call on descriptors.
    fn note(&mut self, name: &str, arguments: &str, result: &str) {
        let number = |text: &str| text.split('<').next().unwrap_or_default().trim().to_owned();
        let (first, made) = (number(arguments), number(result));
        match name {
            "memfd_create" => {
                self.unshared.insert(made);
            }
            "openat" | "open" => {
                if let Some((_, rest)) = arguments.split_once("/proc/self/fd/") {
                    self.unshared.remove(rest.split('"').next().unwrap_or_default());
                }
            }
            "accept4" => {
                self.of_clients.insert(made);
            }
            "socketpair" => {
                // [NUMBER<socket:...>, NUMBER<socket:...>] at the end of the arguments.
                let pair = arguments.rsplit_once('[').map_or("", |(_, pair)| pair.trim_end_matches(']'));
                let both = arguments.rsplit(", [").next().unwrap_or(pair);
                self.of_clients.extend(both.split(", ").map(|end| number(end.trim_start_matches('['))));
            }
            "fcntl" if arguments.contains("F_DUPFD") => {
                for set in [&mut self.unshared, &mut self.of_clients] {
                    if set.contains(&first) {
                        set.insert(made.clone());
                    }
                }
            }
            "close" => {
                self.unshared.remove(&first);
                self.of_clients.remove(&first);
            }
            _ => {}
        }
    }

    /// Returns the kind of an object, as the table names it. `None` for an object that no other process shapes.
    fn kind(&self, fd: &str, target: &str) -> Option<&'static str> {
        if target.starts_with("/memfd:tensorlend-") {
            return (!self.unshared.contains(fd)).then_some("lent memory");
        }
        if target.starts_with("socket:") || target.starts_with("UNIX") {
            return Some(if self.of_clients.contains(fd) { "client's socket" } else { "socket" });
        }
        match target.trim_start_matches("anon_inode:") {
            "[eventfd]" => Some("eventfd"),
            "[pidfd]" => Some("pidfd"),
            _ if target.starts_with("pidfd:") => Some("pidfd"),
            // Its own epoll instance, timers, files, directories, pipes of its own, and terminals.
            _ => None,
        }
    }
}

/// Splits the end of a call into its arguments and its result.
fn split(rest: &str) -> (&str, &str) {
    rest.rsplit_once(" = ")
        .map_or((rest, ""), |(arguments, result)| (arguments.trim_end().trim_end_matches(')'), result))
}

/// Returns the calls on shared objects of one thread, each with its first line in the trace.
fn calls(trace: &str, thread: u32) -> BTreeMap<Call, String> {
    let mut descriptors = Descriptors::default();
    let mut found = BTreeMap::new();
    let mut unfinished: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for line in trace.lines() {
        let Some((pid, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let (name, arguments, result) = if let Some(rest) = call.strip_prefix("<... ") {
            let Some((name, arguments)) = unfinished.remove(pid) else { continue };
            let (_, result) = split(rest.split_once(" resumed>").map_or("", |(_, more)| more));
            (name, arguments, result)
        } else {
            let Some((name, rest)) = call.split_once('(') else { continue };
            if let Some(arguments) = rest.strip_suffix(" <unfinished ...>") {
                unfinished.insert(pid, (name, arguments));
                continue;
            }
            let (arguments, result) = split(rest);
            (name, arguments, result)
        };
        let known = Known { name, arguments, descriptors: &descriptors };
        if pid.parse() == Ok(thread) {
            for call in known.calls() {
                found.entry(call).or_insert_with(|| line.to_owned());
            }
        }
        descriptors.note(name, arguments, result);
    }
    found
}

/// A call, and the descriptors before it.
struct Known<'t> {
    name: &'t str,
    arguments: &'t str,
    descriptors: &'t Descriptors,
}

impl Known<'_> {
    /// Returns the call for each shared object on which it acts.
    fn calls(&self) -> Vec<Call> {
        // The commands of fcntl(2) differ as calls do. Those on the descriptor's own flags touch no object.
        let name = match self.name {
            "fcntl" => match self.arguments.split(", ").nth(1).unwrap_or_default() {
                "F_GETFD" | "F_SETFD" | "F_DUPFD_CLOEXEC" => return Vec::new(),
                command => format!("fcntl {command}"),
            },
            name => name.to_owned(),
        };
        let mut calls = Vec::new();
        // The log opens standard error again, which nobody has lent.
        if self.arguments.contains("/proc/self/fd/") && !self.arguments.contains("/proc/self/fd/2\"") {
            calls.push((name.clone(), "lent memory".to_owned()));
        }
        // Each descriptor in the arguments is NUMBER<TARGET>.
        for (at, _) in self.arguments.match_indices('<') {
            let before = &self.arguments[..at];
            let digits = before.len() - before.trim_end_matches(|c: char| c.is_ascii_digit()).len();
            let target = self.arguments[at + 1..].split('>').next().unwrap_or_default();
            if digits > 0
                && let Some(kind) = self.descriptors.kind(&before[before.len() - digits..], target)
            {
                calls.push((name.clone(), kind.to_owned()));
            }
        }
        calls
    }
}

/// Returns the thread's calls on shared objects that the table lacks.
fn missing(whose: &str, trace: &Path, thread: u32) -> Vec<String> {
    let text = std::fs::read_to_string(trace).unwrap();
    let found = calls(&text, thread);
    assert!(found.len() > 3, "the trace of {whose} is empty: {found:?}");
    let known = table(whose);
    let missing = found.iter().filter(|(call, _)| !known.contains(*call));
    missing.map(|((name, kind), line)| format!("{whose}: `{name}` on {kind}: {line}")).collect()
}

/// Uses every feature, with hostile clients in between.
fn use_all(daemon: &Daemon) {
    let worker = run_within(PATIENCE, Command::new(binary("tensorlend-worker")).arg("everything").arg(daemon.socket()));
    assert!(worker.status.success(), "{}", String::from_utf8_lossy(&worker.stderr));
    for word in ["join", "pry"] {
        let mut attacker = Command::new(binary("tensorlend-attacker"));
        let mut attacker = attacker.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let orders = format!("join {}\n{word} private\nhoard\nbattery\n", daemon.socket().display());
        // An attacker that the daemon has disconnected may have ended.
        let _ = std::io::Write::write_all(attacker.stdin.as_mut().expect("piped"), orders.as_bytes());
        drop(attacker.stdin.take());
        let _ = attacker.wait();
    }
    let silent = Hand::join(&daemon.socket(), None).unwrap();
    drop(silent);
}

struct Store(Child);

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_loops_call_on_shared_objects_only_what_the_table_has() {
    if skip_without("strace") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let [daemons, nexts, stores, clients] = ["daemon", "next", "store", "client"].map(|name| folder.path().join(name));
    let socket = folder.path().join("fd-store");
    let mut store = traced(&binary("tensorlendd"), &stores);
    let store =
        Store(store.arg("--fd-store").arg(&socket).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    eventually("the fd store", || socket.exists());
    // In system mode the daemon makes other calls than in user mode. Root may connect in both.
    let mode = if rustix::process::geteuid().is_root() { "mode = \"system\"\n" } else { "mode = \"user\"\n" };
    let spill = folder.path().join("spill");
    std::fs::create_dir(&spill).unwrap();
    let config = format!(
        "{mode}fd_store = \"{}\"\n[pool]\nbytes_max = \"256MiB\"\n[spill]\ndirectory = \"{}\"\n",
        socket.display(),
        spill.display()
    );
    let mut daemon = Daemon::start_as(&config, |program| traced(program, &daemons));
    use_all(&daemon);
    let mut client = traced(&binary("tensorlend-worker"), &clients);
    let mut client = client.arg("everything").arg(daemon.socket()).stdout(Stdio::null()).spawn().unwrap();
    let client_pid = client.id();
    assert!(client.wait().unwrap().success());
    signal(daemon.pid(), rustix::process::Signal::HUP);
    use_all(&daemon);
    let daemon_pid = daemon.pid();
    // A client that outlives its daemon: the next one takes its memory over.
    let _left = Hand::join(&daemon.socket(), None).unwrap();
    daemon.stop();
    let mut next = Daemon::start_as(&config, |program| traced(program, &nexts));
    use_all(&next);
    let next_pid = next.pid();
    next.stop();
    let loops = if mode.contains("system") { "daemon" } else { "daemon in user mode" };
    let of = [(loops, &daemons, daemon_pid), (loops, &nexts, next_pid), ("fd store", &stores, store.0.id())];
    let of = of.into_iter().chain([("client", &clients, client_pid)]);
    let missing: Vec<String> = of.flat_map(|(whose, trace, thread)| missing(whose, trace, thread)).collect();
    assert!(
        missing.is_empty(),
        "docs/internals/security.md, System calls on shared objects, lacks:\n{}",
        missing.join("\n")
    );
}
