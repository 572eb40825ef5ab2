//! The client: connect, put, get.

use crate::control::{Control, default_sockets};
use crate::dataset::DatasetDraft;
use crate::draft::{Draft, TensorSpec};
use crate::element::AsTensor;
use crate::error::{Error, Result, check_name};
use crate::held::{Held, Version};
use crate::lease::{Dataset, Lease, Value};
use crate::listing::{Collection, Info};
use crate::session::{Session, lock};
use crate::stream::StreamBuilder;
use crate::subscription::{Subscription, SubscriptionBuilder};
use crate::wait::Deadline;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::DType;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::wire::{Reply, Request, Stat};

/// How to connect.
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    sockets: Vec<PathBuf>,
    namespace: Option<String>,
    label: Option<String>,
}

impl ClientBuilder {
    /// The daemon's socket. Default: `TENSORLEND_SOCKET`, else the user's daemon at `$XDG_RUNTIME_DIR/tensorlend.sock`,
    /// else the system's at `/run/tensorlend/tensorlend.sock`.
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.sockets.push(path.as_ref().to_owned());
        self
    }

    /// The namespace to join, as the daemon's configuration names it. Default: the private one of this user.
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// What to call this client in listings. Default: the program's name.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(label.to_owned());
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::NoDaemon`]; [`Error::Refused`] for another version, a namespace that is not for this user, a limit.
    pub fn connect(self) -> Result<Client> {
        tensorlend_os::kernel::check()?;
        let sockets = if self.sockets.is_empty() { default_sockets() } else { self.sockets };
        let label = self.label.unwrap_or_else(|| {
            let program = std::env::args_os().next().unwrap_or_default();
            Path::new(&program).file_name().unwrap_or_default().to_string_lossy().into_owned()
        });
        let session = Session::open(Control::connect(&sockets)?, self.namespace, label)?;
        Ok(Client { session })
    }
}

/// Memory of one client. See [`Client::memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Bytes of its slots in use: drafts, published, and replaced but not yet reclaimed.
    pub slot_bytes: u64,
    /// Bytes of the segments that it was lent.
    pub segment_bytes: u64,
}

