//! A segment of the shared_memory crate. It consists of a header and the bytes. The header contains
//! words. Each word has one writer and its own cache lines.
//!
//! The crate returns a raw pointer, so this file contains the unsafe code of the baselines. Its
//! invariants:
//! 1. The mapping is readable and writable, and begins on a page. It contains the header and
//!    `bytes` bytes after it ([`Segment::create`] requests that size, and [`Segment::open`] checks
//!    it). It lives as long as the `Segment`.
//! 2. Both processes use the header only as atomic words, and make references to nothing else in
//!    the mapping.
//! 3. The bytes have one user at a time. The producer fills them before it stores an `Order`
//!    (Release) and after it has loaded the `Done` of the previous order (Acquire). The consumer
//!    drains them in between.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use shared_memory::{Shmem, ShmemConf, ShmemError};

use crate::BaselineError;

const SHM: &str = "/dev/shm";

/// Distance of two words in bytes: two cache lines, because the prefetcher fetches lines in pairs.
const WORD_STRIDE_BYTES: usize = 128;

/// Length of the header in bytes: one page, so that the payload begins on a page.
const HEADER_BYTES: usize = 4096;

#[derive(Clone, Copy)]
pub enum Word {
    /// The number of the exchange, and its operation. Written by the producer.
    Order,
    /// The number of the last exchange that the consumer has finished. Written by the consumer.
    Done,
    /// The time at which the consumer had read the tensor. Written by the consumer before `Done`.
    Read,
    /// The number of the tensor that the consumer read, or its checksum. Written by the consumer before `Done`.
    Found,
}

/// A mapped segment. Dropping the segment in its creator removes the name, unless
/// [`unlink`](Self::unlink) has removed it before.
pub struct Segment {
    shmem: Shmem,
    bytes: usize,
}

impl Segment {
    /// Makes a segment for `bytes` bytes of payload, and reserves its memory, so that later writes cannot fail.
    pub fn create(bytes: usize) -> Result<Self, BaselineError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let size = (bytes as u64).saturating_add(HEADER_BYTES as u64);
        refuse_if_short(size)?;

        let name = format!("/tensorlend-baseline-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let shmem = ShmemConf::new()
            .os_id(&name)
            .size(HEADER_BYTES + bytes)
            .create()
            .map_err(|error| failed(&name, "created", error))?;
        let segment = Self { shmem, bytes };
        segment.reserve(size)?;
        Ok(segment)
    }

    /// Opens a segment that [`create`](Self::create) made in another process.
    pub fn open(name: &str, bytes: usize) -> Result<Self, BaselineError> {
        let shmem = ShmemConf::new().os_id(name).open().map_err(|error| failed(name, "opened", error))?;
        if shmem.len() < HEADER_BYTES + bytes {
            let why = format!("it has {} bytes, not the {} that were promised", shmem.len(), HEADER_BYTES + bytes);
            return Err(BaselineError::Segment { name: name.to_owned(), done: "opened", why });
        }
        Ok(Self { shmem, bytes })
    }

    /// Returns the segment's name, for [`open`](Self::open).
    pub fn name(&self) -> &str {
        self.shmem.get_os_id()
    }

    /// Removes the name. The mappings of both processes stay. From then on, even a SIGKILL leaves no file in /dev/shm.
    pub fn unlink(&mut self) -> Result<(), BaselineError> {
        if self.shmem.set_owner(false) {
            fs::remove_file(self.path()).map_err(BaselineError::NoShm)?;
        }
        Ok(())
    }

