//! The content of an observation.

use std::cmp::Reverse;
use std::time::Duration;
use tensorlend_layout::number::{ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::wire::{Allocator, Policy};
use tensorlend_layout::{DType, Uuid};

/// A namespace, as one observation found it. See [`crate::Client::observe`].
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The namespace's name.
    pub namespace: String,
    /// The time of the observation, in nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// The duration of the observation.
    pub took: Duration,
    /// The number of requests to the daemon.
    pub asked: usize,
    /// Bytes of the segments lent in this namespace.
    pub bytes_lent: u64,
    /// The namespace's limit in bytes.
    pub bytes_max: u64,
    /// Live names, including lists' items and streams.
    pub names_live: u64,
    /// The devices whose memory the daemon lends.
    pub devices: Vec<Uuid>,
    /// Connected clients, and clients that have ended and left values, sorted by client number.
    pub clients: Vec<ClientSeen>,
    /// Lent segments, sorted by owner and first slot.
    pub segments: Vec<SegmentSeen>,
    /// The values of names, lists and streams.
    pub values: Vec<ValueSeen>,
    /// Leases, the oldest first.
    pub leases: Vec<LeaseSeen>,
    /// Streams, in the natural order of their names: `camera2` before `camera10`.
    pub streams: Vec<StreamSeen>,
    /// Lists, in the natural order of their names.
    pub lists: Vec<ListSeen>,
    /// True if the observation omitted something because of its maximum numbers.
    pub truncated: bool,
    /// True if some sheets were not mapped yet. The next observation reports more.
    pub incomplete: bool,
    /// The number of clients' words that contradict the daemon's words. The observation omits them.
    pub damaged: u64,
}

impl Observation {
    /// Returns the client with this number.
    pub fn client(&self, number: ClientNo) -> Option<&ClientSeen> {
        let at = self.clients.binary_search_by_key(&number, |client| client.number).ok()?;
        self.clients.get(at)
    }

    /// Returns the clients that hold leases, the one with the most leased bytes first.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).label("holder").connect()?;
    /// client.put("numbers", &[0u8; 4096])?;
    /// let leases = (client.get("numbers")?, client.get("numbers")?);
    ///
    /// let seen = client.observe()?;
    /// let holder = seen.lease_holders()[0];
    /// assert_eq!((holder.label.as_str(), holder.leased_bytes, holder.leases), ("holder", 4096, 2));
    /// # drop(leases);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lease_holders(&self) -> Vec<&ClientSeen> {
        let mut holders: Vec<&ClientSeen> = self.clients.iter().filter(|client| client.leases > 0).collect();
        holders.sort_by_key(|client| Reverse((client.leased_bytes, client.lease_age_max, client.leases)));
        holders
    }

    /// Returns the number of all leases.
    pub fn lease_count(&self) -> u64 {
        self.leases.iter().map(|lease| lease.count).sum()
    }

    /// Returns the age of the oldest lease. Returns `None` without a lease.
    pub fn lease_age_max(&self) -> Option<Duration> {
        self.leases.iter().map(|lease| lease.age).max()
    }
}

/// The state of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientState {
    /// The client is connected.
    #[default]
    Alive,
    /// The daemon is processing the client's last announcements.
    Ending,
    /// The client has ended, and its published values remain.
    Ended,
}

impl ClientState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Alive, Self::Ending, Self::Ended];

    /// Returns the word for the state that all tools use: `alive`, `ending` or `ended`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Ending => "ending",
            Self::Ended => "ended",
        }
    }
}

