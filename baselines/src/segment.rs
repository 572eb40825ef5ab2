//! A segment of the shared_memory crate: a header of words, each with one writer and a cache line of its own, and the bytes.
//!
//! The crate hands out a raw pointer, so this file contains the unsafe code of the baselines. Its invariants:
//! 1. The mapping is readable and writable, begins on a page, holds the header and `bytes` bytes behind it ([`Segment::create`]
//!    requests that size, [`Segment::open`] checks it), and lives as long as the `Segment`.
//! 2. Both processes use the header as atomic words only, and make references to nothing else in the mapping.
//! 3. The bytes have one user at a time: the producer fills them before it stores an `Order` (Release) and after it has loaded
//!    the `Done` of the order before (Acquire); the consumer drains them in between.
//!    loaded the `Done` of the order before (Acquire); the consumer drains them in between.
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

/// Distance of two words: two cache lines, since the prefetcher fetches lines in pairs.
const WORD_STRIDE_BYTES: usize = 128;

/// One page, so that the payload begins on a page.
const HEADER_BYTES: usize = 4096;

/// The words of the header.
#[derive(Clone, Copy)]
pub enum Word {
    /// Written by the producer: number of the exchange, and its operation.
    Order,
    /// Written by the consumer: number of the last exchange it has finished.
    Done,
    /// Written by the consumer before `Done`: the time when it held the tensor.
    Held,
    /// Written by the consumer before `Done`: the stamp or checksum it found.
    Found,
}

/// A mapped segment. Its creator removes its name when dropped, if [`unlink`](Self::unlink) has not done so before.
pub struct Segment {
    shmem: Shmem,
    bytes: usize,
}

impl Segment {
    /// Makes a segment for `bytes` bytes of payload, all of them reserved: later writes cannot fail.
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

    /// Returns its name, for [`open`](Self::open).
    pub fn name(&self) -> &str {
        self.shmem.get_os_id()
    }

    /// Removes the name; both mappings stay. From then on not even a SIGKILL can leave anything in /dev/shm.
    pub fn unlink(&mut self) -> Result<(), BaselineError> {
        if self.shmem.set_owner(false) {
            fs::remove_file(self.path()).map_err(BaselineError::NoShm)?;
        }
        Ok(())
    }

    /// Returns a word of the header.
    pub fn word(&self, word: Word) -> &AtomicU64 {
        let offset = word as usize * WORD_STRIDE_BYTES;
        #[allow(clippy::cast_ptr_alignment, reason = "the mapping begins on a page, the stride is a multiple of 8")]
        let word = self.shmem.as_ptr().wrapping_add(offset).cast::<u64>();
        // SAFETY: valid for `self`'s lifetime and aligned: 1, and the offset is a multiple of 128 within the header; no
        // access that is not atomic: 2.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// Copies `payload` in. For the producer, between the consumer's `Done` and its own next `Order` (3).
    pub fn fill(&mut self, payload: &[u8]) {
        assert_eq!(payload.len(), self.bytes, "the segment was made for another payload");
        // SAFETY: valid to read: a slice of that length, just compared. Valid to write: 1, without another user: 3. Aligned:
        // bytes. Disjoint: no slice is in the mapping, see 2.
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), self.payload(), self.bytes) }
    }

    /// Copies the payload out. For the consumer, between `Order` and its own `Done` (3).
    pub fn drain(&self, copy: &mut [u8]) {
        assert_eq!(copy.len(), self.bytes, "the copy is of another size than the segment");
        // SAFETY: valid to write: a slice of that length, just compared. Valid to read: 1 (zeros until filled), without another
        // writer: 3. Aligned: bytes. Disjoint: no slice is in the mapping, see 2.
        unsafe { ptr::copy_nonoverlapping(self.payload(), copy.as_mut_ptr(), self.bytes) }
    }

    fn payload(&self) -> *mut u8 {
        // SAFETY: within the mapping or one past its end: 1.
        unsafe { self.shmem.as_ptr().add(HEADER_BYTES) }
    }

    fn path(&self) -> PathBuf {
        PathBuf::from(format!("{SHM}{}", self.name()))
    }

    /// Reserves the space with fallocate: if others took it since the check, that is an error instead of a SIGBUS.
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

/// Returns an error for a segment that cannot fit, before making anything.
fn refuse_if_short(needed: u64) -> Result<(), BaselineError> {
    let free = free_bytes()?;
    if free < needed { Err(BaselineError::TooSmall { needed, free }) } else { Ok(()) }
}

/// Returns the free bytes of /dev/shm. A tmpfs without a limit of its own reports no blocks at all.
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
