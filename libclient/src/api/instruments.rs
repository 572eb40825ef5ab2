//! Instruments on a client's memory: statistics, tracking, allocation logs, limits.

use crate::client::{Client, ClientBuilder};
use crate::error::Result;
use crate::instruments::{Callback, Outstanding, Pressure, Relief, Statistics};
use crate::lease::take::fetch_segment;
use crate::session::Session;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use tensorlend_layout::dataset::CHAIN_MAX;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::word::SLOT_NONE;

/// Instruments that are on from the first allocation.
impl ClientBuilder {
    /// Counts this client's allocations from the start: see [`Instruments::statistics`].
    pub fn statistics(mut self) -> Self {
        self.instruments.statistics = true;
        self
    }

    /// Keeps a list of this client's outstanding allocations: see [`Instruments::outstanding`].
    pub fn tracking(mut self) -> Self {
        self.instruments.tracking = true;
        self
    }

    /// Keeps a list like [`ClientBuilder::tracking`], with a backtrace of each allocation. Each backtrace costs
    /// microseconds. Its symbols are resolved only when the program prints it.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # use tensorlend::{Client, DType};
    /// let client = Client::builder().socket(daemon.socket()).tracking_backtraces().connect()?;
    /// let forgotten = client.create(DType::U8, [4096])?;
    /// let outstanding = client.instruments().outstanding().unwrap();
    /// assert!(outstanding.allocations()[0].backtrace.is_some());
    /// println!("{outstanding}");
    /// # drop(forgotten);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tracking_backtraces(mut self) -> Self {
        self.instruments.tracking = true;
        self.instruments.backtraces = true;
        self
    }

    /// Writes a log of every allocation from the start: see [`Instruments::start_log`].
    ///
    /// Without this option, the variable `TENSORLEND_ALLOC_LOG` names the file, for every client of the process.
    /// Before the file's extension, the client inserts the process number and its own number in the process
    /// (`log.csv` becomes `log.4711-0.csv`).
    pub fn allocation_log(mut self, path: impl AsRef<Path>) -> Self {
        self.instruments.log = Some(path.as_ref().to_owned());
        self
    }

    /// Limits the bytes of slots that this client may have in use: drafts, published values, and replaced values that
    /// still have readers, in host memory and on devices together. An allocation beyond the limit fails with
    /// [`crate::Error::MemoryLimit`].
    ///
    /// Bytes are counted in whole cache lines, and in whole pages from one page up, as in
    /// [`crate::MemoryUse::slot_bytes`]. The segments that contain the slots may be larger.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// use tensorlend::{Client, DType, Error};
    ///
    /// let client = Client::builder().socket(daemon.socket()).memory_limit(8192).connect()?;
    /// let all = client.create(DType::U8, [8192])?;
    /// let error = client.create(DType::U8, [1]).unwrap_err();
    /// assert!(matches!(error, Error::MemoryLimit { asked: 64, used: 8192, limit: 8192 }));
    /// assert!(error.is_limit());
    /// drop(all);
    /// client.create(DType::U8, [1])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        self.instruments.limit_bytes = Some(bytes);
        self
    }

    /// Sets a callback that the client calls before an allocation fails, at this client's limit or at one of the
    /// daemon's. The callback may drop drafts or delete names (see [`Pressure::delete`]). It may make the client retry
    /// any number of times.
    ///
    /// The callback runs on the allocating thread, so several threads may run it at once. The client holds no lock in the
    /// meantime, so the callback may call any method. If an allocation inside the callback fails, the client does not call
    /// the callback again. A panic in the callback unwinds into the allocating call and leaves the client usable. A stream's
    /// message needs a few bytes besides its tensors (long metadata, a dataset's index). The client does not call the
    /// callback for these bytes, because it allocates them while the stream is locked.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// use std::sync::{Arc, Mutex};
    /// use tensorlend::{Client, DType, Draft, Relief};
    ///
    /// let spare: Arc<Mutex<Vec<Draft>>> = Arc::default();
    /// let theirs = spare.clone();
    /// let client = Client::builder()
    ///     .socket(daemon.socket())
    ///     .memory_limit(1 << 20)
    ///     .on_memory_pressure(move |_| match theirs.lock().unwrap().pop() {
    ///         Some(_dropped) => Relief::Retry,
    ///         None => Relief::GiveUp,
    ///     })
    ///     .connect()?;
    /// spare.lock().unwrap().push(client.create(DType::U8, &[1 << 20])?);
    /// let draft = client.create(DType::U8, &[1 << 20])?;  // the spare one made room
    /// assert!(client.create(DType::U8, [1]).unwrap_err().is_limit());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_memory_pressure(mut self, ask: impl Fn(&Pressure<'_>) -> Relief + Send + Sync + 'static) -> Self {
        self.instruments.pressure = Some(Callback::new(ask));
        self
    }
}

