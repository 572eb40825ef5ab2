//! Options of a caller.

use super::caller::Caller;
use super::service::{CAPACITY_DEFAULT, Service};
use crate::client::Client;
use crate::error::{Error, Result};

/// Options of a caller. See [`Client::caller`].
#[derive(Debug)]
pub struct CallerBuilder {
    client: Client,
    service: String,
    capacity: u32,
    pollable: bool,
}

impl CallerBuilder {
    /// Sets the number of requests that can be outstanding at once, from 1 to 1024, rounded up to a power of two.
    /// Default: 8. The memory of this number of requests and replies stays in use until later ones replace them.
    pub fn capacity(mut self, requests: u32) -> Self {
        self.capacity = requests;
        self
    }

    /// Gives each channel of the caller a descriptor, for an event loop.
    #[doc(hidden)]
    pub fn pollable(mut self) -> Self {
        self.pollable = true;
        self
    }

    /// Opens the caller. Sends no request to the daemon: the first request finds a server.
    ///
    /// # Errors
    /// [`Error::Name`] for an invalid name, or a service's name of more than 207 bytes; [`Error::Argument`] for a
    /// capacity out of range.
    pub fn open(self) -> Result<Caller> {
        if !(1..=1024).contains(&self.capacity) {
            return Err(Error::Argument(format!("a caller for {} requests at once: give 1 to 1024", self.capacity)));
        }
        let service = Service::new(&self.service)?;
        Ok(Caller::new(self.client, service, self.capacity, self.pollable))
    }
}

impl Client {
    /// Starts a caller of a service. The caller sends requests to a server and receives replies. See [`Client::serve`]
    /// for the server's end.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("resize").open()?;
    /// let image = client.create(DType::U8, [480, 640, 3])?;
    /// let late = caller.call(image, Duration::from_millis(10));
    /// assert!(late.unwrap_err().is_timeout()); // nobody serves
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn caller(&self, service: &str) -> CallerBuilder {
        CallerBuilder { client: self.clone(), service: service.to_owned(), capacity: CAPACITY_DEFAULT, pollable: false }
    }
}
