//! The counters of a gateway.

use serde::Serialize;

/// Counters since the start of the gateway, and present sizes. They form the JSON of
/// `.gateway/stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Version of this document: 1.
    pub v: u32,
    pub node: String,
    /// Number of other nodes that can be reached.
    pub nodes_alive: usize,
    /// Messages dropped as unknown or invalid.
    pub dropped: u64,
    /// Messages dropped because they returned to the node that sent them first.
    pub loops: u64,
    /// Requests of other nodes to which this gateway has responded.
    pub answered: u64,
    /// Bytes of values sent to other nodes.
    pub sent_bytes: u64,
    /// Invalidation subscriptions of other nodes.
    pub promises: usize,
    /// Invalidation messages sent.
    pub words_sent: u64,
    /// Invalidation messages received.
    pub words_heard: u64,
    /// Values that this gateway retains for other nodes that read them.
    pub kept: usize,
    /// Values fetched from other nodes.
    pub fetched: u64,
    /// Bytes of the values fetched from other nodes.
    pub fetched_bytes: u64,
    /// Revalidations that found a copy unchanged.
    pub unchanged: u64,
    /// Transfers that have not ended.
    pub transfers: usize,
    /// Bytes requested and not yet received, plus the windows of streams. This is the maximum that
    /// other nodes may send at once.
    pub in_flight_bytes: u64,
    /// The limit of `in_flight_bytes`.
    pub in_flight_bytes_max: u64,
    /// Bytes of received stream messages that wait for room in local streams.
    pub queued_bytes: u64,
    /// Received chunks whose checksum or encoding was wrong.
    pub damaged: u64,
    /// Requests to other nodes without a valid response.
    pub troubles: u64,
    /// Bytes of the cached copies of remote values.
    pub cached_bytes: u64,
    /// Remote names in the cache, with or without a copy.
    pub cached_names: usize,
    /// Published values that other nodes put on this machine.
    pub puts_taken: u64,
    /// Streams sent to other nodes, counted once per receiver.
    pub streams_sent: usize,
    /// Stream messages that this node dropped for slow receivers.
    pub messages_dropped: u64,
    /// Remote streams received.
    pub streams_received: usize,
    /// Stream messages received completely.
    pub messages_received: u64,
    /// Messages of remote streams that the sender dropped or that were lost in transit. The loss
    /// counters of local subscribers do not include them.
    pub messages_lost: u64,
}
