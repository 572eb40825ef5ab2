//! Mappings: sheets as views of shared words, segments as bytes.
#![allow(unsafe_code)]

use crate::fork::{self, Origin};
use crate::memfd::{self, Access};
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tensorlend_layout::raw::View;
use tensorlend_layout::size;
use tensorlend_layout::word::Word;

/// A mapping that belongs to the process that made it.
struct Mapping {
    raw: ManuallyDrop<MmapRaw>,
    origin: Origin,
    listed: Option<&'static Listed>,
}

impl Mapping {
    /// Takes ownership of a mapping. If `inherited` is false, the mapping may be writable, and a
    /// forked child does not get it.
    fn new(raw: MmapRaw, inherited: bool) -> io::Result<Self> {
        if !inherited {
            // A child does not share its parent's session, so the child must not write into the
            // session's memory.
            raw.advise(Advice::DontFork)?;
        }
        let listed = Listed::add(raw.as_ptr().addr(), raw.len(), inherited);
        if inherited && listed.is_none() {
            // Only a listed mapping can be withdrawn from a child, so the child does not get an
            // unlisted mapping.
            raw.advise(Advice::DontFork)?;
        }
        let origin = Origin::here(inherited && listed.is_some());
        Ok(Self { raw: ManuallyDrop::new(raw), origin, listed })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child, the addresses of the parent's mapping contain that mapping, a reservation, or the
        // child's own memory. The child must not unmap any of these. Other values may still read the mapping.
        if self.origin.is_ours() {
            if let Some(listed) = self.listed {
                listed.start.store(FREE, Ordering::Release);
            }
            // SAFETY: this is the only drop of `raw`, and no code uses `raw` afterwards.
            unsafe { ManuallyDrop::drop(&mut self.raw) };
        }
    }
}

/// Maximum number of mappings in the list. A child may map other memory in place of unlisted
/// mappings.
const LISTED_MAX: usize = 16 << 10;
/// Number of entries of the list that a mapping tries. If all of these are in use, the mapping
/// stays unlisted.
const PROBES: usize = 64;
const FREE: usize = 0;
/// The start address in an entry while a thread writes the entry.
const BUSY: usize = 1;

/// The address and length of a mapping, and whether children inherit the mapping. A forked child
/// reads these entries: see [`reserve`].
struct Listed {
    start: AtomicUsize,
    bytes: AtomicUsize,
    inherited: AtomicBool,
}

static LISTED: [Listed; LISTED_MAX] =
    [const { Listed { start: AtomicUsize::new(FREE), bytes: AtomicUsize::new(0), inherited: AtomicBool::new(false) } };
        LISTED_MAX];
/// The number of entries from the first to the last that was ever used.
static LISTED_END: AtomicUsize = AtomicUsize::new(0);

impl Listed {
    fn add(start: usize, bytes: usize, inherited: bool) -> Option<&'static Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        let (at, entry) = (0..PROBES).map(|probe| first.wrapping_add(probe) % LISTED_MAX).find_map(|at| {
            let entry = &LISTED[at];
            let taken = entry.start.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok().then_some((at, entry))
        })?;
        LISTED_END.fetch_max(at + 1, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        entry.inherited.store(inherited, Ordering::Relaxed);
        // Release: a thread that reads the start also reads the other fields.
        entry.start.store(start, Ordering::Release);
        Some(entry)
    }
}

