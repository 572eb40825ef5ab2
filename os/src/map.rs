//! Mappings: sheets as views of shared words, segments as bytes.
#![allow(unsafe_code)]

use crate::fork;
use crate::memfd::Access;
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorlend_layout::raw::View;
use tensorlend_layout::word::Word;

/// A mapping that belongs to the process that made it.
struct Mapping {
    raw: ManuallyDrop<MmapRaw>,
    forks: u64,
    listed: Option<&'static Listed>,
}

impl Mapping {
    fn new(raw: MmapRaw) -> Self {
        let listed = Listed::add(raw.as_ptr().addr(), raw.len());
        Self { raw: ManuallyDrop::new(raw), forks: fork::generation(), listed }
    }

    fn is_ours(&self) -> bool {
        self.forks == fork::generation()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // A forked child does not have its parent's mapping: at these addresses it has a reservation, or memory of its own.
        if self.is_ours() {
            if let Some(listed) = self.listed {
                listed.start.store(FREE, Ordering::Release);
            }
            // SAFETY: this is the only drop of `raw`, and no code uses `raw` afterwards.
            unsafe { ManuallyDrop::drop(&mut self.raw) };
        }
    }
}

/// Maximum number of mappings that are listed at once. A child may map other memory in place of unlisted ones.
const LISTED_MAX: usize = 16 << 10;
/// Number of entries of the list that are tried for a mapping; if all are in use, the mapping stays unlisted.
const PROBES: usize = 64;
const FREE: usize = 0;
/// An entry that is being written.
const BUSY: usize = 1;

/// The address and length of a mapping, for forked children: see [`reserve`].
struct Listed {
    start: AtomicUsize,
    bytes: AtomicUsize,
}

static LISTED: [Listed; LISTED_MAX] =
    [const { Listed { start: AtomicUsize::new(FREE), bytes: AtomicUsize::new(0) } }; LISTED_MAX];
/// The number of entries that were ever used.
static LISTED_END: AtomicUsize = AtomicUsize::new(0);

impl Listed {
    fn add(start: usize, bytes: usize) -> Option<&'static Self> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let first = NEXT.fetch_add(1, Ordering::Relaxed);
        let (at, entry) = (0..PROBES).map(|probe| first.wrapping_add(probe) % LISTED_MAX).find_map(|at| {
            let entry = &LISTED[at];
            let taken = entry.start.compare_exchange(FREE, BUSY, Ordering::Acquire, Ordering::Relaxed);
            taken.is_ok().then_some((at, entry))
        })?;
        LISTED_END.fetch_max(at + 1, Ordering::Relaxed);
        entry.bytes.store(bytes, Ordering::Relaxed);
        // Release: a thread that reads the start also reads the length.
        entry.start.store(start, Ordering::Release);
        Some(entry)
    }
}

