//! Streams of this machine that other nodes receive.
//!
//! Each link has two threads. The first takes as many messages from the local stream as the
//! [`Sender`] allows. The second sends them. So a full or broken transport delays the local stream
//! only if the receiver has chosen the stream's own policy.

pub mod sender;

use crate::context::Context;
use crate::key::Key;
use crate::transport::{Answer, Body, Frame, Transport, Trouble};
use crate::value::Outgoing;
use crate::wire::{
    AboutStream, Chunk, Codecs, Descriptor, Message, NodeName, Packing, Part, StreamAnswer, StreamQuestion, encode,
    words,
};
use sender::{Room, Sender};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::{Client, Start, Subscription};
use tensorlend_os::thread;

/// Maximum number of links. The number is limited, because each link has two threads and a stream cursor.
const LINKS_MAX: usize = 128;
/// Interval at which a thread polls whether its link was closed.
const POLL: Duration = Duration::from_millis(200);

/// A queued message: its number in the stream and its value, or the end of the stream.
enum Queued {
    Value(u64, Outgoing),
    End,
}

/// State that the threads of a link share with [`Links`].
struct Shared {
    sender: Mutex<Sender<Queued>>,
    changed: Condvar,
    closed: AtomicBool,
}

impl Shared {
    fn sender(&self) -> MutexGuard<'_, Sender<Queued>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        // A thread holds this lock from its check of `closed` until it waits. So a thread that saw
        // `closed` as false is now waiting, and receives the notification.
        let _sender = self.sender();
        // Relaxed: the flag orders no other memory access.
        self.closed.store(true, Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits until the queue or the credit changes, or the link is closed.
    fn wait<'g>(&self, sender: MutexGuard<'g, Sender<Queued>>) -> MutexGuard<'g, Sender<Queued>> {
        if self.is_closed() {
            return sender;
        }
        self.changed.wait(sender).unwrap_or_else(PoisonError::into_inner)
    }
}

/// Links to other nodes, by the receiving node and the link number that the receiving node drew.
#[derive(Default)]
pub struct Links {
    open: HashMap<(NodeName, u64), Arc<Shared>>,
    dropped: u64,
    polled: Option<Instant>,
}

impl Links {
    /// Returns the number of links, and of messages that were dropped because their receivers were slow.
    pub fn size(&self) -> (usize, u64) {
        (self.open.len(), self.dropped + self.open.values().map(|link| link.sender().dropped()).sum::<u64>())
    }

    /// Closes links that have timed out.
    pub fn on_tick(&mut self, now: Instant) {
        if self.polled.is_some_and(|polled| now.saturating_duration_since(polled) < POLL) {
            return;
        }
        self.polled = Some(now);
        let over = self.open.iter().filter(|(_, link)| link.is_closed() || link.sender().is_timed_out(now));
        let over: Vec<_> = over.map(|(key, _)| key.clone()).collect();
        for key in over {
            self.close(&key);
        }
    }

    fn close(&mut self, key: &(NodeName, u64)) {
        if let Some(link) = self.open.remove(key) {
            self.dropped += link.sender().dropped();
            link.close();
        }
    }

    /// Handles another gateway's request about a stream.
    pub fn on_question(
        &mut self,
        context: &mut Context,
        space: usize,
        name: &str,
        about: AboutStream,
        answer: Answer,
        now: Instant,
    ) {
        let AboutStream { asker, what } = about;
        if context.is_loop(&asker) {
            return;
        }
        context.statistics.answered += 1;
        let said = match what {
            StreamQuestion::Open { link, window_messages, window_bytes, drop_oldest, from } => {
                let sender = Sender::new(window_messages, window_bytes, drop_oldest, now);
                self.open_link(context, space, name, (asker.node, link), sender, from)
            }
            StreamQuestion::Grant { link, through, taken, window_bytes } => match self.open.get(&(asker.node, link)) {
                Some(link) if !link.is_closed() => {
                    let mut sender = link.sender();
                    sender.on_grant(through, taken, window_bytes, now);
                    link.changed.notify_all();
                    StreamAnswer::Granted { sent: sender.sent() }
                }
                _ => StreamAnswer::NoLink,
            },
            StreamQuestion::Close { link } => {
                self.close(&(asker.node, link));
                StreamAnswer::Closed
            }
        };
        context.reply(answer, said);
    }

