//! Pages that several processes hold with equal contents.
//!
//! A pass reads the private anonymous pages of all processes and hashes them. A page of zeros counts nowhere, and neither
//! does a page that processes still share after a fork. The kernel's page map names the present pages, so that the pass
//! allocates no page and brings none back from swap.
//!
//! The sample is chosen by content: a pass keeps the pages whose hash ends in enough zero bits, and multiplies. A sample by
//! position would miss the twins of its pages: of two equal pages, it would have both only with the square of its rate.

use crate::proc;
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::ops::Range;
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
    let processes: Vec<(u32, Vec<Range<u64>>)> = pids.into_iter().map(|pid| (pid, candidates(pid, page))).collect();
    let bytes: u64 = processes.iter().flat_map(|(_, ranges)| ranges).map(|range| range.end - range.start).sum();
    let one_of = (bytes / page).div_ceil(HASHES_MAX).max(1).next_power_of_two();
    let mut contents: HashMap<u64, Copies> = HashMap::new();
    let mut read_bytes = 0;
    for (pid, ranges) in processes {
        let Ok(mut pages) = Pages::open(pid, page) else { continue };
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                if !continues() {
                    return None;
                }
                let end = range.end.min(at + CHUNK * page);
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

/// Returns the ranges of a process's memory whose pages can be private copies of data. Zeroed data of a library (`.bss`) are none:
/// torch's has 90 MiB of equal constants in each process.
fn candidates(pid: u32, page: u64) -> Vec<Range<u64>> {
    let Ok(memory) = File::open(format!("/proc/{pid}/mem")) else { return Vec::new() };
    let mut ranges = Vec::new();
    // Where the last file is mapped: its beginning, its end, and its inode.
    let (mut first, mut end, mut file) = (0, 0, (0, 0));
    for mapping in proc::mappings(pid).unwrap_or_default() {
        if mapping.path.starts_with('/') {
            if mapping.offset == 0 && file != (mapping.device, mapping.inode) {
                (first, file) = (mapping.start, (mapping.device, mapping.inode));
            }
            end = mapping.end;
        } else if mapping.is_writable
            && !mapping.is_shared
            && (mapping.path.is_empty() || mapping.path.starts_with('['))
        {
            // The loader maps `.bss` directly behind the file. So may the kernel do with other memory.
            let bss = if mapping.start == end { end_of_program(&memory, first, page).unwrap_or(0) } else { 0 };
            let start = mapping.start.max(bss);
            if start < mapping.end {
                ranges.push(start..mapping.end);
            }
        }
    }
    ranges
}

/// Returns the end of the memory of a program or a library that is mapped from an address on: the end of its last segment, by the
/// headers of its file (elf(5), 64 bits).
fn end_of_program(memory: &File, first: u64, page: u64) -> Option<u64> {
    const LOAD: u32 = 1;
    let mut head = [0; 64];
    memory.read_exact_at(&mut head, first).ok()?;
    let half = |at: usize| u64::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let (length, count) = (half(54), half(56));
    if !head.starts_with(b"\x7fELF\x02\x01") || length < 56 {
        return None;
    }
    let mut ends = None;
    let table = u64::from_le_bytes(head[32..40].try_into().expect("8 bytes"));
    for number in 0..count {
        let mut header = [0; 56];
        memory.read_exact_at(&mut header, first.checked_add(table)?.checked_add(number * length)?).ok()?;
        let word = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("8 bytes"));
        if u32::from_le_bytes(header[..4].try_into().expect("4 bytes")) == LOAD {
            let (address, end) = (word(16), word(16).checked_add(word(40))?);
            // The first segment begins where the file is mapped.
            let (lowest, _) = *ends.get_or_insert((address - address % page, 0));
            ends = Some((lowest, end));
        }
    }
    let (lowest, end) = ends?;
    first.checked_add(end.checked_sub(lowest)?)?.checked_next_multiple_of(page)
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
    fn each(&mut self, range: Range<u64>, mut each: impl FnMut(&[u8])) -> u64 {
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
    fn data_of_libraries_is_no_candidate_and_what_follows_it_is() {
        let page = rustix::param::page_size() as u64;
        let (own, memory) = (std::process::id(), File::open("/proc/self/mem").unwrap());
        let mappings = proc::mappings(own).unwrap();
        let is_bss = |pair: &[proc::Mapping]| {
            pair[0].path.contains("/libc.so") && pair[1].path.is_empty() && pair[0].end == pair[1].start
        };
        let first = mappings.iter().find(|mapping| mapping.path.contains("/libc.so")).unwrap().start;
        let bss = mappings.windows(2).find(|pair| is_bss(pair)).map(|pair| pair[1].clone()).unwrap();
        let end = end_of_program(&memory, first, page).unwrap();
        assert!((bss.start + 1..=bss.end).contains(&end), "{first:x} {end:x} {bss:x?}");
        let found = candidates(own, page);
        assert!(found.iter().all(|range| range.end <= bss.start || range.start >= end), "{found:x?}");
        // Memory that the kernel has joined to the library's.
        assert!(end == bss.end || found.contains(&(end..bss.end)), "{found:x?}");
        assert_eq!(end_of_program(&memory, bss.start, page), None);
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
