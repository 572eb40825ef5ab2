//! Termination of a client's process.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tensorlend::observe::{ClientSeen, ClientState, is_process};
use tensorlend_os::clock::duration_ns;

/// A client's process, whose identity was verified. A pidfd refers to the process, because the
/// kernel may reuse a pid.
#[derive(Debug)]
pub struct Process {
    descriptor: OwnedFd,
    pub pid: u32,
    pub uid: u32,
    pub command: String,
}

impl Process {
    /// Opens the process of a client that was seen at `at_ns`, in nanoseconds of `CLOCK_BOOTTIME`.
    pub fn of(client: &ClientSeen, at_ns: u64) -> Result<Self, String> {
        let pid = client.pid;
        if client.is_observer {
            return Err("that is this program: q ends it".into());
        }
        if client.state != ClientState::Alive {
            return Err("that client has ended already".into());
        }
        let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Err("this program cannot see the process, which is in another pid namespace".into());
        };
        // Open the pidfd before the checks, so that they apply to the process to which the pidfd refers.
        let descriptor = pidfd_open(number, PidfdFlags::empty()).map_err(|errno| match errno {
            Errno::SRCH => format!("there is no process {pid} here: it has ended, or is in another pid namespace"),
            other => format!("process {pid}: {other}"),
        })?;
        let since_ns = at_ns.saturating_sub(duration_ns(client.age));
        if !is_process(pid, client.uid, since_ns) {
            return Err(format!(
                "process {pid} is now another process, or the number belongs to another pid namespace: no signal was sent"
            ));
        }
        let command = client.command.clone().unwrap_or_else(|| client.label.clone());
        Ok(Self { descriptor, pid, uid: client.uid, command })
    }

    /// Sends SIGTERM with this user's rights.
    pub fn end(&self) -> Result<(), String> {
        let pid = self.pid;
        pidfd_send_signal(&self.descriptor, Signal::TERM).map_err(|errno| match errno {
            Errno::SRCH => format!("process {pid} has ended already"),
            Errno::PERM => format!("process {pid} is user {}'s: only they and root may end it", self.uid),
            other => format!("process {pid}: {other}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::time::Duration;
    use tensorlend_os::clock::boottime_ns;

    #[test]
    fn only_the_process_that_connected_is_ended() {
        let mut child = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let seen = ClientSeen { pid: child.id(), uid, ..ClientSeen::default() };
        let refused = |seen: &ClientSeen, at_ns| Process::of(seen, at_ns).unwrap_err();
        let later = ClientSeen { age: Duration::from_hours(1), ..seen.clone() };
        assert!(refused(&later, boottime_ns()).contains("another process"), "it began after the client had connected");
        assert!(refused(&ClientSeen { uid: uid + 1, ..seen.clone() }, boottime_ns()).contains("another process"));
        assert!(refused(&ClientSeen { pid: 0, ..seen.clone() }, boottime_ns()).contains("cannot see the process"));
        assert!(refused(&ClientSeen { is_observer: true, ..seen.clone() }, boottime_ns()).contains("this program"));
        assert!(
            refused(&ClientSeen { state: ClientState::Ended, ..seen.clone() }, boottime_ns()).contains("ended already")
        );
        assert!(child.try_wait().unwrap().is_none());

        let process = Process::of(&seen, boottime_ns()).unwrap();
        process.end().unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(process.end().unwrap_err().contains("ended already"));
        assert!(refused(&seen, boottime_ns()).contains("there is no process"));
    }
}
