//! The queue between two threads. The transport's thread receives the pieces of a link, and the
//! link's thread writes them.

use crate::wire::{Body, CHUNK_BYTES_LEAST, Message};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tensorlend::remote::StreamPosition;

/// Maximum number of messages of one link that are in flight.
pub const WINDOW_MESSAGES: u32 = 16;

/// An entry that the link's thread takes from the queue.
pub enum Coming {
    Piece(Message, Body),
    /// The link is opened again with this link number. The link's own message numbers restart at 0.
    Reopened(u64),
    /// Messages of the link below this number are lost if they have not arrived yet.
    Silence(u64),
    Ended,
}

/// The progress of the link's thread.
#[derive(Clone, Copy, Default)]
pub struct Taken {
    /// Number of the link. Messages of an earlier link do not occupy the window.
    pub link: u64,
    /// Number in the link of the first message that occupies the window.
    pub through: u64,
    /// Number of bytes of message `through` that no longer occupy the window.
    pub here: u64,
    /// Bytes of all messages that the thread has taken.
    pub bytes: u64,
}

impl Taken {
    /// Returns true if a quarter of the window was freed since the grant `told`. Smaller grants
    /// would need more messages. Larger grants would let the sender run out of window.
    pub fn is_much_since(self, told: Self, window_bytes: u64) -> bool {
        self.through.saturating_sub(told.through) >= u64::from(WINDOW_MESSAGES / 4)
            || self.bytes.saturating_sub(told.bytes) >= (window_bytes / 4).max(1)
    }
}

/// Pieces that have arrived and that the link's thread has not taken.
#[derive(Default)]
pub struct Queue {
    coming: VecDeque<Coming>,
    /// Bytes of the queued bodies.
    pub bytes: u64,
    /// Number of queued pieces that begin a message. The number is limited, because each such piece
    /// may have 4 MiB of names and metadata.
    messages: u32,
}

impl Queue {
    fn push(&mut self, coming: Coming) {
        if let Coming::Piece(message, body) = &coming {
            self.bytes += body.len() as u64;
            self.messages += u32::from(message.begins());
        }
        self.coming.push_back(coming);
    }

    /// Removes and returns the oldest entry.
    pub fn pop(&mut self) -> Option<Coming> {
        let coming = self.coming.pop_front()?;
        if let Coming::Piece(message, body) = &coming {
            self.bytes -= body.len() as u64;
            self.messages -= u32::from(message.begins());
        }
        Some(coming)
    }

    pub fn is_empty(&self) -> bool {
        self.coming.is_empty()
    }

    /// Returns true if the queue has more than two windows. An honest sender queues at most the
    /// current window, and one window that it sent before the link was opened again.
    pub fn is_full(&self, window_bytes: u64) -> bool {
        // The maximum number of pieces in one window. Each piece is at least as long as the
        // smallest chunk, or is the first or last piece of its message.
        let pieces = window_bytes / CHUNK_BYTES_LEAST + 2 * u64::from(WINDOW_MESSAGES);
        self.bytes > window_bytes.saturating_mul(2)
            || self.messages > 2 * WINDOW_MESSAGES
            || self.coming.len() as u64 > 2 * pieces
    }
}

/// State that the link's thread shares with [`super::Links`]. The counters order no other memory.
#[derive(Default)]
pub struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    closed: AtomicBool,
    taken: Mutex<Taken>,
    /// The window in bytes that the sender may use. 0 means no window.
    pub window: AtomicU64,
    /// Position of the next message in the stream; `None` if it may be any message.
    wanted: Mutex<Option<StreamPosition>>,
    /// Number of pieces that have arrived.
    pub pieces: AtomicU64,
    /// Number of complete messages.
    pub received: AtomicU64,
    pub lost: AtomicU64,
    pub dropped: AtomicU64,
    /// Number of subscribers of the local stream.
    pub subscribers: AtomicU64,
    /// Whether the link's thread is working on an entry that it has taken from the queue.
    pub busy: AtomicBool,
}

impl Shared {
    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the bytes that the link may have in flight. This is its window or, without a window,
    /// the bytes in its queue.
    pub fn room(&self) -> u64 {
        let window = self.window.load(Ordering::Relaxed);
        if window > 0 { window } else { self.queue().bytes }
    }

    /// Returns the progress if it belongs to the link with this number. Otherwise returns no
    /// progress.
    pub fn taken_of(&self, link: u64) -> Taken {
        let taken = *self.taken();
        if taken.link == link { taken } else { Taken { link, ..Taken::default() } }
    }

    /// Adds an entry to the queue.
    pub fn push(&self, coming: Coming) {
        let mut queue = self.queue();
        queue.push(coming);
        self.changed.notify_all();
    }

    /// Adds [`Coming::Reopened`] or [`Coming::Ended`]. If the last entry of the queue is such an
    /// entry, the new entry replaces it. So repeated requests do not fill the queue while the
    /// link's thread waits.
    pub fn push_state(&self, coming: Coming) {
        let mut queue = self.queue();
        queue.coming.pop_back_if(|last| matches!(last, Coming::Reopened(..)));
        queue.coming.pop_back_if(|last| matches!((last, &coming), (Coming::Ended, Coming::Ended)));
        drop(queue);
        self.push(coming);
    }

    /// Ends the link's thread.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Returns true if the link's thread has ended, or must end.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until the queue has an entry, at most for `time`.
    pub fn wait(&self, queue: MutexGuard<'_, Queue>, time: Duration) {
        drop(self.changed.wait_timeout(queue, time).unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the position of the next message in the stream; `None` if it may be any message.
    pub fn wanted(&self) -> Option<StreamPosition> {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the position of the next message in the stream.
    pub fn set_wanted(&self, wanted: Option<StreamPosition>) {
        *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = wanted;
    }
}