/// Instruments on memory: statistics, outstanding allocations and log of one client, and the leased bytes of its
/// namespace. See [`Client::instruments`].
#[derive(Clone, Copy, Debug)]
pub struct Instruments<'c> {
    client: &'c Client,
}

impl Client {
    /// Returns the instruments on this client's memory.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// let client = tensorlend::Client::builder().socket(daemon.socket()).statistics().connect()?;
    /// client.put("numbers", &[1u8])?;
    /// assert_eq!(client.instruments().statistics().unwrap().current_count, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn instruments(&self) -> Instruments<'_> {
        Instruments { client: self }
    }
}

impl Instruments<'_> {
    fn session(&self) -> &Arc<Session> {
        self.client.session()
    }

    /// Starts counting this client's allocations. See [`ClientBuilder::statistics`] to count from the start.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert_eq!(client.instruments().statistics(), None);
    /// client.instruments().enable_statistics();
    /// client.put("numbers", &[1u8])?;
    /// assert_eq!(client.instruments().statistics().unwrap().current_bytes, 64);
    /// client.instruments().disable_statistics();
    /// assert_eq!(client.instruments().statistics(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enable_statistics(&self) {
        if !self.session().is_forked() {
            self.session().instruments().enable_statistics(true);
        }
    }

    /// Stops counting and discards the counts. Open scopes continue.
    pub fn disable_statistics(&self) {
        if !self.session().is_forked() {
            self.session().instruments().enable_statistics(false);
        }
    }

    /// Returns the counts so far. Returns `None` while counting is off, and in the child of a fork.
    pub fn statistics(&self) -> Option<Statistics> {
        if self.session().is_forked() {
            return None;
        }
        self.session().instruments().statistics()
    }

    /// Counts this client's allocations on all threads until the returned scope is dropped. Scopes may be nested.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let step = client.instruments().scope();
    /// let kept = client.create(DType::U8, [4096])?;
    /// {
    ///     let inner = client.instruments().scope();
    ///     drop(client.create(DType::U8, [8192])?);
    ///     assert_eq!(inner.statistics().peak_bytes, 8192);
    /// }
    /// assert_eq!(step.statistics().peak_bytes, 12288);
    /// assert_eq!(step.statistics().current_bytes, 4096);
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scope(&self) -> StatisticsScope {
        StatisticsScope::new(self.session().clone())
    }

    /// Returns this client's outstanding allocations: its drafts, and separately the allocations that names, streams and
    /// lists hold. `Display` prints a report. Returns `None` if the client does not track them (see
    /// [`ClientBuilder::tracking`]), and in the child of a fork.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).tracking().connect()?;
    /// let forgotten = client.create(tensorlend::DType::U8, [4096])?;
    /// let report = client.instruments().outstanding().unwrap().to_string();
    /// assert!(report.starts_with("1 allocation outstanding, 4096 bytes\ndrafts: 1 allocation, 4096 bytes\n"));
    /// drop(forgotten);
    /// assert!(client.instruments().outstanding().unwrap().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn outstanding(&self) -> Option<Outstanding> {
        self.session().alloc().outstanding()
    }

    /// Starts a log of every allocation, as a CSV file with the columns `thread,time_ns,action,slot,generation,bytes`.
    /// `tensorlend replay` replays it.
    ///
    /// `thread` is the kernel's thread number, and `time_ns` is measured from the start of the log. `action` is
    /// `allocate`, `free`, `allocate failure`, or `lost`. For `lost`, `bytes` is the number of events that were lost
    /// because the disk was slow. (slot, generation) identifies one allocation.
    ///
    /// A background thread writes each event within 100 ms. If another log was open, the method completes it first.
    /// The last events are written when the client, its drafts and its leases are dropped, or by
    /// [`Instruments::stop_log`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let folder = tempfile::tempdir()?;
    /// let path = folder.path().join("allocations.csv");
    /// client.instruments().start_log(&path)?;
    /// drop(client.create(tensorlend::DType::U8, [4096])?);
    /// client.instruments().stop_log()?;
    /// let log = std::fs::read_to_string(&path)?;
    /// let lines: Vec<_> = log.lines().collect();
    /// assert_eq!(lines[0], "thread,time_ns,action,slot,generation,bytes");
    /// assert!(lines[1].contains(",allocate,") && lines[1].ends_with(",4096"));
    /// assert!(lines[2].contains(",free,") && lines.len() == 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::System`] if the client cannot write the file, or could not write the previous log.
    pub fn start_log(&self, path: impl AsRef<Path>) -> Result<()> {
        self.session().check()?;
        self.session().instruments().start_log(path.as_ref())
    }

    /// Blocks until the log's file contains all events so far.
    ///
    /// # Errors
    /// [`crate::Error::System`] if the client could not write the file.
    pub fn flush_log(&self) -> Result<()> {
        self.session().check()?;
        self.session().instruments().flush_log()
    }

    /// Ends the log, if there is one, and blocks until its file contains all events.
    ///
    /// # Errors
    /// [`crate::Error::System`] if the client could not write the file.
    pub fn stop_log(&self) -> Result<()> {
        self.session().check()?;
        self.session().instruments().stop_log()
    }

    /// Returns the number of bytes of this namespace's values on which any client holds a lease now, old values included. As
    /// `bytes_leased` of `tensorlend stat`, it counts all tensors of a dataset, and each tensor once; unlike that, it also
    /// counts tensors on devices.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[0u8; 4096])?;
    /// assert_eq!(client.instruments().leased()?, 0);
    /// let lease = client.get("numbers")?;
    /// assert_eq!(client.instruments().leased()?, 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::Error::Disconnected`]; [`crate::Error::System`] if this client cannot map another client's leases.
    pub fn leased(&self) -> Result<u64> {
        self.session().check()?;
        leased_bytes(self.session())
    }
}

