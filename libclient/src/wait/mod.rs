//! Waiting: how long, asleep or awake, and what it costs to wake others.

mod deadline;
pub mod parking;
pub mod spin;
pub mod toll;

pub use deadline::{Deadline, NAP_MAX};
pub use spin::spin;
