//! The options of a connection, with which a forked child or an unpickled client connects again.

use crate::errors::ResultExt;
use crate::programs;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

/// The arguments of `connect`.
#[derive(Clone, Default)]
pub struct Options {
    /// The daemon's sockets, in the order in which they are tried.
    pub sockets: Vec<PathBuf>,
    /// Whether these are the default sockets. Then the client may start a daemon.
    pub are_default: bool,
    pub namespace: Option<String>,
    pub label: Option<String>,
    pub harden: bool,
    pub memory_limit: Option<u64>,
    pub request_timeout: Option<Duration>,
}

impl Options {
    /// Connects to the daemon with these options.
    pub fn connect(&self, py: Python<'_>) -> PyResult<tensorlend::Client> {
        if self.are_default {
            programs::name_daemon(py)?;
        }
        let mut builder = tensorlend::Client::builder().harden(self.harden);
        for socket in self.sockets.iter().filter(|_| !self.are_default) {
            builder = builder.socket(socket);
        }
        if let Some(namespace) = &self.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(label) = &self.label {
            builder = builder.label(label);
        }
        if let Some(bytes) = self.memory_limit {
            builder = builder.memory_limit(bytes);
        }
        if let Some(timeout) = self.request_timeout {
            builder = builder.request_timeout(timeout);
        }
        py.detach(|| builder.connect()).or_raise()
    }

    /// Parses the address of `connect`: one socket or several.
    pub fn sockets(address: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<PathBuf>> {
        let Some(address) = address else { return Ok(tensorlend::default_sockets()) };
        address.extract::<PathBuf>().map(|one| vec![one]).or_else(|_| address.extract::<Vec<PathBuf>>())
    }
}
