//! The recovery of descriptors. This module validates the descriptors that the fd store
//! passes or clients hand back. `core/recovery/restore.rs` restores the state from them.

use super::recreated::{self, copy_data};
use super::{self as memory, Making, Memories, unmapped};
use crate::core::label::{Label, Preserved};
use crate::core::{MemId, Own, SLOTS_LOG2_MAX};
use crate::sys::backing::size;
use crate::sys::device::DeviceMemory;
use crate::sys::fd_store::{FdStore, Stored};
use crate::sys::lanes::{Lane, Lanes};
use crate::sys::spill::Spilled;

use rustix::fs::{SealFlags, Stat, fstat};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use tensorlend_layout::catalogue::{CELL_PARTS, Catalogue, CellRecord, SlotRecord, cells_count, part_bytes};
use tensorlend_layout::directory::Geometry;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::leases::LeaseTable;
use tensorlend_layout::raw::View;
use tensorlend_layout::stream::{CAPACITY_MAX, RingEntry, StreamRing};
use tensorlend_os::clock::boottime_ns;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

/// Returns the kind of sheet that this label denotes. Returns `None` for other memory.
fn magic(label: &Label) -> Option<Magic> {
    Some(match label {
        Label::Directory { .. } => Magic::Directory,
        Label::Catalogue { .. } => Magic::Catalogue,
        Label::Leases { .. } => Magic::Leases,
        Label::Cells { .. } => Magic::Cells,
        Label::Slots { .. } => Magic::Slots,
        Label::Ring { .. } => Magic::Stream,
        Label::Segment { .. }
        | Label::Wake { .. }
        | Label::Orphaned { .. }
        | Label::Spilled { .. }
        | Label::DeviceSegment { .. }
        | Label::DeviceOrphaned { .. } => return None,
    })
}

/// Returns the lane for memory with this label.
fn lane_of(label: &Label, lanes: &Lanes) -> Lane {
    let namespace = label.namespace();
    match *label {
        Label::Orphaned { uid, .. } | Label::DeviceOrphaned { uid, .. } => lanes.of(uid),
        Label::Catalogue { owner, .. }
        | Label::Leases { owner, .. }
        | Label::Cells { owner, .. }
        | Label::Segment { owner, .. }
        | Label::Slots { owner, .. }
        | Label::DeviceSegment { owner, .. }
        | Label::Wake { catalogue: owner, .. } => Lane::Recovered(namespace, owner),
        _ => Lane::Recovered(namespace, 0),
    }
}

/// The tables of this daemon: its memory, and its files with spilled segments.
type Stores<'a> = (&'a mut Memories, &'a mut BTreeMap<MemId, Arc<Spilled>>);

/// Takes over the descriptors from the fd store. Drops damaged descriptors and descriptors of
/// another layout, and logs this. Copies files that the kernel made again after a live update: see
/// [`recreated`].
pub fn adopt(
    stored: Vec<Stored>,
    (memories, files): Stores<'_>,
    fd_store: &mut FdStore,
    making: Making,
    lanes: &Lanes,
) -> Vec<Preserved> {
    // The previous daemon may have been killed while it copied a directory. A daemon stores a copy
    // only when the copy is complete, so the latest stored copy is valid.
    let mut latest: BTreeMap<u64, u32> = BTreeMap::new();
    for (label, _) in &stored {
        if let Label::Directory { namespace, life, .. } = label {
            let known = latest.entry(*namespace).or_default();
            *known = (*known).max(*life);
        }
    }
    let (mut preserved, mut pauses) = (Vec::new(), recreated::PAUSES);
    for (label, fd) in stored {
        let outdated = matches!(&label, Label::Directory { namespace, life, .. } if latest[namespace] != *life);
        if outdated {
            fd_store.forget_name(&label.to_string());
            continue;
        }
        let name = label.to_string();
        let number = preserved.len() as u64 + 1;
        let adopted = if is_copied(&label, &fd) {
            adopt_copy(label, fd, memories, fd_store, (making, &mut pauses), (number, lanes))
        } else {
            adopt_one(label, fd, (memories, files), fd_store, number, lanes).map(Some)
        };
        match adopted {
            Ok(it) => preserved.extend(it),
            Err(error) => {
                tracing::warn!("{name}, left by the daemon before, is given up: {error}");
                fd_store.forget_name(&name);
            }
        }
    }
    preserved
}

