//! The client: connect, put, get.

use crate::control::{Control, default_sockets};
use crate::error::{Error, Result, check_name};
use crate::glob::Glob;
use crate::instruments::Options;
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::by_name::peek;
use crate::lease::fetch::leased_bytes;
use crate::lease::lease::{Dataset, Lease};
use crate::lease::rename;
use crate::lease::take::Leased;
use crate::lease::value::Value;
use crate::listing::collections;
use crate::listing::info;
use crate::listing::listing;
use crate::listing::{Collection, Info, Listing};
use crate::names::lifetime::Lifetime;
use crate::names::version::Version;
use crate::remote::Callers;
use crate::segment::copy::into_shared;
use crate::session::Session;
use crate::stream::StreamBuilder;
use crate::stream::subscriber::{Subscription, SubscriptionBuilder};
use crate::tensor::dataset::DatasetDraft;
use crate::tensor::draft::{Draft, TensorSpec};
use crate::tensor::element::AsTensor;
use crate::wait::Deadline;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::DType;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::wire::{Reply, Request, Stat};

/// How to connect: to which daemon, into which namespace, under which label.
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(broker.socket()).label("camera driver").connect()?;
/// client.put("exposure_ms", &[12.5f32])?;
/// assert_eq!(client.info("exposure_ms")?.label, "camera driver");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    sockets: Vec<PathBuf>,
    namespace: Option<String>,
    label: Option<String>,
    harden: bool,
    remote_timeout: Option<Duration>,
    request_timeout: Option<Duration>,
    pub(crate) instruments: Options,
}

/// How long the daemon may say nothing, unless told otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request to the gateway may take, unless told otherwise.
const REMOTE_TIMEOUT: Duration = Duration::from_mins(1);

impl ClientBuilder {
    /// The daemon's socket; called more than once, the sockets are tried in that order. Default: `TENSORLEND_SOCKET`,
    /// else the user's daemon at `$XDG_RUNTIME_DIR/tensorlend.sock`, else the system's at
    /// `/run/tensorlend/tensorlend.sock`.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket("/nowhere").socket(broker.socket()).connect()?;
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn socket(mut self, path: impl AsRef<Path>) -> Self {
        self.sockets.push(path.as_ref().to_owned());
        self
    }

