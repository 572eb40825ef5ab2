//! The file that all processes of one fake machine map. It records how much memory of each device each process holds.
//!
//! A block is a memfd that serves as device memory, identified by its inode. It counts on its device while a living
//! process holds it: `used(device) == sum of bytes of the blocks of the device with a holder`. The next process that
//! sweeps the file detects a dead process by its number and start time, and removes its holds.

use crate::code::{Code, Done, OUT_OF_MEMORY};
use crate::pages::Shared;
use crate::{process, settings};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

const PROCESSES: usize = 64;
const ENTRIES: usize = 4096;

/// A new file is all zeros, which is the valid initial state, so no process initializes it. All fields but `violations`
/// are written under the lock.
#[repr(C)]
struct Sheet {
    violations: AtomicU64,
    processes: [Process; PROCESSES],
    blocks: [Block; ENTRIES],
    shares: [Share; ENTRIES],
}

#[repr(C)]
struct Process {
    pid: AtomicU64,
    start: AtomicU64,
}

#[repr(C)]
struct Block {
    inode: AtomicU64,
    device: AtomicU64,
    bytes: AtomicU64,
    /// A bit per process; free when zero.
    holders: AtomicU64,
}

/// An allocation of a pool that processes other than the pool's owner have imported.
#[repr(C)]
struct Share {
    inode: AtomicU64,
    at: AtomicU64,
    holders: AtomicU64,
}

struct Local {
    file: File,
    sheet: Shared<Sheet>,
    slot: Option<usize>,
    /// Number of times that this process holds each block and each share. At 0 the process clears its bit.
    blocks: HashMap<u64, u64>,
    shares: HashMap<(u64, u64), u64>,
}

static CONTROL: OnceLock<Mutex<Local>> = OnceLock::new();

pub fn open() -> Done {
    if CONTROL.get().is_some() {
        return Ok(());
    }
    let file = match &settings::get().folder {
        Some(folder) => {
            std::fs::create_dir_all(folder)?;
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(folder.join("control"))?
        }
        None => crate::pages::memfd("fakecuda-control", 0)?,
    };
    file.set_len(size_of::<Sheet>() as u64)?;
    let sheet = Shared::of_file(&file)?;
    let local = Local { file, sheet, slot: None, blocks: HashMap::new(), shares: HashMap::new() };
    let _ = CONTROL.set(Mutex::new(local));
    Ok(())
}

fn get(word: &AtomicU64) -> u64 {
    // Relaxed: the file's lock orders all accesses.
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU64, value: u64) {
    word.store(value, Ordering::Relaxed);
}

/// The local state and the file's lock. A record lock belongs to the process: the kernel releases it when the process
/// ends, and a forked child does not inherit it.
struct Locked(MutexGuard<'static, Local>);

fn lock() -> Locked {
    let local = CONTROL.get().expect("opened by cuInit").lock().unwrap_or_else(PoisonError::into_inner);
    record_lock(&local.file, libc::F_WRLCK);
    Locked(local)
}

impl Drop for Locked {
    fn drop(&mut self) {
        record_lock(&self.0.file, libc::F_UNLCK);
    }
}

fn record_lock(file: &File, kind: libc::c_int) {
    // SAFETY: flock is a C structure of integers, for which zeros are valid values.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    // SAFETY: the descriptor is open, and the structure outlives the call.
    while unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLKW, &raw const lock) } == -1
        && std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
    {}
}

impl Locked {
    /// Removes dead processes, and returns this process's bit.
    fn sweep(&mut self) -> Result<u64, Code> {
        let sheet = &self.0.sheet;
        let mut dead = 0;
        for (at, entry) in sheet.processes.iter().enumerate() {
            if get(&entry.pid) != 0 && self.0.slot != Some(at) && !process::lives(get(&entry.pid), get(&entry.start)) {
                dead |= 1 << at;
                set(&entry.pid, 0);
            }
        }
        if dead != 0 {
            let holders = sheet.blocks.iter().map(|block| &block.holders);
            for word in holders.chain(sheet.shares.iter().map(|share| &share.holders)) {
                set(word, get(word) & !dead);
            }
        }
        if self.0.slot.is_none() {
            let free = sheet.processes.iter().position(|entry| get(&entry.pid) == 0).ok_or(OUT_OF_MEMORY)?;
            let (pid, start) = process::this();
            set(&sheet.processes[free].start, start);
            set(&sheet.processes[free].pid, pid);
            self.0.slot = Some(free);
        }
        Ok(1 << self.0.slot.expect("given above"))
    }

