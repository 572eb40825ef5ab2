//! A scan of /proc for shared memory and its holders.
//!
//! A scan is not a snapshot: processes map, open and close memory while it runs. The state `Orphaned` is the state that the
//! scan saw; [`crate::reclaim`] has its own proof.

use crate::inode::{Inode, KernelMounts, age};
use crate::object::{Age, Holder, Key, Kind, Object, State, Totals, Unseen};
use crate::proc::{self, Mapping, Mount, Stat};
use rustix::fs::FileType;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs::read_dir;
use std::io::ErrorKind;
use std::path::Path;
use tensorlend_os::sysv::History;
use tensorlend_os::thread::shares_descriptors;

/// The folder of POSIX shared memory.
pub(crate) const SHM: &str = "/dev/shm";
/// Maximum depth of folders below a mount whose files the scan lists.
const DEPTH_MAX: u32 = 8;
/// The mark of the kernel behind the path of a file without a name.
const DELETED: &str = " (deleted)";

/// The objects of shared memory that a scan found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The objects, the largest first.
    pub objects: Vec<Object>,
    pub unseen: Unseen,
}

impl Scan {
    /// Returns sums over the objects.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut orphaned = 0;
        for object in &self.objects {
            // Another user may have made the objects, with any length.
            let add = |sum: &mut u64| *sum = sum.saturating_add(object.bytes());
            add(&mut totals.bytes);
            add(totals.bytes_by_kind.entry(object.kind).or_default());
            if object.state == State::Orphaned {
                add(&mut orphaned);
            }
        }
        totals.orphaned_bytes = (!self.unseen.any()).then_some(orphaned);
        totals
    }
}

/// Scans the whole machine, as far as this user can see it.
pub fn machine() -> Scan {
    let mut census = Census::default();
    // The files come before the processes: a file that a process has held during the whole scan is seen as held.
    census.add_files();
    census.add_segments();
    census.add_processes(&proc::pids().unwrap_or_default());
    census.unseen.is_partial = proc::is_partial();
    census.finish()
}

/// Scans the objects that these processes have mapped or opened.
pub(crate) fn of_processes(pids: &BTreeSet<u32>) -> Scan {
    let mut census = Census::default();
    census.add_processes(&pids.iter().copied().collect::<Vec<u32>>());
    census.finish()
}

/// The ways in which a process holds an object.
#[derive(Clone, Copy, Default)]
struct Hold {
    is_mapped: bool,
    is_open: bool,
}

#[derive(Default)]
struct Census {
    objects: BTreeMap<Key, Object>,
    holds: BTreeMap<Key, BTreeMap<u32, Hold>>,
    /// The kinds of the file systems of shared memory, in all mount namespaces of processes. A process need not see the
    /// mount of a file that it holds: it may have another root, or have unmounted it.
    kinds: BTreeMap<u64, Kind>,
    kernel: KernelMounts,
    unseen: Unseen,
}

impl Census {
    fn add_files(&mut self) {
        for mount in proc::mounts(std::process::id()).iter().filter(|mount| mount.kind != Kind::Tmpfs) {
            // Another file system can be mounted over this one.
            let folder = Path::new(&mount.point);
            if Inode::of(folder).is_some_and(|inode| inode.device == mount.device) {
                self.add_folder(folder, mount, 0);
            }
        }
    }

