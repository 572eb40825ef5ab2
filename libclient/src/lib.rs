//! placeholder
pub use tensorlend_layout::DType;
