//! Memory by handles: exported, imported, alive after its exporter has died, and protected.

use crate::cu::{self, POSIX, READ, SLAB, WRITE};
use crate::world::{World, give, role, take, tell, told};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;

fn export(handle: u64) -> OwnedFd {
    let mut fd = -1;
    cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX, 0)).unwrap();
    // SAFETY: a new descriptor, which the driver's caller owns.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn import(fd: &OwnedFd) -> Result<u64, u32> {
    let mut handle = 0;
    cu!(cuMemImportFromShareableHandle(&raw mut handle, fd.as_raw_fd() as usize as *mut _, POSIX))?;
    Ok(handle)
}

fn exporter() {
    cu::start();
    let handle = cu::create(SLAB).unwrap();
    let at = cu::map(handle, SLAB, WRITE);
    cu::write(at, 7).unwrap();
    give("slab", export(handle));
    told();
    tell(cu::read(at).unwrap());
    told();
}

fn importer() {
    cu::start();
    let handle = import(&take("slab")).unwrap();
    let at = cu::map(handle, SLAB, WRITE);
    cu!(cuMemRelease(handle)).unwrap();
    tell(cu::read(at).unwrap());
    cu::write(at, 9).unwrap();
    told();
    tell(cu::read(at).unwrap());
    told();
    tell(cu::free_bytes());
    cu!(cuMemUnmap(at, SLAB)).unwrap();
    cu!(cuMemAddressFree(at, SLAB)).unwrap();
    tell(cu::free_bytes());
}

#[test]
fn memory_outlives_its_exporter_and_counts_until_the_last_one_is_gone() {
    const TEST: &str = "vmm::memory_outlives_its_exporter_and_counts_until_the_last_one_is_gone";
    match role().as_deref() {
        Some("exporter") => return exporter(),
        Some(_) => return importer(),
        None => {}
    }
    let world = World::new().with("FAKECUDA_MEMORY", 4 * SLAB);
    let mut exporter = world.start(TEST, "exporter");
    let mut importer = world.start(TEST, "importer");
    assert_eq!(importer.hear(), "7");
    importer.say("");
    assert_eq!(importer.hear(), "9");
    exporter.say("");
    assert_eq!(exporter.hear(), "9");
    exporter.kill();
    importer.say("");
    assert_eq!(importer.hear(), (3 * SLAB).to_string());
    assert_eq!(importer.hear(), (4 * SLAB).to_string());
    importer.succeeds();
}

fn refusals() {
    cu::start();
    assert_eq!(cu::create(SLAB + 1), Err(1));
    let handle = cu::create(2 * SLAB).unwrap();
    let mut at = 0;
    cu!(cuMemAddressReserve(&raw mut at, 2 * SLAB, 0, 0, 0)).unwrap();
    assert_eq!(cu!(cuMemMap(at, SLAB, SLAB, handle, 0)), Err(1), "an offset");
    assert_eq!(cu!(cuMemMap(at + 2 * SLAB as u64, SLAB, 0, handle, 0)), Err(1), "beyond what is reserved");
    cu!(cuMemMap(at, 2 * SLAB, 0, handle, 0)).unwrap();
    assert_eq!(cu::read(at), Err(1), "no access before it is set");
    assert_eq!(cu!(cuMemAddressFree(at, 2 * SLAB)), Err(1), "mapped");
    assert_eq!(cu!(cuMemUnmap(at, SLAB)), Err(1), "half");
    let file = std::fs::File::open("/dev/null").unwrap();
    assert_eq!(import(&file.into()), Err(1), "not the driver's descriptor");
    cu!(cuMemUnmap(at, 2 * SLAB)).unwrap();
    cu!(cuMemRelease(handle)).unwrap();
    assert_eq!(cu!(cuMemRelease(handle)), Err(1), "twice");
    // Imported in the exporting process: the same memory, counted once.
    let free = cu::free_bytes();
    let handle = cu::create(SLAB).unwrap();
    let again = import(&export(handle)).unwrap();
    let (one, two) = (cu::map(handle, SLAB, WRITE), cu::map(again, SLAB, READ));
    cu::write(one, 5).unwrap();
    assert_eq!(cu::read(two), Ok(5));
    assert_eq!(cu::write(two, 5), Err(1));
    assert_eq!(cu::free_bytes(), free - SLAB);
}

#[test]
fn what_the_driver_refuses_is_refused() {
    if role().is_some() {
        return refusals();
    }
    World::new().start("vmm::what_the_driver_refuses_is_refused", "only").succeeds();
}

fn trespasser() {
    cu::start();
    let at = cu::map(cu::create(SLAB).unwrap(), SLAB, READ);
    // SAFETY: the fake driver has mapped device memory at its pointer, readable as requested.
    tell(unsafe { (at as *const u32).read_volatile() });
    // SAFETY: mapped, and not writable. A signal ends the process at this point, as the test expects.
    unsafe { (at as *mut u32).write_volatile(1) };
}

#[test]
fn a_host_that_writes_to_a_read_only_mapping_faults() {
    if role().is_some() {
        return trespasser();
    }
    let world = World::new();
    let mut trespasser = world.start("vmm::a_host_that_writes_to_a_read_only_mapping_faults", "only");
    assert_eq!(trespasser.hear(), 0xA5A5_A5A5_u32.to_string(), "fresh memory is not zeroed");
    assert_eq!(trespasser.end().signal(), Some(libc::SIGSEGV));
}
