//! What an observation tells.

use std::time::Duration;
use tensorlend_layout::wire::{Allocator, Policy};
use tensorlend_layout::{DType, Uuid};

/// A namespace as one look found it. See [`crate::Client::observe`].
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// The namespace's name.
    pub namespace: String,
    /// When it was made: nanoseconds of `CLOCK_BOOTTIME`.
    pub at_ns: u64,
    /// How long it took.
    pub took: Duration,
    /// Questions that the daemon was asked for it.
    pub asked: usize,
    /// Bytes of segments lent in this namespace.
    pub bytes_lent: u64,
    /// The most that it may have.
    pub bytes_max: u64,
    /// Names that have a home, lists' items and streams included.
    pub names_live: u64,
    /// Devices of which memory is lent.
    pub devices: Vec<Uuid>,
    /// Those who are here, and those who are gone and left something, by catalogue number.
    pub clients: Vec<ClientSeen>,
    /// What is lent, by owner and first slot.
    pub segments: Vec<SegmentSeen>,
    /// What names, lists and streams lead to.
    pub values: Vec<ValueSeen>,
    /// Who reads what, the oldest first.
    pub leases: Vec<LeaseSeen>,
    /// Streams, by name.
    pub streams: Vec<StreamSeen>,
    /// Whether something was left out since there was more than an observation tells.
    pub truncated: bool,
    /// Whether sheets were not there yet: the next observation tells more.
    pub incomplete: bool,
    /// Words of clients that contradict what the daemon says, and were left out.
    pub damaged: u64,
}

/// How far a client's life has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientState {
    /// It is connected.
    #[default]
    Alive,
    /// The daemon takes over what it announced last.
    Ending,
    /// It is gone, and what it published lives on.
    Ended,
}

/// A client of the namespace.
#[derive(Clone, Debug, Default)]
pub struct ClientSeen {
    /// Its catalogue number.
    pub catalogue: u16,
    /// Which life of that number.
    pub epoch: u32,
    /// Whether it is connected.
    pub state: ClientState,
    /// Its process, as the daemon sees it; 0: in a pid namespace that the daemon does not see.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// What it calls itself.
    pub label: String,
    /// How long ago it connected.
    pub age: Duration,
    /// Bytes of segments lent to it.
    pub bytes: u64,
    /// Values of its own that something leads to.
    pub values: u64,
    /// Bytes of those values' slots.
    pub value_bytes: u64,
    /// Leases that it holds.
    pub leases: u64,
    /// Bytes that these keep.
    pub leased_bytes: u64,
    /// Whether it is the observer itself.
    pub is_observer: bool,
    /// Its command line, where /proc shows it: at most 200 bytes.
    pub command: Option<String>,
}

/// Where a segment's bytes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// In host memory.
    #[default]
    Host,
    /// On a device, by its place in [`Observation::devices`].
    Device {
        /// Which.
        index: usize,
        /// How its memory is lent.
        allocator: Option<Allocator>,
    },
}

/// A segment that is lent.
#[derive(Clone, Debug, Default)]
pub struct SegmentSeen {
    /// Its owner's catalogue number.
    pub catalogue: u16,
    /// Its first slot number.
    pub base: u32,
    /// How many slot numbers it has.
    pub slots_max: u32,
    /// Its length.
    pub bytes: u64,
    /// For how long it has been lent.
    pub age: Duration,
    /// Where it is.
    pub place: Place,
    /// Whether `slots` tells of it: not where its records are not there yet, nor for device memory.
    pub is_mapped: bool,
    /// Slots that something leads to or somebody leases, by offset. What lies between them is free, or a draft, or
    /// replaced and not reused yet: that its owner alone knows.
    pub slots: Vec<SlotSeen>,
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A name, list or stream leads to it.
    Live,
    /// The same, and somebody reads it.
    Leased,
    /// Nothing leads to it any more, and somebody reads it.
    Retired,
}

/// A slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotSeen {
    /// Its number.
    pub slot: u32,
    /// Where it begins in its segment.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
    /// What is known of it.
    pub state: SlotState,
    /// What it belongs to: an index into [`Observation::values`].
    pub value: Option<usize>,
}

/// What leads to a value. Names are others' words: whoever shows them sees to it that they stay words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A name.
    Name(String),
    /// A list.
    Item {
        /// The list's name, if it was found.
        list: String,
        /// The item's number.
        number: u64,
    },
    /// A stream.
    Message {
        /// The stream's name.
        stream: String,
        /// The message's number.
        number: u64,
    },
}

/// A value that something leads to.
#[derive(Clone, Debug)]
pub struct ValueSeen {
    /// What leads to it.
    pub origin: Origin,
    /// Its owner's catalogue number.
    pub catalogue: u16,
    /// Its first slot.
    pub slot: u32,
    /// That slot's generation.
    pub generation: u64,
    /// Bytes of all its slots.
    pub bytes: u64,
    /// Whether it is a dataset of several tensors.
    pub is_dataset: bool,
    /// Element type, of a tensor; `None` where its record could not be read.
    pub dtype: Option<DType>,
    /// Sizes; `None` for a dataset, and for what has more than four.
    pub shape: Option<Vec<u64>>,
    /// The timestamp that its producer set; 0: none.
    pub timestamp_ns: u64,
    /// Leases on it.
    pub leases: u64,
}

/// Leases of one client on one slot.
#[derive(Clone, Debug)]
pub struct LeaseSeen {
    /// Who holds it: a catalogue number.
    pub holder: u16,
    /// Its process.
    pub pid: u32,
    /// Whose slot.
    pub catalogue: u16,
    /// Which slot.
    pub slot: u32,
    /// Whether it keeps the whole segment that begins with that slot, and no slot of it.
    pub is_of_segment: bool,
    /// How many.
    pub count: u64,
    /// Bytes of what it keeps; of a dataset all.
    pub bytes: u64,
    /// What it keeps, if something still leads there: an index into [`Observation::values`].
    pub value: Option<usize>,
    /// For how long this observer has seen it: leases carry no time.
    pub age: Duration,
    /// Whether it was there at this observer's first look: then it is older than that.
    pub is_older: bool,
}

/// A stream.
#[derive(Clone, Debug)]
pub struct StreamSeen {
    /// Its name.
    pub name: String,
    /// Its place in the directory's table.
    pub index: u32,
    /// Which life of that place.
    pub id: u64,
    /// Its producer's catalogue number.
    pub producer: u16,
    /// Entries of its ring.
    pub capacity: u64,
    /// What happens when a subscriber lags.
    pub policy: Policy,
    /// Messages ever sent; `None`: its ring is not there yet.
    pub sent: Option<u64>,
    /// Messages that it holds.
    pub held: u64,
    /// Whether its producer has closed it.
    pub is_closed: bool,
    /// Who listens.
    pub subscribers: Vec<SubscriberSeen>,
}

/// A subscriber of a stream.
#[derive(Clone, Copy, Debug)]
pub struct SubscriberSeen {
    /// Its catalogue number.
    pub catalogue: u16,
    /// Which cursor of its.
    pub cursor: u16,
    /// Messages sent and not taken yet; `None`: it has not begun.
    pub lag: Option<u64>,
    /// Messages that it missed.
    pub lost: u64,
}
