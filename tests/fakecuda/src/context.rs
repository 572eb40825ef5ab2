//! Contexts, and the current context of each thread. A context contains only its device: in this driver, memory,
//! streams and modules belong to the process.

use crate::args::{Any, Out};
use crate::code::{Code, Done, INVALID_CONTEXT, INVALID_DEVICE, INVALID_VALUE, PRIMARY_CONTEXT_ACTIVE};
use crate::handles::Table;
use crate::{settings, stream};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub struct Context {
    pub handle: u64,
    pub device: u32,
    pub primary: bool,
    pub flags: AtomicU32,
}

#[derive(Default)]
struct Primary {
    /// The handle is assigned once: a device's primary context keeps it whenever it is retained.
    handle: u64,
    active: bool,
    retained: u32,
    flags: u32,
}

static CONTEXTS: Table<Context> = Table::new();
static PRIMARIES: Mutex<Option<HashMap<u32, Primary>>> = Mutex::new(None);
static LIMITS: Mutex<Option<HashMap<u32, u64>>> = Mutex::new(None);

thread_local! {
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's context.
pub fn current() -> Option<Arc<Context>> {
    let handle = STACK.with_borrow(|stack| stack.last().copied())?;
    CONTEXTS.get(handle).ok()
}

fn or_current(handle: u64) -> Result<Arc<Context>, Code> {
    if handle == 0 { current().ok_or(INVALID_CONTEXT) } else { CONTEXTS.get(handle).map_err(|_| INVALID_CONTEXT) }
}

/// Returns the device with this number, if there is one.
pub fn device(ordinal: i32) -> Result<u32, Code> {
    u32::try_from(ordinal).ok().filter(|device| *device < settings::get().devices).ok_or(INVALID_DEVICE)
}

fn add(handle: u64, device: u32, primary: bool, flags: u32) {
    CONTEXTS.add_as(handle, Arc::new(Context { handle, device, primary, flags: AtomicU32::new(flags) }));
}

fn make_current(handle: u64) -> Done {
    if handle != 0 {
        CONTEXTS.get(handle).map_err(|_| INVALID_CONTEXT)?;
    }
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        if handle != 0 {
            stack.push(handle);
        }
    });
    Ok(())
}

fn create(context: &Out<u64>, flags: u32, ordinal: i32) -> Done {
    let handle = crate::handles::fresh();
    add(handle, device(ordinal)?, false, flags);
    STACK.with_borrow_mut(|stack| stack.push(handle));
    context.put(handle)
}

fn release(device: u32) -> Done {
    let mut primaries = lock(&PRIMARIES);
    let primary = primaries.get_or_insert_default().entry(device).or_default();
    primary.retained = primary.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
    if primary.retained == 0 {
        primary.active = false;
        let handle = primary.handle;
        drop(primaries);
        let _ = stream::synchronize_all(device);
        CONTEXTS.remove(handle)?;
    }
    Ok(())
}

