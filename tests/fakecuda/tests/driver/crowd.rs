//! Many threads at once.

use crate::cu;
use crate::kernels::{IMAGE, launch, module};
use crate::world::{World, role};

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