    pub fn word(&self, word: Word) -> &AtomicU64 {
        let offset = word as usize * WORD_STRIDE_BYTES;
        #[allow(clippy::cast_ptr_alignment, reason = "the mapping begins on a page, the stride is a multiple of 8")]
        let word = self.shmem.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: by invariant 1, the pointer is valid for the lifetime of `self`. It is aligned,
        // because the offset is a multiple of 128 within the header. By invariant 2, all accesses
        // to the word are atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies `payload` into the segment. The producer calls this function between the consumer's
    /// `Done` and its own next `Order` (invariant 3).
    pub fn fill(&mut self, payload: &[u8]) {
        assert_eq!(payload.len(), self.bytes, "the segment was made for another payload");
        // SAFETY: the source is a slice of `self.bytes` bytes, as compared above. The destination
        // is writable (invariant 1) and has no other user (invariant 3). Bytes are always aligned.
        // Source and destination are disjoint, because no slice is in the mapping (invariant 2).
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), self.payload(), self.bytes) }
    }

    /// Copies the payload out of the segment. The consumer calls this function between `Order` and
    /// its own `Done` (invariant 3).
    pub fn drain(&self, copy: &mut [u8]) {
        assert_eq!(copy.len(), self.bytes, "the copy is of another size than the segment");
        // SAFETY: the destination is a slice of `self.bytes` bytes, as compared above. The source
        // is readable (invariant 1), with zeros before the first fill, and has no writer (invariant
        // 3). Bytes are always aligned. Source and destination are disjoint, because no slice is in
        // the mapping (invariant 2).
        unsafe { ptr::copy_nonoverlapping(self.payload(), copy.as_mut_ptr(), self.bytes) }
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: by invariant 1, the offset is within the mapping or one byte past its end.
        unsafe { self.shmem.as_ptr().add(HEADER_BYTES) }
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("{SHM}{}", self.name()))
    }

    /// Reserves the space with fallocate. If other programs have taken the space since the check,
    /// fallocate returns an error. Without fallocate, a later write would cause SIGBUS.
    fn reserve(&self, size: u64) -> Result<(), BaselineError> {
        let file = File::options().write(true).open(self.path()).map_err(BaselineError::NoShm)?;
        loop {
            match fallocate(&file, FallocateFlags::empty(), 0, size) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::NOSPC) => return Err(BaselineError::TooSmall { needed: size, free: free_bytes()? }),
                Err(error) => return Err(BaselineError::NoShm(error.into())),
            }
        }
    }
}

/// Returns an error if /dev/shm does not have enough free bytes for the segment.
fn refuse_if_short(needed: u64) -> Result<(), BaselineError> {
    let free = free_bytes()?;
    if free < needed { Err(BaselineError::TooSmall { needed, free }) } else { Ok(()) }
}

/// Returns the free bytes of /dev/shm. A tmpfs without a size limit reports 0 blocks.
fn free_bytes() -> Result<u64, BaselineError> {
    let stat = statvfs(SHM).map_err(|error| BaselineError::NoShm(io::Error::from(error)))?;
    Ok(if stat.f_blocks == 0 { u64::MAX } else { stat.f_bavail.saturating_mul(stat.f_frsize) })
}

fn failed(name: &str, done: &'static str, error: ShmemError) -> BaselineError {
    BaselineError::Segment { name: name.to_owned(), done, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::{Segment, Word};
    use crate::BaselineError;

    #[test]
    fn two_mappings_see_the_same_and_nothing_is_left() {
        let mut one = Segment::create(5000).unwrap();
        let path = one.path();
        let two = Segment::open(one.name(), 5000).unwrap();
        assert!(Segment::open(one.name(), 5001).is_err());

        one.fill(&[7; 5000]);
        one.word(Word::Order).store(3, Ordering::Release);
        assert_eq!(two.word(Word::Order).load(Ordering::Acquire), 3);
        assert_eq!(two.word(Word::Found).load(Ordering::Acquire), 0);
        let mut copy = vec![0; 5000];
        two.drain(&mut copy);
        assert_eq!(copy, [7; 5000]);

        assert!(path.exists());
        one.unlink().unwrap();
        one.unlink().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_drop_removes_the_name() {
        let segment = Segment::create(0).unwrap();
        let path = segment.path();
        assert!(path.exists());
        drop(segment);
        assert!(!path.exists());
    }

    #[test]
    fn too_much_is_refused_with_both_figures() {
        let error = Segment::create(1 << 52).err().unwrap();
        let BaselineError::TooSmall { needed, free } = error else { panic!("{error}") };
        assert_eq!(needed, (1 << 52) + 4096);
        assert!(free < needed);
        assert!(error.to_string().contains(&free.to_string()));
    }
}
