//! The control protocol: what client and daemon say over the Unix socket (`SOCK_SEQPACKET`, one message a packet,
//! postcard encoding).
//!
//! A client asks, the daemon answers: one [`Reply`] for each [`Request`], in order, and nothing unasked. A reply that
//! carries descriptors must be acknowledged with [`Request::Ack`] before anything else is asked: so a client never has
//! more than one message with descriptors in flight. Whoever breaks these rules is disconnected.

mod device;

pub use crate::limit::LimitKind;
pub use device::{Allocator, DeviceOffer, DeviceSegment, DeviceUse, Export, LendingId};

use crate::device::Uuid;
use serde::{Deserialize, Serialize};

/// Version of the control protocol.
pub const PROTOCOL_VERSION: u16 = 3;
/// Longest packet in bytes, either way.
pub const PACKET_BYTES_MAX: usize = 64 * 1024;
/// Descriptors that one packet may carry.
pub const DESCRIPTORS_MAX: usize = 4;

/// What a lagging subscriber does to the producer of a stream.
///
/// ```
/// use tensorlend_layout::wire::Policy;
///
/// assert_eq!(Policy::default(), Policy::Block);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub enum Policy {
    /// The producer waits until every subscriber has taken the oldest message.
    #[default]
    Block,
    /// The oldest message is replaced; a subscriber learns how many it lost.
    DropOldest,
    /// The send fails.
    Error,
}

/// First message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest protocol version that the client speaks.
    pub protocol_min: u16,
    /// Newest one.
    pub protocol_max: u16,
    /// Its layout version.
    pub layout_version: u32,
    /// Its layout's hash.
    pub layout_hash: u64,
    /// Namespace to join; none: the private one of the client's uid.
    pub namespace: Option<String>,
    /// What to call this client in listings; at most 63 bytes are kept.
    pub label: String,
}

// The models of loom have no layout.
#[cfg(not(loom))]
impl Hello {
    /// The greeting of a client that was built with this crate.
    pub fn new(namespace: Option<String>, label: impl Into<String>) -> Self {
        Self {
            protocol_min: PROTOCOL_VERSION,
            protocol_max: PROTOCOL_VERSION,
            layout_version: crate::LAYOUT_VERSION,
            layout_hash: crate::LAYOUT_HASH,
            namespace,
            label: label.into(),
        }
    }
}

/// First message of a client that was connected to the daemon's predecessor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// Oldest protocol version that the client speaks.
    pub protocol_min: u16,
    /// Newest one.
    pub protocol_max: u16,
    /// Its layout version.
    pub layout_version: u32,
    /// Its layout's hash.
    pub layout_hash: u64,
    /// The namespace that it is in.
    pub namespace: String,
    /// Its catalogue number there.
    pub catalogue: u16,
    /// Its member word.
    pub member: u64,
    /// First slots of the segments that it has. None: too many to say.
    pub segments: Option<Vec<u32>>,
    /// Of these, those that it has shelved ([`Request::Shelve`]): it has no descriptor of them to bring.
    pub shelved: Vec<u32>,
    /// How many parts of its cells it has, besides the catalogue.
    pub cells: u8,
}

