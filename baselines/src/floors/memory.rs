//! Copying between two places that are mapped and warm.

use std::hint::black_box;

use crate::{Meter, payload, repeated};

/// memcpy of so many bytes into memory that was written before.
pub fn memcpy(bytes: usize) -> Box<dyn Meter> {
    let source = payload::make(bytes);
    let mut target = payload::make(bytes);
    Box::new(repeated(move || {
        target.copy_from_slice(black_box(&source));
        black_box(&target);
        Ok(())
    }))
}
