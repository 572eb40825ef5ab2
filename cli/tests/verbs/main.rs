//! Every command of `tensorlend`, as a shell would run it, against a broker in this process.
//!
//! Nothing here may hang: each child has a deadline, and is killed by its handle when that has passed.

mod bench;
mod doctor;
mod errors;
mod files;
mod measure;
mod model;
mod names;
mod nodes;
mod replay;
mod saving;
mod streams;
#[cfg(feature = "top")]
mod top;
mod trace;
#[cfg(feature = "web")]
mod web;
