//! Allocations, and the limit of a card that processes share.

use crate::cu::{self, SLAB};
use crate::world::{World, role, tell, told};

fn big() {
    cu::start();
    cu::allocate(3 * SLAB).unwrap();
    tell("taken");
    told();
}

fn small() {
    cu::start();
    assert_eq!(cu::allocate(2 * SLAB), Err(2));
    assert_eq!(cu::create(2 * SLAB), Err(2));
    assert_eq!(cu::free_bytes(), SLAB);
    tell("refused");
    told();
    let at = cu::allocate(2 * SLAB).unwrap();
    cu!(cuMemFree_v2(at)).unwrap();
    assert_eq!(cu!(cuMemFree_v2(at)), Err(1));
    assert_eq!(cu::free_bytes(), 4 * SLAB);
}

#[test]
fn memory_of_the_card_is_limited_for_all_and_the_dead_give_it_back() {
    const TEST: &str = "memory::memory_of_the_card_is_limited_for_all_and_the_dead_give_it_back";
    match role().as_deref() {
        Some("big") => return big(),
        Some(_) => return small(),
        None => {}
    }
    let world = World::new().with("FAKECUDA_MEMORY", 4 * SLAB);
    let mut big = world.start(TEST, "big");
    big.hear();
    let mut small = world.start(TEST, "small");
    small.hear();
    big.kill();
    small.say("");
    small.succeeds();
}

fn copies() {
    let context = cudarc::driver::CudaContext::new(0).unwrap();
    assert_eq!(context.name().unwrap(), "tensorlend fake device 0");
    let stream = context.new_stream().unwrap();
    let numbers: Vec<i32> = (0..10_000).collect();
    let there = stream.clone_htod(&numbers).unwrap();
    let mut copy = stream.alloc_zeros::<i32>(numbers.len()).unwrap();
    stream.memcpy_dtod(&there, &mut copy).unwrap();
    assert_eq!(stream.clone_dtoh(&copy).unwrap(), numbers);
}

#[test]
fn cudarc_copies() {
    if role().is_some() {
        return copies();
    }
    World::new().start("memory::cudarc_copies", "only").succeeds();
}

fn host() {
    use cudarc::driver::sys::CUpointer_attribute::{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    cu::start();
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    assert_eq!(cu!(cuMemHostRegister_v2(at, 8192, 0)), Err(1), "not writable");
    cu!(cuMemHostRegister_v2(at, 8192, 8)).unwrap();
    assert_eq!(cu!(cuMemHostRegister_v2(at, 4096, 8)), Err(712));
    let mut device = 0;
    cu!(cuMemHostGetDevicePointer_v2(&raw mut device, at, 0)).unwrap();
    assert_eq!(cu::read(device), Ok(0));
    assert_eq!(cu::write(device, 1), Err(1));
    let mut kind = 0u32;
    cu!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device)).unwrap();
    assert_eq!(kind, 1);
    cu!(cuMemHostUnregister(at)).unwrap();
    assert_eq!(cu!(cuMemHostUnregister(at)), Err(713));
    assert_eq!(cu!(cuPointerGetAttribute((&raw mut kind).cast(), CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device)), Err(1));
    let there = cu::allocate(1000).unwrap();
    let mut bytes = 0usize;
    cu!(cuPointerGetAttribute((&raw mut bytes).cast(), CU_POINTER_ATTRIBUTE_RANGE_SIZE, there + 10)).unwrap();
    assert_eq!(bytes, 1000);
}

#[test]
fn host_memory_is_registered_with_the_access_it_has() {
    if role().is_some() {
        return host();
    }
    World::new().start("memory::host_memory_is_registered_with_the_access_it_has", "only").succeeds();
}
