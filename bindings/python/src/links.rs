//! The methods of `Client` for streams and services.

use crate::arguments;
use crate::client::Client;
use crate::errors::ResultExt;
use crate::lease::Mode;
use crate::service::{Caller, Server};
use crate::stream::Stream;
use crate::subscription::Subscription;
use crate::wait::{timeout, wait};
use pyo3::prelude::*;
use std::time::Duration;

#[pymethods]
impl Client {
    /// Returns the streams whose names match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of (str, int)
    ///     Name and number of subscribers of each.
    #[pyo3(signature = (glob="*"))]
    fn streams(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] glob: &str,
    ) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.streams(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
    }

    /// Opens a stream, as its only producer.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    /// capacity : int, default 8
    ///     Number of messages, the latest ones, that the stream keeps for subscribers that lag. It is rounded up to a power
    ///     of two, from 1 to 65,536.
    /// policy : {"block", "drop-oldest", "error"}, default "block"
    ///     The effect of a subscriber that lags by more messages. "block": the producer waits for
    ///     this subscriber. "drop-oldest": the subscriber loses its oldest messages. "error":
    ///     `send` raises StreamFullError.
    ///
    /// Returns
    /// -------
    /// Stream
    ///     The producer's end. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The capacity or the policy is invalid.
    /// ConflictError
    ///     This client, or another one that is connected, produces the stream.
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (name, *, capacity=8, policy="block"))]
    fn stream(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::number)] capacity: u32,
        policy: &str,
    ) -> PyResult<Stream> {
        let client = self.session(py)?;
        let builder = client.stream(name).capacity(capacity).policy(Stream::policy(policy)?);
        let stream = py.detach(|| builder.open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Stream::new(stream, client, awaited))
    }

    /// Subscribes to a stream.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    /// start : {"newest", "oldest", "next"}, default "newest"
    ///     The first message: the newest one, the oldest one that the stream still keeps, or the
    ///     next one that is sent.
    /// pollable : bool, default False
    ///     Whether the subscription has a descriptor, which `async for` and select need.
    /// wait : float or None, default None
    ///     Maximum wait in seconds until the stream is opened. None does not wait.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Subscription
    ///     An iterator of messages. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such stream, and `wait` is None.
    /// TimeoutError
    ///     The stream was not opened within `wait` seconds.
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (name, *, start="newest", pollable=false, wait=None, mode="read"))]
    fn subscribe(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        start: &str,
        pollable: bool,
        wait: Option<f64>,
        mode: &str,
    ) -> PyResult<Subscription> {
        let (start, mode) = (Subscription::start(start)?, Mode::parse(mode)?);
        let client = self.session(py)?;
        let awaited = self.awaited(&client);
        let open = |slice: Option<Duration>| {
            let mut builder = client.subscription(name).start_at(start);
            if pollable {
                builder = builder.pollable();
            }
            if let Some(slice) = slice {
                builder = builder.wait(slice);
            }
            builder.open()
        };
        let opened = match wait {
            None => py.detach(|| open(None)).or_raise()?,
            Some(_) => self::wait(py, &awaited, timeout(wait)?, |slice| open(Some(slice)))?,
        };
        Ok(Subscription::new(opened, client, awaited, self.origin(name, false), mode, pollable))
    }

    /// Deletes a stream.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The stream's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the stream did not exist.
    ///
    /// Raises
    /// ------
    /// ConflictError
    ///     Another client that is connected produces the stream.
    fn delete_stream(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.delete_stream(name)).or_raise()
    }

    /// Opens a server of a service, which responds to requests. The servers of a service share its callers.
    ///
    /// Parameters
    /// ----------
    /// service : str
    ///     The service's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Server
    ///     An iterator of requests. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (service, *, mode="read"))]
    fn serve(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] service: &str,
        mode: &str,
    ) -> PyResult<Server> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let server = py.detach(|| client.serve(service).pollable().open()).or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Server::new(server, client, self.notifications(py)?, awaited, self.origin(service, false), mode))
    }

    /// Opens a caller, which sends requests to the servers of a service.
    ///
    /// The caller selects a server at the first request.
    ///
    /// Parameters
    /// ----------
    /// service : str
    ///     The service's name.
    /// capacity : int, default 8
    ///     Maximum number of requests in flight.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// Caller
    ///     The caller. Close it, or use it as a context manager.
    ///
    /// Raises
    /// ------
    /// LimitError
    ///     A limit of the daemon's configuration is reached.
    #[pyo3(signature = (service, *, capacity=8, mode="read"))]
    fn caller(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] service: &str,
        #[pyo3(from_py_with = arguments::number)] capacity: u32,
        mode: &str,
    ) -> PyResult<Caller> {
        let (mode, client) = (Mode::parse(mode)?, self.session(py)?);
        let caller = client.caller(service).capacity(capacity).pollable().open().or_raise()?;
        let awaited = self.awaited(&client);
        Ok(Caller::new(caller, client, awaited, self.origin(service, false), mode))
    }
}
