//! Training on data that another process lends.
//!
//! A *producer* reads data sets from files and publishes each of them whole and in batches; then it may end, since
//! published tensors stay. *Trainers* read the batches in place: the one here, in Rust, and those of `train.py`, in
//! torch. A [`source::Source`] supplies a trainer's batches; with the same seed all sources give bit-identical losses.
//!
//! `README.md` explains how to run it, and has measurements.

pub mod error;
pub mod files;
pub mod network;
pub mod samples;
pub mod shelf;
pub mod source;
pub mod training;
