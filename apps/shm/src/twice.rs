//! Pages that several processes hold with equal contents.
//!
//! A pass reads the private anonymous pages of all processes and hashes them. A page of zeros counts nowhere, and neither
//! does a page that processes still share after a fork. The kernel's page map names the present pages, so that the pass
//! allocates no page and brings none back from swap.
//!
//! The sample is chosen by content: a pass keeps the pages whose hash ends in enough zero bits, and multiplies. A sample by
//! position would miss the twins of its pages: of two equal pages, it would have both only with the square of its rate.

use crate::proc::{self, Mapping};
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of hashes that a pass keeps: some 40 MB.
const HASHES_MAX: u64 = 1 << 20;
/// Number of pages that a pass reads at a time.
const CHUNK: u64 = 256;

/// Bits of an entry of /proc/PID/pagemap: see the kernel's Documentation/admin-guide/mm/pagemap.rst.
const PRESENT: u64 = 1 << 63;
const OF_FILE: u64 = 1 << 61;
const EXCLUSIVE: u64 = 1 << 56;

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Twice {
    /// Bytes of private pages whose contents another process has, too, without one copy of each.
    pub bytes: u64,
    /// Twice the standard error of `bytes`, of a sample. 0 if the pass kept all pages.
    pub error_bytes: u64,
    /// Bytes that the pass read.
    pub read_bytes: u64,
    /// The pass kept one of this number of pages.
    pub one_of: u64,
}

/// The copies of a page's contents.
#[derive(Clone, Copy)]
struct Copies {
    /// The last process in which the contents were found, and their number there.
    pid: u32,
    here: u32,
    /// Maximum number of copies in one process.
    most: u32,
    all: u32,
    processes: u32,
}

/// Reads the processes once. Returns `None` if `continues` returns false before the end.
pub fn equal_pages(pids: impl IntoIterator<Item = u32>, continues: &dyn Fn() -> bool) -> Option<Twice> {
    let page = rustix::param::page_size() as u64;
    let processes: Vec<(u32, Vec<Mapping>)> = pids.into_iter().map(|pid| (pid, candidates(pid))).collect();
    let bytes: u64 = processes.iter().flat_map(|(_, mappings)| mappings).map(Mapping::bytes).sum();
    let one_of = (bytes / page).div_ceil(HASHES_MAX).max(1).next_power_of_two();
    let mut contents: HashMap<u64, Copies> = HashMap::new();
    let mut read_bytes = 0;
    for (pid, mappings) in processes {
        let Ok(mut pages) = Pages::open(pid, page) else { continue };
        for mapping in mappings {
            let mut at = mapping.start;
            while at < mapping.end {
                if !continues() {
                    return None;
                }
                let end = mapping.end.min(at + CHUNK * page);
                read_bytes += pages.each(at..end, |contents_of_page| {
                    let hash = xxh3_64(contents_of_page);
                    if hash.is_multiple_of(one_of) {
                        count(contents.entry(hash), pid);
                    }
                });
                at = end;
            }
        }
    }
    let copies = contents.values().filter(|copies| copies.processes > 1);
    let sampled: u64 = copies.map(|copies| u64::from(copies.all - copies.most)).sum();
    let error = if one_of > 1 { 2.0 * (sampled as f64).sqrt() } else { 0.0 };
    let scale = page * one_of;
    Some(Twice { bytes: sampled * scale, error_bytes: (error * scale as f64) as u64, read_bytes, one_of })
}

/// Returns the mappings of a process whose pages can be private copies of data: not the zeroed data of a library (`.bss`),
/// which the loader maps directly behind the library's file. torch's has 90 MiB of equal constants in each process.
fn candidates(pid: u32) -> Vec<Mapping> {
    let mut end_of_file = 0;
    let mut is_candidate = |mapping: &Mapping| {
        if mapping.path.starts_with('/') {
            end_of_file = mapping.end;
        }
        let is_anonymous = mapping.path.is_empty() && mapping.start != end_of_file || mapping.path.starts_with('[');
        mapping.is_writable && !mapping.is_shared && is_anonymous
    };
    let mut mappings = proc::mappings(pid).unwrap_or_default();
    mappings.retain(|mapping| is_candidate(mapping));
    mappings
}

