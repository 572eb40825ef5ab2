//! Copies, synchronous and in streams.

use crate::args::In;
use crate::code::{Code, Done, INVALID_CONTEXT, INVALID_VALUE, NOT_SUPPORTED};
use crate::regions::{self, Touch};
use crate::stream::{self, Piece};
use crate::{context, regions::find};

/// The kind of memory at an address.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Device,
    Host,
    /// Host or device, as the address determines.
    Unified,
}

/// Copies bytes between mapped ranges. The callers have checked device memory; the program is responsible for its own
/// memory.
pub fn bytes(to: u64, from: u64, count: u64) {
    // SAFETY: the callers have just looked up device memory with its access rights. The driver's caller guarantees that
    // host memory is valid. memmove accepts overlapping ranges. A concurrent write by another process garbles bytes,
    // and has no other effect.
    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, count as usize) };
}

/// Returns the part of a copy that the card checks. Returns `None` for pageable memory of the program.
fn touch(side: Side, touch: Touch) -> Result<Option<Touch>, Code> {
    match (side, find(touch.at)) {
        (Side::Device, None) => Err(INVALID_VALUE),
        (_, None) => Ok(None),
        _ => Ok(Some(touch)),
    }
}

fn touches(to: (Side, u64), from: (Side, u64), count: u64) -> Result<Vec<Touch>, Code> {
    let to = touch(to.0, Touch::write(to.1, count))?;
    let from = touch(from.0, Touch::read(from.1, count))?;
    Ok(to.into_iter().chain(from).collect())
}

/// Does work that the caller waits for. The calling thread does the work, so no gate delays it, after the work that the
/// default stream waits for.
pub fn now(touches: &[Touch], run: impl FnOnce()) -> Done {
    let context = context::current().ok_or(INVALID_CONTEXT)?;
    stream::legacy(context.device, context.handle).synchronize()?;
    if !touches.iter().all(Touch::is_allowed) {
        return Err(INVALID_VALUE);
    }
    run();
    Ok(())
}

fn copy(to: (Side, u64), from: (Side, u64), count: u64) -> Done {
    if count == 0 {
        return Ok(());
    }
    now(&touches(to, from, count)?, || bytes(to.1, from.1, count))
}

fn copy_in_stream(to: (Side, u64), from: (Side, u64), count: u64, stream: u64) -> Done {
    let stream = stream::find(stream)?;
    if count == 0 {
        return Ok(());
    }
    let touches = touches(to, from, count)?;
    let to_pageable = !regions::is_known(to.1);
    if regions::is_known(from.1) {
        let number = stream.enqueue(Piece::card(touches, move || bytes(to.1, from.1, count)));
        if to_pageable {
            // As in CUDA, a copy to pageable memory returns when it is done.
            stream.wait(number);
        }
    } else {
        // As in CUDA, the call stages pageable memory, so the program may change it afterwards.
        let mut staged = vec![0u8; count as usize];
        bytes(staged.as_mut_ptr() as u64, from.1, count);
        stream.enqueue(Piece::card(touches, move || bytes(to.1, staged.as_ptr() as u64, count)));
    }
    Ok(())
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Rectangle {
    from: Endpoint,
    to: Endpoint,
    width_bytes: u64,
    height: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Endpoint {
    x_bytes: u64,
    y: u64,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch_bytes: u64,
}

impl Endpoint {
    fn row(&self, row: u64, width: u64) -> Result<(Side, u64), Code> {
        let (side, base) = match self.kind {
            1 => (Side::Host, self.host),
            2 => (Side::Device, self.device),
            4 => (Side::Unified, self.device),
            _ => return Err(NOT_SUPPORTED),
        };
        let pitch = if self.pitch_bytes == 0 { width } else { self.pitch_bytes };
        Ok((side, base + (self.y + row) * pitch + self.x_bytes))
    }
}

fn rows(rectangle: &Rectangle, mut one: impl FnMut((Side, u64), (Side, u64), u64) -> Done) -> Done {
    let width = rectangle.width_bytes;
    (0..rectangle.height).try_for_each(|row| one(rectangle.to.row(row, width)?, rectangle.from.row(row, width)?, width))
}

use Side::{Device, Host, Unified};

driver! {
    fn cuMemcpy(to: u64, from: u64, count: u64) {
        copy((Unified, to), (Unified, from), count)
    }

    fn cuMemcpyAsync(to: u64, from: u64, count: u64, stream: u64) {
        copy_in_stream((Unified, to), (Unified, from), count, stream)
    }

    fn cuMemcpyHtoD_v2(to: u64, from: u64, count: u64) {
        copy((Device, to), (Host, from), count)
    }

    fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, count: u64, stream: u64) {
        copy_in_stream((Device, to), (Host, from), count, stream)
    }

    fn cuMemcpyDtoH_v2(to: u64, from: u64, count: u64) {
        copy((Host, to), (Device, from), count)
    }

    fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, count: u64, stream: u64) {
        copy_in_stream((Host, to), (Device, from), count, stream)
    }

    fn cuMemcpyDtoD_v2(to: u64, from: u64, count: u64) {
        copy((Device, to), (Device, from), count)
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, count: u64, stream: u64) {
        copy_in_stream((Device, to), (Device, from), count, stream)
    }

    fn cuMemcpyPeer(to: u64, _to_context: u64, from: u64, _from_context: u64, count: u64) {
        copy((Device, to), (Device, from), count)
    }

    fn cuMemcpyPeerAsync(to: u64, _to_context: u64, from: u64, _from_context: u64, count: u64, stream: u64) {
        copy_in_stream((Device, to), (Device, from), count, stream)
    }

    fn cuMemcpy2D_v2(rectangle: In<Rectangle>) {
        rows(&rectangle.get()?, copy)
    }

    fn cuMemcpy2DUnaligned_v2(rectangle: In<Rectangle>) {
        rows(&rectangle.get()?, copy)
    }

    fn cuMemcpy2DAsync_v2(rectangle: In<Rectangle>, stream: u64) {
        rows(&rectangle.get()?, |to, from, width| copy_in_stream(to, from, width, stream))
    }
}
