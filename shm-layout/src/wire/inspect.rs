//! The requests of observers, outside all namespaces. Observers see names, sizes and holders, never
//! values. Any user may request the metrics of its own accounts.

use super::{Health, NamespaceUse, Policy, Stat};
use crate::number::{ClientNo, CursorNo, EntryNo, StreamLine};
use serde::{Deserialize, Serialize};

/// Maximum number of clients in one response, so that it fits into a packet.
pub const INSPECTED_CLIENTS_MAX: usize = 256;
/// Maximum number of names in one response.
pub const INSPECTED_NAMES_MAX: usize = 160;
/// Maximum number of leases of one client in one response.
pub const INSPECTED_LEASES_MAX: usize = 2048;
/// Maximum number of streams in one response.
pub const INSPECTED_STREAMS_MAX: usize = 24;

/// A request of an observer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    /// Oldest protocol version that the observer speaks.
    pub protocol_min: u16,
    /// Newest protocol version that the observer speaks.
    pub protocol_max: u16,
    /// The part that the daemon shows.
    pub view: View,
}

/// A part of the daemon's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum View {
    /// The daemon's metrics. Response: [`Inspected::Daemon`].
    Daemon,
    /// The namespaces after this name. Response: [`Inspected::Namespaces`].
    Namespaces {
        /// The last namespace of the previous response; empty: none.
        after: String,
    },
    /// The clients of a namespace. Response: [`Inspected::Clients`].
    Clients {
        namespace: String,
        /// First client number to show.
        from: ClientNo,
    },
    /// Names and lists of a namespace. Response: [`Inspected::Names`].
    Names {
        namespace: String,
        /// First entry of the directory.
        from: EntryNo,
    },
    /// Leases in a namespace, by holder. Response: [`Inspected::Leases`].
    Leases {
        namespace: String,
        /// First holder's number.
        from: ClientNo,
    },
    /// Streams of a namespace. Response: [`Inspected::Streams`].
    Streams {
        namespace: String,
        /// First index in the table of streams.
        from: StreamLine,
    },
    /// The daemon's metrics and its health, with the accounts that [`super::Request::Stat`] shows to the requesting user.
    /// Any user may request them, also while a limit refuses a session to the user. Response: [`Inspected::Health`].
    Health,
}