/// Something that a client was lent, and has kept the descriptor of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Item {
    /// The directory of its namespace.
    Directory,
    /// Its catalogue.
    Catalogue,
    /// Its lease table.
    Leases,
    /// A further part of its cells.
    Cells {
        /// Which.
        part: u8,
    },
    /// A segment of its own.
    Segment {
        /// The first of its slots.
        base: u32,
    },
    /// The records of that segment's slots.
    Slots {
        /// The first of them.
        base: u32,
    },
    /// The ring of a stream of its own.
    Ring {
        /// The stream's place in the directory.
        stream: u32,
        /// Its id.
        id: u64,
    },
    /// A wake descriptor of its own: not lent to it, but lost by the daemon.
    Wake {
        /// The stream's place in the directory.
        stream: u32,
        /// Its id.
        id: u64,
        /// The subscription's cursor.
        cursor: u16,
    },
}

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Joins a namespace. Answer: [`Reply::Welcome`] with directory, catalogue, lease table, and the
    /// descriptor with which the client nudges the daemon.
    Hello(Hello),
    /// Goes on with a session after the daemon was replaced. Answer: [`Reply::Welcome`] with the directory, and the
    /// descriptor with which the client nudges this daemon.
    Return(Return),
    /// Gives a daemon that does not know the session something of it back, with its descriptor. Answer: [`Reply::Done`]. When
    /// all is there, [`Request::Return`] goes on.
    HandBack {
        /// The namespace.
        namespace: String,
        /// The client's catalogue number there.
        catalogue: u16,
        /// Its member word.
        member: u64,
        /// What it is.
        item: Item,
    },
    /// The descriptors of the last reply have arrived and, where they are the client's to write, are mapped. No answer.
    Ack,
    /// Asks for a segment of at least `bytes` (one of more than half the pool's ordinary length has at least that) with
    /// 2^`slots_log2` slots. Answer: [`Reply::Segment`] with segment and slots.
    Segment {
        /// Least length in bytes.
        bytes: u64,
        /// log2 of the slot numbers wanted, at most 20.
        slots_log2: u8,
    },
    /// Gives a segment back: nothing in it is a draft, named, or retired.
    ReturnSegment {
        /// First slot of its range.
        base: u32,
    },
    /// Asks for the next part of the client's own cells. Answer: [`Reply::Cells`] with the part.
    GrowCells,
    /// Asks which segment holds a slot. Answer: [`Reply::Segment`] with segment and slots, both read-only; or
    /// [`Reply::DeviceSegment`] with segment and slots, these read-only: of device memory whoever maps it chooses what for.
    SegmentOf {
        /// Whose.
        catalogue: u16,
        /// The slot.
        slot: u32,
    },
    /// Asks for a part of somebody's cells, 0 being the catalogue. Answer: [`Reply::Cells`] with the part, read-only.
    CellsOf {
        /// Whose.
        catalogue: u16,
        /// Which part.
        part: u8,
    },
    /// Asks for a member's lease table. Answer: [`Reply::Sheet`] with it, read-only.
    LeasesOf {
        /// Whose.
        catalogue: u16,
    },
    /// Binds a name to a filled cell of the client: first publication, or takeover. Answer: [`Reply::Bound`].
    Bind {
        /// The name.
        name: String,
        /// The cell, fresh and filled.
        cell: u32,
    },
    /// Deletes a name, whoever owns it. Answer: [`Reply::Deleted`].
    Delete {
        /// The name.
        name: String,
    },
    /// The owner's request to forget names that it has deleted in their cells and has no operation on.
    /// Answer: [`Reply::Done`].
    Tidy {
        /// Name and cell of each.
        names: Vec<(String, u32)>,
    },
    /// Renames a name whose owner is gone. Answer: [`Reply::Done`]; `NotQuiet` if the owner lives.
    Rename {
        /// Old name.
        from: String,
        /// New name; whatever it held is replaced.
        to: String,
    },
    /// Which cells the daemon took from this client since it last asked. Answer: [`Reply::Notices`].
    Notices,
    /// This client may park from now on: publishers shall look at it. Answer: [`Reply::Done`].
    Wait,
    /// Opens a stream as its producer. Answer: [`Reply::Stream`] with the ring, to write.
    StreamOpen {
        /// The stream's name.
        name: String,
        /// Messages that it holds; rounded up to a power of two.
        capacity: u32,
        /// What to do when a subscriber lags.
        policy: Policy,
    },
    /// Subscribes. The cursor's words are set already. Answer: [`Reply::Stream`] with the ring, read-only.
    Subscribe {
        /// The stream's name.
        name: String,
        /// Which cursor of the client's lease table.
        cursor: u16,
        /// Whether the packet carries a wake descriptor for the producer.
        wake: bool,
    },
    /// Ends a subscription. Answer: [`Reply::Done`].
    Unsubscribe {
        /// Index in the table of streams.
        stream: u32,
        /// Its id when subscribed.
        id: u64,
        /// Which cursor.
        cursor: u16,
    },
    /// The producer asks for a subscriber's wake descriptor. Answer: [`Reply::Sheet`] with it, or [`Reply::Done`] if there is none.
    WakeDescriptor {
        /// Index in the table of streams.
        stream: u32,
        /// Whose.
        catalogue: u16,
        /// Which cursor.
        cursor: u16,
    },
    /// Removes a stream and what it holds. Answer: [`Reply::Deleted`].
    StreamDelete {
        /// The stream's name.
        name: String,
    },
    /// Appends filled cells to a list, which comes into being with the first. Answer: [`Reply::Appended`].
    ListAppend {
        /// The list's name.
        list: String,
        /// The cells, fresh and filled, in order.
        cells: Vec<u32>,
    },
    /// Removes a list and its items. Answer: [`Reply::Deleted`].
    ListDelete {
        /// The list's name.
        list: String,
    },
    /// Renames a list. Answer: [`Reply::Done`].
    ListRename {
        /// Old name.
        from: String,
        /// New name; whatever list it named is removed.
        to: String,
    },
    /// Figures of the daemon. Answer: [`Reply::Stat`].
    Stat,
    /// Answer: [`Reply::Done`].
    Ping,
    /// As [`Request::Bind`], for a name that does not live until it is deleted: whoever owns it, and if it is this client
    /// itself. Answer: [`Reply::Bound`].
    BindFor {
        /// The name.
        name: String,
        /// The cell, fresh and filled.
        cell: u32,
        /// After how many nanoseconds it goes unless it is overwritten; not 0. `None`: no clock ends it.
        ttl_ns: Option<u64>,
        /// Whether it goes when this client's session ends.
        ephemeral: bool,
    },
    /// As [`Request::Segment`], of a device's memory: whoever asks waits until it has acknowledged what it was lent before.
    /// Answer: [`Reply::DeviceSegment`] with segment and slots.
    DeviceSegment {
        /// Of which device.
        uuid: Uuid,
        /// Least length in bytes.
        bytes: u64,
        /// log2 of the slot numbers wanted, at most 20.
        slots_log2: u8,
    },
    /// What device memory this client has mapped, its own and others': to a daemon that has taken over and does not know. Until
    /// it has heard the last of it, that daemon assumes all of it. Answer: [`Reply::Done`].
    Mapped {
        /// Which; 1,024 at most.
        lendings: Vec<LendingId>,
        /// Whether no more follow.
        last: bool,
    },
    /// These segments of device memory, its own or others', are mapped in this client no more, and no work on them is under way.
    /// Those that the daemon does not know it had are passed over. Answer: [`Reply::Done`].
    Unmapped {
        /// Which; 1,024 at most.
        lendings: Vec<LendingId>,
    },
    /// The client has let go of a segment of its own, or does so as soon as it has the answer: until it gives it back, it
    /// neither maps it for writing nor has a descriptor of it, so that the daemon may have it in a file. Answer:
    /// [`Reply::Done`]; a limit where nothing is spilled, and then it is as it was.
    Shelve {
        /// First slot of its range.
        base: u32,
    },
    /// As [`Request::SegmentOf`], for the records of its slots alone: of a segment that is in a file, the bytes stay there. Answer:
    /// [`Reply::Segment`] with the slots, read-only; none of device memory.
    SlotsOf {
        /// Whose.
        catalogue: u16,
        /// The slot.
        slot: u32,
    },
    /// The producer has closed a stream of its own, as the word `closed` of the ring says: the daemon reads that word. The
    /// daemon ends a closed stream some time after the last subscriber has left it. Answer: [`Reply::Done`].
    StreamClosed {
        /// Index in the table of streams.
        stream: u32,
        /// Its id when opened.
        id: u64,
    },
    /// As [`Request::ListAppend`], for items that end with this client's session. A list that never had others ends with the
    /// last of them.
    ListAppendEphemeral {
        /// The list's name.
        list: String,
        /// The cells, fresh and filled, in order.
        cells: Vec<u32>,
    },
}

