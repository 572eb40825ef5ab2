//! Parameters of the benchmark, and constructors of its rows.

use std::path::PathBuf;
use std::process::Command;

use tensorlend_baselines::{BaselineError, Cores, Meter};

use super::race::{Entry, Label};
use crate::again;

/// The `peer` of rows that measure a floor of the machine.
pub const FLOOR: &str = "floor";
/// The `peer` of rows that measure tensorlend.
pub const OURS: &str = "tensorlend";

/// Parameters that all rows share.
#[derive(Debug, Clone)]
pub struct Setting {
    pub cores: Cores,
    pub socket: PathBuf,
    pub quick: bool,
}

/// Returns a row without a size.
pub fn entry(
    name: impl Into<String>,
    peer: &'static str,
    floor: Option<&'static str>,
    make: impl FnOnce() -> Result<Box<dyn Meter>, BaselineError> + 'static,
) -> Entry {
    let label = Label { name: name.into(), peer, size_bytes: None, floor };
    Entry { label, operations_max: u64::MAX, make: Box::new(make) }
}

impl Entry {
    pub fn sized(mut self, bytes: usize) -> Self {
        self.label.size_bytes = Some(bytes as u64);
        self
    }

    /// Limits the number of operations in a batch.
    pub fn at_most(mut self, operations: u64) -> Self {
        self.operations_max = operations;
        self
    }
}

/// Returns the command that starts this program as a child process of the bench.
pub fn launch(args: &[String]) -> Command {
    again::command(&[&["bench".to_owned()], args].concat())
}
