//! The control protocol: the messages between client and daemon over the Unix socket (`SOCK_SEQPACKET`, one message per
//! packet, postcard encoding).
//!
//! The client sends a [`Request`], and the daemon responds with one [`Reply`], in order. The daemon
//! sends nothing else. The client must acknowledge a reply that carries descriptors with
//! [`Request::Ack`] before its next request. So at most one message with descriptors is in flight
//! for each client. The daemon disconnects a client that breaks these rules.
#![allow(missing_docs, reason = "a field has no comment if its name says all")]

mod device;
mod health;
// The models of loom have no layout hash.
#[cfg(not(loom))]
mod hello;
mod inspect;
mod queue;
mod refusal;
mod stat;
mod value;

pub use crate::limit::LimitKind;
pub use device::{Allocator, DeviceOffer, DeviceSegment, DeviceUse, Export, LendingId};
pub use health::{FdStoreState, Health, RestartLoss, SpillFault};
#[cfg(not(loom))]
pub use hello::Offer;
pub use inspect::{
    Holds, INSPECTED_CLIENTS_MAX, INSPECTED_LEASES_MAX, INSPECTED_NAMES_MAX, INSPECTED_STREAMS_MAX, Inspect, Inspected,
    InspectedClient, InspectedLease, InspectedName, InspectedStream, InspectedSubscriber, View,
};
pub use queue::{ASSERTED_MAX, CLAIM_BATCH_MAX, CLAIMS_MAX, QueueClaim, QueueItem, QueueReply, QueueRequest};
pub use refusal::{Reason, Refusal};
pub use stat::{Holder, NamespaceUse, Refusals, Stat, UidUse};
pub use value::{NameAt, VALUES_MAX, ValueAt};

use crate::device::Uuid;
use crate::number::{CellNo, ClientNo, CursorNo, EntryNo, SlotNo, StreamLine};
use serde::{Deserialize, Serialize};

/// Version of the control protocol. The next build, with which tests run this one, has the next version.
pub const PROTOCOL_VERSION: u16 = PROTOCOL_LAST + if cfg!(feature = "next-layout-for-tests") { 1 } else { 0 };
/// The version of the last addition.
const PROTOCOL_LAST: u16 = PROTOCOL_OWN_VIEW;
/// First version of the control protocol with [`View::Health`] and [`Request::GaveUp`].
pub const PROTOCOL_OWN_VIEW: u16 = 9;
/// First version of the control protocol in which the daemon makes wake pairs.
pub const PROTOCOL_WAKE_PAIRS: u16 = 8;
/// Oldest version of the control protocol that this build speaks. A newer version only adds kinds of
/// messages, at the end of the lists of kinds.
pub const PROTOCOL_OLDEST: u16 = 7;
/// Longest packet in bytes, either way.
pub const PACKET_BYTES_MAX: usize = 64 * 1024;
/// Descriptors that one packet may carry.
pub const DESCRIPTORS_MAX: usize = 4;

/// The effect of a lagging subscriber on the producer of a stream.
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
    /// The producer replaces the oldest message. A subscriber learns how many messages it lost.
    DropOldest,
    /// The producer's send fails.
    Error,
}

/// First message of a client. Its first four fields are the same in every version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Oldest protocol version that the client speaks.
    pub protocol_min: u16,
    /// Newest protocol version that the client speaks.
    pub protocol_max: u16,
    /// The layout version that the client offers: its own, or an older one that it understands.
    pub layout_version: u32,
    /// The hash of that layout.
    pub layout_hash: u64,
    /// Namespace to join. `None`: the private namespace of the client's uid.
    pub namespace: Option<String>,
    /// Name of this client in listings. The daemon stores at most 63 bytes.
    pub label: String,
}

/// First message of a client that was connected to the previous daemon. Its first four fields are the same in every
/// version of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Return {
    /// Oldest protocol version that the client speaks.
    pub protocol_min: u16,
    /// Newest protocol version that the client speaks.
    pub protocol_max: u16,
    /// The layout version that the client offers, as in [`Hello`].
    pub layout_version: u32,
    /// The hash of that layout.
    pub layout_hash: u64,
    pub namespace: String,
    pub client: ClientNo,
    /// The client's member word.
    pub member: u64,
    /// First slots of the client's segments. `None`: the client has too many segments to list.
    pub segments: Option<Vec<SlotNo>>,
    /// The segments of `segments` that the client has released for spill ([`Request::ReleaseForSpill`]).
    pub released: Vec<SlotNo>,
    /// Number of the client's parts of cells, besides the catalogue.
    pub cells: u8,
    /// The client's claims on items of queues, at most [`ASSERTED_MAX`].
    pub claims: Vec<QueueClaim>,
}

