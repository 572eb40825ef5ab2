//! Devices whose memory contains tensors, with `DLPack`'s codes (`DLDevice` in `dlpack.h`, version
//! 1.3).

use core::fmt;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// A device, identified by `DLPack`'s type and number.
///
/// ```
/// use tensorlend_layout::Device;
///
/// assert_eq!((Device::CPU.kind(), Device::CPU.id()), (1, 0));
/// assert_eq!(Device::CPU.to_string(), "cpu");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    kind: u8,
    id: u8,
}

impl Device {
    /// Host memory: `kDLCPU`, number 0.
    pub const CPU: Self = Self { kind: 1, id: 0 };

    /// Returns the CUDA device with this number in this process (`kDLCUDA`). Processes may number
    /// devices differently. The [`Uuid`] of a device is the same in all processes.
    pub const fn cuda(id: u8) -> Self {
        Self { kind: 2, id }
    }

    /// Returns the device with these codes. Known types are 1 (CPU), 2 (CUDA) and 3 (pinned host
    /// memory). Returns `None` for any other type.
    ///
    /// ```
    /// use tensorlend_layout::Device;
    ///
    /// assert_eq!(Device::from_codes(2, 1).unwrap().to_string(), "cuda:1");
    /// assert_eq!(Device::from_codes(10, 0), None); // kDLROCM
    /// ```
    pub fn from_codes(kind: u8, id: u8) -> Option<Self> {
        matches!(kind, 1..=3).then_some(Self { kind, id })
    }

    /// Returns `DLDevice.device_type`.
    pub const fn kind(self) -> u8 {
        self.kind
    }

    /// Returns `DLDevice.device_id`.
    pub const fn id(self) -> u8 {
        self.id
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            1 => write!(f, "cpu"),
            2 => write!(f, "cuda:{}", self.id),
            _ => write!(f, "cuda_host"),
        }
    }
}

/// A CUDA device's UUID, which names the device in every process.
///
/// ```
/// use tensorlend_layout::Uuid;
///
/// let uuid: Uuid = "GPU-6b1b6e3c-0a5e-4a10-9d3f-1c3a4b5c6d7e".parse()?;
/// assert_eq!(uuid.to_string(), "GPU-6b1b6e3c-0a5e-4a10-9d3f-1c3a4b5c6d7e");
/// assert_eq!("6b1b6e3c0a5e4a109d3f1c3a4b5c6d7e".parse(), Ok(uuid));
/// # Ok::<(), tensorlend_layout::BadUuid>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Uuid(pub [u8; 16]);

impl Uuid {
    /// Returns the two words that represent the UUID in shared memory.
    pub fn words(self) -> [u64; 2] {
        let half = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| self.0[at + i]));
        [half(0), half(8)]
    }

    /// Converts two words to a UUID: the inverse of [`Uuid::words`].
    pub fn from_words(words: [u64; 2]) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&words[0].to_le_bytes());
        bytes[8..].copy_from_slice(&words[1].to_le_bytes());
        Self(bytes)
    }
}

impl fmt::Display for Uuid {
    /// Formats the UUID as `nvidia-smi -L` does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// The error for a text that is not a device's UUID.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no UUID of a device: `nvidia-smi -L` lists them, such as GPU-6b1b6e3c-0a5e-4a10-9d3f-1c3a4b5c6d7e")]
pub struct BadUuid(String);

/// Prints the same text as `Display`, because `unwrap` and a `main` that returns this error print
/// errors with `Debug`.
impl core::fmt::Debug for BadUuid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}

impl FromStr for Uuid {
    type Err = BadUuid;

    /// Parses a UUID with or without a prefix (`GPU-`, `MIG-`), and with or without dashes.
    fn from_str(text: &str) -> Result<Self, BadUuid> {
        let bad = || BadUuid(text.into());
        let bare = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
        let digits: Vec<u8> = bare.bytes().filter(|&c| c != b'-').collect();
        if digits.len() != 32 {
            return Err(bad());
        }
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or_else(bad);
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0])? << 4 | digit(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_printed_and_nothing_else_is_one() {
        let uuid = Uuid(core::array::from_fn(|i| i as u8 * 17));
        assert_eq!(uuid.to_string(), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(Uuid::from_words(uuid.words()), uuid);
        for text in ["MIG-00112233-4455-6677-8899-aabbccddeeff", "00112233445566778899AABBCCDDEEFF"] {
            assert_eq!(text.parse(), Ok(uuid));
        }
        let long = format!("{uuid}0");
        for text in
            ["", "GPU-", "GPU-0", &long, "GPU-0011223g-4455-6677-8899-aabbccddeeff", "0é112233445566778899aabbccddeeff"]
        {
            assert!(text.parse::<Uuid>().is_err(), "{text}");
        }
    }
}
