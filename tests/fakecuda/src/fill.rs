//! Memory set to one value.

use crate::code::{Done, INVALID_VALUE};
use crate::regions::{self, Touch};
use crate::stream::{self, Piece};

/// Rows of one value; `pitch_bytes` lie between their starts.
#[derive(Clone, Copy)]
struct Fill {
    at: u64,
    pitch_bytes: u64,
    width: u64,
    height: u64,
    value: u32,
    bytes: u64,
}

impl Fill {
    fn check(&self) -> Done {
        let fits = self.at.is_multiple_of(self.bytes) && regions::is_known(self.at);
        if fits && (self.height < 2 || self.pitch_bytes >= self.width * self.bytes) {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }

    fn touches(&self) -> Vec<Touch> {
        let row = |row| Touch::write(self.at + row * self.pitch_bytes, self.width * self.bytes);
        (0..self.height).map(row).collect()
    }

    fn run(&self) {
        for row in 0..self.height {
            let start = self.at + row * self.pitch_bytes;
            for element in 0..self.width {
                let place = start + element * self.bytes;
                // SAFETY: within the touched rows, which the worker has just looked up as mapped and writable. `check`
                // has verified the alignment of the first row; the writes are correct for any pitch.
                unsafe {
                    match self.bytes {
                        1 => (place as *mut u8).write_unaligned(self.value as u8),
                        2 => (place as *mut u16).write_unaligned(self.value as u16),
                        _ => (place as *mut u32).write_unaligned(self.value),
                    }
                }
            }
        }
    }

    fn now(self) -> Done {
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        self.check()?;
        crate::copy::now(&self.touches(), || self.run())
    }

    fn later(self, stream: u64) -> Done {
        let stream = stream::find(stream)?;
        if self.width == 0 || self.height == 0 {
            return Ok(());
        }
        self.check()?;
        stream.enqueue(Piece::card(self.touches(), move || self.run()));
        Ok(())
    }
}

fn line(at: u64, value: u32, width: u64, bytes: u64) -> Fill {
    Fill { at, pitch_bytes: 0, width, height: 1, value, bytes }
}

driver! {
    fn cuMemsetD8_v2(at: u64, value: u8, count: u64) {
        line(at, u32::from(value), count, 1).now()
    }

    fn cuMemsetD16_v2(at: u64, value: u16, count: u64) {
        line(at, u32::from(value), count, 2).now()
    }

    fn cuMemsetD32_v2(at: u64, value: u32, count: u64) {
        line(at, value, count, 4).now()
    }

    fn cuMemsetD8Async(at: u64, value: u8, count: u64, stream: u64) {
        line(at, u32::from(value), count, 1).later(stream)
    }

    fn cuMemsetD16Async(at: u64, value: u16, count: u64, stream: u64) {
        line(at, u32::from(value), count, 2).later(stream)
    }

    fn cuMemsetD32Async(at: u64, value: u32, count: u64, stream: u64) {
        line(at, value, count, 4).later(stream)
    }

    fn cuMemsetD2D8_v2(at: u64, pitch_bytes: u64, value: u8, width: u64, height: u64) {
        Fill { at, pitch_bytes, width, height, value: u32::from(value), bytes: 1 }.now()
    }

    fn cuMemsetD2D16_v2(at: u64, pitch_bytes: u64, value: u16, width: u64, height: u64) {
        Fill { at, pitch_bytes, width, height, value: u32::from(value), bytes: 2 }.now()
    }

    fn cuMemsetD2D32_v2(at: u64, pitch_bytes: u64, value: u32, width: u64, height: u64) {
        Fill { at, pitch_bytes, width, height, value, bytes: 4 }.now()
    }

    fn cuMemsetD2D8Async(at: u64, pitch_bytes: u64, value: u8, width: u64, height: u64, stream: u64) {
        Fill { at, pitch_bytes, width, height, value: u32::from(value), bytes: 1 }.later(stream)
    }

    fn cuMemsetD2D16Async(at: u64, pitch_bytes: u64, value: u16, width: u64, height: u64, stream: u64) {
        Fill { at, pitch_bytes, width, height, value: u32::from(value), bytes: 2 }.later(stream)
    }

    fn cuMemsetD2D32Async(at: u64, pitch_bytes: u64, value: u32, width: u64, height: u64, stream: u64) {
        Fill { at, pitch_bytes, width, height, value, bytes: 4 }.later(stream)
    }
}