/// A request of a client. CONTRIBUTING.md lists the steps that add one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Joins a namespace. Reply: [`Reply::Welcome`] with directory, catalogue, lease table, and the wakeup eventfd.
    Hello(Hello),
    /// Continues a session after the daemon was replaced. Reply: [`Reply::Welcome`] with the directory, and this
    /// daemon's wakeup eventfd.
    Return(Return),
    /// Retired: a violation. Clients of earlier builds handed a descriptor back to a daemon that did not know their
    /// session. Their message has fields, which [`decode`] refuses. This variant keeps the numbers of the later ones.
    HandBack,
    /// Acknowledges the descriptors of the last reply. The client has mapped those that it may
    /// write. No reply.
    Ack,
    /// Requests a segment of at least `bytes` with 2^`slots_log2` slots. A segment of more than 7/8
    /// of the ordinary length has at least the ordinary length. Reply: [`Reply::Segment`] with
    /// segment and slots.
    Segment {
        /// Minimum length in bytes.
        bytes: u64,
        /// log2 of the number of slots, at most 20.
        slots_log2: u8,
    },
    /// Returns a segment to the daemon. The segment contains no draft, no named and no retired
    /// slot. Reply: [`Reply::Done`].
    ReturnSegment {
        /// Number of the segment's first slot.
        base: SlotNo,
    },
    /// Requests the next part of the client's own cells. Reply: [`Reply::Cells`] with the part.
    GrowCells,
    /// Requests the segment of a slot. Reply: [`Reply::Segment`] with segment and slots, both
    /// read-only. For device memory: [`Reply::DeviceSegment`] with segment and read-only slots. The
    /// importer of device memory chooses the access to the segment itself.
    SegmentOf {
        /// The slot's owner.
        owner: ClientNo,
        slot: SlotNo,
    },
    /// Requests a part of a member's cells. Part 0 is the catalogue. Reply: [`Reply::Cells`] with
    /// the part, read-only.
    CellsOf {
        /// The member.
        client: ClientNo,
        part: u8,
    },
    /// Requests a member's lease table. Reply: [`Reply::Sheet`] with the table, read-only.
    LeasesOf {
        /// The member.
        client: ClientNo,
    },
    /// Binds a name to a filled cell of the client, as a first publication or a takeover. Reply:
    /// [`Reply::Bound`].
    Bind {
        name: String,
        /// The cell, fresh and filled.
        cell: CellNo,
    },
    /// Deletes a name of any owner. Reply: [`Reply::Deleted`].
    Delete { name: String },
    /// Asks the daemon to remove names from the directory. The client has deleted these names in
    /// its cells, and has no operation on them in progress. Reply: [`Reply::Done`].
    Tidy { names: Vec<(String, CellNo)> },
    /// Renames a name whose owner has ended. Reply: [`Reply::Done`]; `NotQuiet` if the owner is
    /// alive.
    Rename {
        /// Old name.
        from: String,
        /// New name. Its previous value is replaced.
        to: String,
    },
    /// Requests the cells that the daemon took from this client since the last such request. Reply:
    /// [`Reply::Notices`].
    Notices,
    /// Announces that this client may park from now on. Publishers must then read the client's
    /// parked word. Reply: [`Reply::Done`].
    Wait,
    /// Opens a stream as its producer. Reply: [`Reply::Stream`] with the writable ring.
    StreamOpen {
        name: String,
        /// Number of messages that the stream holds. The daemon rounds it up to a power of two.
        capacity: u32,
        /// The policy when a subscriber lags.
        policy: Policy,
    },
    /// Subscribes to a stream. The client has set the cursor's words before. Reply:
    /// [`Reply::Stream`] with the ring, read-only.
    Subscribe {
        name: String,
        /// Index of the cursor in the client's lease table.
        cursor: CursorNo,
        /// Whether the packet carries a wake descriptor for the producer. The daemon refuses such packets, because they
        /// could carry any descriptor. A pollable subscriber sends [`Request::SubscribePollable`].
        wake: bool,
    },
    /// Ends a subscription. Reply: [`Reply::Done`].
    Unsubscribe {
        /// Index in the table of streams.
        stream: StreamLine,
        /// The stream's id at the time of the subscription.
        id: u64,
        /// Index of the cursor.
        cursor: CursorNo,
    },
    /// Requests a subscriber's wake descriptor, for the producer. Reply: [`Reply::Sheet`] with the
    /// descriptor, or [`Reply::Done`] if there is none.
    WakeDescriptor {
        /// Index in the table of streams.
        stream: StreamLine,
        subscriber: ClientNo,
        /// Index of the cursor.
        cursor: CursorNo,
    },
    /// Removes a stream and its messages. Reply: [`Reply::Deleted`].
    StreamDelete { name: String },
    /// Appends filled cells to a list. The first item creates the list. Reply: [`Reply::Appended`].
    ListAppend {
        list: String,
        /// The cells, fresh and filled, in order. At most [`APPEND_MAX`].
        cells: Vec<CellNo>,
    },
    /// Removes a list and its items. Reply: [`Reply::Deleted`].
    ListDelete { list: String },
    /// Renames a list. Reply: [`Reply::Done`].
    ListRename {
        /// Old name.
        from: String,
        /// New name. The daemon removes an existing list with this name.
        to: String,
    },
    /// Requests the daemon's metrics. Reply: [`Reply::Stat`].
    Stat,
    /// Checks that the daemon responds. Reply: [`Reply::Done`].
    Ping,
    /// Binds a name with a limited lifetime, like [`Request::Bind`]. Any client may own the name so
    /// far, including this client. Reply: [`Reply::Bound`].
    BindFor {
        name: String,
        /// The cell, fresh and filled.
        cell: CellNo,
        /// Nanoseconds until the name ends, unless a client overwrites the name. Not 0. `None`: no
        /// deadline.
        ttl_ns: Option<u64>,
        /// Whether the name ends with this client's session.
        ephemeral: bool,
    },
    /// Requests a segment of device memory, like [`Request::Segment`]. The reply waits until the
    /// client has acknowledged earlier lendings. Reply: [`Reply::DeviceSegment`] with segment and
    /// slots.
    DeviceSegment {
        uuid: Uuid,
        /// Minimum length in bytes.
        bytes: u64,
        /// log2 of the number of slots, at most 20.
        slots_log2: u8,
    },
    /// Reports the device memory that this client has mapped, its own and other clients'. The
    /// recipient is a daemon that has taken over and does not know which memory is mapped. Until
    /// the last report that daemon assumes that all of it is mapped. Reply: [`Reply::Done`].
    Mapped {
        /// The lendings' ids, at most 1,024.
        lendings: Vec<LendingId>,
        /// Whether this is the last report.
        last: bool,
    },
    /// Reports segments of device memory that this client no longer has mapped, its own or other
    /// clients'. The client has no pending work on them. The daemon ignores segments that it does
    /// not know. Reply: [`Reply::Done`].
    Unmapped {
        /// The lendings' ids, at most 1,024.
        lendings: Vec<LendingId>,
    },
    /// Releases a segment of the client for spill, at the latest when the reply arrives. The daemon
    /// may then move the segment to a file. Until the client gets the segment back, it neither maps
    /// the segment writable nor has a descriptor of it. Reply: [`Reply::Done`]. If spilling is
    /// disabled, the reply is a limit, and nothing changes.
    ReleaseForSpill {
        /// Number of the segment's first slot.
        base: SlotNo,
    },
    /// Requests only the slot records, like [`Request::SegmentOf`]. The bytes of a spilled segment
    /// stay in the file. Not for device memory. Reply: [`Reply::Segment`] with the slots,
    /// read-only.
    SlotsOf { owner: ClientNo, slot: SlotNo },
    /// Reports that the producer has closed its stream. The daemon then reads the ring's word
    /// `closed`. The daemon ends a closed stream some time after the last subscriber has left.
    /// Reply: [`Reply::Done`].
    StreamClosed {
        /// Index in the table of streams.
        stream: StreamLine,
        /// The stream's id at the time of its opening.
        id: u64,
    },
    /// Appends items that end with this client's session, like [`Request::ListAppend`]. A list that
    /// has only ever had such items ends with the last of them.
    ListAppendEphemeral {
        list: String,
        /// The cells, fresh and filled, in order.
        cells: Vec<CellNo>,
    },
    /// Requests the cells and slot records of names, for a listing. So the client needs neither the
    /// owners' cells nor the records of their segments. Reply: [`Reply::Values`].
    ValuesOf {
        /// The names, at most [`VALUES_MAX`].
        names: Vec<NameAt>,
    },
    /// A request about a queue.
    Queue(QueueRequest),
    /// A request of an observer, which need not join a namespace. Reply: [`Reply::Inspected`], without
    /// descriptors.
    Inspect(Inspect),
    /// Subscribes to a stream like [`Request::Subscribe`], with a descriptor that becomes readable with each message.
    /// Reply: [`Reply::Stream`] with the ring and the subscriber's end of a wake pair.
    SubscribePollable {
        name: String,
        /// Index of the cursor in the client's lease table.
        cursor: CursorNo,
    },
    /// Reports that the client has found no other memory after the last refusal of memory, and returns this refusal to its
    /// program. The daemon counts the refusal now, and not when it sent the refusal. Reply: [`Reply::Done`].
    GaveUp,
}

