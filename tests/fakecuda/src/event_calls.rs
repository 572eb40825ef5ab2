//! The driver's functions about events.

use crate::args::Out;
use crate::code::{INVALID_CONTEXT, INVALID_VALUE};
use crate::context;
use crate::event::{self, DISABLE_TIMING, EVENTS, INTERPROCESS};
use crate::stream::{self, Piece};

driver! {
    fn cuEventCreate(event: Out<u64>, flags: u32) {
        let context = context::current().ok_or(INVALID_CONTEXT)?;
        // As in CUDA, an event between processes records no time.
        if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) || event.is_null() {
            return Err(INVALID_VALUE);
        }
        event.put(event::create(flags, context.device)?)
    }

    fn cuEventDestroy_v2(event: u64) {
        EVENTS.remove(event).map(drop)
    }

    fn cuEventRecord(event: u64, stream: u64) {
        EVENTS.get(event)?.record(&stream::find(stream)?);
        Ok(())
    }

    fn cuEventRecordWithFlags(event: u64, stream: u64, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        EVENTS.get(event)?.record(&stream::find(stream)?);
        Ok(())
    }

    fn cuEventQuery(event: u64) {
        EVENTS.get(event)?.query()
    }

    fn cuEventSynchronize(event: u64) {
        let event = EVENTS.get(event)?;
        event.wait(event.recorded());
        stream::fault().map_or(Ok(()), Err)
    }

    fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.put(EVENTS.get(end)?.since(&*EVENTS.get(start)?)?)
    }

    fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.put(EVENTS.get(end)?.since(&*EVENTS.get(start)?)?)
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) {
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let (stream, event) = (stream::find(stream)?, EVENTS.get(event)?);
        // Waits only for records made before this call. An event that was never recorded is ready.
        let number = event.recorded();
        stream.enqueue(Piece::event(move || event.wait(number)));
        Ok(())
    }
}
