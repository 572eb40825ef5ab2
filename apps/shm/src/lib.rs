//! The shared memory of a machine and its holders, read from /proc without a daemon; the removal of shared memory that no
//! process holds; and memory that several processes of a program hold twice.
//!
//! Not a part of `tensorlend-os`, which every client links: no client reads other processes.

mod inode;
mod object;
mod proc;
mod reclaim;
mod scan;
mod tree;
mod twice;

pub use object::{Age, Holder, Key, Kind, Object, State, Totals, Unseen};
pub use reclaim::{Options, Outcome, SETTLE, reclaim, restore};
pub use scan::{Scan, machine};
pub use tree::{Peak, Report, Sampler};
pub use twice::Twice;
