//! Lists: collections to which many producers append, in the order that the daemon chooses.

use crate::client::Client;
use crate::error::{Error, Result, check_name};
use crate::lease::assemble;
use crate::lease::by_name::lease_key;
use crate::lease::copies;
use crate::lease::items::lease_items;
use crate::lease::value::Value;
use crate::session::Session;
use crate::tensor::sendable::{Sendable, seal};
use crate::wait::{Deadline, Timeout, spin};
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use tensorlend_layout::directory::KEY_BYTES_MAX;
use tensorlend_layout::name::{list_key_in, stream_key};
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::wire::{APPEND_MAX, Reply, Request};
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// A condition on a list's length in items, for [`crate::Client::wait_length`].
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Length};
///
/// assert_eq!(client.wait_length("results", Length::Exactly(0), None)?, 0);
/// client.append("results", client.create(DType::F32, [10])?)?;
/// assert_eq!(client.wait_length("results", Length::AtLeast(1), None)?, 1);
/// assert_eq!(client.wait_length("results", Length::AtMost(5), None)?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Length {
    /// Exactly this many items.
    Exactly(u64),
    /// This many items or more.
    AtLeast(u64),
    /// This many items or fewer.
    AtMost(u64),
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(n) => write!(f, "{n}"),
            Self::AtLeast(n) => write!(f, "at least {n}"),
            Self::AtMost(n) => write!(f, "at most {n}"),
        }
    }
}

impl Length {
    /// Returns whether a list of this length meets the condition.
    pub fn is(self, length: u64) -> bool {
        match self {
            Self::Exactly(n) => length == n,
            Self::AtLeast(n) => length >= n,
            Self::AtMost(n) => length <= n,
        }
    }
}

/// Returns the list's id and length from the directory. Returns (0, 0) if there is no such list.
pub fn list_state(session: &Session, name: &str) -> (u64, u64) {
    if session.is_forked() {
        return (0, 0);
    }
    let mut buffer = [0; KEY_BYTES_MAX];
    let Some(key) = list_key_in(&mut buffer, name) else { return (0, 0) };
    loop {
        let Some(found) = session.find(key).filter(|f| f.owner_word.is_live()) else { return (0, 0) };
        let Some(entry) = session.directory.lists.get(found.owner_word.cell().index()) else { return (0, 0) };
        let state = (entry.id.read(), entry.end.read());
        // If the owner word is unchanged, the entry belonged to this list during the whole read.
        if session.directory.names[found.entry.index()].owner_word.peek() == found.owner_word.0 {
            return state;
        }
    }
}

pub fn items(session: &Arc<Session>, list: &str, range: impl RangeBounds<u64>) -> Result<Vec<Value>> {
    let (id, length) = list_state(session, list);
    if id == 0 {
        return Err(Error::NoSuch { kind: "list", name: list.to_owned() });
    }
    let from = match range.start_bound() {
        Bound::Included(&n) => n,
        Bound::Excluded(&n) => n.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(&n) => n.saturating_add(1),
        Bound::Excluded(&n) => n,
        Bound::Unbounded => length,
    };
    // The range may contain far more numbers than items that are left.
    let mut values = Vec::new();
    let exists = || list_state(session, list).0 == id;
    lease_items(session, list, id, from..to.min(length), exists, &mut values)?;
    Ok(values)
}

pub fn wait_length(session: &Session, list: &str, wanted: Length, deadline: Deadline) -> Result<u64> {
    session.check()?;
    if let Some(length) = spin(|| Ok(Some(list_state(session, list).1).filter(|&length| wanted.is(length))))? {
        return Ok(length);
    }
    session.waiter().enlist(deadline)?;
    let bell = &session.directory.head().bell;
    loop {
        let sample = bell.read();
        let _parked = session.waiter().park(PARKED_ANY);
        let (_, length) = list_state(session, list);
        if wanted.is(length) {
            return Ok(length);
        }
        session.control.check_daemon("wait for a list")?;
        let Some(nap) = deadline.nap() else {
            return Err(
                deadline.error(format!("list {list:?} with {wanted} items: it has {length} (see `tensorlend ls`)"))
            );
        };
        futex::wait(bell, sample, nap);
    }
}

fn check_count(items: usize) -> Result<()> {
    if items > APPEND_MAX {
        let why = format!("one call appends at most {APPEND_MAX} items, not {items}: append them in parts");
        return Err(Error::Argument(why));
    }
    Ok(())
}