/// In a forked child: reserves the addresses of the parent's mappings. Otherwise the child's next mapping could get them, and
/// an array that the child inherited would read and write the child's own memory instead of failing.
///
/// Must be called before the child has a second thread. It is safe in the child of a process with several threads: it makes
/// system calls, and neither allocates, locks nor panics.
pub(crate) fn reserve() {
    for entry in LISTED.iter().take(LISTED_END.load(Ordering::Relaxed)) {
        let (start, bytes) = (entry.start.load(Ordering::Acquire), entry.bytes.load(Ordering::Relaxed));
        // Also frees an entry that another thread of the parent was writing: the child does not have that thread.
        entry.start.store(FREE, Ordering::Relaxed);
        if start == FREE || start == BUSY {
            continue;
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: MAP_FIXED_NOREPLACE maps free addresses only, or fails. So it changes no mapping of the process. Without
        // PROT_READ and PROT_WRITE, the mapping takes no memory. After a failure, the addresses stay as they were.
        unsafe { libc::mmap(std::ptr::without_provenance_mut(start), bytes, libc::PROT_NONE, flags, -1, 0) };
    }
}

fn map(fd: &OwnedFd, bytes: usize, access: Access, populate: bool) -> io::Result<Mapping> {
    fork::watch();
    // A mapping longer than the file would raise SIGBUS at the first touch behind its end.
    let length = rustix::fs::fstat(fd)?.st_size;
    if usize::try_from(length).is_ok_and(|length| length < bytes) || bytes == 0 {
        return Err(io::Error::other(format!("a descriptor of {length} bytes was lent for {bytes}")));
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
    // A child shares no session: it must neither hold a dead parent's memory nor write into it.
    raw.advise(Advice::DontFork)?;
    Ok(Mapping::new(raw))
}

/// Maps a sheet of shared words.
pub fn sheet(fd: &OwnedFd, bytes: usize, access: Access) -> io::Result<View> {
    let mapping = Arc::new(map(fd, bytes, access, false)?);
    let start = NonNull::new(mapping.raw.as_mut_ptr()).expect("mmap returns no null");
    // SAFETY: 1: pages are aligned, and the mapping lives as long as the Arc. 2: the MmapRaw gives out pointers only, and only
    // this view takes one. 3: the caller requested the access that it will use.
    Ok(unsafe { View::new(start, bytes, mapping) })
}

/// A mapped segment: tensor bytes.
pub struct Segment {
    map: Mapping,
}

/// Maps a segment. If `populate` is true, enters every page into the page table now, so that no later access faults.
pub fn segment(fd: &OwnedFd, bytes: usize, access: Access, populate: bool) -> io::Result<Segment> {
    Ok(Segment { map: map(fd, bytes, access, populate)? })
}

/// Maps another file of equal length over a sheet that this process maps read-only. From the moment of the call on, all threads
/// that read the sheet see the words of the other file.
pub fn replace(sheet: &View, fd: &OwnedFd) -> io::Result<()> {
    let bytes = sheet.bytes();
    if rustix::fs::fstat(fd)?.st_size as u64 != bytes as u64 {
        return Err(io::Error::other("a sheet was to be replaced by one of another length"));
    }
    let words: &[Word] = sheet.array(0, bytes / 8).ok_or_else(|| io::Error::other("no sheet of words"))?;
    let (start, flags) = (words.as_ptr().cast_mut().cast(), libc::MAP_SHARED | libc::MAP_FIXED);
    // SAFETY: the call replaces exactly the pages of the sheet's own mapping, which lives as long as the view: nothing else is
    // at these addresses, and the mapping's owner unmaps them later. The kernel replaces a mapping in one step, so no access
    // meets a gap (mmap(2): MAP_FIXED over a mapping of one's own). The words are atomics of shared memory, which may have any
    // value at any time; the new pages exist for the whole length, compared above, and the file cannot shrink.
    let mapped = unsafe { libc::mmap(start, bytes, libc::PROT_READ, flags, fd.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call concerns the same pages, and changes only the memory that forked children get.
    if unsafe { libc::madvise(start, bytes, libc::MADV_DONTFORK) } == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Requests huge pages for a sheet: if the kernel has some, it uses them for pages that this mapping touches first. The call
/// covers the whole sheet: the kernel splits a mapping whose parts have different advice, and each part would be too short for
/// huge pages.
pub fn ask_for_huge(sheet: &View) -> io::Result<()> {
    advise(sheet, 0, sheet.bytes() as u64, libc::MADV_HUGEPAGE)
}

/// Makes all pages of a part of a writable sheet and enters them into the page table, so that no later access faults. Works in
/// small steps, so that a thread that maps memory waits for one step at most.
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

fn advise(sheet: &View, at: u64, bytes: u64, advice: libc::c_int) -> io::Result<()> {
    let outside = || io::Error::other("a part lies outside its sheet");
    let words: &[Word] = sheet.array(at as usize, bytes as usize / 8).ok_or_else(outside)?;
    let (start, length) = (words.as_ptr().cast_mut().cast(), size_of_val(words));
    // SAFETY: the words stay mapped for as long as the view lives. The two advices above change none of their contents, and
    // return an error for a part that is not mapped for writing.
    if unsafe { libc::madvise(start, length, advice) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A private, writable view of a part of a file: writes stay in this process.
pub struct Private {
    map: Mapping,
}

/// Maps a part of a file so that the first write of a page, and only that, copies it.
pub fn private(fd: &OwnedFd, offset: u64, bytes: usize) -> io::Result<Private> {
    fork::watch();
    let outside = || io::Error::other("a part lies outside its file");
    let end = offset.checked_add(bytes as u64).ok_or_else(outside)?;
    if rustix::fs::fstat(fd)?.st_size as u64 <= end.saturating_sub(1) || bytes == 0 {
        return Err(outside());
    }
    let mut options = MmapOptions::new();
    options.offset(offset).len(bytes);
    // SAFETY: this value only hands out pointers into the mapping. The file cannot shrink below the part: the caller's
    // descriptors are of sealed memfds. The file's writer may still write to pages that are not copied yet; a caller that makes
    // a reference must show that this does not happen.
    let raw = MmapRaw::from(unsafe { options.map_copy(fd.as_raw_fd())? });
    raw.advise(Advice::DontFork)?;
    Ok(Private { map: Mapping::new(raw) })
}

impl Private {
    /// Returns the first byte of the part. A caller that makes a reference from it needs a lease that keeps the memory valid.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.map.raw.as_mut_ptr()
    }

    /// Returns its length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.map.raw.len()
    }

    /// Returns whether this process made the mapping. A forked child has none of it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.map.is_ours()
    }
}

impl Segment {
    /// Makes an empty mapping: for a segment whose bytes this process reaches in another way.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn none() -> io::Result<Self> {
        fork::watch();
        let raw = MmapRaw::from(MmapOptions::new().len(0).map_anon()?);
        Ok(Self { map: Mapping { raw: ManuallyDrop::new(raw), forks: fork::generation(), listed: None } })
    }

    /// Requests huge pages, and makes all pages: huge ones if the kernel has some, otherwise ordinary ones.
    pub fn populate_huge(&self) -> io::Result<()> {
        self.map.raw.advise(Advice::HugePage)?;
        self.map.raw.advise(Advice::PopulateWrite)
    }

    /// Returns whether this process made the mapping. A forked child has none of it.
    #[inline]
    pub fn is_ours(&self) -> bool {
        self.map.is_ours()
    }

    /// Returns the [`fork::generation`] of the process that made the mapping.
    #[inline]
    pub fn forks(&self) -> u64 {
        self.map.forks
    }

    /// Returns the first byte of the mapping. A caller that makes a reference from it needs a lease or a draft that keeps the
    /// memory valid.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.map.raw.as_mut_ptr()
    }

    /// Returns its length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.map.raw.len()
    }
}
