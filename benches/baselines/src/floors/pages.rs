//! The floor of page faults.

use std::os::fd::OwnedFd;
use std::time::Instant;

use memmap2::{MmapMut, MmapOptions};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::meter::each;
use crate::{BaselineError, Meter};

/// The state of the pages before the first access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// The pages do not exist. At the first access the kernel allocates a page and clears it.
    Fresh,
    /// The pages exist. At the first access the kernel enters the page into the page table.
    Existing,
    /// The pages exist, and mmap itself enters all of them into the page table (MAP_POPULATE).
    Populated,
}

const PAGE_BYTES: usize = 4096;

/// Maximum number of pages of a mapping (16 MiB).
const PAGES_MAX: usize = 4096;

/// Measures the first access to a page of a memfd in a new mapping. For [`Pages::Populated`],
/// measures mapping and access together.
pub fn page_faults(pages: Pages) -> Box<dyn Meter> {
    Box::new(Faults { pages, kept: None })
}

struct Faults {
    pages: Pages,
    kept: Option<OwnedFd>,
}

impl Meter for Faults {
    /// Measures one page per operation.
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let count = (operations as usize).clamp(1, PAGES_MAX);
        if self.pages == Pages::Fresh || self.kept.is_none() {
            self.kept = Some(memfd(PAGES_MAX * PAGE_BYTES)?);
        }
        let Some(file) = &self.kept else { return Ok(()) };
        if self.pages != Pages::Fresh {
            touch(&mut map(file, count, false)?);
        }
        let start = Instant::now();
        if self.pages == Pages::Populated {
            touch(&mut map(file, count, true)?);
            samples_ns.push(each(start.elapsed(), count as u64));
        } else {
            let mut map = map(file, count, false)?;
            let start = Instant::now();
            touch(&mut map);
            samples_ns.push(each(start.elapsed(), count as u64));
        }
        Ok(())
    }
}

fn touch(map: &mut MmapMut) {
    for page in map.chunks_mut(PAGE_BYTES) {
        page[0] = std::hint::black_box(1);
    }
}

fn memfd(bytes: usize) -> Result<OwnedFd, BaselineError> {
    let file = memfd_create("floor", MemfdFlags::CLOEXEC).map_err(BaselineError::system("make a memfd"))?;
    ftruncate(&file, bytes as u64).map_err(BaselineError::system("lengthen a memfd"))?;
    Ok(file)
}

#[allow(unsafe_code)]
fn map(file: &OwnedFd, pages: usize, populate: bool) -> Result<MmapMut, BaselineError> {
    let mut options = MmapOptions::new();
    options.len(pages * PAGE_BYTES);
    if populate {
        options.populate();
    }
    // SAFETY: the file is a memfd of this meter, which has `PAGES_MAX` pages as long as it lives.
    // No other process has the file. The meter drops a mapping before it makes the next one.
    unsafe { options.map_mut(file) }.map_err(BaselineError::system("map a memfd"))
}