/// Returns true if the daemon must continue with a copy of this file.
fn is_copied(label: &Label, fd: &OwnedFd) -> bool {
    let is_host_memory = magic(label).is_some() || matches!(label, Label::Segment { .. } | Label::Orphaned { .. });
    is_host_memory && recreated::is_recreated(fd)
}

/// Takes over the bytes of a file that the kernel made again. A directory's copy has a name of its own,
/// and enters the fd store before the original leaves it. Any other original leaves the store first,
/// because its copy has the same name. A daemon that is killed in between loses this memory. Returns
/// `None` for orphaned memory, which no process holds any more.
fn adopt_copy(
    label: Label,
    fd: OwnedFd,
    memories: &mut Memories,
    fd_store: &mut FdStore,
    (making, pauses): (Making, &mut u32),
    (number, lanes): (u64, &Lanes),
) -> io::Result<Option<Preserved>> {
    let (name, fd) = (label.to_string(), Arc::new(fd));
    if let Label::Orphaned { .. } = label {
        fd_store.forget_name(&name);
        return Ok(None);
    }
    let (mem, magic) = (MemId(number), magic(&label));
    if let Some(magic) = magic {
        let length = size(fstat(&fd)?.st_size as u64)?;
        SheetHeader::check(&unmapped::view(&fd, length), magic).map_err(io::Error::other)?;
    }
    let (copy, writable) = recreated::copy(&fd, magic, making, boottime_ns(), pauses)?;
    let copy = Arc::new(copy);
    drop(fd);
    let label = match label {
        Label::Directory { namespace, life, uid, name: named } => {
            let label = Label::Directory { namespace, life: life.wrapping_add(1), uid, name: named };
            fd_store.replace(mem, &label, copy.as_fd(), &name);
            label
        }
        label => {
            fd_store.forget_name(&name);
            fd_store.keep(mem, &label, copy.as_fd());
            label
        }
    };
    let bytes = fstat(&copy)?.st_size as u64;
    let is_directory = writable.is_some();
    let view = match (magic, writable) {
        (Some(_), None) => Some(unmapped::view(&copy, size(bytes)?)),
        (_, writable) => writable,
    };
    memories.insert(mem, copy, view.as_ref(), is_directory, lane_of(&label, lanes));
    Ok(Some(Preserved { label, mem, view, bytes, acked: true, copied: false }))
}

