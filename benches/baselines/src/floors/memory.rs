//! The floor of a copy between two warm buffers.

use std::hint::black_box;

use crate::{Meter, payload, repeated};

/// Measures memcpy of `bytes` bytes into memory whose pages exist.
pub fn memcpy(bytes: usize) -> Box<dyn Meter> {
    let source = payload::make(bytes);
    let mut target = payload::make(bytes);
    Box::new(repeated(move || {
        target.copy_from_slice(black_box(&source));
        black_box(&target);
        Ok(())
    }))
}
