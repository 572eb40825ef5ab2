//! What came back from the keeper, mapped: see [`crate::core::restore`].

use super::keeper::{Heirloom, Keeper};
use super::memory::{self, Memories};
use crate::core::label::{Kept, Label};
use crate::core::{MemId, Own};
use rustix::fs::{SealFlags, SeekFrom, fstat, seek};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use tensorlend_layout::header::{Magic, SheetHeader};
use tensorlend_layout::raw::View;
use tensorlend_os::map;
use tensorlend_os::memfd::{self, Access};

/// What a sheet under this label is.
fn magic(label: &Label) -> Option<Magic> {
    Some(match label {
        Label::Directory { .. } => Magic::Directory,
        Label::Catalogue { .. } => Magic::Catalogue,
        Label::Leases { .. } => Magic::Leases,
        Label::Cells { .. } => Magic::Cells,
        Label::Slots { .. } => Magic::Slots,
        Label::Ring { .. } => Magic::Stream,
        Label::Segment { .. } | Label::Wake { .. } | Label::Lingering { .. } => return None,
    })
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(io::Error::other)
}

/// Takes in what came back. What is of another layout, or broken, is given up, and said so.
pub fn adopt(heirlooms: Vec<Heirloom>, memories: &mut Memories, keeper: &mut Keeper) -> Vec<Kept> {
    // Of a directory that was being copied when its daemon ended, the copy may not be whole, or not be known: the one
    // before it is. Copies are kept once they are whole.
    let mut latest: BTreeMap<u64, u32> = BTreeMap::new();
    for (label, _) in &heirlooms {
        if let Label::Directory { namespace, life, .. } = label {
            let known = latest.entry(*namespace).or_default();
            *known = (*known).max(*life);
        }
    }
    let mut kept = Vec::new();
    for (label, fd) in heirlooms {
        let outdated = matches!(&label, Label::Directory { namespace, life, .. } if latest[namespace] != *life);
        if outdated {
            keeper.forget_name(&label.to_string());
            continue;
        }
        let name = label.to_string();
        match adopt_one(label, fd, memories, keeper, kept.len() as u64 + 1) {
            Ok(it) => kept.push(it),
            Err(error) => {
                tracing::warn!("{name}, left by the daemon before, is given up: {error}");
                keeper.forget_name(&name);
            }
        }
    }
    kept
}

fn adopt_one(label: Label, fd: OwnedFd, memories: &mut Memories, keeper: &mut Keeper, number: u64) -> io::Result<Kept> {
    if let Label::Wake { .. } = label {
        let mem = memories.receive(fd).mem;
        keeper.has(mem, &label);
        return Ok(Kept { label, mem, view: None, bytes: 0, acked: true, copied: false });
    }
    let mem = MemId(number);
    let bytes = fstat(&fd)?.st_size as u64;
    let Some(magic) = magic(&label) else {
        // A sheet is closed as one, whoever may read it still.
        let view = match label {
            Label::Lingering { segment: false, .. } => Some(map::sheet(&fd, size(bytes)?, Access::Read)?),
            _ => None,
        };
        memories.insert(mem, fd, view.as_ref(), false);
        keeper.has(mem, &label);
        return Ok(Kept { label, mem, view: None, bytes, acked: true, copied: false });
    };
    let length = size(bytes)?;
    let view = map::sheet(&fd, length, Access::Read)?;
    let header: &SheetHeader = view.at(0).ok_or_else(|| io::Error::other("it is too short"))?;
    header.check(magic).map_err(io::Error::other)?;
    if let Label::Directory { namespace, life, uid, name } = label {
        if let Ok(view) = map::sheet(&fd, length, Access::Write) {
            let label = Label::Directory { namespace, life, uid, name };
            memories.insert(mem, fd, Some(&view), true);
            keeper.has(mem, &label);
            return Ok(Kept { label, mem, view: Some(view), bytes, acked: true, copied: false });
        }
        // Sealed against writers, this one too: so a copy, before anybody changes anything.
        let (copy, view) = copy_of(&fd, bytes)?;
        let before = Label::Directory { namespace, life, uid, name: name.clone() };
        let label = Label::Directory { namespace, life: life.wrapping_add(1), uid, name };
        keeper.keep(mem, &label, copy.as_fd());
        keeper.forget_name(&before.to_string());
        memories.insert(mem, copy, Some(&view), true);
        return Ok(Kept { label, mem, view: Some(view), bytes, acked: true, copied: true });
    }
    let acked = memfd::is_sealed(fd.as_fd())?;
    memories.insert(mem, fd, Some(&view), false);
    keeper.has(mem, &label);
    Ok(Kept { label, mem, view: Some(view), bytes, acked, copied: false })
}

