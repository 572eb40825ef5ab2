//! Shared memory the plain way: a memfd and its mapping.
#![allow(unsafe_code)]

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Fresh shared memory of `bytes` bytes, no page of it touched yet. The descriptor goes with the mapping's making: what is
/// measured is memory, not descriptors.
pub fn fresh(bytes: usize) -> MmapMut {
    let file = memfd_create("tensorlend-bench", MemfdFlags::CLOEXEC).expect("a memfd can be made");
    ftruncate(&file, bytes as u64).expect("it can be given a length");
    // SAFETY: memmap2 asks that nobody changes or cuts the file while it is mapped: this process alone has the descriptor,
    // and closes it right here.
    unsafe { MmapOptions::new().len(bytes).map_mut(&file) }.expect("it can be mapped")
}