/// Makes a slot for each item. After an error, frees the slots that it has made.
fn all_or_none<T>(
    session: &Session,
    items: impl IntoIterator<Item = T>,
    mut make: impl FnMut(T) -> Result<Sealed>,
) -> Result<Vec<Sealed>> {
    let mut values = Vec::new();
    for item in items {
        match make(item) {
            Ok(sealed) => values.push(sealed),
            Err(error) => {
                for sealed in values {
                    session.alloc().take_back(sealed.value);
                }
                return Err(error);
            }
        }
    }
    Ok(values)
}

impl Client {
    /// Appends a draft or a dataset to a list. Returns the item's number. The first item has number 0. The first item
    /// creates the list. Blocks for a round trip to the daemon, which orders the appends of all clients.
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let episode = client.create(tensorlend::DType::F32, [100, 6])?;
    /// assert_eq!(client.append("episodes", episode)?, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Name`]; [`Error::Refused`] if a limit of the daemon, the namespace or the user is reached, or if this
    /// client has no right to write; [`Error::Argument`] for a draft of another client.
    pub fn append(&self, list: &str, mut item: impl Sendable) -> Result<u64> {
        check_name(list)?;
        let sealed = seal(self.session(), &mut item, 0, list)?;
        self.session().names().append(list, &[sealed])
    }

    /// Appends drafts or datasets in one request: all of them or none, as adjacent items. Returns their numbers. Without
    /// items, returns an empty range.
    ///
    /// For small items, the request takes more time than the rest of [`Client::append`]. So one `append_many` takes less
    /// time than an `append` for each item.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let drafts: Vec<_> = (0..3u8).map(|value| client.create_from(&[value])).collect::<Result<_, _>>()?;
    /// assert_eq!(client.append_many("results", drafts)?, 0..3);
    /// assert_eq!(client.length("results"), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for more than 1,024 items. Otherwise the errors of [`Client::append`]. Then none was appended,
    /// and their memory is freed.
    pub fn append_many<T: Sendable>(&self, list: &str, items: impl IntoIterator<Item = T>) -> Result<Range<u64>> {
        check_name(list)?;
        let items: Vec<T> = items.into_iter().collect();
        check_count(items.len())?;
        if items.is_empty() {
            return Ok(0..0);
        }
        let session = self.session();
        let values = all_or_none(session, items, |mut item| seal(session, &mut item, 0, list))?;
        let first = session.names().append(list, &values)?;
        Ok(first..first + values.len() as u64)
    }

    /// Appends an item that ends with this client's session, and is otherwise like [`crate::Client::append`]. A list
    /// that has had only such items ends with the last of them.
    pub(crate) fn append_ephemeral(&self, list: &str, mut item: impl Sendable) -> Result<u64> {
        check_name(list)?;
        let sealed = seal(self.session(), &mut item, 0, list)?;
        let request = |cells| Request::ListAppendEphemeral { list: list.to_owned(), cells };
        self.session().names().append_by(list, &[sealed], &request)
    }

    /// Appends copies of the values that these names hold now, one item for each name. Returns the number of the first
    /// item. Readers see all these items or none. Later changes of the names do not change the list.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("a", &[1u8])?;
    /// client.put("b", &[2u8])?;
    /// assert_eq!(client.append_names("both", &["a", "b"])?, 0);
    /// client.put("a", &[3u8])?;
    /// assert_eq!(client.get_all("both")?[0].tensor()?.bytes(), [1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotFound`] if a name does not exist; then the method appended nothing. [`Error::Argument`] for more
    /// than 1,024 names. Otherwise the errors of [`crate::Client::get`] and [`crate::Client::append`].
    pub fn append_names(&self, list: &str, names: &[&str]) -> Result<u64> {
        check_name(list)?;
        check_count(names.len())?;
        let session = self.session();
        let mut held = Vec::with_capacity(names.len());
        for name in names {
            check_name(name)?;
            let lease = lease_key(session, name.as_bytes(), name)?;
            let lease = lease.ok_or_else(|| Error::NotFound((*name).to_owned()))?;
            held.push(assemble::value(session, lease, name)?);
        }
        let values = all_or_none(session, &held, |value| copies::copy(session, value))?;
        session.names().append(list, &values)
    }