impl Request {
    /// Returns true if the client may repeat the request after a lost reply. The second request
    /// then has the same effect, and its reply the same meaning.
    pub fn is_repeatable(&self) -> bool {
        !matches!(
            self,
            Self::Hello(_)
                | Self::Return(_)
                | Self::HandBack
                | Self::Ack
                | Self::Delete { .. }
                | Self::Rename { .. }
                | Self::StreamDelete { .. }
                | Self::ListAppend { .. }
                | Self::ListAppendEphemeral { .. }
                | Self::ListDelete { .. }
                | Self::ListRename { .. }
                | Self::Queue(QueueRequest::Put { .. } | QueueRequest::Done(_) | QueueRequest::Stop)
        )
    }
}

/// Maximum number of items in one request to append. The daemon binds all of them in one step,
/// during which other requests wait.
pub const APPEND_MAX: usize = 1024;

/// A response of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The client has joined. Descriptors: directory, catalogue, lease table.
    Welcome(Welcome),
    /// A segment of host memory. Descriptors: segment, slots.
    Segment {
        bytes: u64,
        /// First slot number.
        base: SlotNo,
        /// log2 of the number of slots.
        slots_log2: u8,
        /// The member's geometry word for which the reply is valid.
        geometry: u64,
        /// Whether the pool, or the owner's share of the pool, is nearly full. A writer should then
        /// release for spill the segments that it will not write any more.
        short: bool,
        /// Whether the segment's bytes are in a file, or the daemon is moving them to or from a
        /// file. Only a reply to [`Request::SlotsOf`] sets this field. All other replies carry the
        /// segment.
        in_file: bool,
    },
    /// A part of a member's cells. Descriptor: the part.
    Cells {
        part: u8,
        /// The member's geometry word for which the reply is valid.
        geometry: u64,
    },
    /// A requested sheet or wake descriptor. Descriptor: the sheet or the wake descriptor.
    Sheet {
        /// The member word for which the reply is valid.
        member: u64,
    },
    /// The name is bound to the cell.
    Bound {
        /// Index of the name's entry in the directory.
        entry: EntryNo,
        /// The entry's owner word.
        owner_word: u64,
    },
    /// The object is deleted, or did not exist.
    Deleted {
        /// Whether the object existed.
        existed: bool,
    },
    /// Cells that the daemon has taken from the client.
    Notices {
        cells: Vec<CellNo>,
        /// Whether the daemon has further cells to report.
        more: bool,
    },
    /// An open stream. Descriptors: the ring, and for [`Request::SubscribePollable`] a wake pair.
    Stream {
        /// Index in the table of streams.
        stream: StreamLine,
        id: u64,
        /// Index of the stream's entry in the directory.
        entry: EntryNo,
        /// The entry's owner word.
        owner_word: u64,
        /// Number of entries of the ring.
        capacity: u32,
        /// The policy when a subscriber lags.
        policy: Policy,
    },
    /// The items are in the list.
    Appended {
        /// Number of the first item.
        first: u64,
    },
    /// The daemon's metrics.
    Stat(Box<Stat>),
    /// A segment of device memory. Descriptors: segment, slots.
    DeviceSegment(DeviceSegment),
    /// The daemon has completed the request.
    Done,
    /// The daemon has refused the request.
    Refused(Refusal),
    /// The contents of names, in the order of the request. The reply covers at least the first
    /// name. The daemon bounds its work for one reply, so the client requests the remaining names
    /// again.
    Values(Vec<ValueAt>),
    /// A response about a queue.
    Queue(QueueReply),
    /// A part of the daemon's state, for an observer.
    Inspected(Inspected),
}

