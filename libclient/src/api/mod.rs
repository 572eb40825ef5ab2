//! Methods of [`Client`](crate::Client), by topic. Further methods are in the modules of their topics.

#[cfg(feature = "cuda")]
pub mod device;
mod devices;
pub mod instruments;
pub mod overview;
#[cfg(feature = "cuda")]
mod page_lock;
mod streams;
mod values;