/// What a client brings, if a daemon of this uid has made it: nobody else can make a memfd that belongs to this uid and is
/// sealed as ours are, unless he has this uid. Returns the descriptor to keep, the view of a directory for the shell, and
/// what the core learns.
pub fn own(fd: &OwnedFd) -> Option<(OwnedFd, Option<View>, Own)> {
    let stat = fstat(fd).ok()?;
    let seals = rustix::fs::fcntl_get_seals(fd).ok()?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return None;
    }
    let bytes = stat.st_size as u64;
    let length = usize::try_from(bytes).ok()?;
    // Never the client's: who holds it may change its flags, and it counts as a writer.
    let kept = memfd::reopen(fd.as_fd(), Access::Read).ok()?;
    // By the name that it was made with: what stands in it may be a client's to write.
    let name = made_as(fd)?;
    let sheets = [Magic::Directory, Magic::Catalogue, Magic::Cells, Magic::Slots, Magic::Leases, Magic::Stream];
    let Some(magic) = sheets.into_iter().find(|&magic| memory::name_of(magic) == name) else {
        return Some((kept, None, Own { magic: None, bytes, view: None, acked: true, copied: false }));
    };
    let view = map::sheet(&kept, length, Access::Read).ok()?;
    let header: &SheetHeader = view.at(0)?;
    header.check(magic).ok()?;
    let acked = memfd::is_sealed(kept.as_fd()).ok()?;
    if magic != Magic::Directory {
        return Some((kept, None, Own { magic: Some(magic), bytes, view: Some(view), acked, copied: false }));
    }
    let original = memfd::reopen(fd.as_fd(), Access::Write).ok();
    let mapped = original.and_then(|fd| map::sheet(&fd, length, Access::Write).ok().map(|view| (fd, view)));
    let copied = mapped.is_none();
    let (kept, view) = mapped.map_or_else(|| copy_of(&kept, bytes).ok(), Some)?;
    Some((kept, Some(view.clone()), Own { magic: Some(magic), bytes, view: Some(view), acked: true, copied }))
}

/// The name under which a memfd of ours was made.
fn made_as(fd: &OwnedFd) -> Option<String> {
    let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let name = path.to_str()?.strip_prefix("/memfd:")?.strip_suffix(" (deleted)")?;
    name.starts_with("tensorlend-").then(|| name.to_owned())
}

/// A sealed copy, and the only writable view of it. What has no pages there has none here.
fn copy_of(fd: &OwnedFd, bytes: u64) -> io::Result<(OwnedFd, View)> {
    let copy = memfd::create_empty("tensorlend-directory", bytes)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while at < bytes {
        at = match seek(fd, SeekFrom::Data(at)) {
            Ok(at) => at,
            // No more data.
            Err(Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = seek(fd, SeekFrom::Hole(at))?;
        while at < end {
            let step = buffer.len().min((end - at) as usize);
            let read = rustix::io::pread(fd, &mut buffer[..step], at)?;
            let mut written = 0;
            while written < read {
                written += rustix::io::pwrite(&copy, &buffer[written..read], at + written as u64)?;
            }
            at += read as u64;
        }
    }
    let view = map::sheet(&copy, size(bytes)?, Access::Write)?;
    memfd::seal_writers(copy.as_fd())?;
    Ok((copy, view))
}