/// In a forked child: reserves the addresses of the parent's mappings that the child does not have.
/// Without the reservation, the child's next mapping could get these addresses. An array that the
/// child inherited would then read and write the child's own memory instead of failing. If
/// `readable` is false, the child also loses the mappings that it inherited.
///
/// Must be called before the child has a second thread. The function is safe in the child of a
/// process with several threads: it makes system calls, and neither allocates, locks nor panics.
pub(crate) fn reserve(readable: bool) {
    for entry in LISTED.iter().take(LISTED_END.load(Ordering::Relaxed)) {
        let (start, bytes) = (entry.start.load(Ordering::Acquire), entry.bytes.load(Ordering::Relaxed));
        let inherited = entry.inherited.load(Ordering::Relaxed);
        if inherited && readable && start != FREE && start != BUSY {
            // The entry stays listed, for the child's own children.
            continue;
        }
        // This also frees an entry that another thread of the parent was writing, because the child
        // does not have that thread.
        entry.start.store(FREE, Ordering::Relaxed);
        if start == FREE || start == BUSY {
            continue;
        }
        let over = if inherited { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | over;
        // SAFETY: MAP_FIXED_NOREPLACE maps only free addresses, or fails. MAP_FIXED replaces a
        // mapping of this module that the child inherited. The mapping is listed as long as it
        // exists. No value of the child reads it any more, because `fork::is_readable` is false for
        // its generation. Without PROT_READ and PROT_WRITE, the new mapping takes no memory. After
        // a failure, the addresses stay as they were.
        unsafe { libc::mmap(std::ptr::without_provenance_mut(start), bytes, libc::PROT_NONE, flags, -1, 0) };
    }
}

fn map(fd: &OwnedFd, bytes: usize, access: Access, populate: bool) -> io::Result<Mapping> {
    fork::watch();
    // A mapping longer than the file would raise SIGBUS at the first access behind the file's end.
    let length = memfd::length(fd)?;
    if length < bytes as u64 || bytes == 0 {
        return Err(io::Error::other(format!("the daemon sent a descriptor of {length} bytes instead of {bytes}")));
    }
    let mut options = MmapOptions::new();
    options.len(bytes);
    if populate {
        options.populate();
    }
    let raw = match access {
        Access::Read => options.map_raw_read_only(fd.as_raw_fd())?,
        Access::Write => options.map_raw(fd.as_raw_fd())?,
    };
    Mapping::new(raw, access == Access::Read)
}

/// Maps a sheet of shared words.
pub fn sheet(fd: &OwnedFd, bytes: usize, access: Access) -> io::Result<View> {
    let mapping = Arc::new(map(fd, bytes, access, false)?);
    let start = NonNull::new(mapping.raw.as_mut_ptr()).expect("mmap returns no null");
    // SAFETY: pages are aligned to 64 bytes, and the mapping lives as long as the Arc. The MmapRaw
    // gives out only pointers, and only this view takes one, so all accesses go through views. The
    // caller requested the access that it will use, so no code stores through a read-only view.
    Ok(unsafe { View::new(start, bytes, mapping) })
}

/// A mapped segment: tensor bytes.
pub struct Segment {
    map: Mapping,
}

/// Maps a segment. If `populate` is true, enters every page into the page table now, so that later
/// accesses cause no page fault.
pub fn segment(fd: &OwnedFd, bytes: usize, access: Access, populate: bool) -> io::Result<Segment> {
    Ok(Segment { map: map(fd, bytes, access, populate)? })
}

/// Maps another file of equal length over a sheet that this process maps read-only. From then on,
/// all threads that read the sheet see the words of the other file.
pub fn replace(sheet: &View, fd: &OwnedFd) -> io::Result<()> {
    let bytes = sheet.bytes();
    if memfd::length(fd)? != bytes as u64 {
        return Err(io::Error::other("a sheet was to be replaced by one of another length"));
    }
    let words: &[Word] = sheet.array(0, bytes / 8).ok_or_else(|| io::Error::other("no sheet of words"))?;
    let (start, flags) = (words.as_ptr().cast_mut().cast(), libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the call replaces exactly the pages of the sheet's own mapping, which lives as long
    // as the view. Nothing else is at these addresses, and the mapping's owner unmaps them later.
    // The kernel replaces a mapping in one step, so no access meets a gap (mmap(2), MAP_FIXED over
    // a mapping of the same process). The words are atomics of shared memory, which may have any
    // value at any time. The new pages exist for the whole length, compared above, and the file
    // cannot shrink.
    let mapped = unsafe { libc::mmap(start, bytes, libc::PROT_READ, flags, fd.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Chooses whether a forked child gets this writable sheet. The parent enables this only for the
/// duration of a fork.
///
/// # Errors
/// The kernel's errors.
pub fn inherit(sheet: &View, inherited: bool) -> io::Result<()> {
    let advice = if inherited { libc::MADV_DOFORK } else { libc::MADV_DONTFORK };
    advise(sheet, 0, sheet.bytes() as u64, advice)
}

/// In a forked child: forbids writes to a sheet that the child got by [`inherit`]. The function is
/// safe in the child of a process with several threads. After a failure the child could still write
/// to the sheet, but the library's own checks prevent it.
pub fn protect(sheet: &View) {
    let words: Option<&[Word]> = sheet.array(0, sheet.bytes() / 8);
    if let Some(words) = words {
        let start = words.as_ptr().cast_mut().cast();
        // SAFETY: the pages are those of the sheet, which is mapped. No code of the child writes to
        // the sheet, because its session belongs to the parent.
        unsafe { libc::mprotect(start, size_of_val(words), libc::PROT_READ) };
    }
}

/// Requests huge pages for a sheet. If the kernel has huge pages, it uses them for pages that this
/// mapping touches first. The request covers the whole sheet. Otherwise the kernel would split the
/// mapping by advice, and each part would be too short for huge pages.
pub fn ask_for_huge(sheet: &View) -> io::Result<()> {
    advise(sheet, 0, sheet.bytes() as u64, libc::MADV_HUGEPAGE)
}

/// Allocates all pages in a part of a writable sheet and enters them into the page table, so that
/// later accesses cause no page fault. Works in small steps, so that a thread that maps memory
/// waits for at most one step.
pub fn populate(sheet: &View, at: u64, bytes: u64) -> io::Result<()> {
    const STEP: u64 = 2 << 20;
    let end = at + bytes;
    let mut at = at;
    while at < end {
        let next = (at + 1).next_multiple_of(STEP).min(end);
        match advise(sheet, at, next - at, libc::MADV_POPULATE_WRITE) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            done => {
                done?;
                at = next;
            }
        }
    }
    Ok(())
}

/// Gives advice for all pages that contain a part of a sheet. The kernel takes no start within a page, and its pages may be longer
/// than the 4096 bytes to which the parts of a sheet are aligned: aarch64 has kernels with pages of 16 KiB and of 64 KiB.
fn advise(sheet: &View, at: u64, bytes: u64, advice: libc::c_int) -> io::Result<()> {
    let outside = || io::Error::other("a part lies outside its sheet");
    let ahead = at % rustix::param::page_size() as u64;
    let words: &[Word] = sheet.array(size::index(at - ahead), size::index(ahead + bytes) / 8).ok_or_else(outside)?;
    let (start, length) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
    // SAFETY: the words stay mapped for as long as the view lives. None of the advices above
    // changes their contents. The kernel returns an error for an advice that it cannot follow.
    if unsafe { libc::madvise(start, length, advice) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A private, writable view of a part of a file. Writes stay in this process.
pub struct Private {
    map: Mapping,
}

/// Maps a part of a file. The kernel copies a page only at the page's first write.
pub fn private(fd: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Private> {
    fork::watch();
    let outside = || io::Error::other("a part lies outside its file");
    let end = offset.checked_add(bytes as u64).ok_or_else(outside)?;
    if memfd::length(fd)? <= end.saturating_sub(1) || bytes == 0 {
        return Err(outside());
    }
    let mut options = MmapOptions::new();
    options.offset(offset).len(bytes);
    // SAFETY: this value only gives out pointers into the mapping. The file cannot shrink below the
    // part, because the caller's descriptors are of sealed memfds. The file's writer may still
    // write to pages that are not copied yet. A caller that makes a reference must show that no
    // such write happens.
    let raw = MmapRaw::from(unsafe { options.map_copy(fd.as_raw_fd())? });
    // A child gets its own copy, like of any private memory.
    Ok(Private { map: Mapping::new(raw, true)? })
}

impl Private {
    /// Returns the first byte of the part. A caller that makes a reference from the pointer needs a
    /// lease that keeps the memory valid.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.map.raw.as_mut_ptr()
    }

    /// Returns the part's length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.map.raw.len()
    }

    /// Enters pages into the page table, so that a later read of them causes no page fault. The pages stay shared: a write
    /// still copies them.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn populate(&self, at: usize, bytes: usize) -> io::Result<()> {
        self.map.raw.advise_range(Advice::PopulateRead, at, bytes)
    }

    /// Returns true if this process may use the part, because it made the mapping or got a copy by
    /// a fork.
    #[inline]
    pub fn is_readable(&self) -> bool {
        self.map.origin.is_readable()
    }
}

impl Segment {
    /// Creates an empty mapping, for a segment whose bytes this process reaches in another way.
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn none() -> io::Result<Self> {
        fork::watch();
        let raw = MmapRaw::from(MmapOptions::new().len(0).map_anon()?);
        Ok(Self { map: Mapping { raw: ManuallyDrop::new(raw), origin: Origin::here(false), listed: None } })
    }

    /// Requests huge pages, and allocates all pages: huge pages if the kernel has some, otherwise
    /// ordinary pages.
    pub fn populate_huge(&self) -> io::Result<()> {
        self.map.raw.advise(Advice::HugePage)?;
        self.map.raw.advise(Advice::PopulateWrite)
    }

    /// Returns the process that made the mapping, and whether its children may read the mapping.
    #[inline]
    pub fn origin(&self) -> Origin {
        self.map.origin
    }

    /// Returns the first byte of the mapping. A caller that makes a reference from the pointer
    /// needs a lease or a draft that keeps the memory valid.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.map.raw.as_mut_ptr()
    }

    /// Returns the mapping's length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.map.raw.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_begins_within_a_page_is_populated() {
        let page = rustix::param::page_size() as u64;
        let fd = memfd::create("test", 4 * page).unwrap();
        let sheet = sheet(&fd, size::index(4 * page), Access::Write).unwrap();
        // Sparse, as the memory of a sheet is after its pages were given back.
        memfd::punch_part(std::os::fd::AsFd::as_fd(&fd), 0, 4 * page).unwrap();
        populate(&sheet, page + 64, page).unwrap();
        // The second and the third page.
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_blocks as u64 * 512, 2 * page);
    }
}
