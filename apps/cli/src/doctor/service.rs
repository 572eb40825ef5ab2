//! Checks whether an fd store preserves the daemon's descriptors across a restart: a process, or systemd.

use std::fs::read_to_string;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tensorlend::Stat;
use tensorlend_daemon::{Config, StoreAt};
use tensorlend_os::socket_file::{self, Found};

use super::health;
use super::report::Report;

/// Timeout of a `systemctl` process.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The report's name of this check.
const CHECK: &str = "descriptor store";
const FEWER_DESCRIPTORS: &str = "larger segments (pool.segment_bytes) need fewer";

pub fn check(report: &mut Report, stat: &Stat, config: Option<&Config>) {
    // The daemon knows how many descriptors it needs, and which of them the store has refused.
    let store = stat.health.as_ref().and_then(|health| health.fd_store.as_ref());
    if let Some(found) = store.and_then(health::crowded) {
        let fix = format!(
            "raise FileDescriptorStoreMax= of the unit (systemctl edit), or the limit of descriptors (`ulimit -n`) of \
             `tensorlendd --fd-store`; {FEWER_DESCRIPTORS}"
        );
        return report.warn(CHECK, found, fix);
    }
    if let Some(StoreAt::Socket(path)) = config.map(Config::fd_store_at) {
        return check_process(report, path);
    }
    match Service::of(stat.pid) {
        Some(service) => check_service(report, &service),
        None if store.is_some() => {
            report.ok(CHECK, "the daemon has started an fd store, which outlives it by a minute");
        }
        None if stat.mode == "system" => report.warn(
            CHECK,
            "the daemon has no fd store: when the daemon ends, all tensors end",
            "run the daemon as a service, or with an fd store (docs/service.md)",
        ),
        None => report.ok(CHECK, "the daemon has no fd store: when the daemon ends, all tensors end"),
    }
}

/// Checks the fd store of the configuration, which is a process with a socket.
fn check_process(report: &mut Report, path: &Path) {
    let at = path.display();
    // The fd store accepts no other connection while the daemon is connected to it.
    match socket_file::inspect(path) {
        Ok(Found::Nothing | Found::Stale) => {
            let found = format!("{at}, the fd store of the configuration, does not run: a restart loses all tensors");
            report.warn(CHECK, found, format!("run `tensorlendd --fd-store {at}` as the daemon's user"));
        }
        Ok(Found::Listening) => report.ok(CHECK, format!("the fd store of the configuration runs: {at}")),
        // A user without access to the socket cannot know.
        _ => report.ok(CHECK, format!("the configuration names the fd store {at}")),
    }
}

/// Checks the fd store that systemd has for the daemon's unit.
fn check_service(report: &mut Report, service: &Service) {
    let Service { name, descriptors_max, descriptors, .. } = service;
    let found = format!("systemd keeps {descriptors} descriptors of {name}, {descriptors_max} at most");
    let fix = format!("FileDescriptorStoreMax=4096 in the unit (systemctl edit); {FEWER_DESCRIPTORS}");
    if *descriptors_max == 0 {
        report.fail(CHECK, format!("{name} has no descriptor store: a restart loses all tensors"), fix);
    } else if descriptors.saturating_mul(10) >= descriptors_max.saturating_mul(9) {
        report.warn(CHECK, found, fix);
    } else {
        report.ok(CHECK, found);
    }
}

/// The systemd service whose main process is the daemon.
pub struct Service {
    pub name: String,
    /// Whether a user's manager runs it.
    pub is_users: bool,
    descriptors_max: u64,
    descriptors: u64,
}

impl Service {
    /// Returns the service of a process. `None` if the process is not the main process of one, or no systemd responds.
    pub fn of(pid: u32) -> Option<Self> {
        let unit = unit(&read_to_string(format!("/proc/{pid}/cgroup")).ok()?)?;
        let of = |is_users| {
            let shown = show(&unit.name, is_users)?;
            let number = |name: &str| property(&shown, name)?.parse::<u64>().ok();
            (number("MainPID") == Some(u64::from(pid))).then(|| Self {
                name: unit.name.clone(),
                is_users,
                descriptors_max: number("FileDescriptorStoreMax").unwrap_or(0),
                descriptors: number("NFileDescriptorStore").unwrap_or(0),
            })
        };
        // In a cgroup namespace, the path does not show which manager runs the unit: the system's
        // or a user's.
        of(unit.is_users).or_else(|| of(!unit.is_users))
    }
}

/// A systemd unit, and whether its path suggests that a user's manager runs it.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    name: String,
    is_users: bool,
}

/// Returns the service to which a process belongs, from its line in /proc/PID/cgroup.
fn unit(groups: &str) -> Option<Unit> {
    // Use the line of the unified hierarchy, or the line of systemd's named hierarchy of cgroup
    // version 1.
    let line = groups.lines().find(|line| line.starts_with("0::") && line.contains(".service"));
    let line = line.or_else(|| groups.lines().find(|line| line.contains(":name=systemd:")))?;
    let path = line.splitn(3, ':').nth(2)?;
    let name = path.rsplit('/').find(|part| part.ends_with(".service"))?;
    // A user's manager is itself a service (`user@UID.service`), but not the daemon's service.
    if name.starts_with("user@") {
        return None;
    }
    Some(Unit { name: name.to_owned(), is_users: path.contains("/user@") })
}

fn show(unit: &str, is_users: bool) -> Option<String> {
    let mut command = Command::new("systemctl");
    if is_users {
        command.arg("--user");
    }
    command.args(["show", "-p", "MainPID", "-p", "FileDescriptorStoreMax", "-p", "NFileDescriptorStore", "--", unit]);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let since = Instant::now();
    // The output fits into the pipe, so waiting before reading cannot deadlock.
    while child.try_wait().ok()?.is_none() {
        if since.elapsed() > TIMEOUT {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    std::io::read_to_string(child.stdout.take()?).ok()
}

fn property<'a>(shown: &'a str, name: &str) -> Option<&'a str> {
    shown.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_found_in_the_control_groups() {
        let unit = |groups| unit(groups).map(|unit| (unit.name, unit.is_users));
        assert_eq!(unit("0::/system.slice/tensorlendd.service\n"), Some(("tensorlendd.service".into(), false)));
        let users = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/tensorlendd.service\n";
        assert_eq!(unit(users), Some(("tensorlendd.service".into(), true)));
        assert_eq!(unit("0::/user.slice/user-1000.slice/session-3.scope\n"), None);
        assert_eq!(unit("0::/user.slice/user-1000.slice/user@1000.service/init.scope\n"), None);
        let first = "9:memory:/x\n1:name=systemd:/system.slice/a.service\n0::/\n";
        assert_eq!(unit(first), Some(("a.service".into(), false)));
        assert_eq!(unit("0::/\n"), None);
    }

    #[test]
    fn properties_are_told_apart() {
        let shown = "MainPID=12\nNFileDescriptorStore=3\nFileDescriptorStoreMax=4096\n";
        assert_eq!(property(shown, "FileDescriptorStoreMax"), Some("4096"));
        assert_eq!(property(shown, "FileDescriptorStore"), None);
    }
}