fn adopt_one(
    label: Label,
    fd: OwnedFd,
    (memories, files): Stores<'_>,
    fd_store: &mut FdStore,
    number: u64,
    lanes: &Lanes,
) -> io::Result<Preserved> {
    let (mem, lane) = (MemId(number), lane_of(&label, lanes));
    if let Label::Wake { .. } = label {
        if !memories.adopt_wake(mem, fd, lane, lanes) {
            return Err(io::Error::other("it is no wake descriptor"));
        }
        fd_store.has(mem, &label);
        return Ok(Preserved { label, mem, view: None, bytes: 0, acked: true, copied: false });
    }
    if let Label::DeviceSegment { bytes, .. } | Label::DeviceOrphaned { bytes, .. } = label {
        // The descriptor of device memory has no length, no seals and no shared words. Only its label describes it.
        memories.insert_on_device(mem, DeviceMemory { fd, keeps: None }, lane);
        fd_store.has(mem, &label);
        return Ok(Preserved { label, mem, view: None, bytes, acked: true, copied: false });
    }
    if let Label::Spilled { .. } = label {
        let file = Spilled::adopt(fd)?;
        let bytes = file.bytes;
        files.insert(mem, Arc::new(file));
        fd_store.has(mem, &label);
        return Ok(Preserved { label, mem, view: None, bytes, acked: true, copied: false });
    }
    let (bytes, fd) = (fstat(&fd)?.st_size as u64, Arc::new(fd));
    let Some(magic) = magic(&label) else {
        // An orphaned sheet has a view, so that the daemon later closes it as a sheet.
        let is_sheet = matches!(label, Label::Orphaned { segment: false, .. });
        let view = is_sheet.then(|| Ok::<_, io::Error>(unmapped::view(&fd, size(bytes)?))).transpose()?;
        memories.insert(mem, fd, view.as_ref(), false, lane);
        fd_store.has(mem, &label);
        return Ok(Preserved { label, mem, view: None, bytes, acked: true, copied: false });
    };
    let length = size(bytes)?;
    let view = unmapped::view(&fd, length);
    SheetHeader::check(&view, magic).map_err(io::Error::other)?;
    if let Label::Directory { namespace, life, uid, name } = label {
        if let Ok(view) = map::sheet(&fd, length, Access::Write) {
            let label = Label::Directory { namespace, life, uid, name };
            memories.insert(mem, fd, Some(&view), true, lane);
            fd_store.has(mem, &label);
            return Ok(Preserved { label, mem, view: Some(view), bytes, acked: true, copied: false });
        }
        // This directory is sealed against writers, so the daemon must continue with a copy.
        let (copy, view) = copy_of(&fd, bytes)?;
        let before = Label::Directory { namespace, life, uid, name: name.clone() };
        let label = Label::Directory { namespace, life: life.wrapping_add(1), uid, name };
        fd_store.replace(mem, &label, copy.as_fd(), &before.to_string());
        memories.insert(mem, copy, Some(&view), true, lane);
        return Ok(Preserved { label, mem, view: Some(view), bytes, acked: true, copied: true });
    }
    let acked = memfd::is_sealed(fd.as_fd())? || memfd::is_marked_mapped(fd.as_fd())?;
    memories.insert(mem, fd, Some(&view), false, lane);
    fd_store.has(mem, &label);
    Ok(Preserved { label, mem, view: Some(view), bytes, acked, copied: false })
}

/// Maximum bytes of directories that one run of the daemon copies for clients. Each copy blocks the loop.
const COPIED_BYTES_MAX: u64 = 8 << 30;

/// Copies of directories that clients handed back.
#[derive(Debug, Default)]
pub struct Copies {
    bytes: u64,
    /// The copy of each original directory, by the original's device and inode.
    made: BTreeMap<(u64, u64), MemId>,
}

impl Copies {
    /// Returns a state in which the limit of copies is reached.
    #[cfg(test)]
    pub fn full() -> Self {
        Self { bytes: COPIED_BYTES_MAX, ..Self::default() }
    }

    /// Copies a directory that a client has handed back. Returns `None` if an earlier copy of the
    /// directory still exists (`is_there` returns true for its id), or if the limit is reached.
    fn copy(
        &mut self,
        mem: MemId,
        fd: &OwnedFd,
        stat: &Stat,
        is_there: &dyn Fn(MemId) -> bool,
    ) -> Option<(OwnedFd, View)> {
        let file = (stat.st_dev, stat.st_ino);
        let bytes = self.bytes.checked_add((stat.st_blocks as u64).checked_mul(512)?)?;
        if self.made.get(&file).is_some_and(|&mem| is_there(mem)) || bytes > COPIED_BYTES_MAX {
            return None;
        }
        self.bytes = bytes;
        let copy = copy_of(fd, stat.st_size as u64).ok()?;
        self.made.insert(file, mem);
        Some(copy)
    }
}

/// Returns the maximum length of a sheet of this kind.
pub(super) fn longest(magic: Magic) -> u64 {
    let bytes = match magic {
        Magic::Directory => return Geometry::LARGEST.bytes(),
        Magic::Catalogue => size_of::<Catalogue>(),
        Magic::Cells => part_bytes::<CellRecord>(cells_count(CELL_PARTS - 1)),
        Magic::Slots => part_bytes::<SlotRecord>(1 << SLOTS_LOG2_MAX),
        Magic::Leases => size_of::<LeaseTable>(),
        Magic::Stream => size_of::<StreamRing>() + CAPACITY_MAX as usize * size_of::<RingEntry>(),
    };
    bytes as u64
}

