//! Exchanges without a copy and without a system call.

use std::process::Command;
use tensorlend_tests::{Agent, Daemon, skip, skip_without};

const GB: u64 = 1 << 30;

/// Returns the shared and private pages in KiB, and the inode, of the process's mapping that contains `address`.
fn mapping(pid: u32, address: u64) -> (u64, u64, String) {
    let smaps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut found = false;
    let (mut shared, mut private, mut inode) = (0, 0, String::new());
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let Some((from, to)) = words[0].split_once('-')
            && let (Ok(from), Ok(to)) = (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16))
        {
            found = (from..to).contains(&address);
            if found {
                words[4].clone_into(&mut inode);
            }
        } else if found {
            let kib = || words[1].parse::<u64>().unwrap();
            match words[0] {
                "Shared_Clean:" | "Shared_Dirty:" => shared += kib(),
                "Private_Clean:" | "Private_Dirty:" => private += kib(),
                _ => {}
            }
        }
    }
    (shared, private, inode)
}

#[test]
fn one_gib_is_read_in_the_pages_where_it_was_written() {
    let available = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = available.lines().find(|l| l.starts_with("MemAvailable")).unwrap();
    if available.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() < 3 << 20 {
        skip("needs 3 GiB of free memory");
        return;
    }
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (daemon.agent(), daemon.agent());
    let sum = producer.ok(&format!("put gib {GB} 5"));
    let held = consumer.ok("hold gib");
    assert_eq!(consumer.ok("held gib"), sum);
    let address = held.split_whitespace().next().unwrap().trim_start_matches("0x");
    let address = u64::from_str_radix(address, 16).unwrap();
    let (shared, private, inode) = mapping(consumer.pid(), address);
    // The consumer shares every page of the tensor with the producer: none was copied.
    assert_eq!((shared, private), (GB / 1024, 0));
    let theirs = std::fs::read_to_string(format!("/proc/{}/maps", producer.pid())).unwrap();
    assert!(
        theirs.lines().any(|l| l.split_whitespace().nth(4) == Some(inode.as_str())),
        "another memfd than the producer's"
    );
    let stat = daemon.client().stat().unwrap();
    assert!(stat.bytes_in_use < GB + GB / 8, "{} bytes in use for one tensor of 1 GiB", stat.bytes_in_use);
}

/// An agent under strace.
struct Traced {
    agent: Agent,
    trace: tempfile::NamedTempFile,
}

impl Traced {
    fn start(daemon: &Daemon) -> Self {
        let trace = tempfile::NamedTempFile::new().unwrap();
        let mut agent = Agent::start_as(|program| {
            let mut command = Command::new("strace");
            command.arg("-f").arg("-o").arg(trace.path()).arg(program);
            command
        });
        agent.ok(&format!("connect {}", daemon.socket().display()));
        Self { agent, trace }
    }

    /// Ends the agent; fails if its thread made a system call between its two marks, or its other threads more than a few:
    /// a thread that `connect` started may still begin its wait, or end, but no message may wake one.
    fn made_none(self, doing: &str) {
        const OF_CONNECT: usize = 50;
        self.agent.exit();
        let trace = std::fs::read_to_string(self.trace.path()).unwrap();
        let lines: Vec<&str> = trace.lines().collect();
        let marks: Vec<usize> = (0..lines.len()).filter(|&at| lines[at].contains("getpgid(")).collect();
        let [first, last] = marks[..] else { panic!("{} marks in the trace", marks.len()) };
        let thread = |line: &str| line.split(' ').next().map(str::to_owned);
        let between = lines[first + 1..last].iter().filter(|line| !line.contains("<... getpgid resumed>"));
        let (own, others): (Vec<&str>, Vec<&str>) = between.partition(|line| thread(line) == thread(lines[first]));
        assert!(own.is_empty(), "system calls while {doing}:\n{}", own.join("\n"));
        assert!(others.len() < OF_CONNECT, "calls of other threads while {doing}:\n{}", others.join("\n"));
    }
}

#[test]
fn no_system_call_between_publish_and_get() {
    if skip_without("strace") {
        return;
    }
    let daemon = Daemon::start("");
    let mut alone = Traced::start(&daemon);
    alone.agent.ok("spin x 20000");
    alone.made_none("one process published and read 20,000 times");
}

#[test]
fn no_system_call_between_publish_here_and_get_there() {
    if skip_without("strace") {
        return;
    }
    let daemon = Daemon::start("");
    let (mut producer, mut consumer) = (Traced::start(&daemon), Traced::start(&daemon));
    producer.agent.tell("publish-loop x 1000");
    consumer.agent.ok("read-loop x 1000");
    producer.agent.answer().unwrap();
    producer.made_none("it published what another process read");
    consumer.made_none("it read what another process published");
}
