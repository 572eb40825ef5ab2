//! Copies between two mapped and warm places.

use std::hint::black_box;

use crate::{Meter, payload, repeated};

/// Measures memcpy of `bytes` into memory that was written before.
pub fn memcpy(bytes: usize) -> Box<dyn Meter> {
    let source = payload::make(bytes);
    let mut target = payload::make(bytes);
    Box::new(repeated(move || {
        target.copy_from_slice(black_box(&source));
        black_box(&target);
        Ok(())
    }))
}
