//! What a program calls on a [`Client`](crate::Client), besides the methods that stand with their nouns.

pub mod instruments;
