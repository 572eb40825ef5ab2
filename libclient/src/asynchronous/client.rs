//! A client whose names are awaited.

use super::blocking;
use super::waiter::Waiter;
use crate::client::{Client, ClientBuilder};
use crate::error::{Error, Result, check_name};
use crate::held::Version;
use crate::lease::{Lease, Value};
use std::ops::Deref;
use std::sync::Arc;

/// A client for tasks of tokio: waiting for names is awaited, everything else is the [`Client`] that it derefs to. There
/// is no timeout to give: wrap the future into [`tokio::time::timeout`], or drop it in any other way.
///
/// The first task that has to wait for a name starts one thread, which waits for all tasks; it ends with the last clone.
/// Clone this, rather than converting a [`Client`] again: clones share the thread.
///
/// Of the calls of [`Client`], those that ask the daemon hold up the thread that makes them, for the microseconds of a
/// round trip as a rule, and for as long as a stopped daemon does not answer: those that make or map memory, the first
/// publication of a name, taking over or deleting another client's name, streams, lists. Where that is too long, and for
/// those that wait ([`Client::wait_len`], [`crate::Stream::send`]), use [`tokio::task::spawn_blocking`]. Overwriting
/// one's own names and reading what is mapped never wait for anybody.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let broker = tensorlend_daemon::embedded()?;
/// use tensorlend::Client;
///
/// let client = Client::builder().socket(broker.socket()).connect_async().await?;
/// let reader = client.clone();
/// let sum = tokio::spawn(async move {
///     let lease = reader.wait_for("numbers").await?;
///     Ok::<f32, tensorlend::Error>(lease.as_slice::<f32>()?.iter().sum())
/// });
/// client.put("numbers", &[1.0f32, 2.0])?;
/// assert_eq!(sum.await??, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct AsyncClient {
    client: Client,
    waiter: Arc<Waiter>,
}

impl AsyncClient {
    /// Waits until the name exists and leases what it holds.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?.into_async();
    /// use std::time::Duration;
    ///
    /// assert!(tokio::time::timeout(Duration::from_millis(10), client.wait_for("late")).await.is_err());
    /// client.put("late", &[7u8])?;
    /// assert_eq!(client.wait_for("late").await?.as_slice::<u8>()?, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`], less [`Error::NotFound`]; [`Error::System`] if the thread cannot be started.
    pub async fn wait_for(&self, name: &str) -> Result<Lease> {
        self.wait_newer(name, Version::NONE).await
    }

    /// Waits until the name holds another value than `seen` and leases it. Values that were replaced meanwhile are
    /// skipped: a stream delivers every one.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?.into_async();
    /// let seen = client.put("step", &[1u32])?;
    /// client.put("step", &[2u32])?;
    /// assert_eq!(client.wait_newer("step", seen).await?.as_slice::<u32>()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`AsyncClient::wait_for`].
    pub async fn wait_newer(&self, name: &str, seen: Version) -> Result<Lease> {
        match self.wait_value(name, seen).await? {
            Value::Tensor(lease) => Ok(lease),
            Value::Dataset(_) => {
                Err(Error::Kind { name: name.to_owned(), found: "dataset", wanted: "tensor", remedy: "wait_value" })
            }
            #[cfg(feature = "cuda")]
            Value::Device(_) => Err(crate::lease::on_device(name, "tensor in host memory")),
        }
    }

    /// As [`AsyncClient::wait_newer`], for a tensor or a dataset.
    ///
    /// # Errors
    /// As [`AsyncClient::wait_newer`], less [`Error::Kind`].
    pub async fn wait_value(&self, name: &str, seen: Version) -> Result<Value> {
        check_name(name)?;
        loop {
            self.waiter.wait_newer(name, seen).await?;
            match self.client.get_value(name) {
                // Deleted again in this moment: wait on.
                Err(Error::NotFound(_)) => {}
                other => return other,
            }
        }
    }

    /// The client alone.
    pub fn into_sync(self) -> Client {
        self.client
    }
}

impl Deref for AsyncClient {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Client {
    /// A client for tasks of tokio. It is the same session.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let client = client.into_async();
    /// client.put("numbers", &[1u8])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn into_async(self) -> AsyncClient {
        let waiter = Arc::new(Waiter::new(self.session().clone()));
        AsyncClient { client: self, waiter }
    }
}

impl ClientBuilder {
    /// Connects on one of the runtime's threads for blocking calls.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// let away = tensorlend::Client::builder().socket("/nowhere").connect_async().await;
    /// assert!(away.unwrap_err().is_disconnected());
    /// # });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect_async(self) -> Result<AsyncClient> {
        blocking("connect", move || self.connect()).await.map(Client::into_async)
    }
}