/// Takes over a descriptor that a client hands back as `mem`, if a daemon of this uid has created
/// the memory. The owner and the seals of the memfd prove this, because only a process with this
/// uid can make such a memfd. Returns the descriptor to store, the view of a directory for the
/// system layer, and a description for the core. Rejects a segment of more than `segment_bytes_max`
/// bytes.
///
/// The daemon copies a directory, so that no other process can write the directory in use. It
/// rejects a directory without seals against writers, because every daemon in user mode sets these
/// seals. All clients hand back the same directory. While its copy exists (`is_there`), the daemon
/// accepts further descriptors of the directory, but does not copy it again.
pub fn own(
    mem: MemId,
    fd: &OwnedFd,
    segment_bytes_max: u64,
    copies: &mut Copies,
    is_there: &dyn Fn(MemId) -> bool,
) -> Option<(Arc<OwnedFd>, Option<View>, Own)> {
    // The seals are checked first. Only memfds have seals, and the kernel handles the query without
    // a call into a file system. Any other operation on a file of a client's own file system may
    // block without limit.
    let seals = rustix::fs::fcntl_get_seals(fd).ok()?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return None;
    }
    // The kind comes from the memfd's name, which no process can change. The contents may come from
    // a client.
    let name = made_as(fd)?;
    let stat = fstat(fd).ok()?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return None;
    }
    let sheets = [Magic::Directory, Magic::Catalogue, Magic::Cells, Magic::Slots, Magic::Leases, Magic::Stream];
    let magic = sheets.into_iter().find(|&magic| memory::name_of(magic) == name);
    let bytes = u64::try_from(stat.st_size).ok()?;
    // The length is limited, because a client with this uid can make a sparse memfd of any length.
    if bytes > magic.map_or(segment_bytes_max, longest) {
        return None;
    }
    // The file is reopened, because the client could change the flags of its own descriptor, and
    // because that descriptor would count as a writer. If the client has a file lease on the file,
    // the reopening fails, and the daemon rejects the descriptor.
    let preserved = Arc::new(memfd::reopen_at_once(fd.as_fd(), Access::Read).ok()?);
    let Some(magic) = magic else {
        return Some((preserved, None, Own { magic: None, bytes, view: None, acked: true, copied: false }));
    };
    let view = unmapped::view(&preserved, size(bytes).ok()?);
    SheetHeader::check(&view, magic).ok()?;
    let acked = memfd::is_sealed(preserved.as_fd()).ok()?;
    if magic != Magic::Directory {
        return Some((preserved, None, Own { magic: Some(magic), bytes, view: Some(view), acked, copied: false }));
    }
    if !acked {
        return None;
    }
    let its = |view| Own { magic: Some(magic), bytes, view, acked, copied: true };
    match copies.copy(mem, &preserved, &stat, is_there) {
        Some((copy, view)) => Some((copy.into(), Some(view.clone()), its(Some(view)))),
        None => Some((preserved, None, its(None))),
    }
}

/// Returns the name with which the daemon created a memfd.
pub(super) fn made_as(fd: &OwnedFd) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = path.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    name.starts_with("tensorlend-").then(|| name.to_owned())
}

/// Returns a sealed copy of a directory and its only writable view. Holes of the original are holes in the copy.
fn copy_of(fd: &OwnedFd, bytes: u64) -> io::Result<(OwnedFd, View)> {
    let copy = memfd::create_empty("tensorlend-directory", bytes)?;
    copy_data(fd, copy.as_fd(), bytes, 0)?;
    let view = map::sheet(&copy, size(bytes)?, Access::Write)?;
    memfd::seal_writers(copy.as_fd())?;
    Ok((copy, view))
}
