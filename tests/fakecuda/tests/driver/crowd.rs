//! Many threads at once.

use crate::cu;
use crate::kernels::{IMAGE, launch, module};
use crate::world::{World, role};
use cudarc::driver::sys::CUstream;
use std::collections::HashSet;
use std::sync::Mutex;

fn thread(number: u32) {
    cu::start();
    let (module, stream) = (module(IMAGE), cu::stream());
    let mut event = std::ptr::null_mut();
    cu!(cuEventCreate(&raw mut event, 2)).unwrap();
    for round in 0..200 {
        let value = number * 1000 + round;
        let (mut at, mut out) = (0, 0);
        cu!(cuMemAllocAsync(&raw mut at, 4096, stream)).unwrap();
        cu!(cuMemAllocAsync(&raw mut out, 8, stream)).unwrap();
        launch(module, "tl_fill_u32", stream, &mut [at, 1024, u64::from(value)]).unwrap();
        launch(module, "tl_sum_u32", stream, &mut [out, at, 1024]).unwrap();
        cu!(cuEventRecord(event, stream)).unwrap();
        cu!(cuEventSynchronize(event)).unwrap();
        let mut sum = 0u64;
        cu!(cuMemcpyDtoH_v2((&raw mut sum).cast(), out, 8)).unwrap();
        assert_eq!(sum, u64::from(value) * 1024);
        cu!(cuMemFreeAsync(at, stream)).unwrap();
        cu!(cuMemFreeAsync(out, stream)).unwrap();
        let plain = cu::allocate(1 << 16).unwrap();
        cu!(cuMemFree_v2(plain)).unwrap();
    }
    cu!(cuStreamDestroy_v2(stream)).unwrap();
}

#[test]
fn threads_do_not_disturb_each_other() {
    if role().is_some() {
        std::thread::scope(|scope| {
            for number in 0..6 {
                scope.spawn(move || thread(number));
            }
        });
        cu::start();
        cu!(cuCtxSynchronize()).unwrap();
        assert_eq!(cu::free_bytes(), 1 << 30);
        return;
    }
    World::new().start("crowd::threads_do_not_disturb_each_other", "only").succeeds();
}

/// Memory that one thread frees in a stream is immediately available to other threads of that stream, and to one at a
/// time.
#[test]
fn nobody_shares_what_is_had_again() {
    if role().is_some() {
        cu::start();
        let (stream, had) = (cu::stream().expose_provenance(), Mutex::new(HashSet::new()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    cu::start();
                    let stream: CUstream = std::ptr::with_exposed_provenance_mut(stream);
                    for _ in 0..2000 {
                        let mut at = 0;
                        cu!(cuMemAllocAsync(&raw mut at, 4096, stream)).unwrap();
                        assert!(had.lock().unwrap().insert(at), "{at:#x} is somebody's");
                        had.lock().unwrap().remove(&at);
                        cu!(cuMemFreeAsync(at, stream)).unwrap();
                    }
                });
            }
        });
        return;
    }
    World::new().start("crowd::nobody_shares_what_is_had_again", "only").succeeds();
}
