//! The devices whose memory the daemon lends. The configuration selects them.
//!
//! Most machines have no device. So a missing device, driver or feature is a message for the
//! administrator, not an error. The daemon then lends only host memory.

#[cfg(feature = "cuda")]
mod driver;

use crate::config::CudaConfig;
use crate::core::Borrower;
use crate::core::settings::{DeviceSettings, Settings};
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tensorlend_layout::wire::Export;

pub struct DeviceMemory {
    /// The exported descriptor, which the daemon lends unchanged.
    pub fd: OwnedFd,
    /// Frees the memory when dropped. `None` for memory that a previous daemon allocated. Only the
    /// descriptor keeps such memory allocated.
    pub keeps: Option<Box<dyn Send>>,
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory({:?})", self.fd)
    }
}

/// Allocated device memory with the kind of its descriptor, or the driver's error.
pub type MadeOnDevice = Result<(DeviceMemory, Export), String>;

/// An allocator of device memory.
pub trait Cards: Send + Sync {
    /// Allocates `bytes` on the device with this index. `borrower` is the user and the namespace.
    fn make(&self, device: usize, borrower: Borrower, bytes: u64) -> MadeOnDevice;
}

/// The usable devices, and their settings for the core.
#[derive(Clone)]
pub struct Devices {
    pub settings: Vec<DeviceSettings>,
    /// The reason why the daemon lends no device memory.
    pub why_none: String,
    cards: Option<Arc<dyn Cards>>,
}

impl Devices {
    /// Returns an empty set of devices, with the reason why it is empty.
    pub fn none(why: impl Into<String>) -> Self {
        Self { settings: Vec::new(), why_none: why.into(), cards: None }
    }

    /// Opens the configured devices. Logs a warning for each named device that is unavailable.
    pub fn open(config: &CudaConfig) -> Self {
        if config.devices.is_empty() {
            return Self::none(
                "no device memory is lent: cuda.devices of the daemon's configuration names no device (nvidia-smi -L lists \
                 them; \"all\" means every one)",
            );
        }
        let devices = open(config);
        if devices.settings.is_empty() {
            tracing::warn!("{}", devices.why_none);
        }
        for it in &devices.settings {
            let (uuid, name, allocator, mib) = (it.uuid, &it.name, it.allocator, it.bytes_max >> 20);
            tracing::info!(device = %uuid, model = name, %allocator, "lending up to {mib} MiB of a device");
        }
        devices
    }

    /// Copies the devices into the core's settings.
    pub fn tell(&self, settings: &mut Settings) {
        settings.devices.clone_from(&self.settings);
        settings.no_device.clone_from(&self.why_none);
    }

    /// Allocates `bytes` on the device with this index. `borrower` is the user and the namespace.
    pub fn make(&self, device: usize, borrower: Borrower, bytes: u64) -> MadeOnDevice {
        let cards = self.cards.as_ref().ok_or("there is no device")?;
        cards.make(device, borrower, bytes)
    }
}

#[cfg(feature = "cuda")]
fn open(config: &CudaConfig) -> Devices {
    driver::open(config)
}

#[cfg(not(feature = "cuda"))]
fn open(_: &CudaConfig) -> Devices {
    Devices::none("no device memory is lent: this tensorlendd was built without the feature \"cuda\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_device_it_is_said_why() {
        let none = Devices::open(&CudaConfig::default());
        assert!(none.settings.is_empty() && none.why_none.contains("cuda.devices"));
        assert!(none.make(0, Borrower { namespace: 1, uid: 0 }, 4096).is_err());
        let missing =
            CudaConfig { devices: vec!["GPU-00000000-0000-0000-0000-000000000001".into()], ..CudaConfig::default() };
        let none = Devices::open(&missing);
        assert!(
            none.settings.is_empty() && none.why_none.starts_with("no device memory is lent: "),
            "{}",
            none.why_none
        );
    }
}