driver! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, ordinal: i32) {
        let device = device(ordinal)?;
        let mut primaries = lock(&PRIMARIES);
        let primary = primaries.get_or_insert_default().entry(device).or_default();
        if primary.handle == 0 {
            primary.handle = crate::handles::fresh();
        }
        if primary.retained == 0 {
            add(primary.handle, device, true, primary.flags);
        }
        primary.retained += 1;
        primary.active = true;
        context.put(primary.handle)
    }

    fn cuDevicePrimaryCtxRelease_v2(ordinal: i32) {
        release(device(ordinal)?)
    }

    fn cuDevicePrimaryCtxReset_v2(ordinal: i32) {
        // Handles of a reset context remain valid, because in this driver no memory, stream or module belongs to a
        // context.
        let device = device(ordinal)?;
        lock(&PRIMARIES).get_or_insert_default().entry(device).or_default().active = false;
        stream::synchronize_all(device)
    }

    fn cuDevicePrimaryCtxGetState(ordinal: i32, flags: Out<u32>, active: Out<i32>) {
        let device = device(ordinal)?;
        let mut primaries = lock(&PRIMARIES);
        let primary = primaries.get_or_insert_default().entry(device).or_default();
        flags.offer(primary.flags);
        active.put(i32::from(primary.active))
    }

    fn cuDevicePrimaryCtxSetFlags_v2(ordinal: i32, flags: u32) {
        let device = device(ordinal)?;
        let mut primaries = lock(&PRIMARIES);
        let primary = primaries.get_or_insert_default().entry(device).or_default();
        if primary.retained != 0 && primary.flags != flags {
            return Err(PRIMARY_CONTEXT_ACTIVE);
        }
        primary.flags = flags;
        Ok(())
    }

    fn cuCtxCreate_v2(context: Out<u64>, flags: u32, ordinal: i32) {
        create(&context, flags, ordinal)
    }

    fn cuCtxCreate_v4(context: Out<u64>, _parameters: u64, flags: u32, ordinal: i32) {
        create(&context, flags, ordinal)
    }

    fn cuCtxDestroy_v2(context: u64) {
        if CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)?.primary {
            return Err(INVALID_CONTEXT);
        }
        STACK.with_borrow_mut(|stack| stack.pop_if(|top| *top == context));
        CONTEXTS.remove(context).map(drop)
    }

    fn cuCtxPushCurrent_v2(context: u64) {
        CONTEXTS.get(context).map_err(|_| INVALID_CONTEXT)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) {
        let handle = STACK.with_borrow_mut(Vec::pop).ok_or(INVALID_CONTEXT)?;
        context.offer(handle);
        Ok(())
    }

    fn cuCtxSetCurrent(context: u64) {
        make_current(context)
    }

    fn cuCtxGetCurrent(context: Out<u64>) {
        context.put(current().map_or(0, |context| context.handle))
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.put(or_current(0)?.device as i32)
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: u64) {
        device.put(or_current(context)?.device as i32)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.put(or_current(0)?.flags.load(Ordering::Relaxed))
    }

    fn cuCtxSetFlags(flags: u32) {
        or_current(0)?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    fn cuCtxGetId(context: u64, id: Out<u64>) {
        id.put(or_current(context)?.handle)
    }

    fn cuCtxGetApiVersion(context: u64, version: Out<u32>) {
        or_current(context)?;
        version.put(13000)
    }

    fn cuCtxSynchronize() {
        stream::synchronize_all(or_current(0)?.device)
    }

    fn cuCtxSynchronize_v2(context: u64) {
        stream::synchronize_all(or_current(context)?.device)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        or_current(0)?;
        least.offer(0);
        greatest.offer(-5);
        Ok(())
    }

    fn cuCtxGetLimit(value: Out<u64>, limit: u32) {
        or_current(0)?;
        let usual = match limit {
            0 => 1024,
            1 => 1 << 20,
            2 => 8 << 20,
            3..=6 => 0,
            _ => return Err(INVALID_VALUE),
        };
        value.put(lock(&LIMITS).get_or_insert_default().get(&limit).copied().unwrap_or(usual))
    }

    fn cuCtxSetLimit(limit: u32, value: u64) {
        or_current(0)?;
        if limit > 6 {
            return Err(INVALID_VALUE);
        }
        lock(&LIMITS).get_or_insert_default().insert(limit, value);
        Ok(())
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        or_current(0)?;
        config.put(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        or_current(0).map(drop)
    }

    fn cuCtxResetPersistingL2Cache() {
        or_current(0).map(drop)
    }

    fn cuCtxEnablePeerAccess(peer: u64, _flags: u32) {
        CONTEXTS.get(peer).map(drop).map_err(|_| INVALID_CONTEXT)
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        CONTEXTS.get(peer).map(drop).map_err(|_| INVALID_CONTEXT)
    }

    fn cuCtxGetDevResource(_context: u64, _resource: Any, _kind: u32) {
        Err(crate::code::NOT_SUPPORTED)
    }
}
