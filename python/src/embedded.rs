//! A daemon in this process.

use crate::client::Client;
use crate::draft::lock;
use crate::errors::{argument, named};
use crate::options::Options;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tensorlend_os::fork;

/// A daemon in this process, stopped with the last reference to it.
#[derive(Clone)]
pub struct Broker {
    daemon: Arc<Mutex<Option<tensorlend_daemon::Embedded>>>,
    forks: u64,
}

impl Broker {
    fn new(daemon: tensorlend_daemon::Embedded) -> Self {
        Self { daemon: Arc::new(Mutex::new(Some(daemon))), forks: fork::generation() }
    }

    /// Stops the daemon, even if others have a reference to it.
    fn stop(&self) {
        let daemon = lock(&self.daemon).take();
        drop(daemon);
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if self.forks != fork::generation() {
            // A forked child has none of the daemon's threads, and must not wait for them.
            std::mem::forget(Arc::clone(&self.daemon));
        }
    }
}

/// A daemon in a thread of this process, for tests and small programs. Context manager; closing it disconnects its
/// clients.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Embedded {
    broker: Broker,
    socket: PathBuf,
}

/// Starts a daemon in a thread of this process, with a configuration in TOML or the default one.
#[pyfunction]
#[pyo3(signature = (config=None))]
pub fn embedded(py: Python<'_>, config: Option<&str>) -> PyResult<Embedded> {
    let config = match config {
        Some(text) => tensorlend_daemon::Config::parse(text).map_err(|error| argument(error.to_string()))?,
        None => tensorlend_daemon::Config::default(),
    };
    let broker = py.detach(|| tensorlend_daemon::embedded_with(&config));
    let broker = broker.map_err(|error| named("DaemonStartError", error.to_string()))?;
    let socket = broker.socket().to_owned();
    Ok(Embedded { broker: Broker::new(broker), socket })
}

#[pymethods]
impl Embedded {
    /// Its socket, to which clients of any process can connect.
    #[getter]
    fn address(&self) -> PyResult<&str> {
        self.socket.to_str().ok_or_else(|| argument("the socket's path is no text"))
    }

    /// Connects to it. The client keeps it alive: `embedded().connect()` gives a program its own daemon until the
    /// client is closed.
    #[pyo3(signature = (*, namespace=None, label=None, memory_limit=None))]
    fn connect(
        &self,
        py: Python<'_>,
        namespace: Option<String>,
        label: Option<String>,
        memory_limit: Option<u64>,
    ) -> PyResult<Client> {
        let options = Options { sockets: vec![self.socket.clone()], namespace, label, harden: false, memory_limit };
        Client::open(py, options, Some(self.broker.clone()))
    }

    /// Stops the daemon; its clients are disconnected.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.broker.stop());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> bool {
        self.close(py);
        false
    }

    fn __repr__(&self) -> String {
        format!("<Embedded at {}>", self.socket.display())
    }
}
