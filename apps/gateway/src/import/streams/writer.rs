//! The thread of a link. It writes pieces into drafts, and sends complete messages to the local
//! stream.

use super::queue::{Coming, Shared, Taken};
use super::receiver::{Receiver, Step};
use super::{POLL, RENEW};
use crate::value::Incoming;
use crate::wire::{Body, Chunk, Message};
use std::sync::atomic::Ordering;
use std::time::Instant;
use tensorlend::remote::StreamPosition;
use tensorlend::{Client, Policy, Stream};

/// Returns the number of subscribers of a local stream, even if the stream has ended.
pub fn subscribers(client: &Client, name: &str) -> u64 {
    let found = client.streams(&globset::escape(name));
    found.ok().and_then(|found| found.first().map(|one| one.count)).unwrap_or(0)
}

/// The state of a link's thread.
pub struct Writer {
    client: Client,
    name: String,
    capacity: u32,
    policy: Policy,
    /// The local stream; `None` after the stream of the other node has ended.
    stream: Option<Stream>,
    /// The message that arrives, and its position in the stream of the other node.
    incoming: Option<(StreamPosition, Incoming)>,
    /// Time at which the thread last requested the number of subscribers of an ended stream from
    /// the daemon.
    counted: Option<Instant>,
}

impl Writer {
    /// Makes a writer to `stream`, the open local stream of this name.
    pub fn new(client: Client, name: String, stream: Stream, capacity: u32, policy: Policy) -> Self {
        Self { client, name, capacity, policy, stream: Some(stream), incoming: None, counted: None }
    }

    /// Writes arriving pieces until the link is closed. Calls `on_progress` whenever a quarter of the window has become
    /// free.
    pub fn run(mut self, shared: &Shared, mut receiver: Receiver, on_progress: &dyn Fn()) {
        let (mut link, mut told, mut bytes) = (0, Taken::default(), 0);
        while !shared.is_closed() {
            self.count(shared);
            let mut queue = shared.queue();
            let Some(coming) = queue.pop() else {
                shared.busy.store(false, Ordering::Relaxed);
                shared.wait(queue, POLL);
                continue;
            };
            shared.busy.store(true, Ordering::Relaxed);
            drop(queue);
            if let Coming::Piece(_, body) = &coming {
                bytes += body.len() as u64;
            }
            match coming {
                Coming::Piece(message, body) => self.on_piece(shared, &mut receiver, message, &body),
                Coming::Reopened(number) => {
                    (self.incoming, link, told, bytes) = (None, number, Taken::default(), 0);
                    receiver.on_reopened();
                }
                Coming::Silence(sent) => {
                    self.incoming = None;
                    receiver.on_silence(sent);
                }
                // The other node has the stream no more, and cannot know how many messages are missing.
                Coming::Ended => {
                    receiver.give_up();
                    self.end(0);
                }
            }
            let (received, lost) = receiver.counts();
            shared.received.store(received, Ordering::Relaxed);
            shared.lost.store(lost, Ordering::Relaxed);
            shared.set_wanted(Some(receiver.wanted()));
            let taken = Taken { link, through: receiver.next(), here: receiver.here(), bytes };
            *shared.taken() = taken;
            if taken.is_much_since(told, shared.window.load(Ordering::Relaxed)) {
                told = taken;
                on_progress();
            }
        }
        (self.incoming, self.counted) = (None, None);
        self.count(shared);
        if shared.subscribers.load(Ordering::Relaxed) == 0 {
            drop(self.stream.take());
            let _ = self.client.delete_stream(&self.name);
        } else if let Some(stream) = self.stream.take() {
            // The stream of the other node has not ended. This one stays in the directory, where the next run of this
            // gateway finds it and opens its link again.
            stream.leave();
        }
    }

    /// Ends the local stream. `lost` messages before the end have not arrived.
    fn end(&mut self, lost: u64) {
        self.incoming = None;
        if let Some(stream) = self.stream.take() {
            stream.end(lost);
        }
    }

    fn count(&mut self, shared: &Shared) {
        let count = match &self.stream {
            Some(stream) => stream.subscribers() as u64,
            None if self.counted.is_some_and(|looked| looked.elapsed() < RENEW) => return,
            None => {
                self.counted = Some(Instant::now());
                subscribers(&self.client, &self.name)
            }
        };
        shared.subscribers.store(count, Ordering::Relaxed);
    }

    fn on_piece(&mut self, shared: &Shared, receiver: &mut Receiver, message: Message, body: &Body) {
        let done = match receiver.on_piece(message) {
            Ok(Step::Begin(at, descriptor, chunk)) => match Incoming::new(&self.client, descriptor) {
                Ok(incoming) => {
                    self.incoming = Some((at, incoming));
                    self.write(&chunk, body)
                }
                Err(error) => Err(error.to_string()),
            },
            Ok(Step::Write(chunk)) => self.write(&chunk, body),
            Ok(Step::Skip) => Ok(()),
            Ok(Step::End(lost)) => {
                self.end(lost);
                Ok(())
            }
            Err(why) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(stream = self.name, %why, "a piece was dropped");
                return;
            }
        };
        let sent = done.and_then(|()| match self.incoming.take_if(|_| receiver.is_whole()) {
            Some((at, incoming)) => self.publish(shared, at, incoming).map_err(|error| error.to_string()),
            None => Ok(()),
        });
        match sent {
            Ok(()) => {
                receiver.take();
            }
            // One message is lost. The link stays, because later messages may have memory and valid metadata.
            Err(why) => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::debug!(stream = self.name, why, "a message was given up");
                self.incoming = None;
                receiver.give_up();
            }
        }
    }

    fn write(&mut self, chunk: &Chunk, body: &Body) -> Result<(), String> {
        let (_, incoming) = self.incoming.as_mut().ok_or_else(|| "no message was begun".to_owned())?;
        incoming.receive(chunk, body).map_err(|why| why.to_string())
    }

    fn publish(&mut self, shared: &Shared, at: StreamPosition, incoming: Incoming) -> tensorlend::Result<()> {
        let mut draft = incoming.finish(&self.client)?;
        let stream = match self.stream.take() {
            Some(stream) => stream,
            None => self.client.stream(&self.name).capacity(self.capacity).policy(self.policy).open()?,
        };
        let sent = loop {
            match stream.try_send_from(draft, at) {
                Ok(_) => break Ok(()),
                Err(tensorlend::TrySendError::Full(back)) => {
                    draft = back;
                    shared.subscribers.store(stream.subscribers() as u64, Ordering::Relaxed);
                    if shared.is_closed() {
                        break Ok(());
                    }
                    match stream.wait_room(POLL) {
                        Err(error) if !error.is_timeout() => break Err(error),
                        _ => {}
                    }
                }
                Err(tensorlend::TrySendError::Failed(error)) => break Err(error),
            }
        };
        // A client has deleted the local stream. The next message opens it again.
        if !matches!(sent, Err(tensorlend::Error::StreamEnded(_))) {
            self.stream = Some(stream);
        }
        sent
    }
}
