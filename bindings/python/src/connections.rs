//! Reports of lost and continued connections to the daemon, through Python's `logging`.

use pyo3::prelude::*;
use tensorlend::Connected;

/// Logs each change of a connection from now on.
pub fn log() {
    tensorlend::observe_connections(|change| {
        let (level, text) = match change {
            Connected::Lost => {
                ("warning", "the daemon has ended, and no other one responds: trying again until one does")
            }
            Connected::Again => ("info", "a session continues: the daemon was replaced"),
        };
        // Without an interpreter, or during its end, nobody reads the log. Ignore an exception of a handler of the program.
        let _ = Python::try_attach(|py| {
            let logger = py.import("logging")?.call_method1("getLogger", ("tensorlend",))?;
            logger.call_method1(level, (text,)).map(drop)
        });
    });
}
