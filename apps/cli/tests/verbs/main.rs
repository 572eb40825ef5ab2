//! Tests of every command of `tensorlend`, run as a shell runs it, against a broker in this process.
//!
//! Each child process has a deadline. The test kills it when the deadline has passed, so no test hangs.

mod bench;
mod doctor;
mod errors;
mod files;
mod measure;
mod model;
mod names;
mod nodes;
mod outputs;
mod replay;
mod run;
mod saving;
mod scripts;
mod streams;
#[cfg(feature = "top")]
mod top;
mod trace;
#[cfg(feature = "web")]
mod web;
