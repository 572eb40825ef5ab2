//! placeholder
mod files;

fn main() {}