    fn add_folder(&mut self, folder: &Path, mount: &Mount, depth: u32) {
        for entry in read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Some(inode) = Inode::of(&path).filter(|inode| inode.device == mount.device) else { continue };
            if inode.kind == FileType::Directory && depth < DEPTH_MAX {
                self.add_folder(&path, mount, depth + 1);
            } else if inode.kind == FileType::RegularFile {
                let key = Key { is_sysv: false, device: inode.device, inode: inode.number };
                let name = path.to_string_lossy().into_owned();
                self.add(key, mount.kind, name, || Some(inode));
            }
        }
    }

    fn add_segments(&mut self) {
        let device = namespace(std::process::id(), "ipc");
        for segment in proc::segments() {
            let key = Key { is_sysv: true, device, inode: u64::from(segment.id.cast_unsigned()) };
            let state = if segment.attachments > 0 { State::InUse } else { State::Orphaned };
            let name = format!("sysv-{} (key {:#010x})", segment.id, segment.key);
            let History { uid, size_bytes, times_s, .. } = segment.history;
            let age = age((times_s.into_iter().max().unwrap_or(0), 0), (0, 0));
            let mut object = blank(key, Kind::Sysv, name);
            object.size_bytes = size_bytes;
            object.resident_bytes = Some(segment.resident_bytes);
            object.uid = Some(uid);
            object.history = Some(segment.history);
            object.age = Some(Age { age, since: "change" });
            object.state = state;
            self.objects.insert(key, object);
        }
    }

    fn add_processes(&mut self, pids: &[u32]) {
        let mut roots = HashSet::new();
        for &pid in [std::process::id()].iter().chain(pids) {
            // A process sees the mounts below its root.
            let root = Inode::behind(format!("/proc/{pid}/root")).map(|root| (root.device, root.number));
            if !roots.insert((namespace(pid, "mnt"), root)) {
                continue;
            }
            for mount in proc::mounts(pid) {
                let kind = self.kinds.entry(mount.device).or_insert(mount.kind);
                // One file system can be mounted at several places.
                *kind = mount.kind.min(*kind);
            }
        }
        for &pid in pids {
            self.add_process(pid);
        }
    }

    /// Adds the objects that a process holds.
    fn add_process(&mut self, pid: u32) {
        let read = |thread| proc::mappings(thread).and_then(|mappings| Ok((mappings, proc::descriptors(thread)?)));
        let (mut thread, mut found) = (pid, read(pid));
        if found.as_ref().err().is_some_and(|error| error.kind() == ErrorKind::PermissionDenied) {
            if Stat::of(pid).is_some_and(|stat| stat.has_memory()) {
                self.unseen.unreadable += 1;
                self.unseen.unreadable_pid.get_or_insert(pid);
            }
            return;
        }
        if !found.as_ref().is_ok_and(|(mappings, _)| !mappings.is_empty()) {
            // The main thread may have ended before the others, and then shows nothing.
            let others = proc::threads(pid).into_iter().filter(|other| *other != pid);
            let other = others.map(|other| (other, read(other)));
            let Some(living) = other.into_iter().find(|(_, found)| found.is_ok()) else { return };
            (thread, found) = living;
        }
        let Ok((mappings, descriptors)) = found else { return };
        for mapping in &mappings {
            self.add_mapping(pid, thread, mapping);
        }
        for (number, target) in descriptors {
            self.add_descriptor(pid, thread, number, &target);
        }
        // A thread may have a table of descriptors of its own: unshare(2) with `CLONE_FILES`.
        for other in proc::threads(pid).into_iter().filter(|other| !shares_descriptors(thread, *other)) {
            for (number, target) in proc::descriptors(other).unwrap_or_default() {
                self.add_descriptor(pid, other, number, &target);
            }
        }
    }

    fn add_mapping(&mut self, pid: u32, thread: u32, mapping: &Mapping) {
        let Some((key, kind)) = self.identify(pid, mapping) else { return };
        let inode = || Inode::behind(format!("/proc/{thread}/map_files/{:x}-{:x}", mapping.start, mapping.end));
        let object = self.add(key, kind, mapping.path.clone(), inode);
        object.size_bytes =
            object.size_bytes.max(if object.links == UNREAD { mapping.offset + mapping.bytes() } else { 0 });
        self.holds.entry(key).or_default().entry(pid).or_default().is_mapped = true;
    }

    fn add_descriptor(&mut self, pid: u32, thread: u32, number: u32, target: &str) {
        // Not a socket, a pipe or the like. The path itself means nothing in the mount namespace of another process.
        if !target.starts_with(['/', '(']) {
            return;
        }
        let Some(inode) = Inode::behind(format!("/proc/{thread}/fd/{number}")) else { return };
        let key = Key { is_sysv: false, device: inode.device, inode: inode.number };
        let is_memfd = target.starts_with("/memfd:") && self.kernel.has(inode.device);
        let kind = if is_memfd { Some(Kind::Memfd) } else { self.kinds.get(&inode.device).copied() };
        let Some(kind) = kind.filter(|_| inode.kind == FileType::RegularFile) else { return };
        // Open files of another tmpfs are ordinary files until a process maps them.
        if kind != Kind::Tmpfs {
            self.add(key, kind, target.to_owned(), || Some(inode));
        }
        self.holds.entry(key).or_default().entry(pid).or_default().is_open = true;
    }

    /// Returns the object, after adding it if it is new.
    fn add(&mut self, key: Key, kind: Kind, path: String, inode: impl FnOnce() -> Option<Inode>) -> &mut Object {
        let object = self.objects.entry(key).or_insert_with(|| blank(key, kind, path.clone()));
        if object.links == UNREAD
            && kind != Kind::Sysv
            && let Some(inode) = inode()
        {
            object.links = inode.links;
            object.size_bytes = inode.bytes;
            object.resident_bytes = Some(inode.resident_bytes);
            object.uid = Some(inode.uid);
            object.age = Some(Age { age: inode.age, since: "change" });
        }
        if object.kind == Kind::Shm && path.starts_with(SHM) && !object.name.starts_with(SHM) {
            object.name = path;
        }
        object
    }

    /// Returns the object of a mapping, if the mapping is shared memory.
    fn identify(&self, pid: u32, mapping: &Mapping) -> Option<(Key, Kind)> {
        let path = mapping.path.as_str();
        // A user with a root of their own can give a file each of these names.
        let named = self.kernel.has(mapping.device).then(|| match path {
            "/dev/zero (deleted)" => Some(Kind::Anonymous),
            "/anon_hugepage (deleted)" => Some(Kind::Hugetlb),
            _ if path.starts_with("/memfd:") => Some(Kind::Memfd),
            _ if path.starts_with("/SYSV") => Some(Kind::Sysv),
            _ => None,
        });
        let kind = match named.flatten() {
            Some(kind) => kind,
            None if path.is_empty() => return None,
            // Programs and libraries of a tmpfs are not shared memory.
            None => {
                let kind = self.kinds.get(&mapping.device).copied();
                kind.filter(|kind| *kind == Kind::Shm || mapping.is_shared)?
            }
        };
        let is_sysv = kind == Kind::Sysv;
        let device = if is_sysv { namespace(pid, "ipc") } else { mapping.device };
        Some((Key { is_sysv, device, inode: mapping.inode }, kind))
    }

    fn finish(mut self) -> Scan {
        self.measure();
        let processes: BTreeSet<u32> =
            self.objects.keys().filter_map(|key| self.holds.get(key)).flat_map(BTreeMap::keys).copied().collect();
        let described: BTreeMap<u32, Holder> = processes.into_iter().map(|pid| (pid, holder(pid))).collect();
        let daemons = self.daemons(&described);
        let mut objects: Vec<Object> = Vec::new();
        for (key, mut object) in self.objects {
            let holds = self.holds.remove(&key).unwrap_or_default();
            object.holders = holds
                .iter()
                .map(|(pid, hold)| Holder {
                    is_mapped: hold.is_mapped,
                    is_open: hold.is_open,
                    ..described[pid].clone()
                })
                .collect();
            name(&mut object);
            if !holds.is_empty() {
                object.state = State::InUse;
            } else if object.state == State::Unknown && !self.unseen.any() {
                object.state = State::Orphaned;
            }
            let oldest = object.holders.iter().map(|holder| holder.age).max();
            object.age = object.age.or(oldest.map(|age| Age { age, since: "holder" }));
            if object.is_tensorlend() {
                object.daemon_pid = daemons.iter().find(|pid| holds.get(pid).is_some_and(|hold| hold.is_open)).copied();
            }
            objects.push(object);
        }
        objects.sort_by(|a, b| b.bytes().cmp(&a.bytes()).then_with(|| a.name.cmp(&b.name)));
        Scan { objects, unseen: self.unseen }
    }

    /// Counts the resident pages of the objects whose inodes this user may not read.
    fn measure(&mut self) {
        let mut read: HashMap<u32, HashMap<(u64, u64), u64>> = HashMap::new();
        for object in self.objects.values_mut().filter(|object| object.resident_bytes.is_none()) {
            for &pid in self.holds.get(&object.key).into_iter().flat_map(BTreeMap::keys) {
                let resident = read.entry(pid).or_insert_with(|| {
                    let mut sums = HashMap::new();
                    for (mapping, bytes) in proc::resident(pid) {
                        *sums.entry((mapping.device, mapping.inode)).or_default() += bytes;
                    }
                    sums
                });
                // The kernel shows a segment's id in place of an inode; its device is that of the other objects in memory.
                let of = resident.iter().filter(|((device, inode), _)| {
                    *inode == object.key.inode && (object.key.is_sysv || *device == object.key.device)
                });
                let bytes = of.map(|(_, bytes)| *bytes).max().unwrap_or(0).min(object.size_bytes);
                object.resident_bytes = Some(object.resident_bytes.unwrap_or(0).max(bytes));
            }
        }
    }

    /// Returns the processes that may be daemons: the programs `tensorlendd`, then others with open memfds of tensorlend
    /// (programs that contain a daemon), those with most of them first.
    fn daemons(&self, described: &BTreeMap<u32, Holder>) -> Vec<u32> {
        let mut open: BTreeMap<u32, u64> = BTreeMap::new();
        let is_its = |object: &&Object| object.kind == Kind::Memfd && object.name.starts_with("/memfd:tensorlend-");
        for object in self.objects.values().filter(is_its) {
            for (&pid, _) in self.holds.get(&object.key).into_iter().flatten().filter(|(_, hold)| hold.is_open) {
                *open.entry(pid).or_default() += 1;
            }
        }
        let rank = |pid: &u32| {
            let command = &described[pid].command;
            let is_daemon = command.split(' ').next().is_some_and(|program| program.ends_with("tensorlendd"));
            // A process of its own stores the descriptors for the next daemon.
            let is_store = command.contains("--fd-store");
            (std::cmp::Reverse((!is_store, is_daemon, open[pid])), *pid)
        };
        let mut all: Vec<u32> = open.keys().copied().collect();
        all.sort_by_key(rank);
        all
    }
}

