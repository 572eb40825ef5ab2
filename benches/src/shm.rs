//! Plain shared memory: a memfd or a file, and its mapping.
#![allow(unsafe_code)]

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns new shared memory of `bytes` bytes, none of whose pages is touched yet. The descriptor is closed at once:
/// the benchmark measures memory, not descriptors.
pub fn fresh(bytes: usize) -> MmapMut {
    let file = memfd_create("tensorlend-bench", MemfdFlags::CLOEXEC).expect("a memfd can be made");
    ftruncate(&file, bytes as u64).expect("it can be given a length");
    // SAFETY: memmap2 requires that nobody changes or truncates the file while it is mapped: only this process has the
    // descriptor, and closes it right here.
    unsafe { MmapOptions::new().len(bytes).map_mut(&file) }.expect("it can be mapped")
}

/// Words in a shared file that two processes poll in turns. Each word has its own cache lines.
#[derive(Debug)]
pub struct Mailbox {
    map: MmapMut,
}

const WORDS: usize = 16;
/// Two cache lines, since processors prefetch pairs.
const WORD_BYTES: usize = 128;

impl Mailbox {
    /// Maps the file, and sets its length.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = std::fs::File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len((WORDS * WORD_BYTES) as u64)?;
        // SAFETY: every process with the path keeps the file's length and uses only the atomics below.
        let map = unsafe { MmapOptions::new().len(WORDS * WORD_BYTES).map_mut(&file) }?;
        Ok(Self { map })
    }

    #[allow(clippy::cast_ptr_alignment)]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < WORDS, "a mailbox has {WORDS} words");
        // SAFETY: inside the mapping, which is aligned to pages, and lives as long as `self` is borrowed; all users
        // access it as an atomic.
        unsafe { &*self.map.as_ptr().add(at * WORD_BYTES).cast::<AtomicU64>() }
    }

    /// Waits until a word is `value`, spinning.
    pub fn wait(&self, at: usize, value: u64) {
        for turn in 1_u64.. {
            if self.word(at).load(Ordering::Acquire) == value {
                return;
            }
            pause(turn);
        }
    }

    pub fn tell(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }
}

/// Between two polls: spins, and yields now and then.
pub fn pause(turn: u64) {
    if turn.is_multiple_of(2048) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

#[cfg(test)]
mod tests {
    use super::Mailbox;

    #[test]
    fn what_one_tells_the_other_sees() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mailbox");
        let [one, other] = [Mailbox::open(&path).unwrap(), Mailbox::open(&path).unwrap()];
        one.tell(15, 7);
        other.wait(15, 7);
    }
}