/// The response to an observer. `next` is the position of the next request. `None` marks the last
/// response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Inspected {
    /// The daemon's metrics, with the users and namespaces that the superuser sees.
    Daemon(Box<Stat>),
    /// Namespaces, sorted by name. An empty list means that there are no further ones.
    Namespaces(Vec<NamespaceUse>),
    /// Clients, sorted by number.
    Clients { clients: Vec<InspectedClient>, next: Option<ClientNo> },
    /// Names and lists.
    Names { names: Vec<InspectedName>, next: Option<EntryNo> },
    Leases {
        leases: Vec<InspectedLease>,
        /// The next holder.
        next: Option<ClientNo>,
        /// Whether the response omits leases of one client.
        truncated: bool,
    },
    Streams {
        streams: Vec<InspectedStream>,
        /// The next index.
        next: Option<StreamLine>,
    },
    /// The daemon's metrics and its health.
    Health {
        /// The metrics, with the accounts of the requesting user.
        stat: Box<Stat>,
        health: Box<Health>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedClient {
    pub number: ClientNo,
    pub epoch: u32,
    pub pid: u32,
    pub uid: u32,
    pub label: String,
    /// The name of the client's command; empty: unknown.
    pub command: String,
    pub connected: bool,
    /// Time of the client's connection, in nanoseconds of `CLOCK_BOOTTIME`.
    pub since_ns: u64,
    /// Bytes of the client's segments.
    pub bytes: u64,
    pub segments: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedName {
    pub name: String,
    /// The content of the name.
    pub holds: Holds,
}

/// The content of a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Holds {
    /// A list with this number of items.
    List(u64),
    Value {
        /// Number of the owner.
        client: ClientNo,
        /// The word of a lease on the value: owner, slot and the low bits of the generation.
        lease: u64,
        /// The packed element type. `None` for a dataset, or for a value whose record the daemon does not read.
        dtype: Option<u32>,
        is_dataset: bool,
        /// Sizes in elements. `None` for a dataset, or for more than 4 dimensions.
        shape: Option<Vec<u64>>,
        /// Bytes of all slots of the value; 0: unknown.
        bytes: u64,
        /// The timestamp that its producer set, in nanoseconds; 0: none.
        timestamp_ns: u64,
        /// Whether some of the value's bytes are in a file.
        in_file: bool,
    },
}

/// The leases of one client on one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedLease {
    pub holder: ClientNo,
    /// The word of the lease.
    pub lease: u64,
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedStream {
    pub name: String,
    /// The stream's index in the table of streams.
    pub index: StreamLine,
    pub id: u64,
    /// Catalogue number of the stream's producer.
    pub producer: ClientNo,
    /// Number of messages that the stream can hold.
    pub capacity: u32,
    /// The policy when a subscriber lags.
    pub policy: Policy,
    /// Number of messages ever sent.
    pub sent: u64,
    /// Number of messages that the stream holds now.
    pub held: u64,
    /// Whether the producer has closed the stream.
    pub is_closed: bool,
    pub subscribers: Vec<InspectedSubscriber>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InspectedSubscriber {
    pub client: ClientNo,
    /// The index of the subscriber's cursor.
    pub cursor: CursorNo,
    /// Messages sent and not received. `None`: the subscriber has not begun.
    pub lag: Option<u64>,
    /// Messages that the subscriber has missed.
    pub lost: u64,
}

#[cfg(test)]
mod tests {
    use super::super::{PACKET_BYTES_MAX, Reply, encode};
    use super::*;

    #[test]
    fn the_longest_responses_fit_into_a_packet() {
        let fits = |shown: Inspected| {
            let bytes = encode(&Reply::Inspected(shown)).len();
            assert!(bytes <= PACKET_BYTES_MAX, "{bytes}");
        };
        let client = InspectedClient {
            number: ClientNo::MAX,
            epoch: u32::MAX,
            pid: u32::MAX,
            uid: u32::MAX,
            label: "x".repeat(63),
            command: "x".repeat(63),
            connected: true,
            since_ns: u64::MAX,
            bytes: u64::MAX,
            segments: u32::MAX,
        };
        fits(Inspected::Clients { clients: vec![client; INSPECTED_CLIENTS_MAX], next: Some(ClientNo::MAX) });
        let holds = Holds::Value {
            client: ClientNo::MAX,
            lease: u64::MAX,
            dtype: Some(u32::MAX),
            is_dataset: true,
            shape: Some(vec![u64::MAX; 4]),
            bytes: u64::MAX,
            timestamp_ns: u64::MAX,
            in_file: true,
        };
        let name = InspectedName { name: "x".repeat(255), holds };
        fits(Inspected::Names { names: vec![name; INSPECTED_NAMES_MAX], next: Some(EntryNo::new(u32::MAX)) });
        let lease = InspectedLease { holder: ClientNo::MAX, lease: u64::MAX, count: u32::MAX };
        fits(Inspected::Leases {
            leases: vec![lease; INSPECTED_LEASES_MAX],
            next: Some(ClientNo::MAX),
            truncated: true,
        });
        let subscriber =
            InspectedSubscriber { client: ClientNo::MAX, cursor: CursorNo::MAX, lag: Some(u64::MAX), lost: u64::MAX };
        let stream = InspectedStream {
            name: "x".repeat(255),
            index: StreamLine::MAX,
            id: u64::MAX,
            producer: ClientNo::MAX,
            capacity: u32::MAX,
            policy: Policy::Error,
            sent: u64::MAX,
            held: u64::MAX,
            is_closed: true,
            subscribers: vec![subscriber; crate::directory::SUBSCRIBERS],
        };
        fits(Inspected::Streams {
            streams: vec![stream; INSPECTED_STREAMS_MAX],
            next: Some(StreamLine::new(u32::MAX)),
        });
    }
}
