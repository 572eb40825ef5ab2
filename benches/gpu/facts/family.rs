//! Processes that exchange packets, with descriptors.
#![allow(unsafe_code)]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, set_parent_process_death_signal};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub struct Line(OwnedFd);

impl Line {
    /// Returns the connection to the parent process.
    pub fn to_parent() -> Self {
        // SAFETY: standard input is that connection, and nothing else uses it.
        Self(unsafe { BorrowedFd::borrow_raw(0) }.try_clone_to_owned().expect("it is open"))
    }

    pub fn say(&self, text: &str, fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut along = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || along.push(SendAncillaryMessage::ScmRights(fds)), "four at most");
        sendmsg(&self.0, &[IoSlice::new(text.as_bytes())], &mut along, SendFlags::NOSIGNAL).expect("somebody listens");
    }

    /// Waits for the peer's message.
    pub fn hear(&self) -> (String, Vec<OwnedFd>) {
        let mut text = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut along = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let got = recvmsg(&self.0, &mut [IoSliceMut::new(&mut text)], &mut along, flags).expect("somebody talks");
        assert!(got.bytes > 0, "the other process has ended early");
        let mut fds = Vec::new();
        for message in along.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        (String::from_utf8_lossy(&text[..got.bytes]).into_owned(), fds)
    }

    /// Returns true if the peer sends a message, or ends, within this time.
    pub fn is_ready(&self, within: Duration) -> bool {
        readable(self.0.as_fd(), within)
    }
}

/// Another process of this program.
pub struct Relative {
    pub child: Child,
    pub line: Line,
    pidfd: OwnedFd,
}

impl Relative {
    pub fn start(role: &str, rest: &[String]) -> Self {
        let (mine, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair of sockets");
        let mut command = Command::new("/proc/self/exe");
        command.args(["__child", role]).args(rest).stdin(Stdio::from(theirs)).stdout(Stdio::inherit());
        let child = command.spawn().expect("a child starts");
        let pid = Pid::from_child(&child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("a child of ours can be watched");
        Self { child, line: Line(mine), pidfd }
    }

    /// Kills the process; returns the time of the kill.
    pub fn kill(&mut self) -> Instant {
        let begin = Instant::now();
        self.child.kill().expect("it was not waited for");
        begin
    }

    /// Waits for its end, so that even its pid is free.
    pub fn reap(&mut self) -> bool {
        self.has_ended(Duration::from_secs(10)) && self.child.wait().is_ok()
    }

    /// Returns true if the kernel reports its end within this time.
    pub fn has_ended(&self, within: Duration) -> bool {
        readable(self.pidfd.as_fd(), within)
    }
}

impl Drop for Relative {
    fn drop(&mut self) {
        let _ = self.child.kill();
        if self.has_ended(Duration::from_secs(5)) {
            let _ = self.child.wait();
        }
    }
}

fn readable(fd: BorrowedFd<'_>, within: Duration) -> bool {
    let limit = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

/// Makes this process die with its parent, so that no process is left when a step was killed.
pub fn dies_with_its_parent() {
    set_parent_process_death_signal(Some(Signal::KILL)).expect("a process may choose its end");
}

/// Kills a step and its children.
pub fn end_group(child: &Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Formats a time for an answer.
pub fn ms(time: Duration) -> String {
    tensorlend_benches::table::nanos(time.as_nanos() as f64)
}

/// Formats median, minimum and maximum for an answer.
pub fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    match (times.first(), times.last()) {
        (Some(least), Some(most)) => {
            format!("{} ({} .. {}, {} times)", ms(times[times.len() / 2]), ms(*least), ms(*most), times.len())
        }
        _ => "never".into(),
    }
}
