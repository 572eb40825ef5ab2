//! `tensorlend demo`: what handing a tensor over costs by serialization, by copies, and by lending.

pub mod memory;
pub mod plot;
pub mod table;
