//! What a gateway counts.

use serde::Serialize;

/// Counts since the gateway was started, and sizes now: what `.gateway/stat` says, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// Version of this document: 1.
    pub v: u32,
    /// This node.
    pub node: String,
    /// Others that can be reached.
    pub nodes_alive: usize,
    /// Messages that were dropped: what no gateway says, or what cannot be.
    pub dropped: u64,
    /// Of these: what had come home.
    pub loops: u64,
    /// Questions of others that were answered.
    pub answered: u64,
    /// Bytes of values that were sent.
    pub sent_bytes: u64,
    /// Names that others are promised a word about.
    pub promises: usize,
    /// Words that were sent.
    pub words_sent: u64,
    /// Words that were heard.
    pub words_heard: u64,
    /// Values that are kept for others who read them.
    pub kept: usize,
    /// Values that were fetched.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Questions that found what is had unchanged.
    pub unchanged: u64,
    /// Transfers that go on.
    pub transfers: usize,
    /// Bytes of values that were asked for and are not here, and windows of streams: what others may send at once.
    pub in_flight_bytes: u64,
    /// What that may be.
    pub in_flight_bytes_max: u64,
    /// Bytes of streams that have come and wait for room in streams of this machine.
    pub queued_bytes: u64,
    /// Chunks that came damaged.
    pub damaged: u64,
    /// Questions that had no answer.
    pub troubles: u64,
    /// Copies, in bytes.
    pub cached_bytes: u64,
    /// Names of others that are known.
    pub cached_names: usize,
    /// Values of others that were taken.
    pub puts_taken: u64,
    /// Streams that are sent to others, each as often as there are others.
    pub streams_sent: usize,
    /// Messages of streams that were left out here, since their receivers were slow.
    pub messages_dropped: u64,
    /// Streams of others that are received.
    pub streams_received: usize,
    /// Messages of streams that were received whole.
    pub messages_received: u64,
    /// Messages of streams of others that were lost: left out there, or on the way. Local subscribers see their own losses only.
    pub messages_lost: u64,
}
