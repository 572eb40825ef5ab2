//! What a program calls on a [`Client`](crate::Client), besides the methods that stand with their nouns.

#[cfg(feature = "cuda")]
pub mod device;
mod devices;
pub mod instruments;
pub mod overview;
#[cfg(feature = "cuda")]
mod page_lock;
mod streams;
mod values;