/// The session's parameters, for a client that joins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The negotiated protocol version.
    pub protocol: u16,
    /// The daemon's version.
    pub daemon: String,
    /// The client's number in the namespace.
    pub client: ClientNo,
    /// The client's member word.
    pub member: u64,
    /// The namespace's name.
    pub namespace: String,
    /// Whether the client may publish.
    pub writer: bool,
    /// Whether the daemon seals each segment against all writers except one producer (user mode).
    pub user_mode: bool,
    /// Default length of a segment in bytes.
    pub segment_bytes: u64,
    /// Devices whose memory the daemon lends.
    pub devices: Vec<DeviceOffer>,
    /// Whether processes that use a device lock the pages of the host segments that they map.
    pub page_lock: bool,
}

/// Encodes a message.
pub fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages hold nothing that cannot be encoded")
}

/// Decodes a packet. Returns `None` if the packet is damaged or longer than its message.
pub fn decode<T: for<'a> Deserialize<'a>>(packet: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(packet) {
        Ok((message, [])) => Some(message),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_leftovers_are_refused() {
        let request = Request::Bind { name: "x".into(), cell: CellNo::new(7) };
        let mut packet = encode(&request);
        assert_eq!(decode::<Request>(&packet), Some(request));
        packet.push(0);
        assert_eq!(decode::<Request>(&packet), None);
        assert_eq!(decode::<Request>(&[]), None);
    }
}
