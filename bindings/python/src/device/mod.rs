//! Tensors on devices as Python objects. `draft.rs` and `lease.rs` contain the classes, and
//! `view.rs` holds the viewed memory. `export.rs` exports memory by DLPack and the CUDA array
//! interface. `array.rs` imports a caller's arrays on a device.

pub mod array;
pub mod draft;
mod export;
pub mod lease;
mod legacy;
pub mod view;

pub use draft::DeviceDraft;
pub use lease::DeviceLease;
pub use legacy::LegacyExport;
