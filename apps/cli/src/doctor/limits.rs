//! Checks of the limits of this process, the daemon and the machine.

use std::fs::read_to_string;

use rustix::process::{Resource, getrlimit};
use tensorlend::Stat;
use tensorlend_daemon::{Config, HugePages};

use super::report::Report;
use crate::meminfo;
use crate::text::bytes_text;

/// Number of descriptors below which a client soon has too few.
const DESCRIPTORS_FEW: u64 = 256;
/// Number of descriptors with which the daemon can serve some hundred clients.
const DESCRIPTORS_DAEMON: u64 = 4096;

pub fn check(report: &mut Report, daemon: Option<&Stat>, config: Option<&Config>) {
    descriptors(report, daemon);
    let locked = match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} may be locked (ulimit -l)", bytes_text(bytes)),
        None => "no limit (ulimit -l)".to_owned(),
    };
    report.ok("locked memory", format!("{locked}; tensorlend locks no memory by default"));
    memory(report, daemon);
    nodes(report);
    huge_pages(report, config);
}

fn descriptors(report: &mut Report, daemon: Option<&Stat>) {
    let own = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let text = |limit: u64| match limit {
        u64::MAX => "no limit of descriptors".to_owned(),
        limit => format!("a limit of {limit} descriptors"),
    };
    let found = format!("programs started here have {}", text(own));
    if own < DESCRIPTORS_FEW {
        report.warn("open files", found, "ulimit -n 1024, or nofile in /etc/security/limits.conf");
    } else {
        report.ok("open files", found);
    }
    let Some(stat) = daemon else { return };
    let Some(limit) = daemon_descriptors(stat.pid) else {
        return report.ok("daemon's files", "its limit cannot be read from here (another pid namespace, or hidepid)");
    };
    // The daemon has two descriptors for each segment. It has a socket and shared tables for each
    // client, as docs/service.md states.
    let needed = 64 + 2 * u64::from(stat.segments) + 8 * u64::from(stat.clients + stat.frozen);
    let found = format!("the daemon has {}, and needs some {needed} now", text(limit));
    let fix = "LimitNOFILE=524288 in its unit (systemctl edit tensorlendd.service), or a larger `ulimit -n` where it is started";
    match limit {
        _ if limit < needed => report.fail("daemon's files", found, fix),
        ..DESCRIPTORS_DAEMON => report.warn("daemon's files", found, fix),
        _ => report.ok("daemon's files", found),
    }
}

/// Returns a process's soft limit of descriptors. The daemon has raised its soft limit to the hard limit.
fn daemon_descriptors(pid: u32) -> Option<u64> {
    let limits = read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some(line.split_ascii_whitespace().next()?.parse().unwrap_or(u64::MAX))
}

fn memory(report: &mut Report, daemon: Option<&Stat>) {
    let Some(stat) = daemon else {
        let left = meminfo::available_bytes().map_or("?".into(), bytes_text);
        return report.ok("memory", format!("{left} are available on this machine"));
    };
    let (most, used) = (stat.pool_bytes_max, stat.pool_bytes);
    let total = meminfo::total_bytes();
    let pool = pool_text(used, most, total);
    let smaller = "lower pool.bytes_max";
    match tensorlend_daemon::memory_limit(stat.pid) {
        Some(limit) if limit < most => {
            let found = format!("{pool}, and the daemon's control group may have {}", bytes_text(limit));
            report.fail("memory", found, format!("{smaller}, or raise MemoryMax= of the daemon's unit"));
        }
        _ if most < u64::MAX && total.is_some_and(|total| total < most) => {
            report.fail("memory", pool, format!("{smaller}: at most half of the machine's memory is the default"));
        }
        limit => {
            let to_come = most.saturating_sub(used);
            let group = match limit {
                Some(limit) => format!("; its control group may have {}", bytes_text(limit)),
                None => "; its control group has no limit".to_owned(),
            };
            match meminfo::available_bytes() {
                Some(left) if left < to_come => {
                    let found = format!("{pool}, and {} are available on this machine{group}", bytes_text(left));
                    report.warn("memory", found, format!("{smaller}, or end other programs"));
                }
                _ => report.ok("memory", format!("{pool}{group}")),
            }
        }
    }
    if stat.bytes_in_use.saturating_mul(10) >= most.saturating_mul(9) {
        let found = format!(
            "{} of {} are in use: the next tensors may be refused",
            bytes_text(stat.bytes_in_use),
            bytes_text(most)
        );
        report.warn(
            "pool",
            found,
            "`tensorlend top` shows which clients hold memory; delete names, or raise pool.bytes_max",
        );
    }
}

