//! The rules for requests: the right that each needs, and whether the client must have joined a namespace.
//!
//! The table is exhaustive, so a request without a rule does not compile. [`super::Core::perform`] has the handler of each.

use crate::core::settings::Role;
use tensorlend_layout::wire::{QueueRequest, Request};

/// The state of a connection that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// The client has not joined a namespace.
    Before,
    /// The client has joined a namespace.
    After,
    /// Any state. An observer need not join a namespace.
    Any,
    /// No state. The request is retired.
    Never,
}

impl Registration {
    /// Returns the violation of a client that sends such a request. `joined` is true if the client has joined a namespace.
    pub fn broken_by(self, joined: bool) -> Option<&'static str> {
        match (self, joined) {
            (Self::Before, true) => Some("a second hello"),
            (Self::After, false) => Some("a request before hello"),
            (Self::Never, _) => Some("a retired request"),
            (Self::Before, false) | (Self::After, true) | (Self::Any, _) => None,
        }
    }
}

/// The right that a request needs in the client's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// Readers and writers have the right.
    Read,
    /// Only writers have the right.
    Write,
}

impl Right {
    /// Returns true if a client with this role has the right.
    pub fn is_given_to(self, role: Role) -> bool {
        match role {
            Role::Writer => true,
            Role::Reader => self == Self::Read,
        }
    }
}

/// The time at which a refusal of a request counts: see docs/metrics.md.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counts {
    /// When the daemon sends the refusal, because the client returns it to its program.
    #[default]
    Sent,
    /// When the client reports that it gave up: see [`Request::GaveUp`]. Before, it looks for memory of its own.
    GivenUp,
    /// Never, because the client continues without the result and returns no error to its program.
    Never,
}

/// Returns the time at which a refusal of this request counts.
pub fn counts(request: &Request) -> Counts {
    match request {
        Request::Segment { .. } | Request::DeviceSegment { .. } => Counts::GivenUp,
        // Spilling may be disabled. A segment that a reader still has leased stays with its owner.
        Request::ReleaseForSpill { .. } | Request::ReturnSegment { .. } => Counts::Never,
        _ => Counts::Sent,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The state of the connection that the request needs.
    pub registration: Registration,
    /// The right that the request needs after the client has joined a namespace.
    pub right: Right,
}

pub fn rule(request: &Request) -> Rule {
    let (registration, right) = match request {
        // They begin or continue a session. The handlers determine the client's role.
        Request::Hello(_) | Request::Return(_) => (Registration::Before, Right::Read),
        Request::HandBack => (Registration::Never, Right::Read),
        // These requests acknowledge or end something that the client has.
        Request::Ack
        | Request::Notices
        | Request::Unmapped { .. }
        | Request::Mapped { .. }
        | Request::Unsubscribe { .. }
        | Request::StreamClosed { .. }
        | Request::GaveUp
        | Request::Queue(QueueRequest::Done(_) | QueueRequest::GiveBack(_) | QueueRequest::Stop) => {
            (Registration::After, Right::Read)
        }
        // It reads.
        Request::SegmentOf { .. }
        | Request::SlotsOf { .. }
        | Request::CellsOf { .. }
        | Request::ValuesOf { .. }
        | Request::LeasesOf { .. }
        | Request::Wait
        | Request::Subscribe { .. }
        | Request::SubscribePollable { .. }
        | Request::WakeDescriptor { .. }
        | Request::Queue(QueueRequest::Size { .. })
        | Request::Stat
        | Request::Ping => (Registration::After, Right::Read),
        // The handler checks whether the client is an observer.
        Request::Inspect(_) => (Registration::Any, Right::Read),
        // It takes memory, or changes names, lists, queues or streams.
        Request::Segment { .. }
        | Request::DeviceSegment { .. }
        | Request::ReturnSegment { .. }
        | Request::ReleaseForSpill { .. }
        | Request::GrowCells
        | Request::Bind { .. }
        | Request::BindFor { .. }
        | Request::Delete { .. }
        | Request::Tidy { .. }
        | Request::Rename { .. }
        | Request::StreamOpen { .. }
        | Request::StreamDelete { .. }
        | Request::ListAppend { .. }
        | Request::ListAppendEphemeral { .. }
        | Request::ListDelete { .. }
        | Request::ListRename { .. }
        | Request::Queue(QueueRequest::Put { .. } | QueueRequest::Claim { .. }) => (Registration::After, Right::Write),
    };
    Rule { registration, right }
}
