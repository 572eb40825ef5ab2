//! placeholder
pub mod dtype;
pub use dtype::DType;
