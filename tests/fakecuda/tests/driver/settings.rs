//! Failures and the log, which a test can configure, and the driver in a forked child.

use crate::cu::{self, SLAB};
use crate::world::{World, folder, role};

fn failing() {
    cu::start();
    assert!(cu::create(SLAB).is_ok());
    assert_eq!(cu::create(SLAB), Err(2));
    assert!(cu::create(SLAB).is_ok());
    assert_eq!(cu::allocate(100), Err(999));
    assert_eq!(cu::allocate(100), Err(999));
    std::fs::write(folder().join("fail"), "cuMemCreate=201@2+").unwrap();
    assert!(cu::create(SLAB).is_ok());
    assert_eq!((cu::create(SLAB), cu::create(SLAB)), (Err(201), Err(201)));
    std::fs::remove_file(folder().join("fail")).unwrap();
    assert!(cu::create(SLAB).is_ok());
}

#[test]
fn functions_fail_when_asked_to() {
    if role().is_some() {
        return failing();
    }
    let world = World::new().with("FAKECUDA_FAIL", "cuMemCreate=2@2,cuMemAlloc=999");
    world.start("settings::functions_fail_when_asked_to", "only").succeeds();
}

fn devices() {
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), Err(3), "before cuInit");
    cu!(cuInit(0)).unwrap();
    cu!(cuDeviceGetCount(&raw mut count)).unwrap();
    assert_eq!(count, 2);
    let (mut device, mut one, mut two) = (0, unset(), unset());
    assert_eq!(cu!(cuDeviceGet(&raw mut device, 2)), Err(101));
    cu!(cuDeviceGetUuid_v2(&raw mut one, 0)).unwrap();
    cu!(cuDeviceGetUuid_v2(&raw mut two, 1)).unwrap();
    assert_ne!(one.bytes, two.bytes);
    assert_eq!(one.bytes[..4].iter().map(|byte| *byte as u8).collect::<Vec<_>>(), b"fake");
    assert_eq!(cu::allocate(10), Err(201), "without a context");
    // Needs none.
    cu::create(SLAB).unwrap();
}

fn unset() -> cudarc::driver::sys::CUuuid {
    cudarc::driver::sys::CUuuid { bytes: [0; 16] }
}

#[test]
fn the_log_tells_who_made_a_context() {
    if role().is_some() {
        return devices();
    }
    let world = World::new().with("FAKECUDA_DEVICES", 2);
    let log = world.path().join("log");
    let world = world.with("FAKECUDA_LOG", log.display());
    world.start("settings::the_log_tells_who_made_a_context", "only").succeeds();
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains(" cuMemCreate\n") && !log.contains("Ctx"), "{log}");
}

fn contexts() {
    cu!(cuInit(0)).unwrap();
    let (mut one, mut two, mut now) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    cu!(cuDevicePrimaryCtxRetain(&raw mut one, 0)).unwrap();
    cu!(cuDevicePrimaryCtxRetain(&raw mut two, 0)).unwrap();
    assert_eq!(one, two);
    cu!(cuCtxPushCurrent_v2(one)).unwrap();
    cu!(cuCtxGetCurrent(&raw mut now)).unwrap();
    assert_eq!(now, one);
    std::thread::spawn(|| assert_eq!(cu::allocate(10), Err(201), "current in the other thread")).join().unwrap();
    let mut own = std::ptr::null_mut();
    cu!(cuCtxCreate_v4(&raw mut own, std::ptr::null_mut(), 0, 0)).unwrap();
    cu!(cuCtxDestroy_v2(own)).unwrap();
    cu!(cuCtxGetCurrent(&raw mut now)).unwrap();
    assert_eq!(now, one, "what was below");
    cu!(cuCtxPopCurrent_v2(&raw mut now)).unwrap();
    assert_eq!(cu!(cuCtxPopCurrent_v2(&raw mut now)), Err(201));
    cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    cu!(cuCtxSetCurrent(one)).unwrap();
    cu!(cuDevicePrimaryCtxRelease_v2(0)).unwrap();
    assert_eq!(cu!(cuCtxSetCurrent(one)), Err(201), "released");
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(0)), Err(201));
}

#[test]
fn contexts_are_counted_and_belong_to_threads() {
    if role().is_some() {
        return contexts();
    }
    World::new().start("settings::contexts_are_counted_and_belong_to_threads", "only").succeeds();
}

fn forking() {
    cu::start();
    // SAFETY: the child makes calls that take no lock, and ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut context = std::ptr::null_mut();
        let code = cu!(cuCtxGetCurrent(&raw mut context)).err().unwrap_or(0);
        // SAFETY: as above.
        unsafe { libc::_exit(code as i32) };
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a valid pointer for its status.
    unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(libc::WEXITSTATUS(status), 3);
}

#[test]
fn a_forked_child_has_no_driver() {
    if role().is_some() {
        return forking();
    }
    World::new().start("settings::a_forked_child_has_no_driver", "only").succeeds();
}
