//! The transport of frames between gateways.
//!
//! The transport is a trait, so that another engine (UCX, NIXL) can replace zenoh. Tests use a
//! network in memory with losses, delays and partitions. The trait does not depend on tensors.

#[cfg(feature = "zenoh")]
mod tls;
#[cfg(feature = "zenoh")]
mod zenoh;

pub use crate::wire::Body;
#[cfg(feature = "zenoh")]
pub use tls::Refused;
#[cfg(feature = "zenoh")]
pub use zenoh::{Zenoh, ZenohOptions};

use crate::key::Key;
use crate::wire::{Epoch, NodeName};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A message with a head and a body. The gateways encode and check the head. The body contains
/// bytes of tensors, which the transport never reads.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// The encoded message, as [`crate::wire`] defines it.
    pub head: Bytes,
    /// Bytes of tensors, or none.
    pub body: Body,
}

/// The reason why a request has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// No response will come. Nothing serves this key, the link was lost, or the node dropped the
    /// request.
    #[error("no gateway responds: check that tensorlend-gateway runs on the other node")]
    Nobody,
    #[error("no response came in time: check the network, or raise answer_timeout_ms")]
    Timeout,
    #[error("{0}")]
    Engine(String),
}

/// Delay before this gateway believes the report [`Trouble::Nobody`]. By then zenoh has also reported the loss of the node, if it
/// was lost.
pub const LOSS_DELAY: Duration = Duration::from_millis(200);

/// A request that this node has received. Dropping it without a response reports [`Trouble::Nobody`] to the requester.
pub struct Question {
    /// The key to which the request was sent.
    pub key: Key,
    /// The head and body of the request.
    pub frame: Frame,
    /// The function that sends the response. It waits while the path is full, so only a worker may
    /// send a large body.
    pub answer: Answer,
}

/// The function that sends the response to a request.
pub type Answer = Box<dyn FnOnce(Frame) + Send>;

/// A declaration. Dropping this object withdraws the declaration.
pub type Declared = Box<dyn Send + Sync>;

/// A handler of one response. The engine calls the handler once, on one of its own threads. The
/// handler must not wait.
pub type OnAnswer = Box<dyn FnOnce(Result<Frame, Trouble>) + Send>;
/// A handler of requests. The engine calls the handler on its own threads. The handler must not
/// wait.
pub type OnQuestion = Arc<dyn Fn(Question) + Send + Sync>;
/// A handler of sent frames. The engine calls the handler on its own threads, in the order in which
/// one sender sent under one key. A handler that waits delays this sender, and perhaps others.
pub type OnFrame = Arc<dyn Fn(Key, Frame) + Send + Sync>;
/// A handler of nodes that become reachable (true) or unreachable (false).
pub type OnNode = Arc<dyn Fn(NodeName, Epoch, bool) + Send + Sync>;

/// The interface of an engine, which carries the gateways' messages. Several threads may use an
/// engine at once.
pub trait Transport: Send + Sync + 'static {
    /// Sends a request to the node that serves this key. `done` gets the first response, or the reason why there is
    /// none. Returns without waiting if the frame has no body.
    fn ask(&self, key: &Key, frame: Frame, timeout: Duration, done: OnAnswer);

    /// Serves requests that are sent to this key.
    ///
    /// # Errors
    /// The engine's error.
    fn answer(&self, key: &Key, on_question: OnQuestion) -> Result<Declared, Trouble>;

    /// Sends a frame to all listeners of this key on other nodes, reliably and in order while the
    /// path exists. Waits while the path is full.
    ///
    /// # Errors
    /// The engine's error.
    fn send(&self, key: &Key, frame: Frame) -> Result<(), Trouble>;

    /// Listens for frames that are sent to this key.
    ///
    /// # Errors
    /// The engine's error.
    fn listen(&self, key: &Key, on_frame: OnFrame) -> Result<Declared, Trouble>;

    /// Announces this node to others until the declaration is dropped, or the path to them breaks.
    ///
    /// # Errors
    /// The engine's error.
    fn declare_alive(&self, node: &NodeName, epoch: Epoch) -> Result<Declared, Trouble>;

    /// Reports the nodes that are alive, then every change.
    ///
    /// # Errors
    /// The engine's error.
    fn watch_alive(&self, on_node: OnNode) -> Result<Declared, Trouble>;
}
