//! Training on data that another process lends.
//!
//! A *producer* reads data sets from files and publishes each of them whole and cut into batches; then it may end, since what it
//! published stays. *Trainers* read the batches where they lie: the one here, in Rust, and those of `train.py`, in torch. How a trainer
//! gets its batches is its [`source::Source`]; with the same seed all sources give the same losses, to the last bit.
//!
//! `docs/training.md` says how to run it, and what was measured.

pub mod error;
pub mod files;
pub mod network;
pub mod samples;
pub mod shelf;
pub mod source;
pub mod training;