impl Request {
    /// Whether it may be asked once more if it is not known whether it was answered: then it comes to the same, and the
    /// answer means the same.
    pub fn is_repeatable(&self) -> bool {
        !matches!(
            self,
            Self::Hello(_)
                | Self::Return(_)
                | Self::HandBack { .. }
                | Self::Ack
                | Self::Delete { .. }
                | Self::Rename { .. }
                | Self::StreamDelete { .. }
                | Self::ListAppend { .. }
                | Self::ListAppendEphemeral { .. }
                | Self::ListDelete { .. }
                | Self::ListRename { .. }
        )
    }
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Joined. Descriptors: directory, catalogue, lease table.
    Welcome(Welcome),
    /// Descriptors: segment, slots.
    Segment {
        /// Length of the segment in bytes.
        bytes: u64,
        /// First slot number.
        base: u32,
        /// log2 of the slot numbers.
        slots_log2: u8,
        /// The member's geometry word for which this holds.
        geometry: u64,
        /// Whether the pool, or what the segment's owner may have of it, is so full that writers should shelve what they have
        /// no more to write in.
        short: bool,
        /// Whether its bytes are in a file, or on the way there or back ([`Request::SlotsOf`] alone says so: any other answer comes with the bytes).
        in_file: bool,
    },
    /// Descriptor: the part.
    Cells {
        /// Which part.
        part: u8,
        /// The member's geometry word for which this holds.
        geometry: u64,
    },
    /// Descriptor: what was asked for.
    Sheet {
        /// The member word for which this holds, or 0.
        member: u64,
    },
    /// The name leads to the cell.
    Bound {
        /// Index of its entry in the directory.
        entry: u32,
        /// Its home word.
        home: u64,
    },
    /// Deleted, or there was nothing.
    Deleted {
        /// Whether there was something.
        existed: bool,
    },
    /// Cells that were taken.
    Notices {
        /// Their numbers.
        cells: Vec<u32>,
        /// Whether more are waiting.
        more: bool,
    },
    /// Descriptor: the ring.
    Stream {
        /// Index in the table of streams.
        stream: u32,
        /// Its id.
        id: u64,
        /// Index of its name's entry in the directory.
        entry: u32,
        /// Its home word.
        home: u64,
        /// Entries of the ring.
        capacity: u32,
        /// Policy.
        policy: Policy,
    },
    /// Items are in the list.
    Appended {
        /// Number of the first.
        first: u64,
    },
    /// Figures.
    Stat(Box<Stat>),
    /// Descriptors: segment, slots.
    DeviceSegment(DeviceSegment),
    /// Done.
    Done,
    /// Refused.
    Refused(Refusal),
}

