//! Stream-ordered pools in two processes.

use crate::cu::{self, DEFAULT, POSIX};
use crate::world::{World, give, role, take, tell, told};
use cudarc::driver::sys::{CUmemAllocationType, CUmemPoolProps, CUmemPoolPtrExportData, CUmemoryPool};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn pool() -> CUmemoryPool {
    // SAFETY: a C structure of integers, a pointer and enumerations that have a zero.
    let mut properties: CUmemPoolProps = unsafe { std::mem::zeroed() };
    properties.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = POSIX;
    properties.location = cu::device();
    let mut pool = std::ptr::null_mut();
    cu!(cuMemPoolCreate(&raw mut pool, &raw const properties)).unwrap();
    pool
}

fn owner() {
    cu::start();
    let pool = pool();
    let mut fd = -1;
    cu!(cuMemPoolExportToShareableHandle((&raw mut fd).cast(), pool, POSIX, 0)).unwrap();
    // SAFETY: a new descriptor, which the driver's caller owns.
    give("pool", unsafe { OwnedFd::from_raw_fd(fd) });
    for _ in 0..2 {
        let mut at = 0;
        cu!(cuMemAllocFromPoolAsync(&raw mut at, 5000, pool, DEFAULT)).unwrap();
        cu!(cuMemsetD32Async(at, 5, 1250, DEFAULT)).unwrap();
        cu!(cuStreamSynchronize(DEFAULT)).unwrap();
        let mut data = CUmemPoolPtrExportData { reserved: [0; 64] };
        cu!(cuMemPoolExportPointer(&raw mut data, at)).unwrap();
        tell(cu::to_hex(&data.reserved));
        told();
        cu!(cuMemFreeAsync(at, DEFAULT)).unwrap();
        assert_eq!(cu!(cuMemFreeAsync(at, DEFAULT)), Err(1), "twice");
        cu!(cuStreamSynchronize(DEFAULT)).unwrap();
        tell(cu::violations());
    }
    cu!(cuMemPoolDestroy(pool)).unwrap();
}

fn importer() {
    cu::start();
    let fd = take("pool");
    let mut pool = std::ptr::null_mut();
    cu!(cuMemPoolImportFromShareableHandle(&raw mut pool, fd.as_raw_fd() as usize as *mut _, POSIX, 0)).unwrap();
    let mut at = 0;
    assert_eq!(cu!(cuMemAllocFromPoolAsync(&raw mut at, 4096, pool, DEFAULT)), Err(801));
    for _ in 0..2 {
        let mut data = CUmemPoolPtrExportData { reserved: cu::from_hex(&told()) };
        cu!(cuMemPoolImportPointer(&raw mut at, pool, &raw mut data)).unwrap();
        tell(cu::read(at).unwrap());
        if told() == "free" {
            cu!(cuMemFreeAsync(at, DEFAULT)).unwrap();
            cu!(cuStreamSynchronize(DEFAULT)).unwrap();
            assert_eq!(cu::read(at), Err(1), "unmapped");
        }
        tell("");
        if told() == "look" {
            tell(cu::read(at).unwrap());
        }
    }
}

#[test]
fn importers_free_first_and_who_does_not_is_found_out() {
    const TEST: &str = "pools::importers_free_first_and_who_does_not_is_found_out";
    match role().as_deref() {
        Some("owner") => return owner(),
        Some(_) => return importer(),
        None => {}
    }
    let world = World::new();
    let mut owner = world.start(TEST, "owner");
    let mut importer = world.start(TEST, "importer");
    for (order, violations, then) in [("free", "0", ""), ("keep", "1", "look")] {
        importer.say(owner.hear());
        assert_eq!(importer.hear(), "5");
        importer.say(order);
        importer.hear();
        owner.say("");
        assert_eq!(owner.hear(), violations);
        importer.say(then);
    }
    assert_eq!(importer.hear(), 0xDDDD_DDDD_u32.to_string());
    importer.succeeds();
    owner.succeeds();
}

fn reuse() {
    cu::start();
    let stream = cu::stream();
    let other = cu::stream();
    let gate = crate::world::folder().join(format!("gate.{}", std::process::id()));
    std::fs::write(&gate, "").unwrap();
    let (mut one, mut two, mut three) = (0, 0, 0);
    cu!(cuMemAllocAsync(&raw mut one, 4096, stream)).unwrap();
    cu!(cuMemFreeAsync(one, stream)).unwrap();
    cu!(cuMemAllocAsync(&raw mut two, 4096, other)).unwrap();
    assert_ne!(two, one, "the other stream does not know that it is free");
    cu!(cuMemAllocAsync(&raw mut three, 4096, stream)).unwrap();
    assert_eq!(three, one, "the same stream does");
    std::fs::remove_file(gate).unwrap();
    cu!(cuMemFreeAsync(two, other)).unwrap();
    cu!(cuMemFreeAsync(three, stream)).unwrap();
    let free = cu::free_bytes();
    cu!(cuCtxSynchronize()).unwrap();
    assert!(cu::free_bytes() >= free);
    assert_eq!(cu::free_bytes(), 1 << 30, "nothing is kept without a threshold");
}

#[test]
fn memory_comes_back_in_the_order_of_streams() {
    if role().is_some() {
        return reuse();
    }
    World::new().start("pools::memory_comes_back_in_the_order_of_streams", "only").succeeds();
}
