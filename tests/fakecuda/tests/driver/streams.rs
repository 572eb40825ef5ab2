//! Work of streams: it runs after the call returns and in order, waits for the gate, and may continue after its process has died.

use crate::cu::{self, DEFAULT, POSIX, SLAB, WRITE};
use crate::kernels::{IMAGE, launch, module};
use crate::world::{World, folder, give, role, take, tell, told};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

fn order() {
    cu::start();
    let (module, stream) = (module(IMAGE), cu::stream());
    let at = cu::allocate(4096).unwrap();
    cu::write(at, 1).unwrap();
    let gate = folder().join("gate");
    std::fs::write(&gate, "").unwrap();
    launch(module, "tl_fill_u32", stream, &mut [at, 4, 2]).unwrap();
    assert_eq!(cu!(cuStreamQuery(stream)), Err(600));
    assert_eq!(cu::read(at), Ok(1), "nothing makes the default stream wait for it");
    std::fs::remove_file(&gate).unwrap();
    cu!(cuStreamSynchronize(stream)).unwrap();
    assert_eq!((cu!(cuStreamQuery(stream)), cu::read(at)), (Ok(()), Ok(2)));
    // A blocking stream, and the default one after it.
    let mut blocking = std::ptr::null_mut();
    cu!(cuStreamCreate(&raw mut blocking, 0)).unwrap();
    launch(module, "tl_spin_fill_u32", blocking, &mut [at, 4, 3, 50_000_000]).unwrap();
    assert_eq!(cu::read(at), Ok(3));
    launch(module, "tl_spin_fill_u32", DEFAULT, &mut [at, 4, 4, 50_000_000]).unwrap();
    launch(module, "tl_add_i32", blocking, &mut [at, at, at, 4]).unwrap();
    cu!(cuStreamSynchronize(blocking)).unwrap();
    assert_eq!(cu::read(at), Ok(8));
    // The stream is destroyed with queued work. The card still does it.
    launch(module, "tl_spin_fill_u32", stream, &mut [at, 4, 5, 20_000_000]).unwrap();
    let mut event = std::ptr::null_mut();
    cu!(cuEventCreate(&raw mut event, 0)).unwrap();
    cu!(cuEventRecord(event, stream)).unwrap();
    cu!(cuStreamDestroy_v2(stream)).unwrap();
    cu!(cuEventSynchronize(event)).unwrap();
    assert_eq!(cu::read(at), Ok(5));
}

#[test]
fn work_is_done_in_order_and_later() {
    if role().is_some() {
        return order();
    }
    World::new().start("streams::work_is_done_in_order_and_later", "only").succeeds();
}

fn worker() {
    cu::start();
    let handle = cu::create(SLAB).unwrap();
    let at = cu::map(handle, SLAB, WRITE);
    cu::write(at, 1).unwrap();
    let mut fd = -1;
    cu!(cuMemExportToShareableHandle((&raw mut fd).cast(), handle, POSIX, 0)).unwrap();
    // SAFETY: a new descriptor, which the driver's caller owns.
    give("slab", unsafe { OwnedFd::from_raw_fd(fd) });
    let (module, stream) = (module(IMAGE), cu::stream());
    tell("ready");
    told();
    launch(module, "tl_spin_fill_u32", stream, &mut [at, 4, 2, 300_000_000]).unwrap();
    launch(module, "tl_add_i32", stream, &mut [at, at, at, 4]).unwrap();
    tell("launched");
    told();
}

fn watcher() {
    cu::start();
    let (mut handle, fd) = (0, take("slab"));
    cu!(cuMemImportFromShareableHandle(&raw mut handle, fd.as_raw_fd() as usize as *mut _, POSIX)).unwrap();
    let at = cu::map(handle, SLAB, WRITE);
    told();
    tell(cu::read(at).unwrap());
    let wait = Duration::from_millis(told().parse().unwrap());
    let start = Instant::now();
    while cu::read(at) != Ok(4) && start.elapsed() < wait {
        std::thread::sleep(Duration::from_millis(5));
    }
    tell(cu::read(at).unwrap());
}

fn after_death(world: &World, wait_ms: u64) -> String {
    const TEST: &str = "streams::a_card_may_go_on_after_its_process_died";
    let (mut worker, mut watcher) = (world.start(TEST, "worker"), world.start(TEST, "watcher"));
    worker.hear();
    let gate = world.gate(Some(&worker));
    worker.say("");
    worker.hear();
    worker.kill();
    watcher.say("");
    assert_eq!(watcher.hear(), "1");
    std::fs::remove_file(gate).unwrap();
    watcher.say(wait_ms);
    let seen = watcher.hear();
    watcher.succeeds();
    seen
}

#[test]
fn a_card_may_go_on_after_its_process_died() {
    match role().as_deref() {
        Some("worker") => worker(),
        Some(_) => watcher(),
        None => {
            assert_eq!(after_death(&World::new(), 600), "1", "without the setting it stops");
            assert_eq!(after_death(&World::new().with("FAKECUDA_LINGER_MS", 10_000), 10_000), "4");
        }
    }
}
