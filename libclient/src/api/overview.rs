//! Overviews: names, streams, lists, memory, and the daemon.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::glob::Glob;
use crate::listing::{Collection, Info, Listing, collections, info, listing, names};
use crate::observe::own_stat;
use std::time::Duration;
use tensorlend_layout::name::KeyKind;
use tensorlend_layout::wire::{PROTOCOL_OWN_VIEW, Reply, Request, Stat};

/// Memory of one client, in bytes. See [`Client::memory`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::MemoryUse;
///
/// assert_eq!(client.memory(), MemoryUse { slot_bytes: 0, segment_bytes: 0 });
/// let draft = client.create(tensorlend::DType::U8, [4096])?;
/// assert_eq!(client.memory().slot_bytes, 4096);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryUse {
    /// Bytes of the client's slots in use: drafts, published values, and replaced values that are not reclaimed yet.
    pub slot_bytes: u64,
    /// Bytes of the segments that the daemon has lent to the client.
    pub segment_bytes: u64,
}

impl Client {
    /// Returns the names that match a glob, sorted. Reads no values, so the result also contains names whose values
    /// cannot be described. The globs are those of [`Client::list`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("camera/front", &[1u8])?;
    /// client.put("lidar", &[3u8])?;
    /// assert_eq!(client.names("camera/*")?, ["camera/front"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid glob.
    pub fn names(&self, glob: &str) -> Result<Vec<String>> {
        let wanted = Glob::new(glob)?;
        names(self.session(), |name| wanted.is_match(name))
    }

    /// Describes the value of every name that matches a glob, sorted by name. `*` and `?` match any characters,
    /// including `/`. `[ab]`, `{a,b}` and `\` work as in a shell.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("camera/front", &[1u8])?;
    /// client.put("camera/rear", &[2u8])?;
    /// client.put("lidar", &[3u8])?;
    /// let cameras: Vec<_> = client.list("camera/*")?.into_iter().map(|info| info.name).collect();
    /// assert_eq!(cameras, ["camera/front", "camera/rear"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// For a plain tensor, the client only reads the record: it neither maps the elements nor loads spilled ones. It
    /// leases datasets, strided tensors, tensors on devices, and tensors with more than 32 bytes of metadata or more
    /// than 4 dimensions. Such a lease loads a spilled value, unlike [`Client::overview`]. The result omits names
    /// that cannot be described. [`Client::listing`] returns those, too.
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid glob.
    pub fn list(&self, glob: &str) -> Result<Vec<Info>> {
        Ok(self.listing(glob)?.infos)
    }

    /// Describes values like [`Client::list`]. Also returns the names that cannot be described, with the reasons.
    ///
    /// # Errors
    /// The errors of [`Client::list`].
    pub fn listing(&self, glob: &str) -> Result<Listing> {
        let wanted = Glob::new(glob)?;
        listing(self.session(), |name| wanted.is_match(name), true)
    }

    /// Describes values like [`Client::listing`], without loading spilled values. [`Listing::spilled`] has the names
    /// whose values it would have to load, with the data in their records. It needs no memory in the pool, so it works
    /// while pool and disk are full.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32])?;
    /// let overview = client.overview("*")?;
    /// assert_eq!((overview.infos.len(), overview.spilled.len()), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Client::list`].
    pub fn overview(&self, glob: &str) -> Result<Listing> {
        let wanted = Glob::new(glob)?;
        listing(self.session(), |name| wanted.is_match(name), false)
    }

    /// Returns the namespace's streams whose names match a glob, sorted by name. [`Collection::count`] is the number of
    /// subscribers.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let camera = client.stream("camera").open()?;
    /// let frames = client.subscribe("camera")?;
    /// assert_eq!(client.streams("cam*")?[0].count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid glob.
    pub fn streams(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = Glob::new(glob)?;
        let mut found = collections(self.session(), KeyKind::Stream)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// Returns the namespace's lists whose names match a glob, sorted by name. [`Collection::count`] is the length in items.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// assert_eq!(client.lists("*")?[0].count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid glob.
    pub fn lists(&self, glob: &str) -> Result<Vec<Collection>> {
        let wanted = Glob::new(glob)?;
        let mut found = collections(self.session(), KeyKind::List)?;
        found.retain(|c| wanted.is_match(&c.name));
        Ok(found)
    }

    /// Describes the value of a name: dtype, shape, owner. Does not read the elements.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1.0f32, 2.0, 3.0])?;
    /// let info = client.info("numbers")?;
    /// assert_eq!((info.nbytes, info.pid, info.alive), (12, std::process::id(), true));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Leases`] if this client already holds 4096 leases; [`Error::Damaged`] if a faulty
    /// client published the value.
    pub fn info(&self, name: &str) -> Result<Info> {
        check_name(name)?;
        self.session().check()?;
        info(self.session(), name)
    }

    /// Returns the daemon's metrics for all namespaces, and the use and limits of this client's user and namespace.
    /// Blocks for a round trip to the daemon.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
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
        self.session().check()?;
        let control = &self.session().control;
        if control.needs_protocol(PROTOCOL_OWN_VIEW, "ask for metrics", "").is_ok() {
            return own_stat(control);
        }
        match control.call(&Request::Stat, "ask for metrics", "")? {
            Reply::Stat(stat) => Ok(*stat),
            _ => Err(Error::Protocol { doing: "ask for metrics" }),
        }
    }

    /// Returns an error if the daemon has ended and no other daemon has replaced it, or if the daemon has ended this
    /// session. Sends no request and takes some nanoseconds. It is for loops that wait for other clients.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.check_daemon()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disconnected`] some seconds after the daemon ended, or at once if it has removed its socket;
    /// [`Error::SessionEnded`]; [`Error::Refused`] by a new daemon; [`Error::Forked`].
    pub fn check_daemon(&self) -> Result<()> {
        self.session().check()?;
        self.session().control.check_daemon("wait")
    }

    /// Sends the daemon a request without effect. Returns the duration of the round trip.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// println!("the daemon responds in {:?}", client.ping()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn ping(&self) -> Result<Duration> {
        self.session().check()?;
        let start = std::time::Instant::now();
        self.session().control.call(&Request::Ping, "ping", "")?;
        Ok(start.elapsed())
    }

    /// Returns this client's own memory: its slots in use, and its segments. Reads local counters and never blocks.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[0u8; 100])?;
    /// let memory = client.memory();
    /// assert_eq!(memory.slot_bytes, 128); // whole cache lines
    /// assert!(memory.segment_bytes >= memory.slot_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> MemoryUse {
        let (slot_bytes, segment_bytes) = self.session().alloc().figures();
        MemoryUse { slot_bytes, segment_bytes }
    }
}