/// A client of the namespace.
#[derive(Clone, Debug, Default)]
pub struct ClientSeen {
    /// The client's number.
    pub number: ClientNo,
    /// The epoch of that number, which increases with each new owner.
    pub epoch: u32,
    /// The client's state: connected, ending, or ended.
    pub state: ClientState,
    /// The client's process id, as the daemon sees it. 0 if the process is in a pid namespace that the daemon does not
    /// see.
    pub pid: u32,
    /// The client's user id.
    pub uid: u32,
    /// The client's label.
    pub label: String,
    /// The time since the client connected.
    pub age: Duration,
    /// Bytes of the segments that the daemon lends to the client.
    pub bytes: u64,
    /// The number of the client's values to which a name, list or stream refers.
    pub values: u64,
    /// Bytes of the slots of those values.
    pub value_bytes: u64,
    /// The number of leases that the client holds.
    pub leases: u64,
    /// Bytes of the memory under those leases.
    pub leased_bytes: u64,
    /// The age of the oldest of those leases, as [`LeaseSeen::age`]. `None` without a lease.
    pub lease_age_max: Option<Duration>,
    /// True if the oldest of those leases is older than `lease_age_max`, as [`LeaseSeen::is_older`].
    pub is_lease_older: bool,
    /// True if the client is the observing client itself.
    pub is_observer: bool,
    /// The client's command line from /proc, at most 200 bytes. `None` if it is unreadable.
    pub command: Option<String>,
}

/// The location of a segment's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Location {
    /// The bytes are in host memory.
    #[default]
    Host,
    /// The bytes are on a device.
    Device {
        /// The device's index in [`Observation::devices`].
        index: usize,
        /// The daemon's allocator for this device.
        allocator: Option<Allocator>,
    },
}

/// A lent segment.
#[derive(Clone, Debug, Default)]
pub struct SegmentSeen {
    /// The client number of the segment's owner.
    pub owner: ClientNo,
    /// The segment's first slot number.
    pub base: SlotNo,
    /// The number of slot numbers that the segment has.
    pub slots_max: u32,
    /// The segment's length in bytes.
    pub bytes: u64,
    /// The time since the daemon lent the segment.
    pub age: Duration,
    /// The location of the segment's bytes.
    pub location: Location,
    /// True if `slots` is filled. False for device memory, and before the segment's records are mapped.
    pub is_mapped: bool,
    /// Slots with a value or a lease, sorted by offset. The gaps contain free memory, drafts, or replaced values whose slots
    /// are not reused yet. Only the owner can distinguish these.
    pub slots: Vec<SlotSeen>,
}

/// The state of a slot. If slots of several states share a place on a map, the greatest state is shown, so that a small
/// leased value is visible among large values without leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotState {
    /// A name, list or stream refers to the slot, and no lease covers it.
    Live,
    /// A name, list or stream refers to the slot, and a lease covers it.
    Leased,
    /// A lease covers the slot, and no name, list or stream refers to it any more.
    Retired,
}

impl SlotState {
    /// Returns the word for the state that all tools use: `live`, `leased` or `retired`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Leased => "leased",
            Self::Retired => "retired",
        }
    }
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotSeen {
    /// The slot's number.
    pub slot: SlotNo,
    /// The slot's offset in its segment, in bytes.
    pub offset: u64,
    /// The slot's length in bytes.
    pub bytes: u64,
    /// The slot's state.
    pub state: SlotState,
    /// The slot's value, as an index into [`Observation::values`].
    pub value: Option<usize>,
}

/// The holder of a value. Other clients chose these names, so escape them before display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A name.
    Name(String),
    /// An item of a list.
    Item {
        /// The list's name. Empty if the observation did not find it.
        list: String,
        /// The item's number.
        number: u64,
    },
    /// A message of a stream.
    Message {
        /// The stream's name.
        stream: String,
        /// The message's number.
        number: u64,
    },
}

