//! The service manager: what it is told, and how often it wants to hear that the loop still comes around. Without one
//! there is nobody to tell, and that is no error.

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sendto, socket_with};
use sd_notify::NotifyState;
use std::os::unix::ffi::OsStrExt;

/// Whether a service manager started this process and waits to hear from it.
pub fn is_heard() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|path| !path.is_empty())
}

/// Tells a line for `systemctl status`.
pub fn status(status: &str) {
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    tell(&[NotifyState::Status(&status)]);
}

/// Tells that clients are served from now on, with a line for `systemctl status`.
pub fn ready(status: &str) {
    // A line is a state: an error of several lines shall not be taken for some.
    let status = status.split_whitespace().collect::<Vec<_>>().join(" ");
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
}

/// Tells that the configuration is being read again. [`ready`] follows, whatever came of it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("the service manager could not be told: {error}"),
    }
}

/// Tells that the daemon was asked to stop, and does.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager could not be told: {error}");
    }
}

/// As [`tell`], of what can be left unsaid: a manager that does not listen shall not hold the loop up.
fn mention(state: &NotifyState<'_>) -> rustix::io::Result<()> {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddrUnix::new_abstract_name(name)?,
        path => SocketAddrUnix::new(path)?,
    };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    sendto(&socket, state.to_string().as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL, &address)?;
    Ok(())
}

/// The service manager's watchdog: it restarts a daemon from which it has not heard for so long.
#[derive(Debug)]
pub struct Watchdog {
    /// Half of what it waits for: one late wake-up is not yet an end.
    period_ns: u64,
    next_ns: u64,
}

impl Watchdog {
    /// The one that the service manager has set for this process, if it did.
    pub fn asked_for() -> Option<Self> {
        let patience = sd_notify::watchdog_enabled().filter(|patience| !patience.is_zero())?;
        let period_ns = u64::try_from(patience.as_nanos() / 2).ok()?;
        Some(Self { period_ns, next_ns: 0 })
    }

    /// When it wants to hear from the loop next.
    pub fn due_ns(&self) -> u64 {
        self.next_ns
    }

    /// The loop has come around: tells so if it is time to.
    pub fn came_around(&mut self, now_ns: u64) {
        if self.is_due(now_ns)
            && let Err(error) = mention(&NotifyState::Watchdog)
        {
            tracing::warn!("the service manager's watchdog could not be told: {error}");
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
        // After a long sleep: once, and the next a whole period later.
        assert!(watchdog.is_due(5000) && !watchdog.is_due(5099) && watchdog.is_due(5100));
    }
}
