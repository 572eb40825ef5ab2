//! The table of shared memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use serde::Serialize;
use tensorlend_shm::{Holder, Kind, Object, Scan, State, Totals, Unseen};

use crate::output::Table;
use crate::text::{age_text, bytes_text, count};

/// Maximum number of objects without `--all`.
const ROWS_MAX: usize = 40;
/// Maximum number of holders of an object without `--all`, and of characters of their commands.
const HOLDERS_MAX: usize = 3;
const COMMAND_MAX: usize = 32;

/// The JSON object.
#[derive(Serialize)]
pub struct Listing<'a> {
    #[serde(flatten)]
    totals: Totals,
    #[serde(flatten)]
    unseen: Unseen,
    objects: &'a [Object],
}

impl<'a> Listing<'a> {
    pub fn of(scan: &'a Scan) -> Self {
        Self { totals: scan.totals(), unseen: scan.unseen, objects: &scan.objects }
    }
}

/// Returns the totals, and the table below them.
pub fn text(scan: &Scan, all: bool) -> String {
    let mut table = Table::new(&["NAME", "KIND", ">SIZE", ">RESIDENT", ">AGE", "STATE", "HOLDERS"]);
    let shown = if all { usize::MAX } else { ROWS_MAX };
    let objects = if all { scan.objects.clone() } else { by_daemon(&scan.objects) };
    for object in objects.iter().take(shown) {
        let age = object.age.map_or_else(|| "?".to_owned(), |age| format!("{}{}", age_text(age.age), mark(age.since)));
        table.row([
            object.name.clone(),
            object.kind.word().to_owned(),
            bytes_text(object.size_bytes),
            object.resident_bytes.map_or_else(|| "?".to_owned(), bytes_text),
            age,
            state(object),
            holders(&object.holders, if all { usize::MAX } else { HOLDERS_MAX }),
        ]);
    }
    let rows = if table.has_rows() { table.fitting() } else { String::new() };
    let rest = objects.len().saturating_sub(shown);
    let rest =
        if rest > 0 { format!("{} more: --all shows them\n", count(rest as u64, "object")) } else { String::new() };
    format!("{}\n{rows}{rest}", first_line(scan))
}

/// Returns the objects, with one in place of all objects of a daemon, the largest first.
fn by_daemon(objects: &[Object]) -> Vec<Object> {
    let (mut rows, mut daemons) = (Vec::new(), BTreeMap::new());
    for object in objects {
        let Some(daemon) = object.daemon_pid else {
            rows.push(object.clone());
            continue;
        };
        let (sum, number) = match daemons.entry(daemon) {
            Entry::Vacant(first) => {
                first.insert((object.clone(), 1u64));
                continue;
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        *number += 1;
        sum.name = format!("tensorlend-* ({number})");
        // Another user may have made the objects, with any length.
        sum.resident_bytes = Some(sum.bytes().saturating_add(object.bytes()));
        sum.size_bytes = sum.size_bytes.saturating_add(object.size_bytes);
        sum.age = sum.age.into_iter().chain(object.age).max_by_key(|age| age.age);
        for holder in &object.holders {
            match sum.holders.iter_mut().find(|other| other.pid == holder.pid) {
                Some(other) => other.is_mapped |= holder.is_mapped,
                None => sum.holders.push(holder.clone()),
            }
        }
    }
    rows.extend(daemons.into_values().map(|(sum, _)| sum));
    rows.sort_by_key(|object| Reverse(object.bytes()));
    rows
}

/// Returns the mark of an age that does not come from the inode.
fn mark(since: &str) -> &'static str {
    if since == "holder" { " (holder)" } else { "" }
}

fn first_line(scan: &Scan) -> String {
    let totals = scan.totals();
    let kinds = Kind::ALL.into_iter().filter_map(|kind| Some((kind, *totals.bytes_by_kind.get(&kind)?)));
    let kinds: Vec<String> = kinds.map(|(kind, bytes)| format!("{} {}", kind.word(), bytes_text(bytes))).collect();
    let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    let number = count(scan.objects.len() as u64, "object");
    let orphaned = totals.orphaned_bytes.map_or_else(|| unknown(scan.unseen), bytes_text);
    format!("shared memory: {} in {number}{kinds}; orphaned: {orphaned}", bytes_text(totals.bytes))
}

fn unknown(unseen: Unseen) -> String {
    if unseen.unreadable > 0 {
        let pid = unseen.unreadable_pid.map_or_else(String::new, |pid| format!(" (such as {pid})"));
        let remedy = if rustix::process::geteuid().is_root() { "" } else { ": run as root" };
        return format!(
            "unknown, because this user may not read processes: {}{pid}{remedy}; --reclaim tests each file",
            unseen.unreadable
        );
    }
    "unknown, because /proc does not show all processes: run as root outside of containers".to_owned()
}

fn state(object: &Object) -> String {
    let state = match object.state {
        State::InUse => "in use",
        State::Orphaned => "ORPHANED",
        State::Unknown => "unknown",
    };
    match (object.is_tensorlend(), object.daemon_pid) {
        (true, Some(pid)) => format!("{state}, tensorlend of {pid}"),
        (true, None) => format!("{state}, tensorlend"),
        (false, _) => state.to_owned(),
    }
}

fn holders(holders: &[Holder], most: usize) -> String {
    let mut texts: Vec<String> = holders.iter().take(most).map(holder).collect();
    if holders.len() > most {
        texts.push(format!("{} more", holders.len() - most));
    }
    texts.join("; ")
}

fn holder(holder: &Holder) -> String {
    let how = if holder.is_mapped { "mapped" } else { "open" };
    let uid = holder.uid.map_or_else(|| "?".to_owned(), |uid| uid.to_string());
    let command: String = holder.command.chars().take(COMMAND_MAX).collect();
    let container = container(&holder.cgroup).map_or_else(String::new, |id| format!(", container {id}"));
    format!("{} {command} ({how}, uid {uid}{container})", holder.pid)
}

/// Returns the first 12 digits of a container's id. Docker, containerd and podman put the 64 digits into the control group.
fn container(cgroup: &str) -> Option<&str> {
    let is_id = |word: &&str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    cgroup.rsplit(|c: char| !c.is_ascii_alphanumeric()).find(is_id).map(|id| &id[..12])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_have_short_ids() {
        let id = "0123456789abcdef".repeat(4);
        assert_eq!(container(&format!("/system.slice/docker-{id}.scope")), Some("0123456789ab"));
        assert_eq!(container("/user.slice/user-1000.slice"), None);
    }

    #[test]
    fn an_unreadable_process_makes_the_state_unknown() {
        let unseen = Unseen { unreadable: 3, unreadable_pid: Some(7), is_partial: false };
        let text = text(&Scan { objects: Vec::new(), unseen }, false);
        assert!(text.starts_with("shared memory: 0 B in 0 objects; orphaned: unknown, because this user may not read processes: 3 (such as 7)"), "{text}");
    }
}