    /// Returns the number of items in a list, or 0 if there is no such list. Reads shared memory, without a round trip or
    /// system call.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert_eq!(client.length("episodes"), 0);
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// assert_eq!(client.length("episodes"), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn length(&self, list: &str) -> u64 {
        list_state(self.session(), list).1
    }

    /// Returns the kind of collection that has this name: "list" or "stream". Returns `None` if there is none. Reads shared
    /// memory, like [`crate::Client::length`]. For bindings, whose errors name the call that reads the collection.
    #[doc(hidden)]
    pub fn collection(&self, name: &str) -> Option<&'static str> {
        let session = self.session();
        let is_stream = || session.find(&stream_key(name)).is_some_and(|found| found.owner_word.is_live());
        match list_state(session, name).0 {
            0 => (!session.is_forked() && is_stream()).then_some("stream"),
            _ => Some("list"),
        }
    }

    /// Returns the list's id and length in items. The id changes when the list is cleared or renamed. Returns `None` if
    /// there is no such list. Reads shared memory, like [`crate::Client::length`].
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert_eq!(client.list_identity("episodes"), None);
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// let (first, items) = client.list_identity("episodes").unwrap();
    /// client.clear("episodes")?;
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// assert!(items == 1 && client.list_identity("episodes").unwrap().0 != first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn list_identity(&self, list: &str) -> Option<(u64, u64)> {
        Some(list_state(self.session(), list)).filter(|(id, _)| *id != 0)
    }

    /// Blocks until the list's length satisfies `wanted`. Returns the length in items. A list that does not exist has
    /// length 0.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::Length;
    ///
    /// let worker = client.clone();
    /// let thread = std::thread::spawn(move || {
    ///     let result = worker.create(tensorlend::DType::F32, [10])?;
    ///     worker.append("results", result)
    /// });
    /// assert_eq!(client.wait_length("results", Length::AtLeast(1), Duration::from_secs(10))?, 1);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if the length did not satisfy `wanted` in time.
    pub fn wait_length(&self, list: &str, wanted: Length, timeout: impl Into<Timeout>) -> Result<u64> {
        check_name(list)?;
        wait_length(self.session(), list, wanted, Deadline::new(timeout))
    }

    /// Leases every item of a list, in order.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// for _ in 0..3 {
    ///     client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// }
    /// for episode in client.get_all("episodes")? {
    ///     assert_eq!(episode.tensor()?.shape(), [100, 6]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::NoSuch`] if there is no such list.
    /// * [`Error::Leases`] if the list has more items than a client can lease (4096). Then use
    ///   [`crate::Client::get_range`].
    /// * [`Error::Damaged`] if a faulty client appended an item.
    pub fn get_all(&self, list: &str) -> Result<Vec<Value>> {
        self.get_range(list, ..)
    }

    /// Leases the items with these numbers, in order. Ignores numbers beyond the end.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// for _ in 0..5 {
    ///     client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// }
    /// assert_eq!(client.get_range("episodes", 1..3)?.len(), 2);
    /// assert_eq!(client.get_range("episodes", 4..100)?.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`crate::Client::get_all`].
    pub fn get_range(&self, list: &str, range: impl RangeBounds<u64>) -> Result<Vec<Value>> {
        check_name(list)?;
        self.session().check()?;
        items(self.session(), list, range)
    }

    /// Deletes a list and its items. Returns false if there was no such list. Leases on its items stay valid.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.append("episodes", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// let episodes = client.get_all("episodes")?;
    /// assert!(client.clear("episodes")?);
    /// assert_eq!((client.length("episodes"), episodes.len()), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Refused`] if this client has no right to write.
    pub fn clear(&self, list: &str) -> Result<bool> {
        check_name(list)?;
        let session = self.session();
        session.check()?;
        let reply = session.control.call(&Request::ListDelete { list: list.to_owned() }, "clear list", list)?;
        // The daemon has taken the items' cells from their owners. This client now retires the values in its own cells
        // among them.
        session.names().notices()?;
        match reply {
            Reply::Deleted { existed } => Ok(existed),
            _ => Err(Error::Protocol { doing: "clear a list" }),
        }
    }

    /// Renames a list. Deletes an existing list with the new name.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.append("today", client.create(tensorlend::DType::F32, [100, 6])?)?;
    /// client.rename_list("today", "yesterday")?;
    /// assert_eq!((client.length("today"), client.length("yesterday")), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSuch`] if there is no list `from`; [`Error::Refused`] if this client has no right to write.
    pub fn rename_list(&self, from: &str, to: &str) -> Result<()> {
        check_name(from)?;
        check_name(to)?;
        let session = self.session();
        session.check()?;
        let request = Request::ListRename { from: from.to_owned(), to: to.to_owned() };
        match session.control.call(&request, "rename list", from) {
            Err(e) if e.is_not_found() => Err(Error::NoSuch { kind: "list", name: from.to_owned() }),
            other => other.map(|_| ()),
        }
    }
}