/// A session with the daemon, in one namespace. Clones share it; all methods may be called from any thread. What this
/// client published outlives it.
///
/// After a fork it stays with the parent: in the child every call returns [`Error::Forked`].
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("namespace", &self.session.welcome.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the daemon at the default socket, in this user's private namespace.
    ///
    /// # Errors
    /// As [`ClientBuilder::connect`].
    pub fn connect() -> Result<Self> {
        Self::builder().connect()
    }

    /// Connects in another way.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.session.welcome.namespace
    }

    /// The daemon's version.
    pub fn daemon_version(&self) -> &str {
        &self.session.welcome.daemon
    }

    /// A tensor to be written in place: row-major, its bytes as they are.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a shape that cannot be; [`Error::Refused`] when there is no memory left to lend.
    pub fn create(&self, dtype: DType, shape: &[u64]) -> Result<Draft> {
        self.create_spec(TensorSpec::new(dtype, shape))
    }

    /// As [`Client::create`], with strides and byte offset of your own.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn create_spec(&self, spec: TensorSpec) -> Result<Draft> {
        self.session.check()?;
        Draft::new(self.session.clone(), spec)
    }

    /// Copies an array into shared memory and publishes it: one copy, no serialization.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// assert_eq!(client.get("numbers")?.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::create`] and [`Draft::publish`].
    pub fn put(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Version> {
        check_name(name)?;
        array.check()?;
        let mut draft = self.create(array.dtype(), &array.shape())?;
        array.write_to(draft.bytes_mut());
        draft.publish(name)
    }

    fn held(&self, name: &str) -> Result<Held> {
        check_name(name)?;
        self.session.lease_key(name.as_bytes(), name)?.ok_or_else(|| Error::NotFound(name.to_owned()))
    }

    /// Leases the tensor that the name holds now.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Kind`] for a dataset; [`Error::Leases`] with 4096 leases held already.
    pub fn get(&self, name: &str) -> Result<Lease> {
        Lease::new(self.held(name)?, name)
    }

    /// Leases the dataset that the name holds now.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_dataset(&self, name: &str) -> Result<Dataset> {
        Dataset::new(self.held(name)?, name)
    }

    /// Leases whatever the name holds now.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub fn get_value(&self, name: &str) -> Result<Value> {
        Value::new(self.held(name)?, name)
    }

    /// Copies the tensor's elements, in C order, into a buffer of exactly its length in bytes.
    ///
    /// # Errors
    /// [`Error::Length`]; otherwise as [`Client::get`].
    pub fn get_into(&self, name: &str, buffer: &mut [u8]) -> Result<Version> {
        let lease = self.get(name)?;
        if lease.nbytes() != buffer.len() as u64 {
            return Err(Error::Length { name: name.to_owned(), found: lease.nbytes(), given: buffer.len() as u64 });
        }
        lease.copy_to(buffer)?;
        Ok(lease.version())
    }

    /// Whether the name holds something.
    pub fn exists(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session.check()?;
        Ok(self.session.peek(name.as_bytes())?.exists)
    }

    /// Which value the name holds; `None` if none.
    pub fn version(&self, name: &str) -> Result<Option<Version>> {
        check_name(name)?;
        self.session.check()?;
        let now = self.session.peek(name.as_bytes())?;
        Ok(now.seen.filter(|_| now.exists))
    }

    /// Waits until the name holds a tensor and leases it. `None`: wait for ever.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Client::get`].
    pub fn wait_for(&self, name: &str, timeout: Option<Duration>) -> Result<Lease> {
        self.wait_newer(name, Version::NONE, timeout)
    }

    /// Waits until the name holds another value than `seen` and leases it. `None`: wait for ever.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Client::get`].
    pub fn wait_newer(&self, name: &str, seen: Version, timeout: Option<Duration>) -> Result<Lease> {
        match self.wait_value(name, seen, timeout)? {
            Value::Tensor(lease) => Ok(lease),
            Value::Dataset(_) => {
                Err(Error::Kind { name: name.to_owned(), found: "dataset", wanted: "tensor", remedy: "wait_value" })
            }
        }
    }

    /// As [`Client::wait_newer`], for a tensor or a dataset.
    ///
    /// # Errors
    /// As [`Client::wait_newer`].
    pub fn wait_value(&self, name: &str, seen: Version, timeout: Option<Duration>) -> Result<Value> {
        check_name(name)?;
        let deadline = Deadline::new(timeout);
        loop {
            self.session.wait_newer(name, seen, deadline)?;
            match self.get_value(name) {
                // Deleted again in this moment: wait on.
                Err(Error::NotFound(_)) => {}
                other => return other,
            }
        }
    }

    /// Deletes what the name holds; false if there was nothing. Leases on it stand.
    ///
    /// # Errors
    /// [`Error::Refused`] without the right to write.
    pub fn delete(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session.delete(name)
    }

    /// Gives what `from` holds the name `to`; what `to` held is replaced. For a moment both names are seen, never
    /// neither. If another live client owns `from`, its value is copied.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        self.session.rename(from, to)
    }

    /// Copies what `from` holds to `to`.
    ///
    /// # Errors
    /// [`Error::NotFound`]; otherwise as [`Client::put`].
    pub fn copy(&self, from: &str, to: &str) -> Result<Version> {
        check_name(from)?;
        check_name(to)?;
        self.session.copy(from, to)
    }

    /// What every name that matches a glob holds, sorted by name. `*` and `?` match any characters, `/` too;
    /// `[ab]`, `{a,b}` and `\` as in a shell.
    ///
    /// # Errors
    /// [`Error::Argument`] for a glob that cannot be.
    pub fn list(&self, glob: &str) -> Result<Vec<Info>> {
        let wanted = matcher(glob)?;
        self.session.list(|name| wanted.is_match(name))
    }

    /// The namespace's streams whose names match a glob, with their number of subscribers.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn streams(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = matcher(glob)?;
        let mut found = self.session.collections(KeyKind::Stream)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// The namespace's lists whose names match a glob, with their length.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn lists(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = matcher(glob)?;
        let mut found = self.session.collections(KeyKind::List)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// What the name holds: dtype, shape, owner.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn info(&self, name: &str) -> Result<Info> {
        check_name(name)?;
        self.session.check()?;
        self.session.info(name)
    }

    /// A dataset to be put together.
    pub fn dataset(&self) -> DatasetDraft {
        DatasetDraft::new(self.session.clone())
    }

    /// A stream to be opened, as its one producer.
    pub fn stream(&self, name: &str) -> StreamBuilder {
        StreamBuilder::new(self.session.clone(), name)
    }

    /// Subscribes to a stream that exists, from its newest message on.
    ///
    /// # Errors
    /// [`Error::NoSuch`].
    pub fn subscribe(&self, name: &str) -> Result<Subscription> {
        self.subscription(name).open()
    }

    /// Subscribes in another way: from the oldest message, for epoll, to a stream that is yet to be opened.
    pub fn subscription(&self, name: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.session.clone(), name)
    }

    /// Removes a stream and what it holds; false if there was none. Its subscribers find it ended.
    ///
    /// # Errors
    /// [`Error::Refused`] without the right to write.
    pub fn delete_stream(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session.check()?;
        let request = Request::StreamDelete { name: name.to_owned() };
        match self.session.control.call(&request, "delete stream", name)? {
            Reply::Deleted { existed } => Ok(existed),
            _ => Err(Error::Protocol { doing: "delete a stream" }),
        }
    }

    /// Figures of the daemon.
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn stat(&self) -> Result<Stat> {
        self.session.check()?;
        match self.session.control.call(&Request::Stat, "ask for figures", "")? {
            Reply::Stat(stat) => Ok(*stat),
            _ => Err(Error::Protocol { doing: "ask for figures" }),
        }
    }

    /// Asks the daemon whether it lives; returns the round trip.
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn ping(&self) -> Result<Duration> {
        self.session.check()?;
        let start = std::time::Instant::now();
        self.session.control.call(&Request::Ping, "ping", "")?;
        Ok(start.elapsed())
    }

    /// What this client itself has in use.
    pub fn memory(&self) -> MemoryUse {
        let (slot_bytes, segment_bytes) = lock(&self.session.heap).figures();
        MemoryUse { slot_bytes, segment_bytes }
    }

    /// Bytes of this namespace's tensors that some client holds a lease on now.
    pub fn leased(&self) -> Result<u64> {
        self.session.check()?;
        self.session.leased_bytes()
    }
}

fn matcher(glob: &str) -> Result<globset::GlobMatcher> {
    globset::GlobBuilder::new(glob)
        .build()
        .map(|glob| glob.compile_matcher())
        .map_err(|e| Error::Argument(format!("glob {glob:?}: {e}")))
}
