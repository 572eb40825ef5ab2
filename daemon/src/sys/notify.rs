//! Notifications to the service manager, and the watchdog's interval. Without a service manager, these functions do
//! nothing.

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    sendmsg_addr, socket_with,
};
use sd_notify::NotifyState;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tensorlend_os::clock::duration_ns;

/// Maximum time for which the loop waits until the service manager takes a notification.
pub const SEND_MAX: Duration = Duration::from_secs(5);

/// Returns true if a service manager started this process and waits for notifications.
pub fn is_heard() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

/// Sends a status text, which `systemctl status` shows as one line.
pub fn status(status: &str) {
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    tell(&[NotifyState::Status(&status)]);
}

/// Reports that the daemon serves clients from now on, with a status text for `systemctl status`.
pub fn ready(status: &str) {
    // The lines of the text are joined, because each line of a notification is a separate
    // assignment.
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Reports that the daemon reads its configuration again. The caller calls [`ready`] after the
/// reload, even if the reload has failed.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("cannot notify the service manager: {error}"),
    }
}

/// Reports that the daemon is stopping.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = send(states, &[], SEND_MAX) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}

/// Sends a notification, which may have descriptors. Waits at most `limit` while the manager's queue is full: a manager that
/// does not read must not block the loop. The functions of `sd_notify` wait without a limit.
pub fn send(states: &[NotifyState<'_>], fds: &[BorrowedFd<'_>], limit: Duration) -> rustix::io::Result<()> {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return Ok(()) };
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let mut flags = SendFlags::NOSIGNAL;
    if limit.is_zero() {
        flags |= SendFlags::DONTWAIT;
    } else {
        set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    }
    let text = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut along = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !along.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(rustix::io::Errno::INVAL);
    }
    sendmsg_addr(&socket, &address, &[IoSlice::new(text.as_bytes())], &mut along, flags)?;
    Ok(())
}

/// The service manager's watchdog. It restarts a daemon that has sent no notification for an
/// interval.
#[derive(Debug)]
pub struct Watchdog {
    /// Time between two notifications: half of the manager's interval, so that one late notification has no effect.
    period_ns: u64,
    next_ns: u64,
}

impl Watchdog {
    /// Returns the watchdog. Returns `None` if the service manager has set none for this process.
    pub fn asked_for() -> Option<Self> {
        let timeout = sd_notify::watchdog_enabled().filter(|timeout| !timeout.is_zero())?;
        let period_ns = duration_ns(timeout) / 2;
        Some(Self { period_ns, next_ns: 0 })
    }

    /// Returns the time of the next notification.
    pub fn due_ns(&self) -> u64 {
        self.next_ns
    }

    /// Notifies the manager if the next notification is due. The loop calls this function on each
    /// turn.
    pub fn came_around(&mut self, now_ns: u64) {
        if self.is_due(now_ns)
            && let Err(error) = send(&[NotifyState::Watchdog], &[], Duration::ZERO)
        {
            tracing::warn!("cannot notify the service manager's watchdog: {error}");
        }
    }

    fn is_due(&mut self, now_ns: u64) -> bool {
        let due = now_ns >= self.next_ns;
        if due {
            self.next_ns = now_ns + self.period_ns;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_loop_tells_no_more_often_than_an_idle_one() {
        let mut watchdog = Watchdog { period_ns: 100, next_ns: 0 };
        let told = (0..1000).filter(|&now_ns| watchdog.is_due(now_ns)).count();
        assert_eq!((told, watchdog.due_ns()), (10, 1000));
        // After a long sleep the watchdog notifies once, and again a whole period later.
        assert!(watchdog.is_due(5000) && !watchdog.is_due(5099) && watchdog.is_due(5100));
    }
}
