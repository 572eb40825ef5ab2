//! Methods of [`Client`](crate::Client), by topic. Others stand in the modules of the things they concern.

#[cfg(feature = "cuda")]
pub mod device;
mod devices;
pub mod instruments;
pub mod overview;
#[cfg(feature = "cuda")]
mod page_lock;
mod streams;
mod values;
