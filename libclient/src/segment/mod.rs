//! Mapped segments of this process, in host memory and on devices.

pub mod bytes;
pub mod copy;
#[cfg(feature = "cuda")]
pub mod janitor;
pub mod kept;
pub mod lendings;
#[cfg(feature = "cuda")]
pub mod map;
pub mod mapping;
#[cfg_attr(not(feature = "cuda"), path = "unpinned.rs")]
pub mod pinned;
pub mod populate;

use tensorlend_layout::Uuid;

/// The description of a segment whose bytes are on a device.
pub struct Elsewhere {
    pub bytes: u64,
    /// The device.
    pub uuid: Uuid,
    /// The segment's bytes.
    #[cfg(feature = "cuda")]
    pub map: std::sync::Arc<map::DeviceMap>,
}
