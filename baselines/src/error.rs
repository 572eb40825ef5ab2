//! What can go wrong, to whom, and what to do about it.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// Why an exchange could not be started or finished.
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
        /// What the crate said.
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

    /// The producer, seen from the consumer, is no more.
    #[error("the producer process is gone; run the measurement again")]
    ProducerGone,

    /// Nothing moved for longer than the session's patience. The consumer was killed.
    #[error("{doing} took longer than {patience:?}; is the machine overloaded, or the consumer stopped?")]
    Stalled {
        /// What was waited for.
        doing: &'static str,
        /// How long.
        patience: Duration,
    },

    /// The ipc-channel failed.
    #[error("the ipc-channel failed while {doing}: {why}")]
    Channel {
        /// What was being done.
        doing: &'static str,
        /// What the crate said.
        why: String,
    },

    /// A serializer could not encode or decode.
    #[error("{codec} failed while {doing}: {why}")]
    Codec {
        /// Which one.
        codec: &'static str,
        /// What was being done.
        doing: &'static str,
        /// What the crate said.
        why: String,
    },

    /// [`serve`](crate::serve) was given something else than what the producer passed.
    #[error("not the arguments of a baseline consumer: {0:?}; it is started by the producer only")]
    Arguments(Vec<String>),

    /// The thread that produces panicked.
    #[error("the producing thread panicked; its message is on standard error")]
    Panicked,

    /// The machine refuses something.
    #[error("cannot {doing}: {cause}")]
    System {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        #[source]
        cause: io::Error,
    },

    /// Of tensorlend itself.
    #[error(transparent)]
    Tensorlend(#[from] tensorlend::Error),

    /// A message's bytes were not those that were sent.
    #[error("the bytes of message {number} were not those that were sent")]
    Bytes {
        /// Which one.
        number: u64,
    },

    /// A tensor arrived damaged.
    #[error("the bytes that arrived were not those that were sent")]
    Checksum,

    /// One of the two processes of an exchange failed.
    #[error("a measuring process failed: {0}")]
    Party(String),

    /// This program was built without what it is to measure.
    #[error("not built: it needs the cargo feature `{feature}`")]
    NotBuilt {
        /// Which would bring it.
        feature: &'static str,
    },
}

impl BaselineError {
    /// For what the system refuses while something is done.
    pub(crate) fn system<E: Into<io::Error>>(doing: &'static str) -> impl Fn(E) -> Self {
        move |cause| Self::System { doing, cause: cause.into() }
    }
}
