//! The recovery of descriptors. This module validates the descriptors that the fd store passes. `core/recovery/restore.rs`
//! restores the state from them.

pub use super::recreated::PAUSES;
use super::recreated::{self, copy_data};
use super::{Making, Memories, unmapped};
use crate::core::MemId;
use crate::core::label::{Label, Preserved};
use crate::sys::device::DeviceMemory;
use crate::sys::fd_store::{FdStore, Stored};
use crate::sys::lanes::{Lane, Lanes};
use crate::sys::spill::Spilled;
use tensorlend_layout::number::ClientNo;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
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
        | Label::Wake { client: owner, .. } => Lane::Recovered(namespace, owner),
        _ => Lane::Recovered(namespace, ClientNo::DAEMON),
    }
}

/// The recovery of descriptors into the tables of this daemon: its memory, and its files with spilled segments.
pub struct Adoption<'a> {
    pub memories: &'a mut Memories,
    pub files: &'a mut BTreeMap<MemId, Arc<Spilled>>,
    pub fd_store: &'a mut FdStore,
    pub lanes: &'a Lanes,
    pub making: Making,
    /// The number of pauses that remain for copies.
    pub pauses: u32,
}

/// Takes over the descriptors from the fd store. Drops damaged descriptors and descriptors of
/// another layout, and logs this. Copies files that the kernel made again after a live update: see
/// [`recreated`].
pub fn adopt(stored: Vec<Stored>, mut adoption: Adoption<'_>) -> Vec<Preserved> {
    // The previous daemon may have been killed while it copied a directory. A daemon stores a copy
    // only when the copy is complete, so the latest stored copy is valid.
    let mut latest: BTreeMap<u64, u32> = BTreeMap::new();
    for (label, _) in &stored {
        if let Label::Directory { namespace, life, .. } = label {
            let known = latest.entry(*namespace).or_default();
            *known = (*known).max(*life);
        }
    }
    let mut preserved = Vec::new();
    for (label, fd) in stored {
        let outdated = matches!(&label, Label::Directory { namespace, life, .. } if latest[namespace] != *life);
        if outdated {
            adoption.fd_store.forget_name(&label.to_string());
            continue;
        }
        let name = label.to_string();
        let number = preserved.len() as u64 + 1;
        let adopted = if is_copied(&label, &fd) {
            adoption.adopt_copy(label, fd, MemId(number))
        } else {
            adoption.adopt_one(label, fd, MemId(number)).map(Some)
        };
        match adopted {
            Ok(it) => preserved.extend(it),
            Err(error) => {
                tracing::warn!("{name}, left by the daemon before, is given up: {error}");
                adoption.fd_store.forget_name(&name);
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

impl Adoption<'_> {
    /// Takes over the bytes of a file that the kernel made again. A directory's copy has a name of its own,
    /// and enters the fd store before the original leaves it. Any other original leaves the store first,
    /// because its copy has the same name. A daemon that is killed in between loses this memory. Returns
    /// `None` for orphaned memory, which no process holds any more.
    fn adopt_copy(&mut self, label: Label, fd: OwnedFd, mem: MemId) -> io::Result<Option<Preserved>> {
        let Self { memories, fd_store, lanes, .. } = self;
        let (name, fd) = (label.to_string(), Arc::new(fd));
        if let Label::Orphaned { .. } = label {
            fd_store.forget_name(&name);
            return Ok(None);
        }
        let magic = magic(&label);
        if let Some(magic) = magic {
            let length = size::index(memfd::length(&fd)?);
            SheetHeader::check(&unmapped::view(&fd, length), magic).map_err(io::Error::other)?;
        }
        let (copy, writable) = recreated::copy(&fd, magic, self.making, boottime_ns(), &mut self.pauses)?;
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
        let bytes = memfd::length(&copy)?;
        let view = if let Some(view) = writable {
            memories.insert_directory(mem, copy, view.clone());
            Some(view)
        } else {
            let view = magic.map(|_| unmapped::view(&copy, size::index(bytes)));
            memories.insert(mem, copy, view.as_ref(), lane_of(&label, lanes));
            view
        };
        Ok(Some(Preserved { label, mem, view, bytes, acked: true, copied: false }))
    }

    fn adopt_one(&mut self, label: Label, fd: OwnedFd, mem: MemId) -> io::Result<Preserved> {
        let Self { memories, files, fd_store, lanes, .. } = self;
        let lane = lane_of(&label, lanes);
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
        let (bytes, fd) = (memfd::length(&fd)?, Arc::new(fd));
        let Some(magic) = magic(&label) else {
            // An orphaned sheet has a view, so that the daemon later closes it as a sheet.
            let is_sheet = matches!(label, Label::Orphaned { segment: false, .. });
            let view = is_sheet.then(|| unmapped::view(&fd, size::index(bytes)));
            memories.insert(mem, fd, view.as_ref(), lane);
            fd_store.has(mem, &label);
            return Ok(Preserved { label, mem, view: None, bytes, acked: true, copied: false });
        };
        let length = size::index(bytes);
        let view = unmapped::view(&fd, length);
        SheetHeader::check(&view, magic).map_err(io::Error::other)?;
        if let Label::Directory { namespace, life, uid, name } = label {
            if let Ok(view) = map::sheet(&fd, length, Access::Write) {
                let label = Label::Directory { namespace, life, uid, name };
                memories.insert_directory(mem, fd, view.clone());
                fd_store.has(mem, &label);
                return Ok(Preserved { label, mem, view: Some(view), bytes, acked: true, copied: false });
            }
            // This directory is sealed against writers, so the daemon must continue with a copy.
            let (copy, view) = copy_of(&fd, bytes)?;
            let before = Label::Directory { namespace, life, uid, name: name.clone() };
            let label = Label::Directory { namespace, life: life.wrapping_add(1), uid, name };
            fd_store.replace(mem, &label, copy.as_fd(), &before.to_string());
            memories.insert_directory(mem, copy, view.clone());
            return Ok(Preserved { label, mem, view: Some(view), bytes, acked: true, copied: true });
        }
        let acked = memfd::is_sealed(fd.as_fd())? || memfd::is_marked_mapped(fd.as_fd())?;
        memories.insert(mem, fd, Some(&view), lane);
        fd_store.has(mem, &label);
        Ok(Preserved { label, mem, view: Some(view), bytes, acked, copied: false })
    }
}

/// Returns a sealed copy of a directory and its only writable view. Holes of the original are holes in the copy.
fn copy_of(fd: &OwnedFd, bytes: u64) -> io::Result<(OwnedFd, View)> {
    let copy = memfd::create_empty("tensorlend-directory", bytes)?;
    copy_data(fd, copy.as_fd(), bytes, 0)?;
    let view = map::sheet(&copy, size::index(bytes), Access::Write)?;
    memfd::seal_writers(copy.as_fd())?;
    Ok((copy, view))
}
