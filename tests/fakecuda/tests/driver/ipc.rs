//! The older handles for memory, as other libraries use them.

use crate::cu::{self, SLAB, WRITE};
use crate::world::{World, role, tell, told};
use cudarc::driver::sys::CUipcMemHandle;

fn handle(at: u64) -> Result<CUipcMemHandle, u32> {
    let mut handle = CUipcMemHandle { reserved: [0; 64] };
    cu!(cuIpcGetMemHandle(&raw mut handle, at))?;
    Ok(handle)
}

fn owner() {
    cu::start();
    let at = cu::allocate(3000).unwrap();
    cu::write(at, 6).unwrap();
    let handle = handle(at).unwrap();
    let mut again = 0;
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&raw mut again, handle, 1)), Err(201), "in the same process");
    let mapped = cu::map(cu::create(SLAB).unwrap(), SLAB, WRITE);
    assert_eq!(self::handle(mapped).err(), Some(1), "not for mapped handles");
    let mut pooled = 0;
    cu!(cuMemAllocAsync(&raw mut pooled, 4096, cu::DEFAULT)).unwrap();
    assert_eq!(self::handle(pooled).err(), Some(1), "nor for pools");
    tell(cu::to_hex(&handle.reserved.map(|byte| byte as u8)));
    told();
    assert_eq!(cu::read(at), Ok(8));
    cu!(cuMemFree_v2(at)).unwrap();
    tell(cu::violations());
    told();
}

fn opener() {
    cu::start();
    let handle = CUipcMemHandle { reserved: cu::from_hex(&told()).map(|byte| byte as _) };
    let (mut at, mut again) = (0, 0);
    cu!(cuIpcOpenMemHandle_v2(&raw mut at, handle, 1)).unwrap();
    cu!(cuIpcOpenMemHandle_v2(&raw mut again, handle, 1)).unwrap();
    assert_eq!((at, cu::read(at)), (again, Ok(6)));
    cu::write(at, 8).unwrap();
    cu!(cuIpcCloseMemHandle(at)).unwrap();
    assert_eq!(cu::read(at), Ok(8), "opened twice");
    if told() == "close" {
        cu!(cuIpcCloseMemHandle(at)).unwrap();
        assert_eq!(cu!(cuIpcCloseMemHandle(at)), Err(1));
    }
    tell("");
    told();
    assert_eq!(cu!(cuIpcOpenMemHandle_v2(&raw mut at, handle, 1)), Err(1), "its owner is dead");
}

fn play(order: &str, violations: &str) {
    const TEST: &str = "ipc::memory_is_opened_by_others_while_its_owner_lives";
    let world = World::new();
    let (mut owner, mut opener) = (world.start(TEST, "owner"), world.start(TEST, "opener"));
    opener.say(owner.hear());
    opener.say(order);
    opener.hear();
    owner.say("");
    assert_eq!(owner.hear(), violations);
    owner.kill();
    if order == "close" {
        opener.say("");
        opener.succeeds();
    }
}

#[test]
fn memory_is_opened_by_others_while_its_owner_lives() {
    match role().as_deref() {
        Some("owner") => owner(),
        Some(_) => opener(),
        None => {
            play("close", "0");
            play("keep", "1");
        }
    }
}