fn count(entry: Entry<'_, u64, Copies>, pid: u32) {
    let copies = entry.or_insert(Copies { pid, here: 0, most: 0, all: 0, processes: 1 });
    if copies.pid != pid {
        (copies.pid, copies.here) = (pid, 0);
        copies.processes += 1;
    }
    copies.here += 1;
    copies.all += 1;
    copies.most = copies.most.max(copies.here);
}

/// The memory of a process.
struct Pages {
    memory: File,
    map: File,
    page: u64,
    buffer: Vec<u8>,
}

impl Pages {
    fn open(pid: u32, page: u64) -> std::io::Result<Self> {
        let (memory, map) = (File::open(format!("/proc/{pid}/mem"))?, File::open(format!("/proc/{pid}/pagemap"))?);
        Ok(Self { memory, map, page, buffer: vec![0; (CHUNK * page) as usize] })
    }

    /// Calls `each` with the private pages of a range, except pages of zeros. Returns the number of bytes read.
    fn each(&mut self, range: std::ops::Range<u64>, mut each: impl FnMut(&[u8])) -> u64 {
        let count = ((range.end - range.start) / self.page) as usize;
        let mut words = vec![0; count * 8];
        if self.map.read_exact_at(&mut words, range.start / self.page * 8).is_err() {
            return 0;
        }
        let is_private = |word: &[u8]| {
            let word = u64::from_ne_bytes(word.try_into().expect("a word has 8 bytes"));
            word & (PRESENT | OF_FILE | EXCLUSIVE) == PRESENT | EXCLUSIVE
        };
        let private: Vec<bool> = words.chunks_exact(8).map(is_private).collect();
        let (mut read, mut first) = (0, 0);
        // A run of pages that are all private, or all not.
        for run in private.chunk_by(|a, b| a == b) {
            let (at, bytes) = (range.start + first * self.page, run.len() * self.page as usize);
            first += run.len() as u64;
            // The process may have unmapped the pages.
            if !run[0] || self.memory.read_exact_at(&mut self.buffer[..bytes], at).is_err() {
                continue;
            }
            read += bytes as u64;
            for page in self.buffer[..bytes].chunks_exact(self.page as usize) {
                if page.iter().any(|byte| *byte != 0) {
                    each(page);
                }
            }
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_in_one_process_count_only_if_another_has_them() {
        let mut contents = HashMap::new();
        for (hash, pid) in [(1, 7), (1, 7), (1, 8), (1, 8), (1, 8), (2, 7), (2, 7)] {
            count(contents.entry(hash), pid);
        }
        let Copies { all, most, processes, .. } = contents[&1];
        assert_eq!((all, most, processes), (5, 3, 2));
        assert_eq!(contents[&2].processes, 1);
    }

    #[test]
    fn data_of_libraries_is_no_candidate() {
        let mappings = proc::mappings(std::process::id()).unwrap();
        let is_bss = |pair: &[Mapping]| {
            pair[0].path.contains("libc.so") && pair[1].path.is_empty() && pair[0].end == pair[1].start
        };
        let bss = mappings.windows(2).find(|pair| is_bss(pair)).map(|pair| pair[1].clone()).unwrap();
        assert!(mappings.contains(&bss) && !candidates(std::process::id()).contains(&bss));
    }

    #[test]
    fn the_private_pages_of_this_process_are_read() {
        let bytes: Vec<u8> = (0..1u32 << 20).map(|at| (at / 977 % 251) as u8).collect();
        let own = equal_pages([std::process::id()], &|| true).unwrap();
        assert!(own.read_bytes >= bytes.len() as u64 && own.bytes == 0, "{own:?}");
        assert_eq!(equal_pages([std::process::id()], &|| false), None);
        drop(std::hint::black_box(bytes));
    }
}