/// A scope that counts a client's allocations on all threads while it exists. Scopes may be nested or overlap. See
/// [`Instruments::scope`].
#[derive(Debug)]
pub struct StatisticsScope {
    session: Arc<Session>,
    id: u64,
}

impl StatisticsScope {
    fn new(session: Arc<Session>) -> Self {
        let id = if session.is_forked() { 0 } else { session.instruments().open_scope() };
        Self { session, id }
    }

    /// Returns the counts since the scope was opened. In the child of a fork, all counts are 0.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let scope = client.instruments().scope();
    /// drop(client.create(tensorlend::DType::U8, [4096])?);
    /// assert_eq!((scope.statistics().current_bytes, scope.statistics().peak_bytes), (0, 4096));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn statistics(&self) -> Statistics {
        if self.session.is_forked() {
            return Statistics::default();
        }
        self.session.instruments().scope(self.id).unwrap_or_default()
    }
}

impl Drop for StatisticsScope {
    fn drop(&mut self) {
        // Another thread may have held the lock when the process forked.
        if self.session.is_forked() {
            return;
        }
        self.session.instruments().close_scope(self.id);
    }
}

/// Returns the number of bytes of the values in this namespace on which some live member holds a lease. Counts all tensors
/// of a dataset, and each slot once.
fn leased_bytes(session: &Session) -> Result<u64> {
    let mut values = HashSet::new();
    for owner in session.directory.present().collect::<Vec<_>>() {
        session.peers().with_leases(owner, |table| {
            table.scan(|lease| {
                if !lease.is_of_segment() {
                    values.insert((lease.owner(), lease.slot()));
                }
            });
        })?;
    }
    let (mut bytes, mut counted) = (0, HashSet::new());
    for (owner, mut slot) in values {
        // The owner writes the chain, so it may not end.
        for _ in 0..CHAIN_MAX {
            if slot == SLOT_NONE || !counted.insert((owner, slot)) {
                break;
            }
            let Some((length, next)) = slot_claim(session, owner, slot)? else { break };
            bytes += length;
            slot = next;
        }
    }
    Ok(bytes)
}

/// Returns the length of a slot and the next slot of its value, as its owner claims them. Returns `None` if the slot does
/// not exist any more.
fn slot_claim(session: &Session, owner: ClientNo, slot: SlotNo) -> Result<Option<(u64, SlotNo)>> {
    for _ in 0..2 {
        let Some(member) = session.directory.members.get(owner.index()) else { return Ok(None) };
        {
            let guard = session.shards.epoch_guard();
            if let Some(segment) = session
                .peers()
                .get(&guard, owner)
                .filter(|p| p.is_of_epoch(member.member.read()))
                .and_then(|p| p.segment(slot, member.geometry.read(), &session.directory))
            {
                let words = segment.records[(slot - segment.base) as usize].copy();
                return Ok(SlotInfo::unpack(&words).ok().map(|i| (i.data_bytes.min(segment.bytes()), i.next)));
            }
        }
        if !fetch_segment(session, owner, slot)? {
            return Ok(None);
        }
    }
    Ok(None)
}