/// A value to which a name, list or stream refers.
#[derive(Clone, Debug)]
pub struct ValueSeen {
    /// The holder of the value.
    pub origin: Origin,
    /// The client number of the value's owner.
    pub owner: ClientNo,
    /// The value's first slot.
    pub slot: SlotNo,
    /// The generation of the first slot.
    pub generation: u64,
    /// Bytes of all slots of the value.
    pub bytes: u64,
    /// True if the value is a dataset of several tensors.
    pub is_dataset: bool,
    /// Element type of a tensor. `None` for a dataset, and for an unreadable record.
    pub dtype: Option<DType>,
    /// Sizes in elements. `None` for a dataset, and for more than four dimensions.
    pub shape: Option<Vec<usize>>,
    /// The timestamp that the value's producer set, in nanoseconds. 0 if the producer set none.
    pub timestamp_ns: u64,
    /// The number of leases on the value.
    pub leases: u64,
}

/// Leases of one client on one slot.
#[derive(Clone, Debug)]
pub struct LeaseSeen {
    /// The holder's client number.
    pub holder: ClientNo,
    /// The holder's process id.
    pub pid: u32,
    /// The slot owner's client number.
    pub owner: ClientNo,
    /// The slot's number.
    pub slot: SlotNo,
    /// True if the lease covers the whole segment that begins with that slot, and none of its slots.
    pub is_of_segment: bool,
    /// The number of leases.
    pub count: u64,
    /// Bytes under the lease. For a dataset, the bytes of all its tensors.
    pub bytes: u64,
    /// The leased value, as an index into [`Observation::values`]. `None` if no name, list or stream refers to it any
    /// more.
    pub value: Option<usize>,
    /// The time for which this observer has seen the lease, because leases contain no time.
    pub age: Duration,
    /// True if this observer's first observation already found the lease, so that it is older than `age`.
    pub is_older: bool,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListSeen {
    /// The list's name.
    pub name: String,
    /// The number of items ever appended.
    pub items: u64,
}

/// A stream.
#[derive(Clone, Debug)]
pub struct StreamSeen {
    /// The stream's name.
    pub name: String,
    /// The stream's index in the directory's table.
    pub index: StreamLine,
    /// The stream's id, unique in the namespace.
    pub id: u64,
    /// The client number of the stream's producer.
    pub producer: ClientNo,
    /// The number of entries of the stream's ring.
    pub capacity: u64,
    /// The policy for a full stream.
    pub policy: Policy,
    /// The number of messages ever sent. `None` if the stream's ring is not mapped yet.
    pub sent: Option<u64>,
    /// The number of messages that the stream holds.
    pub held: u64,
    /// True if the producer has closed the stream.
    pub is_closed: bool,
    /// The stream's subscribers.
    pub subscribers: Vec<SubscriberSeen>,
}

impl StreamSeen {
    /// Returns the number of messages that the slowest subscriber has not received. Returns `None` if no subscriber has
    /// begun.
    pub fn lag_max(&self) -> Option<u64> {
        self.subscribers.iter().filter_map(|subscriber| subscriber.lag).max()
    }

    /// Returns the word for the stream's policy that all tools use: `block`, `drop-oldest` or `error`.
    pub fn policy_word(&self) -> &'static str {
        match self.policy {
            Policy::Block => "block",
            Policy::DropOldest => "drop-oldest",
            Policy::Error => "error",
        }
    }

    /// Returns the stream's problem: `lost` if subscribers have missed `lost` messages, `lags` if a subscriber is a whole
    /// ring behind. The policy `drop-oldest` permits both, so such a stream has no problem.
    pub fn problem(&self, lost: u64) -> Option<&'static str> {
        match self.policy {
            Policy::DropOldest => None,
            _ if lost > 0 => Some("lost"),
            _ if !self.is_closed && self.lag_max().is_some_and(|lag| lag >= self.capacity) => Some("lags"),
            _ => None,
        }
    }
}

/// A subscriber of a stream.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberSeen {
    /// The subscriber's client number.
    pub client: ClientNo,
    /// The number of the subscriber's cursor.
    pub cursor: CursorNo,
    /// The number of messages sent and not received. `None` if the subscriber has not begun.
    pub lag: Option<u64>,
    /// The number of messages that the subscriber missed.
    pub lost: u64,
}