    fn open_link(
        &mut self,
        context: &Context,
        space: usize,
        name: &str,
        key: (NodeName, u64),
        sender: Sender<Queued>,
        from: Option<u64>,
    ) -> StreamAnswer {
        if !context.is_exported(space, name) {
            return StreamAnswer::Nothing;
        }
        // If the link exists, the receiver has lost the response to its first request. It then gets
        // a new link with the same number.
        self.close(&key);
        if self.open.len() >= LINKS_MAX {
            return StreamAnswer::Refused(format!("{LINKS_MAX} streams are sent already"));
        }
        let client = context.client(space).clone();
        let (subscription, from) = match subscribe(&client, name, from) {
            Ok(both) => both,
            Err(error) if error.is_not_found() => return StreamAnswer::Nothing,
            Err(error) => return StreamAnswer::Refused(words(&error.to_string())),
        };
        let capacity = subscription.capacity();
        let shared =
            Arc::new(Shared { sender: Mutex::new(sender), changed: Condvar::new(), closed: AtomicBool::new(false) });
        let to = Key::Message { from: Some(context.nodes.here().clone()), to: key.0.clone(), link: Some(key.1) };
        match start_threads(context, shared.clone(), client, subscription, from, to) {
            Ok(()) => {
                self.open.insert(key, shared);
                StreamAnswer::Opened { capacity }
            }
            Err(error) => {
                shared.close();
                StreamAnswer::Refused(words(&error.to_string()))
            }
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.open.values().for_each(|link| link.close());
    }
}

/// Subscribes to a stream. Returns the subscription, and the number of the first message to send;
/// `None` means the newest. `from` is the number that the receiver wants.
fn subscribe(client: &Client, name: &str, from: Option<u64>) -> tensorlend::Result<(Subscription, Option<u64>)> {
    let open = |start| client.subscription(name).start_at(start).open();
    let Some(wanted) = from else { return Ok((open(Start::Newest)?, None)) };
    // If the stream has not reached the wanted number, the producer has opened it again. Then the
    // receiver has none of its messages.
    let is_reopened = open(Start::Next)?.position() < wanted;
    Ok((open(Start::Oldest)?, Some(if is_reopened { 0 } else { wanted })))
}

fn start_threads(
    context: &Context,
    shared: Arc<Shared>,
    client: Client,
    subscription: Subscription,
    from: Option<u64>,
    to: Key,
) -> std::io::Result<()> {
    let (here, taking) = (context.asker.node.clone(), shared.clone());
    thread::spawn("gateway-stream", move || {
        take(&taking, subscription, from, &here);
        taking.close();
        drop(client);
    })?;
    let transmitter = Transmitter {
        transport: context.transport.clone(),
        to,
        chunk_bytes: context.settings.chunk_bytes,
        checksum: context.settings.checksum,
    };
    thread::spawn("gateway-stream", move || {
        transmitter.run(&shared);
        shared.close();
    })?;
    Ok(())
}

/// Takes messages from the local stream until the link is closed.
fn take(shared: &Shared, mut subscription: Subscription, from: Option<u64>, here: &NodeName) {
    // The receiver already has the messages before this number.
    let mut from = from.unwrap_or(0);
    let mut ended = false;
    while !shared.is_closed() {
        let sender = shared.sender();
        if !sender.wants() {
            drop(shared.wait(sender));
            continue;
        }
        drop(sender);
        let queued = match subscription.recv_timeout(POLL) {
            Ok(message) => {
                ended = false;
                let sequence = message.sequence();
                if sequence < from {
                    continue;
                }
                from = 0;
                match Outgoing::new(message.into_value(), here.clone()) {
                    Ok(value) => Queued::Value(sequence, value),
                    Err(why) => {
                        tracing::debug!(stream = subscription.name(), %why, "a message cannot be sent");
                        continue;
                    }
                }
            }
            Err(tensorlend::Error::StreamEnded(_)) => {
                if std::mem::replace(&mut ended, true) {
                    std::thread::sleep(POLL);
                    continue;
                }
                from = 0;
                Queued::End
            }
            Err(error) if error.is_timeout() || matches!(error, tensorlend::Error::Damaged { .. }) => continue,
            Err(error) => {
                tracing::debug!(stream = subscription.name(), %error, "a stream cannot be followed any more");
                return;
            }
        };
        shared.sender().on_message(queued);
        shared.changed.notify_all();
    }
}

struct Transmitter {
    transport: Arc<dyn Transport>,
    to: Key,
    chunk_bytes: u32,
    checksum: bool,
}

impl Transmitter {
    fn run(&self, shared: &Shared) {
        while !shared.is_closed() {
            let mut sender = shared.sender();
            let Some((number, queued)) = sender.take() else {
                drop(shared.wait(sender));
                continue;
            };
            drop(sender);
            shared.changed.notify_all();
            let sent = match queued {
                Queued::End => self.say(Message { number, part: Part::End }, Body::default()),
                Queued::Value(sequence, value) => self.send(shared, number, sequence, &value),
            };
            if let Err(error) = sent {
                // The receiver detects the lost piece by the gap in the numbers.
                tracing::debug!(%error, "a message could not be sent");
            }
        }
    }

    fn send(&self, shared: &Shared, number: u64, sequence: u64, value: &Outgoing) -> Result<(), Trouble> {
        let mut offset = 0;
        loop {
            let Some(room) = self.room(shared, number, value.len() - offset) else { return Ok(()) };
            let (body, element) = value.range(offset, room);
            let (chunk, body) = Chunk::pack(offset, body, element, Packing::None, Codecs::default(), self.checksum);
            let end = offset + u64::from(chunk.bytes);
            let part = if offset == 0 {
                Part::First { sequence, descriptor: Descriptor::clone(value.descriptor()), chunk }
            } else {
                Part::More(chunk)
            };
            self.say(Message { number, part }, body)?;
            offset = end;
            if offset >= value.len() || shared.is_closed() {
                return Ok(());
            }
        }
    }

    /// Waits until the window has room for a piece, and returns the piece's size. Returns `None` if
    /// the receiver has abandoned the message.
    fn room(&self, shared: &Shared, number: u64, left: u64) -> Option<u64> {
        let mut sender = shared.sender();
        while !shared.is_closed() {
            let bytes = left.min(u64::from(self.chunk_bytes)).min(sender.piece_bytes_max());
            match sender.send(number, bytes) {
                Room::Now => return Some(bytes),
                Room::Later => sender = shared.wait(sender),
                Room::Never => return None,
            }
        }
        None
    }

    fn say(&self, message: Message, body: Body) -> Result<(), Trouble> {
        self.transport.send(&self.to, Frame { head: encode(&message), body })
    }
}
