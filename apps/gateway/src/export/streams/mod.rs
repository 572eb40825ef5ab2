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
    AboutStream, Chunk, Codecs, Descriptor, Epoch, Message, NodeName, Packing, Part, StreamAnswer, StreamQuestion,
    encode, words,
};
use sender::{Room, Sender};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::remote::StreamPosition;
use tensorlend::{Client, Start, Subscription};
use tensorlend_os::thread;

/// Maximum number of links. The number is limited, because each link has two threads and a stream cursor.
const LINKS_MAX: usize = 128;
/// Interval at which a thread polls whether its link was closed.
const POLL: Duration = Duration::from_millis(200);

/// A queued message: its position in the stream and its value, or the end of the stream.
enum Queued {
    Value(StreamPosition, Outgoing),
    End(StreamPosition),
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

/// A link, with the gateway and the stream that it belongs to.
struct Link {
    epoch: Epoch,
    space: usize,
    name: String,
    shared: Arc<Shared>,
}

/// Links to other nodes, by the receiving node and the link number that the receiving node drew.
#[derive(Default)]
pub struct Links {
    open: HashMap<(NodeName, u64), Link>,
    dropped: u64,
    polled: Option<Instant>,
}

impl Links {
    /// Returns the number of links, and of messages that were dropped because their receivers were slow.
    pub fn size(&self) -> (usize, u64) {
        (self.open.len(), self.dropped + self.open.values().map(|link| link.shared.sender().dropped()).sum::<u64>())
    }

    /// Closes links that have timed out.
    pub fn on_tick(&mut self, now: Instant) {
        if self.polled.is_some_and(|polled| now.saturating_duration_since(polled) < POLL) {
            return;
        }
        self.polled = Some(now);
        self.close_all(|_, Link { shared, .. }| shared.is_closed() || shared.sender().is_timed_out(now));
    }

    /// Handles a node that has become reachable. An earlier gateway of the node has ended, and its links with it.
    pub fn on_node_up(&mut self, node: &NodeName, epoch: Epoch) {
        self.close_all(|(whose, _), link| whose == node && link.epoch != epoch);
    }

    fn close_all(&mut self, is_over: impl Fn(&(NodeName, u64), &Link) -> bool) {
        let over: Vec<_> =
            self.open.iter().filter(|(key, link)| is_over(key, link)).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.close(&key);
        }
    }

    fn close(&mut self, key: &(NodeName, u64)) {
        if let Some(Link { shared, .. }) = self.open.remove(key) {
            self.dropped += shared.sender().dropped();
            shared.close();
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
                self.open_link(context, (space, name), asker.epoch, (asker.node, link), sender, from)
            }
            StreamQuestion::Grant { link, through, taken, window_bytes } => match self.open.get(&(asker.node, link)) {
                Some(Link { shared, .. }) if !shared.is_closed() => {
                    let mut sender = shared.sender();
                    sender.on_grant(through, taken, window_bytes, now);
                    shared.changed.notify_all();
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
        (space, name): (usize, &str),
        epoch: Epoch,
        key: (NodeName, u64),
        sender: Sender<Queued>,
        from: Option<StreamPosition>,
    ) -> StreamAnswer {
        if !context.is_exported(space, name) {
            return StreamAnswer::Nothing;
        }
        // A node has one link for each stream. If the node opens another one, it has given up the former link, which must
        // not hold up the stream until it times out. If the link itself exists, the node has lost the response.
        self.close_all(|(node, _), link| *node == key.0 && (link.space, link.name.as_str()) == (space, name));
        if self.open.len() >= LINKS_MAX {
            return StreamAnswer::Refused(format!("{LINKS_MAX} streams are sent already"));
        }
        let client = context.client(space).clone();
        let (subscription, position) = match subscribe(&client, name, from) {
            Ok(both) => both,
            Err(error) if error.is_not_found() => return StreamAnswer::Nothing,
            Err(error) => return StreamAnswer::Refused(words(&error.to_string())),
        };
        let capacity = subscription.capacity();
        let shared =
            Arc::new(Shared { sender: Mutex::new(sender), changed: Condvar::new(), closed: AtomicBool::new(false) });
        let to = Key::Message { from: Some(context.nodes.here().clone()), to: key.0.clone(), link: Some(key.1) };
        match start_threads(context, shared.clone(), client, subscription, position, to) {
            Ok(()) => {
                self.open.insert(key, Link { epoch, space, name: name.to_owned(), shared });
                StreamAnswer::Opened { capacity, position }
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
        self.open.values().for_each(|link| link.shared.close());
    }
}

/// Subscribes to a stream. Returns the subscription, and the position of the first message to send. `from` is the position
/// that the receiver wants; `None` means the newest message.
fn subscribe(
    client: &Client,
    name: &str,
    from: Option<StreamPosition>,
) -> tensorlend::Result<(Subscription, StreamPosition)> {
    let start = if from.is_some() { Start::Oldest } else { Start::Newest };
    let subscription = client.subscription(name).start_at(start).open()?;
    let stream = subscription.identity();
    let number = match from {
        None => subscription.position(),
        Some(from) if from.stream == stream => from.number,
        // The producer has opened the stream again, so the receiver has none of its messages.
        Some(_) => 0,
    };
    Ok((subscription, StreamPosition { stream, number }))
}

fn start_threads(
    context: &Context,
    shared: Arc<Shared>,
    client: Client,
    subscription: Subscription,
    position: StreamPosition,
    to: Key,
) -> std::io::Result<()> {
    let (here, taking) = (context.asker.node.clone(), shared.clone());
    thread::spawn("gateway-stream", move || {
        take(&taking, subscription, position, &here);
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
fn take(shared: &Shared, mut subscription: Subscription, mut position: StreamPosition, here: &NodeName) {
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
                let at = StreamPosition { stream: subscription.identity(), number: message.sequence() };
                // The receiver already has the messages before its position.
                if at.stream == position.stream && at.number < position.number {
                    continue;
                }
                position = StreamPosition { number: at.number + 1, ..at };
                match Outgoing::new(message.into_value(), here.clone()) {
                    Ok(value) => Queued::Value(at, value),
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
                Queued::End(position)
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
                Queued::End(at) => self.say(Message { number, part: Part::End(at) }, Body::default()),
                Queued::Value(at, value) => self.send(shared, number, at, &value),
            };
            if let Err(error) = sent {
                // The receiver detects the lost piece by the gap in the numbers.
                tracing::debug!(%error, "a message could not be sent");
            }
        }
    }

    fn send(&self, shared: &Shared, number: u64, at: StreamPosition, value: &Outgoing) -> Result<(), Trouble> {
        let mut offset = 0;
        loop {
            let Some(room) = self.room(shared, number, value.len() - offset) else { return Ok(()) };
            let (body, element) = value.range(offset, room);
            let (chunk, body) = Chunk::pack(offset, body, element, Packing::None, Codecs::default(), self.checksum);
            let end = offset + u64::from(chunk.bytes);
            let part = if offset == 0 {
                Part::First { at, descriptor: Descriptor::clone(value.descriptor()), chunk }
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
