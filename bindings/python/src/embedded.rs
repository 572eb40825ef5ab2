//! The class `Embedded`: a daemon in this process.

use crate::broker::Broker;
use crate::client::Client;
use crate::context::context_manager;
use crate::display;
use crate::errors::{argument, named};
use crate::options::Options;
use crate::programs::name_daemon;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A daemon in a thread of this process, for tests and small programs.
///
/// The daemon has its own socket and memory, and needs no service and no root. Child processes can
/// connect to its address.
///
/// Notes
/// -----
/// Thread-safe. Close this object, or use it as a context manager. Closing stops the daemon and
/// disconnects its clients. The end of the process has the same effect.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Embedded {
    broker: Broker,
    socket: PathBuf,
}

/// Starts a daemon in a thread of this process.
///
/// Parameters
/// ----------
/// config : str or None, default None
///     A configuration in TOML, as in a configuration file of tensorlendd. None is the default
///     configuration. With the option socket, the values stay for a minute after the daemon's end, for
///     the next daemon with this socket. Otherwise they end with the daemon.
///
/// Returns
/// -------
/// Embedded
///     The running daemon. Close it, or use it as a context manager.
///
/// Raises
/// ------
/// ArgumentError
///     The configuration is invalid.
/// DaemonStartError
///     The daemon could not start.
///
/// Examples
/// --------
/// >>> import tensorlend
/// >>> with tensorlend.embedded('pool.bytes_max = "256MiB"') as daemon, daemon.connect() as client:
/// ...     _ = client.put("x", [1.0, 2.0])
/// ...     client.get("x").shape
/// (2,)
#[pyfunction]
#[pyo3(signature = (config=None))]
pub fn embedded(py: Python<'_>, config: Option<&str>) -> PyResult<Embedded> {
    let config = match config {
        Some(text) => tensorlend_daemon::Config::parse(text).map_err(|error| argument(error.to_string()))?,
        None => tensorlend_daemon::Config::default(),
    };
    name_daemon(py)?;
    let broker = py.detach(|| tensorlend_daemon::embedded_with(&config));
    let broker = broker.map_err(|error| named("DaemonStartError", error.to_string()))?;
    let socket = broker.socket().to_owned();
    Ok(Embedded { broker: Broker::new(broker), socket })
}

context_manager!(Embedded, |embedded, py| embedded.close(py));

#[pymethods]
impl Embedded {
    /// The daemon's socket, to which clients of any process can connect.
    #[getter]
    fn address(&self) -> PyResult<&str> {
        self.socket.to_str().ok_or_else(|| {
            let path = self.socket.to_string_lossy();
            argument(format!("the socket's path {path:?} is not UTF-8: set TMPDIR to a folder whose path is"))
        })
    }

    /// Connects to this daemon.
    ///
    /// The client keeps the daemon alive. So `embedded().connect()` gives a program its own daemon
    /// until the client is closed.
    ///
    /// Parameters
    /// ----------
    /// namespace : str or None, default None
    ///     The namespace to join. None joins this user's private namespace.
    /// label : str or None, default None
    ///     A name for this client, which `tensorlend ls` shows.
    /// memory_limit : int or None, default None
    ///     Maximum bytes of shared memory that this client may take.
    ///
    /// Returns
    /// -------
    /// Client
    ///     An open session.
    ///
    /// Raises
    /// ------
    /// DisconnectedError
    ///     The daemon was closed.
    #[pyo3(signature = (*, namespace=None, label=None, memory_limit=None))]
    fn connect(
        &self,
        py: Python<'_>,
        namespace: Option<String>,
        label: Option<String>,
        memory_limit: Option<u64>,
    ) -> PyResult<Client> {
        let sockets = vec![self.socket.clone()];
        let options = Options { sockets, namespace, label, memory_limit, ..Options::default() };
        Client::open(py, options, Some(self.broker.clone()))
    }

    /// Stops the daemon, and disconnects its clients.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.broker.stop());
    }

    fn __repr__(&self) -> String {
        let state = if self.broker.is_running() { "running" } else { "closed" };
        format!("<Embedded at {}, {state}>", display::quoted(&self.socket.to_string_lossy()))
    }
}
