//! Tensors whose every word and whose length follow from one value, so that a torn tensor is detected.

use tensorlend::{Client, DType, Lease, Version};

/// Returns the number of words of a value's tensor: mostly a few, sometimes some pages.
pub fn words(value: u64) -> usize {
    let mixed = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let few = 1 + (mixed >> 58) as usize;
    if (mixed >> 54).is_multiple_of(16) { few * 64 } else { few }
}

pub fn put(client: &Client, name: &str, value: u64) -> Result<Version, tensorlend::Error> {
    filled(client, value)?.publish(name)
}

pub fn filled(client: &Client, value: u64) -> Result<tensorlend::Draft, tensorlend::Error> {
    let mut draft = client.create(DType::U64, &[words(value) as u64])?;
    draft.as_mut_slice::<u64>()?.fill(value);
    Ok(draft)
}

/// Returns the value of a leased tensor.
///
/// # Errors
/// The fault, if the tensor is torn.
pub fn value(lease: &Lease) -> Result<u64, String> {
    let found = lease.as_slice::<u64>().map_err(|e| format!("torn: {e}"))?;
    let value = *found.first().ok_or("torn: no words")?;
    if found.len() != words(value) {
        return Err(format!("torn: {} words for value {value:#x} that has {}", found.len(), words(value)));
    }
    match found.iter().find(|&&word| word != value) {
        None => Ok(value),
        Some(other) => Err(format!("torn: {other:#x} in value {value:#x}")),
    }
}

/// A pseudorandom generator.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
