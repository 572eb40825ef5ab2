//! How frames get from one gateway to another.
//!
//! One trait, so that another engine (UCX, NIXL) can take zenoh's place, and so that the gateway can be tested over a network in
//! memory that loses, delays and parts as the test says. Nothing here knows tensors.

mod body;
pub mod memory;
#[cfg(feature = "zenoh")]
mod zenoh;

pub use body::Body;
#[cfg(feature = "zenoh")]
pub use zenoh::{Zenoh, ZenohOptions};

use crate::key::Key;
use crate::wire::{Epoch, NodeName};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// A head, which the gateways encode and check, and the bytes of tensors beside it, which nobody touches on the way.
#[derive(Clone, Debug, Default)]
pub struct Frame {
    /// A message of `wire`.
    pub head: Bytes,
    /// Bytes of tensors, or none.
    pub body: Body,
}

/// Why nothing came back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Trouble {
    /// Nobody answers under this key: the node is gone, or does not export it.
    #[error("nobody answers")]
    Nobody,
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// The engine says so.
    #[error("{0}")]
    Engine(String),
}

/// A question that came in. Dropped without an answer, it is answered by nobody.
pub struct Question {
    /// About what.
    pub key: Key,
    /// The question.
    pub frame: Frame,
    /// Sends the answer. Waits while the way is full, so that the body of a large one is sent by a thread that may wait.
    pub answer: Answer,
}

/// Sends the answer to a question.
pub type Answer = Box<dyn FnOnce(Frame) + Send>;

/// What is declared as long as it is not dropped.
pub type Declared = Box<dyn Send + Sync>;

/// Takes the answer to a question. Called once, on a thread of the engine: it must not wait.
pub type OnAnswer = Box<dyn FnOnce(Result<Frame, Trouble>) + Send>;
/// Takes questions, on threads of the engine: it must not wait.
pub type OnQuestion = Arc<dyn Fn(Question) + Send + Sync>;
/// Takes what was sent, on threads of the engine, in the order in which one sender sent it under one key. That it waits holds up this sender, and maybe others.
pub type OnFrame = Arc<dyn Fn(Key, Frame) + Send + Sync>;
/// Hears that a node is there (true) or no longer (false).
pub type OnNode = Arc<dyn Fn(NodeName, Epoch, bool) + Send + Sync>;

/// What the gateway needs of an engine. All calls may come from several threads at once.
pub trait Transport: Send + Sync + 'static {
    /// Asks whoever answers under this key on another node; `done` gets the first answer, or why there is none. A frame without a body does
    /// not wait.
    fn ask(&self, key: &Key, frame: Frame, timeout: Duration, done: OnAnswer);

    /// Answers questions under this key.
    ///
    /// # Errors
    /// The engine's.
    fn answer(&self, key: &Key, on_question: OnQuestion) -> Result<Declared, Trouble>;

    /// Sends to whoever listens under this key on other nodes: reliably and in order while the way there lasts. Waits while the way is full.
    ///
    /// # Errors
    /// The engine's.
    fn send(&self, key: &Key, frame: Frame) -> Result<(), Trouble>;

    /// Listens under this key.
    ///
    /// # Errors
    /// The engine's.
    fn listen(&self, key: &Key, on_frame: OnFrame) -> Result<Declared, Trouble>;

    /// Lets others know that this node is there, until what is returned is dropped, or the way to them is gone.
    ///
    /// # Errors
    /// The engine's.
    fn declare_alive(&self, node: &NodeName, epoch: Epoch) -> Result<Declared, Trouble>;

    /// Hears who is there: first those who are, then all that come and go.
    ///
    /// # Errors
    /// The engine's.
    fn watch_alive(&self, on_node: OnNode) -> Result<Declared, Trouble>;
}