/// Compares the pool with the machine's memory.
fn pool_text(used: u64, most: u64, total: Option<u64>) -> String {
    let limit = match most {
        u64::MAX => ", no limit".to_owned(),
        most => format!(" of {} at most", bytes_text(most)),
    };
    let machine = total.map_or(String::new(), |total| {
        let percent = u128::from(most) * 100 / u128::from(total.max(1));
        let share = if most == u64::MAX { String::new() } else { format!(", {percent} % of it") };
        format!("; this machine has {}{share}", bytes_text(total))
    });
    format!("the pool has {}{limit}{machine}", bytes_text(used))
}

/// Lists the NUMA nodes with their memory. On a machine with several nodes, `pool.numa` determines
/// the nodes of segments.
fn nodes(report: &mut Report) {
    let read = |node: u32| {
        let text = read_to_string(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
        meminfo::node_bytes(&text)
    };
    let all: Vec<String> = meminfo::nodes()
        .into_iter()
        .map(|node| format!("node {node} with {}", read(node).map_or_else(|| "?".to_owned(), bytes_text)))
        .collect();
    match &all[..] {
        [] => report.ok("NUMA nodes", "the kernel lists none"),
        [one] => report.ok("NUMA nodes", one),
        several => report.ok("NUMA nodes", format!("{}: pool.numa selects the node", several.join(", "))),
    }
}

/// Compares huge pages with the configuration. Without a configuration, reports the machine's
/// setting.
fn huge_pages(report: &mut Report, config: Option<&Config>) {
    let enabled = read_to_string("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let shmem =
        enabled.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("not there", |(word, _)| word);
    let free = |kib: u32| {
        let path = format!("/sys/kernel/mm/hugepages/hugepages-{kib}kB/free_hugepages");
        read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let (mib2, gib1) = (free(2048), free(1_048_576));
    let there = format!("shmem_enabled is {shmem}; {mib2} pages of 2 MiB and {gib1} of 1 GiB are reserved and free");
    let Some(config) = config else {
        return report
            .ok("huge pages", format!("{there}; this command does not know whether the daemon uses them (--config)"));
    };
    let reserve = |kib: u32| {
        format!(
            "reserve some in /sys/kernel/mm/hugepages/hugepages-{kib}kB/nr_hugepages, or set pool.huge_pages to \"never\""
        )
    };
    match config.pool.huge_pages {
        HugePages::Never => report.ok("huge pages", "the configuration uses none"),
        HugePages::Advise if matches!(shmem, "never" | "deny" | "not there") => {
            let fix = "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled";
            report.warn("huge pages", format!("the configuration has \"advise\", and shmem_enabled is {shmem}"), fix);
        }
        HugePages::Reserved2M if mib2 == 0 => {
            report.warn("huge pages", "the configuration uses pages of 2 MiB, and none is free", reserve(2048));
        }
        HugePages::Reserved1G if gib1 == 0 => {
            report.warn("huge pages", "the configuration uses pages of 1 GiB, and none is free", reserve(1_048_576));
        }
        _ => report.ok("huge pages", there),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_compared_with_the_machine() {
        assert_eq!(
            pool_text(1 << 30, 4 << 30, Some(16 << 30)),
            "the pool has 1.0 GiB of 4.0 GiB at most; this machine has 16.0 GiB, 25 % of it"
        );
        assert_eq!(pool_text(0, u64::MAX, Some(1 << 30)), "the pool has 0 B, no limit; this machine has 1.0 GiB");
        assert_eq!(pool_text(0, 1 << 30, None), "the pool has 0 B of 1.0 GiB at most");
    }

    #[test]
    fn our_own_limit_is_read_as_the_kernel_says_it() {
        let own = getrlimit(Resource::Nofile).current;
        assert_eq!(daemon_descriptors(std::process::id()), Some(own.unwrap_or(u64::MAX)));
        assert_eq!(daemon_descriptors(u32::MAX), None);
    }
}
