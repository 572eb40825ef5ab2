//! Rows for copies into and out of shared memory, compared with a copy between two warm buffers.
//! Another row measures the cost of a page fault.

use tensorlend_baselines::floors::{self, Pages};
use tensorlend_baselines::{BaselineError, Meter, repeated};

use super::exchange;
use super::names::Desk;
use super::race::{Entry, Group};
use super::setting::{FLOOR, OURS, Setting, entry};

/// Sizes in bytes of the copies.
const COPIED: [usize; 3] = [64 << 10, 1 << 20, 16 << 20];

/// Sizes in bytes of the tensors that two processes exchange.
const EXCHANGED: [usize; 4] = [1 << 10, 64 << 10, 1 << 20, 16 << 20];
const EXCHANGED_QUICK: [usize; 2] = [1 << 10, 1 << 20];

const PAGE_BYTES: usize = 4096;

/// Name of the floor with which all rows of this file are compared.
const MEMCPY: &str = "memcpy";

pub fn groups(setting: &Setting) -> Vec<Group> {
    let exchanged: &[usize] = if setting.quick { &EXCHANGED_QUICK } else { &EXCHANGED };
    let mut sizes: Vec<usize> = COPIED.iter().chain(exchanged).copied().collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut groups = Vec::new();
    for bytes in sizes {
        let mut entries = vec![entry(MEMCPY, FLOOR, None, move || Ok(floors::memcpy(bytes))).sized(bytes)];
        if COPIED.contains(&bytes) {
            let (here, there) = (setting.clone(), setting.clone());
            entries.push(entry("put_copy_in", OURS, Some(MEMCPY), move || put(&here, bytes)).sized(bytes));
            entries.push(entry("get_into", OURS, Some(MEMCPY), move || get_into(&there, bytes)).sized(bytes));
        }
        if exchanged.contains(&bytes) {
            entries.extend(exchange::entries(setting, MEMCPY, bytes));
        }
        groups.push(Group { doing: "copies and exchanges", entries });
    }
    let pages = [
        page("page_fault_fresh", Pages::Fresh),
        page("page_fault_existing", Pages::Existing),
        page("page_fault_populated", Pages::Populated),
    ];
    groups.push(Group { doing: "pages", entries: pages.into() });
    groups
}

fn page(name: &str, pages: Pages) -> Entry {
    entry(name, FLOOR, None, move || Ok(floors::page_faults(pages))).sized(PAGE_BYTES).at_most(1024)
}

fn put(setting: &Setting, bytes: usize) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Desk::open(setting, &format!("put{bytes}"))?;
    let (name, source) = (desk.name("value"), vec![1_u8; bytes]);
    // These puts allocate slots for the current, the previous and the next value. Later puts reuse them.
    for _ in 0..4 {
        desk.client.put(&name, &source)?;
    }
    Ok(Box::new(repeated(move || {
        desk.client.put(&name, &source)?;
        Ok(())
    })))
}

fn get_into(setting: &Setting, bytes: usize) -> Result<Box<dyn Meter>, BaselineError> {
    let desk = Desk::open(setting, &format!("into{bytes}"))?;
    let name = desk.name("value");
    let mut target = vec![1_u8; bytes];
    desk.client.put(&name, &target)?;
    let reader = Desk::open(setting, "reader")?;
    Ok(Box::new(repeated(move || {
        reader.client.get_into(&name, &mut target)?;
        // Make the closure own `desk`, because dropping it would delete the value.
        let _ = &desk;
        Ok(())
    })))
}
