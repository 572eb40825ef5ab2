//! The driver's functions about streams.

use crate::args::Out;
use crate::code::{INVALID_VALUE, NOT_SUPPORTED};
use crate::regions::Touch;
use crate::stream::{self, Piece};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

type HostFunction = extern "C" fn(u64);
type Callback = extern "C" fn(u64, u32, u64);

driver! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        stream.put(stream::create(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        stream.put(stream::create(flags, priority)?)
    }

    fn cuStreamDestroy_v2(stream: u64) {
        stream::destroy(stream)
    }

    fn cuStreamSynchronize(stream: u64) {
        stream::find(stream)?.synchronize()
    }

    fn cuStreamQuery(stream: u64) {
        stream::find(stream)?.query()
    }

    fn cuStreamGetFlags(stream: u64, flags: Out<u32>) {
        flags.put(stream::find(stream)?.flags)
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) {
        priority.put(stream::find(stream)?.priority)
    }

    fn cuStreamGetId(stream: u64, id: Out<u64>) {
        id.put(stream::find(stream)?.id)
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) {
        context.put(stream::find(stream)?.context)
    }

    fn cuStreamGetCtx_v2(stream: u64, context: Out<u64>, green: Out<u64>) {
        green.offer(0);
        context.put(stream::find(stream)?.context)
    }

    fn cuStreamGetGreenCtx(stream: u64, green: Out<u64>) {
        stream::find(stream)?;
        green.put(0)
    }

    fn cuStreamGetDevice(stream: u64, device: Out<i32>) {
        device.put(stream::find(stream)?.device as i32)
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) {
        stream::find(stream)?;
        status.put(0)
    }

    fn cuStreamGetCaptureInfo_v3(
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        _graph: u64,
        _dependencies: u64,
        _edges: u64,
        count: Out<u64>,
    ) {
        stream::find(stream)?;
        id.offer(0);
        count.offer(0);
        status.put(0)
    }

    fn cuStreamBeginCapture_v2(stream: u64, _mode: u32) {
        stream::find(stream)?;
        Err(NOT_SUPPORTED)
    }

    fn cuThreadExchangeStreamCaptureMode(_mode: Out<u32>) {
        Ok(())
    }

    fn cuStreamAttachMemAsync(stream: u64, _at: u64, _bytes: u64, _flags: u32) {
        stream::find(stream).map(drop)
    }

    fn cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, data: u64) {
        let function = function.ok_or(INVALID_VALUE)?;
        stream::find(stream)?.enqueue(Piece::host(move || function(data)));
        Ok(())
    }

    fn cuStreamAddCallback(stream: u64, function: Option<Callback>, data: u64, flags: u32) {
        let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let found = stream::find(stream)?;
        found.enqueue(Piece::host(move || function(stream, stream::fault().map_or(0, |code| code.0), data)));
        Ok(())
    }

    fn cuStreamWriteValue32_v2(stream: u64, at: u64, value: u32, _flags: u32) {
        let touches = vec![Touch::write(at, 4)];
        let write = move || {
            // SAFETY: the worker has checked that the four bytes are mapped and writable. All accesses to them are
            // atomic.
            unsafe { AtomicU32::from_ptr(at as *mut u32) }.store(value, Ordering::Release);
        };
        aligned(at, 4)?;
        stream::find(stream)?.enqueue(Piece::card(touches, write));
        Ok(())
    }

    fn cuStreamWriteValue64_v2(stream: u64, at: u64, value: u64, _flags: u32) {
        let touches = vec![Touch::write(at, 8)];
        let write = move || {
            // SAFETY: the worker has checked that the eight bytes are mapped and writable. All accesses to them are
            // atomic.
            unsafe { AtomicU64::from_ptr(at as *mut u64) }.store(value, Ordering::Release);
        };
        aligned(at, 8)?;
        stream::find(stream)?.enqueue(Piece::card(touches, write));
        Ok(())
    }

    fn cuStreamWaitValue32_v2(stream: u64, at: u64, value: u32, flags: u32) {
        aligned(at, 4)?;
        let met = move || {
            // SAFETY: the worker has checked that the four bytes are mapped. All accesses to them are atomic.
            let now = unsafe { AtomicU32::from_ptr(at as *mut u32) }.load(Ordering::Acquire);
            match flags & 3 {
                0 => now.wrapping_sub(value) as i32 >= 0,
                1 => now == value,
                2 => now & value != 0,
                _ => !(now | value) != 0,
            }
        };
        stream::find(stream)?.enqueue(Piece::card(vec![Touch::read(at, 4)], move || until(met)));
        Ok(())
    }

    fn cuStreamWaitValue64_v2(stream: u64, at: u64, value: u64, flags: u32) {
        aligned(at, 8)?;
        let met = move || {
            // SAFETY: the worker has checked that the eight bytes are mapped. All accesses to them are atomic.
            let now = unsafe { AtomicU64::from_ptr(at as *mut u64) }.load(Ordering::Acquire);
            match flags & 3 {
                0 => now.wrapping_sub(value) as i64 >= 0,
                1 => now == value,
                2 => now & value != 0,
                _ => !(now | value) != 0,
            }
        };
        stream::find(stream)?.enqueue(Piece::card(vec![Touch::read(at, 8)], move || until(met)));
        Ok(())
    }
}

fn aligned(at: u64, to: u64) -> crate::code::Done {
    if at != 0 && at.is_multiple_of(to) { Ok(()) } else { Err(INVALID_VALUE) }
}

fn until(met: impl Fn() -> bool) {
    while !met() {
        std::thread::sleep(Duration::from_micros(200));
    }
}
