//! Where a tensor's bytes are, by `DLPack`'s codes (`DLDevice` in `dlpack.h`, version 1.3).

use core::fmt;

/// A device: `DLPack`'s type and number. Only host memory is lent so far.
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

    /// A device by its codes; `None` for a type that this version does not know (1 CPU, 2 CUDA, 3 pinned host memory).
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

    /// `DLDevice.device_type`.
    pub const fn kind(self) -> u8 {
        self.kind
    }

    /// `DLDevice.device_id`.
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
