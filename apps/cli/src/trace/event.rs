//! Events of a trace.

use std::fmt;

use serde::Serialize;
use tensorlend::observe::{ClientNo, ClientSeen};

use crate::summary::{Summary, now_ns};
use crate::text::printable;

/// An event, and the time of its observation in nanoseconds since 1970.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    pub at_ns: u64,
    #[serde(flatten)]
    pub seen: Seen,
}

/// The identity of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Who {
    pub pid: u32,
    pub uid: u32,
    pub label: String,
}

/// The kind of an event.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Seen {
    /// A name has a new value. `number` counts the values that this trace has seen.
    Published {
        name: String,
        number: u64,
        /// Whether the value existed when the trace began.
        was_there: bool,
        #[serde(flatten)]
        summary: Summary,
        timestamp_ns: u64,
        producer: Who,
    },
    /// A client leased a value of the name. `bytes` is unknown for device memory.
    Leased {
        name: String,
        count: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        nbytes: Option<u64>,
        holder: Who,
    },
    /// The client has released its leases on values of the name.
    Released {
        name: String,
        holder: Who,
    },
    Deleted {
        name: String,
    },
    Renamed {
        name: String,
        to: String,
    },
    /// The stream exists, or was opened.
    Opened {
        stream: String,
        capacity: u64,
        policy: &'static str,
        sent: u64,
        producer: Who,
    },
    /// A message that the ring still held when it was sampled.
    Sent {
        stream: String,
        number: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        dtype: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        shape: Option<Vec<usize>>,
        nbytes: u64,
    },
    /// Messages that were replaced before they were sampled, so that only their count is known.
    Passed {
        stream: String,
        first: u64,
        last: u64,
    },
    Subscribed {
        stream: String,
        subscriber: Who,
    },
    /// A subscriber has received messages. The fields count these messages, and those that are
    /// left.
    Received {
        stream: String,
        messages: u64,
        lag: u64,
        subscriber: Who,
    },
    /// A subscriber has lost messages. The fields count these messages, and all lost messages since
    /// it subscribed.
    Lost {
        stream: String,
        messages: u64,
        total: u64,
        subscriber: Who,
    },
    Unsubscribed {
        stream: String,
        subscriber: Who,
    },
    /// The producer has closed the stream.
    Closed {
        stream: String,
        sent: u64,
    },
    /// The stream no longer exists.
    Ended {
        stream: String,
    },
}

impl Event {
    pub fn now(seen: Seen) -> Self {
        Self { at_ns: now_ns(), seen }
    }
}

impl Who {
    /// Returns the client with this number, or an empty value if there is no such
    /// client.
    pub fn of(clients: &[ClientSeen], number: ClientNo) -> Self {
        let client = clients.iter().find(|client| client.number == number);
        client.map_or_else(Self::default, |it| Self { pid: it.pid, uid: it.uid, label: it.label.clone() })
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            0 => write!(f, "? ")?,
            pid => write!(f, "{pid} ")?,
        }
        f.write_str(&printable(&self.label))
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text contains only the time of day in UTC. The JSON form also contains the date.
        let (seconds, millis) = (self.at_ns / 1_000_000_000 % 86_400, self.at_ns / 1_000_000 % 1000);
        write!(f, "{:02}:{:02}:{:02}.{millis:03}Z  ", seconds / 3600, seconds / 60 % 60, seconds % 60)?;
        match &self.seen {
            Seen::Published { number, was_there, summary, producer, .. } => {
                let what = if *was_there { "there     " } else { "published " };
                write!(f, "{what} {number}: {summary}, by {producer}")
            }
            Seen::Leased { count, nbytes, holder, .. } => {
                write!(f, "leased     {count} by {holder}")?;
                nbytes.map_or(Ok(()), |nbytes| write!(f, ", {nbytes} bytes"))
            }
            Seen::Released { holder, .. } => write!(f, "released   by {holder}"),
            Seen::Deleted { name } => write!(f, "deleted    {}", printable(name)),
            Seen::Renamed { name, to } => write!(f, "renamed    {} to {}", printable(name), printable(to)),
            Seen::Opened { stream, capacity, policy, sent, producer } => {
                write!(f, "opened     {}: {capacity} messages, {policy}, {sent} sent, by {producer}", printable(stream))
            }
            Seen::Sent { number, dtype, shape, nbytes, .. } => {
                write!(f, "sent       {number}: ")?;
                if let Some(dtype) = dtype {
                    write!(f, "{dtype} ")?;
                }
                if let Some(shape) = shape {
                    write!(f, "{shape:?}, ")?;
                }
                write!(f, "{nbytes} bytes")
            }
            Seen::Passed { first, last, .. } => write!(f, "sent       {first} to {last}, gone before they were seen"),
            Seen::Subscribed { subscriber, .. } => write!(f, "subscribed {subscriber}"),
            Seen::Received { messages, lag, subscriber, .. } => {
                write!(f, "received   {messages} by {subscriber}, lags {lag}")
            }
            Seen::Lost { messages, total, subscriber, .. } => {
                write!(f, "lost       {messages} by {subscriber}, {total} in all")
            }
            Seen::Unsubscribed { subscriber, .. } => write!(f, "left       {subscriber}"),
            Seen::Closed { sent, .. } => write!(f, "closed     after {sent} messages"),
            Seen::Ended { stream } => write!(f, "ended      {}", printable(stream)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::DType;

    #[test]
    fn events_as_lines_and_as_json() {
        let producer = Who { pid: 7, uid: 0, label: "x\u{1b}".into() };
        let tensor = crate::summary::TensorSummary::new(None, DType::F32, &[2]);
        let published = Seen::Published {
            name: "w".into(),
            number: 3,
            was_there: false,
            summary: Summary::Tensor(tensor),
            timestamp_ns: 0,
            producer,
        };
        let event = Event { at_ns: (86_400 + 3661) * 1_000_000_000 + 5_000_000, seen: published };
        assert_eq!(event.to_string(), "01:01:01.005Z  published  3: f32 [2], 8 bytes, by 7 x\\u{1b}");
        let json = serde_json::to_value(&event).unwrap();
        assert_eq!((&json["event"], &json["dtype"], &json["nbytes"]), (&"published".into(), &"f32".into(), &8.into()));
        assert_eq!(json["producer"]["pid"], 7);
    }
}