/// What a client learns when it joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The protocol version that holds.
    pub protocol: u16,
    /// The daemon's version.
    pub daemon: String,
    /// Its catalogue number.
    pub catalogue: u16,
    /// Its member word.
    pub member: u64,
    /// The namespace's name.
    pub namespace: String,
    /// Whether it may publish.
    pub writer: bool,
    /// Whether the daemon seals what it lends for one producer's life (user mode).
    pub user_mode: bool,
    /// Default length of a segment in bytes.
    pub segment_bytes: u64,
    /// Devices of which memory is lent.
    pub devices: Vec<DeviceOffer>,
}

/// Figures of the daemon, over all namespaces.
///
/// ```
/// use tensorlend_layout::wire::Stat;
///
/// let stat = Stat { pool_bytes: 96 << 20, bytes_in_use: 64 << 20, bytes_spare: 32 << 20, ..Stat::default() };
/// assert_eq!(stat.pool_bytes, stat.bytes_in_use + stat.bytes_spare);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Version of the daemon.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Since when it runs, in nanoseconds.
    pub uptime_ns: u64,
    /// "system" or "user".
    pub mode: String,
    /// Bytes that the pool may have.
    pub pool_bytes_max: u64,
    /// Bytes of segments that exist: lent, spare and idle.
    pub pool_bytes: u64,
    /// Bytes of segments that are lent (or orphaned).
    pub bytes_in_use: u64,
    /// Bytes of spare segments, ready to lend.
    pub bytes_spare: u64,
    /// Bytes of sheets.
    pub bytes_sheets: u64,
    /// Segments lent.
    pub segments: u32,
    /// Clients connected.
    pub clients: u32,
    /// Clients that are gone and whose tensors live on.
    pub frozen: u32,
    /// Names in all namespaces.
    pub names: u64,
    /// Requests answered.
    pub requests: u64,
    /// Times that the daemon woke up.
    pub wakeups: u64,
    /// Requests refused.
    pub refusals: u64,
    /// Why there is no device memory; empty if there is some.
    pub device: String,
    /// Devices of which memory is lent.
    pub devices: Vec<DeviceUse>,
    /// Names that ended because their time to live was over.
    pub names_expired: u64,
    /// Ephemeral names that ended with their producers' sessions.
    pub names_ephemeral_gone: u64,
    /// Sessions that were ended because memory was short and their leases kept some.
    pub sessions_revoked: u64,
    /// Bytes of segments that are in files and not in the pool.
    pub bytes_spilled: u64,
    /// Files of spilled segments that could not be written or read.
    pub spill_failures: u64,
    /// What the asker's uid uses; for the superuser, each uid (128 at most).
    pub uids: Vec<UidUse>,
    /// What the asker's namespace uses; for the superuser, each (128 at most).
    pub namespaces: Vec<NamespaceUse>,
}

