//! A client whose waits for names are futures.

use super::blocking;
use crate::client::{Client, ClientBuilder};
use crate::error::{Error, Result, check_name};
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::lease::Lease;
use crate::lease::value::Value;
use crate::lease::wait::newer;
use crate::lease::waiter::Waiter;
use crate::names::version::Version;
use crate::remote::{Far, may_be_far, node_name, split};
use crate::wait::Deadline;
use std::future::poll_fn;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

/// Longest single wait for a name of another machine. So a dropped future occupies its thread only briefly.
const FAR_PART: Duration = Duration::from_secs(1);

/// A client for tokio tasks. Its waits for names are futures. For everything else, it derefs to [`Client`]. The waits
/// have no timeout: use [`tokio::time::timeout`], or drop the future in any other way.
///
/// Clone this client rather than converting a [`Client`] again: clones share one waiting thread. The first task that
/// waits for a name starts the thread, which ends with the last clone. A wait for a name of another machine
/// ([`crate::remote`]) occupies one of the runtime's threads for blocking calls. This thread is free some seconds
/// after the program has dropped the future.
///
/// Methods of [`Client`] that ask the daemon block the calling thread: usually for microseconds, but while the daemon
/// is stopped, until it responds. These methods allocate or map memory, publish a name for the first time, take over
/// or delete another client's name, or use streams and lists. If that is too long, use
/// [`tokio::task::spawn_blocking`]. Also use it for methods that wait ([`Client::wait_length`],
/// [`crate::Stream::send`]). Overwriting this client's own names and reading mapped values never block.
///
/// ```
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// # let daemon = tensorlend_daemon::embedded()?;
/// use tensorlend::Client;
///
/// let client = Client::builder().socket(daemon.socket()).connect_async().await?;
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
    /// Waits until the name holds a tensor, and leases it.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?.into_async();
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
    /// The errors of [`Client::get`], except [`Error::NotFound`]; [`Error::System`] if this process cannot start the
    /// waiting thread.
    pub async fn wait_for(&self, name: &str) -> Result<Lease> {
        self.wait_newer(name, Version::NONE).await
    }

    /// Waits until the name holds another value than `seen`, and leases this value. Skips values that were replaced
    /// in the meantime: use a stream to receive every value.
    ///
    /// ```
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    /// # runtime.block_on(async {
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?.into_async();
    /// let seen = client.put("step", &[1u32])?;
    /// client.put("step", &[2u32])?;
    /// assert_eq!(client.wait_newer("step", seen).await?.as_slice::<u32>()?, [2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`AsyncClient::wait_for`].
    pub async fn wait_newer(&self, name: &str, seen: Version) -> Result<Lease> {
        assemble::tensor_of(self.wait_value(name, seen).await?, name, "wait_value")
    }

    /// Waits like [`AsyncClient::wait_newer`], for a tensor or a dataset.
    ///
    /// # Errors
    /// The errors of [`AsyncClient::wait_newer`], except [`Error::Kind`].
    pub async fn wait_value(&self, name: &str, seen: Version) -> Result<Value> {
        check_name(name)?;
        loop {
            let here = self.wait_anywhere(name, seen).await?;
            // After `None`, another client has deleted the name again, so continue to wait.
            if let Some(leased) = lease_key(self.client.session(), here.as_bytes(), name)? {
                return assemble::value(self.client.session(), leased, name);
            }
        }
    }

    /// Waits for a value of a name of this machine or another one. Returns the name under which the value is on this
    /// machine.
    async fn wait_anywhere<'n>(&self, name: &'n str, seen: Version) -> Result<&'n str> {
        let Some((node, _)) = split(name).filter(|_| may_be_far(name)) else {
            self.wait_here(name, seen).await?;
            return Ok(name);
        };
        let document = node_name(node);
        loop {
            // Read the document's version before the deciding check. Then a document that is published after this read
            // ends the wait.
            let known = self.client.version(&document)?.unwrap_or(Version::NONE);
            match self.client.far(name)? {
                Some(Far::Here(rest)) => {
                    self.wait_here(rest, seen).await?;
                    return Ok(rest);
                }
                Some(Far::There(_)) => {
                    let (client, owned) = (self.client.clone(), name.to_owned());
                    let part = Deadline::new(Some(FAR_PART));
                    let wait = move || client.wait_anywhere(&owned, seen, part).map(drop);
                    match blocking("ask the gateway", wait).await {
                        Err(Error::Timeout { .. }) => {}
                        other => return other.map(|()| name),
                    }
                }
                None => {
                    let mut here = pin!(self.wait_here(name, seen));
                    let mut comes = pin!(self.wait_here(&document, known));
                    let found = poll_fn(|cx| match here.as_mut().poll(cx) {
                        Poll::Ready(found) => Poll::Ready(found.map(|()| true)),
                        Poll::Pending => comes.as_mut().poll(cx).map_ok(|()| false),
                    });
                    if found.await? {
                        return Ok(name);
                    }
                }
            }
        }
    }

    /// Waits for a value of a local name other than `seen`.
    async fn wait_here(&self, name: &str, seen: Version) -> Result<()> {
        // Even a task that always finds a new value must yield from time to time.
        tokio::task::coop::consume_budget().await;
        let session = self.client.session();
        session.check()?;
        if newer(session, name.as_bytes(), seen)?.is_over {
            return Ok(());
        }
        let (tell, told) = tokio::sync::oneshot::channel();
        let key = name.as_bytes().to_vec();
        let poll = Box::new(move |session: &_| newer(session, &key, seen));
        // Ignore a failure: the task may have stopped waiting.
        let _ticket = self.waiter.wait(poll, Box::new(move |outcome| drop(tell.send(outcome))))?;
        told.await.expect("the thread answers every wait before its last handle is gone")
    }

    /// Returns the blocking client, which uses the same session.
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
    /// Turns the client into one for tokio tasks. The session stays the same.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
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
    /// The errors of [`ClientBuilder::connect`].
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn connect_async(self) -> Result<AsyncClient> {
        blocking("connect", move || self.connect()).await.map(Client::into_async)
    }
}
