//! The values that streams and lists accept.

use crate::error::{Error, Result};
use crate::session::Session;
use crate::tensor::draft::{Draft, Memory};
use std::sync::Arc;
use tensorlend_layout::tensor::Sealed;
use tensorlend_layout::word::SLOT_NONE;

/// A value that a stream or a list accepts: a [`Draft`], a [`crate::DatasetDraft`], or a [`crate::ValueDraft`]. The
/// trait is sealed: other crates cannot implement it.
///
/// ```
/// # let daemon = tensorlend_daemon::embedded()?;
/// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
/// use tensorlend::{DType, Sendable, Stream};
///
/// fn send_logged(stream: &Stream, message: impl Sendable) -> tensorlend::Result<()> {
///     println!("message {} of {}", stream.send(message)?, stream.name());
///     Ok(())
/// }
///
/// let camera = client.stream("camera").open()?;
/// send_logged(&camera, client.create(DType::U8, [4, 4])?)?;
/// send_logged(&camera, client.dataset().add("depth", client.create(DType::F32, [4, 4])?)?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Sendable: sealed::Message {}

impl<M: Memory> Sendable for Draft<M> {}

pub(crate) mod sealed {
    use super::{Arc, Draft, Memory, Result, SLOT_NONE, Sealed, Session};

    /// A token that only this crate can create, so that no other crate can call the methods below.
    #[derive(Clone, Copy)]
    pub struct Inside(());

    /// The only value of [`Inside`].
    pub(crate) const INSIDE: Inside = Inside(());

    /// A draft of one tensor or of several.
    pub trait Message {
        /// Returns the session that made the message.
        fn session(&self, _: Inside) -> &Arc<Session>;
        /// Returns whether sealing the message takes slots in addition to the message's own.
        fn takes_memory(&self, _: Inside) -> bool;
        /// Waits for pending device work on the message, before any lock is taken.
        #[inline]
        fn ready(&self, _: Inside) -> Result<()> {
            Ok(())
        }
        /// Writes the message's records. Afterwards the slot belongs to the caller. Called once.
        fn seal_for(&mut self, sequence: u64, _: Inside) -> Result<Sealed>;
        /// Seals like [`Message::seal_for`], for a stream: the entry of a small tensor has its bytes in place of its summary.
        #[inline]
        fn seal_entry(&mut self, sequence: u64, inside: Inside) -> Result<Sealed> {
            self.seal_for(sequence, inside)
        }
    }

    impl<M: Memory> Message for Draft<M> {
        fn session(&self, _: Inside) -> &Arc<Session> {
            Self::session(self)
        }
        #[inline]
        fn takes_memory(&self, _: Inside) -> bool {
            self.is_extended()
        }
        #[inline]
        fn ready(&self, _: Inside) -> Result<()> {
            M::settle(self)
        }
        #[inline(always)]
        fn seal_for(&mut self, sequence: u64, _: Inside) -> Result<Sealed> {
            self.seal(sequence, SLOT_NONE)
        }
        #[inline(always)]
        fn seal_entry(&mut self, sequence: u64, _: Inside) -> Result<Sealed> {
            M::seal_entry(self, sequence)
        }
    }
}

/// Seals a message if this client created it, because each client counts its own slots.
#[inline(always)]
pub(crate) fn seal(session: &Arc<Session>, message: &mut impl Sendable, sequence: u64, what: &str) -> Result<Sealed> {
    check_own(session, message, what)?;
    message.seal_for(sequence, sealed::INSIDE)
}

/// Refuses a message of another client.
#[inline(always)]
pub(crate) fn check_own(session: &Arc<Session>, message: &impl Sendable, what: &str) -> Result<()> {
    if Arc::ptr_eq(message.session(sealed::INSIDE), session) { Ok(()) } else { Err(of_another_client(what)) }
}

#[cold]
fn of_another_client(what: &str) -> Error {
    Error::Argument(format!(
        "the draft for {what:?} was made by another client: create it with this one, or publish it there"
    ))
}