/// What one uid uses, and may use at this moment.
///
/// ```
/// use tensorlend_layout::wire::UidUse;
///
/// let user = UidUse { uid: 1000, bytes: 64 << 20, bytes_max: 512 << 20, ..UidUse::default() };
/// assert!(user.bytes <= user.bytes_max);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UidUse {
    /// Whose.
    pub uid: u32,
    /// Bytes of segments and sheets, those of its ended clients included.
    pub bytes: u64,
    /// The most that it may have now: its limit, and its share of what is common.
    pub bytes_max: u64,
    /// Bytes that were replaced or deleted and that nothing but its leases keeps; known only while memory is short.
    pub bytes_kept_by_leases: u64,
    /// Segments lent to it.
    pub segments: u32,
    /// Descriptors that the daemon has open for it.
    pub descriptors: u64,
    /// The most that it may have now.
    pub descriptors_max: u64,
    /// Bytes of device memory, those of its ended clients included.
    pub device_bytes: u64,
    /// Sessions.
    pub sessions: u32,
    /// The most that it may have.
    pub sessions_max: u32,
    /// Names whose values are its own, those of lists' items included.
    pub names: u64,
    /// Leases that it holds now.
    pub leases: u64,
}

/// What one namespace uses, and may use.
///
/// ```
/// use tensorlend_layout::wire::NamespaceUse;
///
/// let lab = NamespaceUse { name: "lab".into(), names: 3, names_max: 65536, ..NamespaceUse::default() };
/// assert!(lab.names <= u64::from(lab.names_max));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceUse {
    /// Its name.
    pub name: String,
    /// Bytes of segments and sheets.
    pub bytes: u64,
    /// The most that it may have; `u64::MAX`: as the pool.
    pub bytes_max: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
    /// Segments lent in it.
    pub segments: u32,
    /// The most that it may have.
    pub segments_max: u32,
    /// Descriptors that the daemon has open for its memory.
    pub descriptors: u64,
    /// Names, list items, lists and streams.
    pub names: u64,
    /// The most that it may have.
    pub names_max: u32,
    /// Clients, live and gone.
    pub clients: u32,
    /// The most that it may have.
    pub clients_max: u32,
}