    /// The namespace to join, as the daemon's configuration names it. Default: the private one of this user.
    ///
    /// ```
    /// # let user = rustix::process::getuid().as_raw();
    /// let config = format!("[namespace.robot]\nwriters = [\"{user}\"]");
    /// let broker = tensorlend_daemon::embedded_with(&tensorlend_daemon::Config::parse(&config)?)?;
    /// let client = tensorlend::Client::builder().socket(broker.socket()).namespace("robot").connect()?;
    /// assert_eq!(client.namespace(), "robot");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn namespace(mut self, name: &str) -> Self {
        self.namespace = Some(name.to_owned());
        self
    }

    /// What to call this client in listings: its first 63 bytes are kept. Default: the program's name.
    pub fn label(mut self, label: &str) -> Self {
        self.label = Some(shortened(label));
        self
    }

    /// Whether to keep other processes of this user out of this one: from the connection on, none of them can trace it,
    /// read or write its memory, or take its descriptors (`PR_SET_DUMPABLE` is set to 0). This holds for the whole process
    /// until it executes another program, and has a price: no core dumps, no debugger that is not root's, and no library
    /// that shares memory by `pidfd_getfd` (CUDA's memory between `PyTorch` processes). Default: off.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket(broker.socket()).harden(true).connect()?;
    /// assert_eq!(rustix::process::dumpable_behavior()?, rustix::process::DumpableBehavior::NotDumpable);
    /// # client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn harden(mut self, harden: bool) -> Self {
        self.harden = harden;
        self
    }

    /// How long this machine's gateway may take for what is asked without a time: a [`Client::get`] of another machine's name, a
    /// subscription to its stream. See [`crate::remote`]. Default: 60 seconds.
    pub fn remote_timeout(mut self, timeout: Duration) -> Self {
        self.remote_timeout = Some(timeout);
        self
    }

    /// How long the daemon may say nothing before a request is given up with [`Error::NotAnswering`]: this holds for every
    /// method that asks the daemon, and for connecting. A daemon that is busy with the request is waited for: halfway, the
    /// client opens a second connection, and only a daemon that does not answer that one either is given up. Waits for a value or
    /// a message have times of their own. Default: 30 seconds; at least 1 millisecond.
    ///
    /// The session outlives it: when the daemon answers again, so does the client.
    ///
    /// ```
    /// let broker = tensorlend_daemon::embedded()?;
    /// let second = std::time::Duration::from_secs(1);
    /// let client = tensorlend::Client::builder().socket(broker.socket()).request_timeout(second).connect()?;
    /// client.ping()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = Some(timeout);
        self
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::NoDaemon`] if no socket answers; [`Error::NotAnswering`] if a daemon listens and says nothing; [`Error::Name`] for a namespace that cannot be; [`Error::Refused`] for another version, a namespace that is not for
    /// this user, a limit; [`Error::Kernel`] if this machine's kernel lacks what tensorlend needs; [`Error::System`] if
    /// the allocation log cannot be opened.
    pub fn connect(self) -> Result<Client> {
        tensorlend_os::kernel::check()?;
        // Before anything is lent that somebody could reach for.
        if self.harden {
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
                .map_err(|error| Error::System { doing: "harden this process", cause: error.into() })?;
        }
        let sockets = if self.sockets.is_empty() { default_sockets() } else { self.sockets };
        let label = self.label.unwrap_or_else(|| {
            let program = std::env::args_os().next().unwrap_or_default();
            shortened(&Path::new(&program).file_name().unwrap_or_default().to_string_lossy())
        });
        if let Some(namespace) = &self.namespace {
            check_name(namespace)?;
        }
        let timeout = self.request_timeout.unwrap_or(REQUEST_TIMEOUT).max(Duration::from_millis(1));
        let session =
            Session::open(Control::connect(&sockets, timeout)?, self.namespace, label, self.instruments.build()?)?;
        let callers = Arc::new(Callers::new(self.remote_timeout.unwrap_or(REMOTE_TIMEOUT)));
        Ok(Client { session, callers })
    }
}

/// Memory of one client. See [`Client::memory`].
///
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// use tensorlend::MemoryUse;
///
/// assert_eq!(client.memory(), MemoryUse { slot_bytes: 0, segment_bytes: 0 });
/// let draft = client.create(tensorlend::DType::U8, &[4096])?;
/// assert_eq!(client.memory().slot_bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
/// ```
/// # let broker = tensorlend_daemon::embedded()?;
/// let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
/// println!("namespace {} of tensorlendd {}", client.namespace(), client.daemon_version());
///
/// let same = client.clone();
/// std::thread::spawn(move || same.put("numbers", &[1.0f32, 2.0])).join().unwrap()?;
/// assert_eq!(client.get("numbers")?.shape(), [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// What any call can meet, and its own section does not repeat: [`Error::Name`] for a name that is not 1 to 255 bytes
/// of UTF-8 without control characters; where the daemon must be asked, [`Error::Disconnected`] if it is gone, and
/// [`Error::NotAnswering`] if it says nothing for the time of [`ClientBuilder::request_timeout`];
/// [`Error::SessionEnded`] once the daemon has ended this session; [`Error::Forked`] in the child of a fork, since the
/// session stays with the parent.
#[derive(Clone)]
pub struct Client {
    session: Arc<Session>,
    callers: Arc<Callers>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("namespace", &self.session.welcome.namespace).finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the daemon at the default socket, in this user's private namespace.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// println!("the daemon answers in {:?}", client.ping()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    pub(crate) fn callers(&self) -> &Callers {
        &self.callers
    }

    /// The same session, without the ways to the gateway that this one has.
    pub(crate) fn without_callers(&self) -> Self {
        Self { session: self.session.clone(), callers: Arc::new(Callers::new(self.callers.timeout)) }
    }

    /// Whether it is a clone of the other: both have one session, and drafts and leases of one are the other's too.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let connect = || tensorlend::Client::builder().socket(broker.socket()).connect();
    /// let client = connect()?;
    /// assert!(client.is_same(&client.clone()));
    /// assert!(!client.is_same(&connect()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    /// The namespace's name.
    pub fn namespace(&self) -> &str {
        &self.session.welcome.namespace
    }

    /// The daemon's version.
    pub fn daemon_version(&self) -> &str {
        &self.session.welcome.daemon
    }

    /// A tensor to be written in place: row-major, with 0 to 16 sizes in elements. Its bytes are whatever lay there
    /// before.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut image = client.create(DType::U8, &[480, 640, 3])?;
    /// assert_eq!(image.bytes_mut().len(), 480 * 640 * 3);
    /// image.bytes_mut().fill(255);
    /// image.publish("camera/front")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] for a shape that cannot be; [`Error::Refused`] when there is no memory left to lend.
    #[inline]
    pub fn create(&self, dtype: DType, shape: &[u64]) -> Result<Draft> {
        Draft::row_major(&self.session, dtype, shape)
    }

    /// As [`Client::create`], with strides (in elements) and byte offset of your own.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::{DType, TensorSpec};
    ///
    /// // Two rows of three elements, the first padded to four.
    /// let spec = TensorSpec { strides: Some(vec![4, 1]), ..TensorSpec::new(DType::U8, &[2, 3]) };
    /// let mut draft = client.create_spec(spec)?;
    /// draft.bytes_mut().copy_from_slice(&[1, 2, 3, 0, 4, 5, 6]);
    /// draft.publish("padded")?;
    ///
    /// let mut elements = [0; 6];
    /// client.get("padded")?.copy_to(&mut elements)?;
    /// assert_eq!(elements, [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tensor`] for a shape, strides or byte offset that cannot be; otherwise as [`Client::create`].
    pub fn create_spec(&self, spec: TensorSpec) -> Result<Draft> {
        Draft::new(&self.session, &spec)
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
    /// [`Error::Length`] for an array whose bytes are not as many as its shape says; otherwise as
    /// [`Client::create`] and [`Draft::publish`].
    pub fn put(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Version> {
        check_name(name)?;
        self.filled(name, array)?.publish(name)
    }

    /// As [`Client::put`], for a name that ends by itself: see [`Draft::publish_for`].
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::Lifetime;
    ///
    /// client.put_for("heartbeat", &[1u8], Lifetime::ttl(Duration::from_millis(1)))?;
    /// while client.exists("heartbeat")? {
    ///     std::thread::sleep(Duration::from_millis(1));
    /// }
    /// assert_eq!(client.stat()?.names_expired, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a time to live of 0; otherwise as [`Client::put`].
    pub fn put_for(&self, name: &str, array: &(impl AsTensor + ?Sized), lifetime: Lifetime) -> Result<Version> {
        check_name(name)?;
        self.filled(name, array)?.publish_for(name, lifetime)
    }

    #[inline]
    pub(crate) fn filled(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<Draft> {
        array.check()?;
        let mut draft = self.create(array.dtype(), &array.shape())?;
        match array.bytes() {
            Some(bytes) if bytes.len() == draft.bytes_mut().len() => into_shared(draft.bytes_mut(), bytes),
            Some(bytes) => {
                let (found, given) = (draft.bytes_mut().len() as u64, bytes.len() as u64);
                return Err(Error::Length { name: name.to_owned(), found, given });
            }
            None => array.write_to(draft.bytes_mut()),
        }
        Ok(draft)
    }

    #[inline]
    fn lease_of(&self, name: &str) -> Result<Leased> {
        check_name(name)?;
        match lease_key(&self.session, name.as_bytes(), name)? {
            Some(leased) => Ok(leased),
            None => self.lease_far(name),
        }
    }

    /// Leases the tensor that the name holds now. No copy is made, and what is published later does not change it.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// let lease = client.get("numbers")?;
    /// client.put("numbers", &[4.0f32])?;
    /// assert_eq!(lease.as_slice::<f32>()?, [1.0, 2.0, 3.0]);
    /// assert!(client.get("nothing").unwrap_err().is_not_found());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A name of another machine, `NODE/NAME`, is fetched where it is not here: see [`crate::remote`].
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Kind`] for a dataset; [`Error::Leases`] with 4096 leases held already;
    /// [`Error::Damaged`] if a broken client published it; [`Error::Remote`] and [`Error::Timeout`] only for a name of another machine.
    pub fn get(&self, name: &str) -> Result<Lease> {
        assemble::lease(&self.session, self.lease_of(name)?, name)
    }

    /// Leases the dataset that the name holds now: all of its tensors, with one lease.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let image = client.create(tensorlend::DType::U8, &[480, 640, 3])?;
    /// client.dataset().add("image", image)?.publish("frame")?;
    /// let frame = client.get_dataset("frame")?;
    /// assert_eq!(frame.get("image").unwrap().shape(), [480, 640, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Kind`] for a single tensor; otherwise as [`Client::get`].
    pub fn get_dataset(&self, name: &str) -> Result<Dataset> {
        assemble::dataset(&self.session, self.lease_of(name)?, name)
    }

    /// Leases whatever the name holds now.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::Value;
    ///
    /// client.put("numbers", &[1u8, 2])?;
    /// match client.get_value("numbers")? {
    ///     Value::Tensor(lease) => assert_eq!(lease.shape(), [2]),
    ///     Value::Dataset(dataset) => println!("{} tensors", dataset.len()),
    ///     #[allow(unreachable_patterns)]
    ///     other => println!("on a device, with the feature `cuda`: {other:?}"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::get`], less [`Error::Kind`].
    pub fn get_value(&self, name: &str) -> Result<Value> {
        assemble::value(&self.session, self.lease_of(name)?, name)
    }

    /// As [`Client::get_value`], for what is here: asks no other machine and never waits. `None` if the name holds nothing.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// assert!(client.get_here("node7/numbers")?.is_none());
    /// client.put("numbers", &[1u8, 2])?;
    /// assert!(client.get_here("numbers")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Leases`] and [`Error::Damaged`], as [`Client::get`].
    pub fn get_here(&self, name: &str) -> Result<Option<Value>> {
        check_name(name)?;
        let leased = lease_key(&self.session, name.as_bytes(), name)?;
        leased.map(|leased| assemble::value(&self.session, leased, name)).transpose()
    }

    /// Copies the tensor's elements, in C order, into a buffer of exactly its length in bytes.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1u8, 2, 3])?;
    /// let mut buffer = [0; 3];
    /// let seen = client.get_into("numbers", &mut buffer)?;
    /// assert_eq!(buffer, [1, 2, 3]);
    /// assert_eq!(client.version("numbers")?, Some(seen));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Whether the name holds something here. Takes no lease, and asks no other machine.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// assert!(!client.exists("numbers")?);
    /// client.put("numbers", &[1u8])?;
    /// assert!(client.exists("numbers")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`] if its owner is a broken client.
    pub fn exists(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session.check()?;
        Ok(peek(&self.session, name.as_bytes())?.exists)
    }

    /// Which value the name holds here; `None` if none. Takes no lease, asks no other machine, and is the cheapest way to see that
    /// nothing is new.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let seen = client.put("numbers", &[1u8])?;
    /// assert_eq!(client.version("numbers")?, Some(seen));
    /// client.put("numbers", &[1u8])?;
    /// assert_ne!(client.version("numbers")?, Some(seen));
    /// assert_eq!(client.version("nothing")?, None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Damaged`] if its owner is a broken client.
    pub fn version(&self, name: &str) -> Result<Option<Version>> {
        check_name(name)?;
        self.session.check()?;
        let now = peek(&self.session, name.as_bytes())?;
        Ok(now.seen.filter(|_| now.exists))
    }

    /// Waits until the name holds a tensor and leases it. `None`: wait for ever.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let producer = client.clone();
    /// let thread = std::thread::spawn(move || producer.put("late", &[7u8]));
    /// let lease = client.wait_for("late", Some(Duration::from_secs(10)))?;
    /// assert_eq!(lease.as_slice::<u8>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Client::get`].
    pub fn wait_for(&self, name: &str, timeout: Option<Duration>) -> Result<Lease> {
        self.wait_newer(name, Version::NONE, timeout)
    }

    /// Waits until the name holds another value than `seen` and leases it. `None`: wait for ever. Values that were
    /// replaced meanwhile are skipped: a stream delivers every one.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    ///
    /// let seen = client.put("step", &[1u32])?;
    /// client.put("step", &[2u32])?;
    /// let lease = client.wait_newer("step", seen, Some(Duration::from_secs(1)))?;
    /// assert_eq!(lease.as_slice::<u32>()?, [2]);
    ///
    /// let none = client.wait_newer("step", lease.version(), Some(Duration::from_millis(10)));
    /// assert!(none.unwrap_err().is_timeout());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Client::get`].
    pub fn wait_newer(&self, name: &str, seen: Version, timeout: Option<Duration>) -> Result<Lease> {
        match self.wait_value(name, seen, timeout)? {
            Value::Tensor(lease) => Ok(lease),
            Value::Dataset(_) => {
                Err(Error::Kind { name: name.to_owned(), found: "dataset", wanted: "tensor", remedy: "wait_value" })
            }
            #[cfg(feature = "cuda")]
            Value::Device(_) => Err(crate::lease::value::on_device(name, "tensor in host memory")),
        }
    }

    /// As [`Client::wait_newer`], for a tensor or a dataset.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::{DType, Version};
    ///
    /// client.dataset().add("depth", client.create(DType::F32, &[4, 4])?)?.publish("frame")?;
    /// let frame = client.wait_value("frame", Version::NONE, None)?;
    /// assert_eq!(frame.as_dataset().unwrap().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::wait_newer`], less [`Error::Kind`].
    pub fn wait_value(&self, name: &str, seen: Version, timeout: Option<Duration>) -> Result<Value> {
        check_name(name)?;
        let deadline = Deadline::new(timeout);
        loop {
            let here = self.wait_anywhere(name, seen, deadline)?;
            // Deleted again in this moment: wait on.
            if let Some(leased) = lease_key(&self.session, here.as_bytes(), name)? {
                return assemble::value(&self.session, leased, name);
            }
        }
    }

    /// Deletes what the name holds; false if there was nothing. Leases on it stand.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1u8])?;
    /// assert!(client.delete("numbers")?);
    /// assert!(!client.delete("numbers")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] without the right to write.
    pub fn delete(&self, name: &str) -> Result<bool> {
        check_name(name)?;
        self.session.names().delete(name)
    }

    /// Gives what `from` holds the name `to`; what `to` held is replaced. For a moment both names are seen, never
    /// neither. If another live client owns `from`, its value is copied.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("draft", &[1u8])?;
    /// client.rename("draft", "final")?;
    /// assert!(client.exists("final")? && !client.exists("draft")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; otherwise as [`Draft::publish`].
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        rename::rename(&self.session, from, to)
    }

    /// Copies what `from` holds to `to`: bytes, metadata and timestamp.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1u8])?;
    /// client.copy("numbers", "backup")?;
    /// client.put("numbers", &[2u8])?;
    /// assert_eq!(client.get("backup")?.as_slice::<u8>()?, [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; otherwise as [`Client::put`].
    pub fn copy(&self, from: &str, to: &str) -> Result<Version> {
        check_name(from)?;
        check_name(to)?;
        rename::copy(&self.session, from, to)
    }

    /// What every name that matches a glob holds, sorted by name. `*` and `?` match any characters, `/` too; `[ab]`,
    /// `{a,b}` and `\` as in a shell.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("camera/front", &[1u8])?;
    /// client.put("camera/rear", &[2u8])?;
    /// client.put("lidar", &[3u8])?;
    /// let cameras: Vec<_> = client.list("camera/*")?.into_iter().map(|info| info.name).collect();
    /// assert_eq!(cameras, ["camera/front", "camera/rear"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A tensor is described by its record: its elements are neither mapped nor, if they were spilled, read back. Datasets,
    /// tensors with metadata of more than 32 bytes or more than 4 dimensions, and such with strides or on devices are leased for it, so
    /// that they come back: [`Client::overview`] leaves them where they are. Names that cannot be described are left out:
    /// [`Client::listing`] returns those, too.
    ///
    /// # Errors
    /// [`Error::Argument`] for a glob that cannot be.
    pub fn list(&self, glob: &str) -> Result<Vec<Info>> {
        Ok(self.listing(glob)?.infos)
    }

    /// As [`Client::list`], with the names that cannot be described, and why.
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn listing(&self, glob: &str) -> Result<Listing> {
        let wanted = Glob::new(glob)?;
        listing(&self.session, |name| wanted.is_match(name), true)
    }

    /// As [`Client::listing`], and brings nothing back that was spilled: [`Listing::spilled`] has the names of which that would
    /// be needed, with what their records say. It needs no memory in the pool, so that it works where pool and disk are full.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1.0f32])?;
    /// let overview = client.overview("*")?;
    /// assert_eq!((overview.infos.len(), overview.spilled.len()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::list`].
    pub fn overview(&self, glob: &str) -> Result<Listing> {
        let wanted = Glob::new(glob)?;
        listing(&self.session, |name| wanted.is_match(name), false)
    }

    /// The namespace's streams whose names match a glob, sorted by name, with their number of subscribers.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let frames = client.subscribe("camera")?;
    /// assert_eq!(client.streams("cam*")?[0].count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a glob that cannot be.
    pub fn streams(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = Glob::new(glob)?;
        let mut found = collections(&self.session, KeyKind::Stream)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// The namespace's lists whose names match a glob, sorted by name, with their length in items.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.append("episodes", client.create(tensorlend::DType::F32, &[100, 6])?)?;
    /// assert_eq!(client.lists("*")?[0].count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for a glob that cannot be.
    pub fn lists(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = Glob::new(glob)?;
        let mut found = collections(&self.session, KeyKind::List)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// What the name holds: dtype, shape, owner. Reads the record and not the elements.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// let info = client.info("numbers")?;
    /// assert_eq!((info.nbytes, info.pid, info.alive), (12, std::process::id(), true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Leases`] with 4096 leases held already; [`Error::Damaged`] if a broken client
    /// published it.
    pub fn info(&self, name: &str) -> Result<Info> {
        check_name(name)?;
        self.session.check()?;
        info(&self.session, name)
    }

    /// A dataset to be put together.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let image = client.create(tensorlend::DType::U8, &[480, 640, 3])?;
    /// let depth = client.create(tensorlend::DType::F32, &[480, 640])?;
    /// client.dataset().add("image", image)?.add("depth", depth)?.publish("frame")?;
    /// assert_eq!(client.get_dataset("frame")?.len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dataset(&self) -> DatasetDraft {
        DatasetDraft::new(self.session.clone())
    }

    /// A stream to be opened, as its one producer.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").capacity(4).open()?;
    /// camera.send(client.create(tensorlend::DType::U8, &[480, 640, 3])?)?;
    /// assert_eq!(camera.sent(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self, name: &str) -> StreamBuilder {
        StreamBuilder::new(self.session.clone(), name)
    }

    /// Subscribes to a stream that exists, from its newest message on.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// camera.send(client.create(tensorlend::DType::U8, &[480, 640, 3])?)?;
    /// let mut frames = client.subscribe("camera")?;
    /// assert_eq!(frames.recv()?.sequence(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuch`] if there is no such stream; [`Error::Cursors`] with 256 subscriptions open already;
    /// [`Error::Refused`] if the stream has as many subscribers as it can.
    pub fn subscribe(&self, name: &str) -> Result<Subscription> {
        self.subscription(name).open()
    }

    /// Subscribes in another way: from the oldest message, for epoll, to a stream that is yet to be opened.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::Start;
    ///
    /// let camera = client.stream("camera").open()?;
    /// let mut frames = client.subscription("camera").from(Start::Oldest).open()?;
    /// assert!(frames.try_recv()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscription(&self, name: &str) -> SubscriptionBuilder {
        SubscriptionBuilder::new(self.clone(), name)
    }

    /// Removes a stream and what it holds; false if there was none. Its subscribers find it ended, its producer's next
    /// send fails with [`Error::StreamEnded`].
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// assert!(client.delete_stream("camera")?);
    /// assert!(!client.delete_stream("camera")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Figures of the daemon, over all namespaces, and what this client's user and namespace use of what they may.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// let stat = client.stat()?;
    /// assert_eq!((stat.clients, stat.version.as_str()), (1, client.daemon_version()));
    /// let account = &stat.uids[0];
    /// assert!(account.sessions <= account.sessions_max && account.bytes <= account.bytes_max);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// An error once the daemon has ended and none has taken its place, or has ended this session. Asks the daemon nothing, and
    /// takes some nanoseconds: for loops that wait for what other clients do.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.check_daemon()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disconnected`] some seconds after the daemon ended, or at once if it has removed its socket; [`Error::SessionEnded`];
    /// [`Error::Refused`] by a new daemon; [`Error::Forked`].
    pub fn check_daemon(&self) -> Result<()> {
        self.session.check()?;
        self.session.control.check_daemon("wait")
    }

    /// Asks the daemon whether it lives; returns the round trip.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// println!("the daemon answers in {:?}", client.ping()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[0u8; 100])?;
    /// let memory = client.memory();
    /// assert_eq!(memory.slot_bytes, 128); // whole cache lines
    /// assert!(memory.segment_bytes >= memory.slot_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> MemoryUse {
        let (slot_bytes, segment_bytes) = self.session.alloc().figures();
        MemoryUse { slot_bytes, segment_bytes }
    }

    /// Bytes of this namespace's tensors that some client holds a lease on now.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// client.put("numbers", &[0u8; 4096])?;
    /// assert_eq!(client.leased()?, 0);
    /// let lease = client.get("numbers")?;
    /// assert_eq!(client.leased()?, 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disconnected`]; [`Error::System`] if another client's leases cannot be mapped.
    pub fn leased(&self) -> Result<u64> {
        self.session.check()?;
        leased_bytes(&self.session)
    }
}

/// Bytes of a label that are kept.
const LABEL_BYTES_MAX: usize = 63;

/// A label as it is kept.
fn shortened(label: &str) -> String {
    label[..label.floor_char_boundary(LABEL_BYTES_MAX)].to_owned()
}
