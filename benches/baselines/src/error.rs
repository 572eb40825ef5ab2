//! The error type, whose texts state causes and remedies.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The reason why an exchange could not start or finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BaselineError {
    /// /dev/shm does not have enough free space. If the contender still wrote to the segment,
    /// SIGBUS would kill the process.
    #[error(
        "/dev/shm has {free} bytes free and the shared_memory segment takes {needed}: its first write would die of SIGBUS; \
         free some (ls -l /dev/shm) or give more (mount -o remount,size=..., in a container --shm-size)"
    )]
    TooSmall {
        /// Bytes that the segment needs, including its header.
        needed: u64,
        /// Free bytes of /dev/shm.
        free: u64,
    },

    /// /dev/shm is missing, or cannot be written to.
    #[error("/dev/shm cannot be used: {0}; the copy contender needs it mounted and writable")]
    NoShm(#[source] io::Error),

    /// The shared_memory crate could not make or open the segment.
    #[error("the segment {name} cannot be {done}: {why}")]
    Segment {
        /// The segment's name below /dev/shm.
        name: String,
        /// "created" or "opened".
        done: &'static str,
        /// The crate's error text.
        why: String,
    },

    /// The closure that starts the consumer failed.
    #[error("the consumer process cannot be started: {0}")]
    Spawn(#[source] io::Error),

    /// The consumer ended before the exchange did.
    #[error("the consumer process ended early ({status}); what it printed says why")]
    PeerGone { status: ExitStatus },

    /// The producer ended while the consumer waited for it.
    #[error("the producer process is gone; run the measurement again")]
    ProducerGone,

    /// The exchange made no progress for longer than the session's timeout. The session killed the
    /// consumer.
    #[error("{doing} took longer than {timeout:?}; is the machine overloaded, or the consumer stopped?")]
    Stalled {
        doing: &'static str,
        /// The time limit that was exceeded.
        timeout: Duration,
    },

    /// A function of ipc-channel failed.
    #[error("the ipc-channel failed while {doing}: {why}")]
    Channel {
        /// The operation that failed.
        doing: &'static str,
        /// The crate's error text.
        why: String,
    },

    /// A serializer could not encode or decode.
    #[error("{codec} failed while {doing}: {why}")]
    Codec {
        /// Name of the serializer.
        codec: &'static str,
        /// The operation that failed.
        doing: &'static str,
        /// The crate's error text.
        why: String,
    },

    /// The arguments of [`serve`](crate::serve) are not those of a consumer.
    #[error("not the arguments of a baseline consumer: {0:?}; it is started by the producer only")]
    Arguments(Vec<String>),

    #[error("the producing thread panicked; its message is on standard error")]
    Panicked,

    /// The system refused an operation.
    #[error("cannot {doing}: {cause}")]
    System {
        /// The operation that failed.
        doing: &'static str,
        #[source]
        cause: io::Error,
    },

    #[error(transparent)]
    Tensorlend(#[from] tensorlend::Error),

    /// A message's bytes differ from the sent bytes.
    #[error("the bytes of message {number} were not those that were sent")]
    Bytes { number: u64 },

    /// The received tensor differs from the sent tensor.
    #[error("the bytes that arrived were not those that were sent")]
    Checksum,

    /// One of the two processes of an exchange failed.
    #[error("a measuring process failed: {0}")]
    Party(String),

    /// This program was built without the library that would be measured.
    #[error("not built: it needs the cargo feature `{feature}`")]
    NotBuilt {
        /// The cargo feature that adds the library.
        feature: &'static str,
    },
}

impl BaselineError {
    /// Returns a function that makes the error of a failed system call.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |cause| Self::System { doing, cause: cause.into() }
    }
}