/// Why the daemon refuses, in words for a person; the variants are for programs.
///
/// ```
/// use tensorlend_layout::wire::{LimitKind, Refusal};
///
/// let (what, setting) = ("pool".into(), "pool.bytes_max".into());
/// let refusal = Refusal::Limit { kind: LimitKind::PoolBytes, what, setting, limit: "1 GiB".into() };
/// assert_eq!(
///     refusal.to_string(),
///     "pool is at its limit of 1 GiB: raise pool.bytes_max in the daemon's configuration, or free some"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// No common protocol version.
    #[error(
        "the daemon speaks control protocol {daemon}, this client {client_min} to {client_max}: install matching versions"
    )]
    Protocol {
        /// Daemon's version.
        daemon: u16,
        /// Client's oldest.
        client_min: u16,
        /// Client's newest.
        client_max: u16,
    },
    /// Another shared-memory layout.
    #[error(
        "the daemon has shared-memory layout {daemon_version} ({daemon_hash:016x}), this client {client_version} ({client_hash:016x}): install matching versions"
    )]
    Layout {
        /// Daemon's version.
        daemon_version: u32,
        /// Daemon's hash.
        daemon_hash: u64,
        /// Client's version.
        client_version: u32,
        /// Client's hash.
        client_hash: u64,
    },
    /// No such namespace, or not for this user: a client is not told which.
    #[error("no namespace {0:?} for this user: see [namespace.*] in the daemon's configuration")]
    Namespace(String),
    /// A reader asked for what writers may do.
    #[error("this user may only read in namespace {0:?}: ask for its writer list")]
    ReadOnly(String),
    /// A limit.
    #[error("{what} is at its limit of {limit}: raise {setting} in the daemon's configuration, or free some")]
    Limit {
        /// The limit, for programs.
        kind: LimitKind,
        /// What is at it.
        what: String,
        /// The configuration's key, for people.
        setting: String,
        /// Its value, with unit.
        limit: String,
    },
    /// The kernel gave no memory.
    #[error("the machine has no memory for {bytes} bytes more ({reason})")]
    Memory {
        /// Bytes wanted.
        bytes: u64,
        /// The kernel's word.
        reason: String,
    },
    /// No such thing.
    #[error("there is no {0}")]
    NotFound(String),
    /// The owner is alive: its client must do it.
    #[error("the owner of {0:?} is alive")]
    NotQuiet(String),
    /// Somebody else produces this stream.
    #[error("stream {0:?} has a live producer already: close it there, or use another name")]
    StreamTaken(String),
    /// A malformed or impossible request.
    #[error("request refused: {0}")]
    Bad(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Stopping,
    /// The daemon disconnected the client for breaking a rule.
    #[error("disconnected by the daemon: {0}")]
    Violation(String),
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages hold nothing that cannot be encoded")
}

/// Decodes a packet; `None` if it is damaged or has bytes left over.
pub fn decode<T: for<'a> Deserialize<'a>>(packet: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_come_back_and_leftovers_are_refused() {
        let request = Request::Bind { name: "x".into(), cell: 7 };
        let mut packet = encode(&request);
        assert_eq!(decode::<Request>(&packet), Some(request));
        packet.push(0);
        assert_eq!(decode::<Request>(&packet), None);
        assert_eq!(decode::<Request>(&[]), None);
    }

    proptest! {
        #[test]
        fn any_packet_is_read_or_refused(packet in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&packet);
            let _ = decode::<Reply>(&packet);
        }
    }
}