/// The number of links of an object whose inode was not read.
const UNREAD: u64 = u64::MAX;

fn blank(key: Key, kind: Kind, name: String) -> Object {
    let (size_bytes, resident_bytes, state) = (0, None, State::Unknown);
    let (uid, age, daemon_pid, holders, links, history) = (None, None, None, Vec::new(), UNREAD, None);
    Object { key, kind, name, size_bytes, resident_bytes, uid, age, state, daemon_pid, holders, links, history }
}

/// Returns the inode of a namespace of a process.
fn namespace(pid: u32, kind: &str) -> u64 {
    Inode::behind(format!("/proc/{pid}/ns/{kind}")).map_or(0, |inode| inode.number)
}

fn holder(pid: u32) -> Holder {
    let age = Stat::of(pid).map(|stat| stat.age).unwrap_or_default();
    let (command, uid, cgroup) = (proc::command(pid), proc::uid(pid), proc::cgroup(pid));
    Holder { pid, command, uid, cgroup, age, ..Holder::default() }
}

/// Makes the path of an object its name, and finds out whether it is a file without a name.
fn name(object: &mut Object) {
    let path = object.name.strip_suffix(DELETED).unwrap_or(&object.name);
    let is_deleted = path.len() < object.name.len() && matches!(object.links, 0 | UNREAD);
    let path = if is_deleted { path } else { &object.name };
    object.name = match object.kind {
        Kind::Shm => path.strip_prefix(SHM).map_or(path, |path| path.trim_start_matches('/')).to_owned(),
        Kind::Memfd => object.name.trim_start_matches("/memfd:").trim_end_matches(DELETED).to_owned(),
        Kind::Anonymous | Kind::Hugetlb if is_deleted => "-".to_owned(),
        _ => path.to_owned(),
    };
    if is_deleted && matches!(object.kind, Kind::Shm | Kind::Tmpfs) {
        object.kind = Kind::Deleted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// On some machines no user can read all processes, so a scan of the machine finds no orphans there.
    #[test]
    fn a_file_without_a_holder_is_an_orphan_if_all_processes_were_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let scan = |unreadable| {
            let mut census = Census { unseen: Unseen { unreadable, ..Unseen::default() }, ..Census::default() };
            let inode = Inode::of(file.path()).unwrap();
            let key = Key { is_sysv: false, device: inode.device, inode: inode.number };
            census.add(key, Kind::Shm, "/dev/shm/x".into(), || Some(inode));
            let scan = census.finish();
            (scan.objects[0].state, scan.totals().orphaned_bytes)
        };
        assert_eq!(scan(0), (State::Orphaned, Some(0)));
        assert_eq!(scan(1), (State::Unknown, None));
    }
}