    fn used(&self, device: u32) -> u64 {
        let held = |block: &&Block| get(&block.holders) != 0 && get(&block.device) == u64::from(device);
        self.0.sheet.blocks.iter().filter(held).map(|block| get(&block.bytes)).sum()
    }

    fn block(&self, inode: u64) -> Option<&Block> {
        self.0.sheet.blocks.iter().find(|block| get(&block.holders) != 0 && get(&block.inode) == inode)
    }

    fn share(&self, inode: u64, at: u64) -> Option<&Share> {
        let this = |share: &&Share| get(&share.holders) != 0 && get(&share.inode) == inode && get(&share.at) == at;
        self.0.sheet.shares.iter().find(this)
    }
}

/// Bytes of the device's memory in use by all processes.
pub fn used(device: u32) -> u64 {
    let mut locked = lock();
    let _ = locked.sweep();
    locked.used(device)
}

/// Counts a block for this process. A new block must fit on the device. A block that another process holds is counted
/// already.
pub fn hold(inode: u64, device: u32, bytes: u64, import: bool) -> Done {
    let mut locked = lock();
    let bit = locked.sweep()?;
    if let Some(block) = locked.block(inode) {
        set(&block.holders, get(&block.holders) | bit);
    } else {
        if !import && locked.used(device) + bytes > settings::get().memory_bytes {
            return Err(OUT_OF_MEMORY);
        }
        let free = locked.0.sheet.blocks.iter().find(|block| get(&block.holders) == 0).ok_or(OUT_OF_MEMORY)?;
        set(&free.inode, inode);
        set(&free.device, u64::from(device));
        set(&free.bytes, bytes);
        set(&free.holders, bit);
    }
    *locked.0.blocks.entry(inode).or_insert(0) += 1;
    Ok(())
}

/// Changes the length of a block that this process holds: a pool that took or returned memory.
pub fn resize(inode: u64, device: u32, bytes: u64) -> Done {
    let mut locked = lock();
    locked.sweep()?;
    let block = locked.block(inode).ok_or(OUT_OF_MEMORY)?;
    let others = locked.used(device) - get(&block.bytes);
    if bytes > get(&block.bytes) && others + bytes > settings::get().memory_bytes {
        return Err(OUT_OF_MEMORY);
    }
    set(&block.bytes, bytes);
    Ok(())
}

pub fn release(inode: u64) {
    let mut locked = lock();
    let Ok(bit) = locked.sweep() else { return };
    let Some(count) = locked.0.blocks.get_mut(&inode) else { return };
    *count -= 1;
    if *count == 0 {
        locked.0.blocks.remove(&inode);
        if let Some(block) = locked.block(inode) {
            set(&block.holders, get(&block.holders) & !bit);
        }
    }
}

/// Whether living processes other than this one hold the block.
pub fn held_elsewhere(inode: u64) -> bool {
    let mut locked = lock();
    let Ok(bit) = locked.sweep() else { return false };
    locked.block(inode).is_some_and(|block| get(&block.holders) & !bit != 0)
}

/// Records that this process has imported an allocation of a pool.
pub fn share(inode: u64, at: u64) -> Done {
    let mut locked = lock();
    let bit = locked.sweep()?;
    if let Some(share) = locked.share(inode, at) {
        set(&share.holders, get(&share.holders) | bit);
    } else {
        let free = locked.0.sheet.shares.iter().find(|share| get(&share.holders) == 0).ok_or(OUT_OF_MEMORY)?;
        set(&free.inode, inode);
        set(&free.at, at);
        set(&free.holders, bit);
    }
    *locked.0.shares.entry((inode, at)).or_insert(0) += 1;
    Ok(())
}

pub fn unshare(inode: u64, at: u64) {
    let mut locked = lock();
    let Ok(bit) = locked.sweep() else { return };
    let Some(count) = locked.0.shares.get_mut(&(inode, at)) else { return };
    *count -= 1;
    if *count == 0 {
        locked.0.shares.remove(&(inode, at));
        if let Some(share) = locked.share(inode, at) {
            set(&share.holders, get(&share.holders) & !bit);
        }
    }
}

/// Returns true if a living process still has the allocation that its pool's owner frees.
pub fn shared(inode: u64, at: u64) -> bool {
    let mut locked = lock();
    let _ = locked.sweep();
    locked.share(inode, at).is_some()
}

pub fn violation() {
    let local = CONTROL.get().expect("opened by cuInit").lock().unwrap_or_else(PoisonError::into_inner);
    local.sheet.violations.fetch_add(1, Ordering::Relaxed);
}

pub fn violations() -> u64 {
    let local = CONTROL.get().expect("opened by the caller").lock().unwrap_or_else(PoisonError::into_inner);
    local.sheet.violations.load(Ordering::Relaxed)
}
