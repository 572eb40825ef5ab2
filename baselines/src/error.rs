//! Errors, with their causes and remedies.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why an exchange could not start or finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// /dev/shm has not enough room. Writing to the segment all the same would kill the process by SIGBUS.
    #[error(
        "/dev/shm has {free} bytes free and the shared_memory segment takes {needed}: its first write would die of SIGBUS; \
         free some (ls -l /dev/shm) or give more (mount -o remount,size=..., in a container --shm-size)"
    )]
    TooSmall {
        /// Bytes that the segment takes, its header included.
        needed: u64,
        /// Bytes that /dev/shm can still give.
        free: u64,
    },

    /// /dev/shm cannot be used at all.
    #[error("/dev/shm cannot be used: {0}; the copy contender needs it mounted and writable")]
    NoShm(#[source] io::Error),

    /// The shared_memory crate could not make or open the segment.
    #[error("the segment {name} cannot be {done}: {why}")]
    Segment {
        /// Its name below /dev/shm.
        name: String,
        /// "created" or "opened".
        done: &'static str,
        /// The crate's text.
        why: String,
    },

    /// The closure that starts the consumer failed.
    #[error("the consumer process cannot be started: {0}")]
    Spawn(#[source] io::Error),

    /// The consumer ended before the exchange did.
    #[error("the consumer process ended early ({status}); what it printed says why")]
    PeerGone {
        /// How it ended.
        status: ExitStatus,
    },

    /// The producer, seen from the consumer, has ended.
    #[error("the producer process is gone; run the measurement again")]
    ProducerGone,

    /// No progress for longer than the session's timeout. The session killed the consumer.
    #[error("{doing} took longer than {timeout:?}; is the machine overloaded, or the consumer stopped?")]
    Stalled {
        /// The operation that stalled.
        doing: &'static str,
        /// The timeout.
        timeout: Duration,
    },

    /// The ipc-channel failed.
    #[error("the ipc-channel failed while {doing}: {why}")]
    Channel {
        /// The operation that failed.
        doing: &'static str,
        /// The crate's text.
        why: String,
    },

    /// A serializer could not encode or decode.
    #[error("{codec} failed while {doing}: {why}")]
    Codec {
        /// The serializer.
        codec: &'static str,
        /// The operation that failed.
        doing: &'static str,
        /// The crate's text.
        why: String,
    },

    /// [`serve`](crate::serve) got other arguments than the producer passed.
    #[error("not the arguments of a baseline consumer: {0:?}; it is started by the producer only")]
    Arguments(Vec<String>),

    /// The producing thread panicked.
    #[error("the producing thread panicked; its message is on standard error")]
    Panicked,

    /// The system refused an operation.
    #[error("cannot {doing}: {cause}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        /// The system's error.
        #[source]
        cause: io::Error,
    },

    /// An error of tensorlend itself.
    #[error(transparent)]
    Tensorlend(#[from] tensorlend::Error),

    /// A message's bytes differ from those that were sent.
    #[error("the bytes of message {number} were not those that were sent")]
    Bytes {
        /// The number of the message.
        number: u64,
    },

    /// A tensor arrived damaged.
    #[error("the bytes that arrived were not those that were sent")]
    Checksum,

    /// One of the two processes of an exchange failed.
    #[error("a measuring process failed: {0}")]
    Party(String),

    /// This program was built without the subject of the measurement.
    #[error("not built: it needs the cargo feature `{feature}`")]
    NotBuilt {
        /// The feature that adds it.
        feature: &'static str,
    },
}

impl BaselineError {
    /// Makes the error of an operation that the system refused.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |cause| Self::System { doing, cause: cause.into() }
    }
}
