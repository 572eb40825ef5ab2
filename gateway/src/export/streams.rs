//! Streams that are sent to others.
//!
//! Each link has two threads: one takes messages from the local stream, as many as its [`Outlet`] wants, the other sends them. So a
//! way that is full, or parted, holds up the stream only where the asker wanted that.

use super::names::is_exported;
use super::outlet::{Outlet, Room};
use crate::hub::{Context, Hub};
use crate::key::Key;
use crate::transport::{Body, Frame, Transport};
use crate::value::Outgoing;
use crate::wire::{
    AboutStream, Asker, Chunk, Codecs, Descriptor, Message, NodeName, Packing, Part, StreamAnswer, StreamQuestion,
    encode, words,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::{Client, Start, Subscription};
use tensorlend_os::thread;

/// Links to all others, at most: each has two threads, and a cursor of the client's.
const LINKS_MAX: usize = 128;
/// How often a thread looks whether its link goes on.
const NAP: Duration = Duration::from_millis(200);

/// What waits to be sent.
enum Waiting {
    Value(u64, Outgoing),
    End,
}

/// What a link's threads and the hub share.
struct Shared {
    outlet: Mutex<Outlet<Waiting>>,
    moved: Condvar,
    closed: AtomicBool,
}

impl Shared {
    fn outlet(&self) -> MutexGuard<'_, Outlet<Waiting>> {
        self.outlet.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self) {
        // Relaxed: it says when, and nothing is handed over with it.
        self.closed.store(true, Ordering::Relaxed);
        self.moved.notify_all();
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn nap<'g>(&self, outlet: MutexGuard<'g, Outlet<Waiting>>) -> MutexGuard<'g, Outlet<Waiting>> {
        self.moved.wait_timeout(outlet, NAP).unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Links to others, by who asked and the number that it drew.
#[derive(Default)]
pub struct Links {
    open: HashMap<(NodeName, u64), Arc<Shared>>,
    dropped: u64,
    looked: Option<Instant>,
}

impl Links {
    /// How many there are, and messages that were left out since their receivers were slow.
    pub fn size(&self) -> (usize, u64) {
        (self.open.len(), self.dropped + self.open.values().map(|link| link.outlet().dropped()).sum::<u64>())
    }

    /// Closes links of which nothing is heard.
    pub fn on_tick(&mut self, now: Instant) {
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < NAP) {
            return;
        }
        self.looked = Some(now);
        let gone = self.open.iter().filter(|(_, link)| link.is_closed() || link.outlet().is_forgotten(now));
        let gone: Vec<_> = gone.map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.close(&key);
        }
    }

    fn close(&mut self, key: &(NodeName, u64)) {
        if let Some(link) = self.open.remove(key) {
            self.dropped += link.outlet().dropped();
            link.close();
        }
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        self.open.values().for_each(|link| link.close());
    }
}

impl Hub {
    /// Another gateway asks about a stream.
    pub fn on_stream_question(
        &mut self,
        space: usize,
        name: &str,
        about: AboutStream,
        answer: Box<dyn FnOnce(Frame) + Send>,
        now: Instant,
    ) {
        let AboutStream { asker, what } = about;
        if asker.node == *self.nodes.here() {
            self.context.statistics.loops += 1;
            return self.context.drop_message(asker.node.as_str(), &"a question that came home");
        }
        self.context.statistics.answered += 1;
        let said = match what {
            StreamQuestion::Open { link, window_messages, window_bytes, drop_oldest, from } => {
                let outlet = Outlet::new(window_messages, window_bytes, drop_oldest, now);
                self.open_link(space, name, &asker, link, outlet, from)
            }
            StreamQuestion::Grant { link, through, taken, window_bytes } => {
                match self.links.open.get(&(asker.node, link)) {
                    Some(link) if !link.is_closed() => {
                        let mut outlet = link.outlet();
                        outlet.on_grant(through, taken, window_bytes, now);
                        link.moved.notify_all();
                        StreamAnswer::Granted { sent: outlet.sent() }
                    }
                    _ => StreamAnswer::NoLink,
                }
            }
            StreamQuestion::Close { link } => {
                self.links.close(&(asker.node, link));
                StreamAnswer::Closed
            }
        };
        let frame = Frame { head: encode(&said), body: Body::default() };
        self.context.senders.run(move || answer(frame));
    }

    fn open_link(
        &mut self,
        space: usize,
        name: &str,
        asker: &Asker,
        link: u64,
        outlet: Outlet<Waiting>,
        from: Option<u64>,
    ) -> StreamAnswer {
        if !is_exported(&self.context, &self.nodes, space, name) {
            return StreamAnswer::Nothing;
        }
        let key = (asker.node.clone(), link);
        // The question of an answer that was lost.
        self.links.close(&key);
        if self.links.open.len() >= LINKS_MAX {
            return StreamAnswer::Refused(format!("{LINKS_MAX} streams are sent already"));
        }
        let client = self.context.spaces[space].client.clone();
        let (subscription, from) = match subscribe(&client, name, from) {
            Ok(both) => both,
            Err(error) if error.is_not_found() => return StreamAnswer::Nothing,
            Err(error) => return StreamAnswer::Refused(words(&error.to_string())),
        };
        let capacity = subscription.capacity();
        let shared =
            Arc::new(Shared { outlet: Mutex::new(outlet), moved: Condvar::new(), closed: AtomicBool::new(false) });
        let to = Key::Message { from: Some(self.nodes.here().clone()), to: asker.node.clone(), link: Some(link) };
        match start_threads(&self.context, shared.clone(), client, subscription, from, to) {
            Ok(()) => {
                self.links.open.insert(key, shared);
                StreamAnswer::Opened { capacity }
            }
            Err(error) => {
                shared.close();
                StreamAnswer::Refused(words(&error.to_string()))
            }
        }
    }
}

/// Subscribes, and from which number on messages are wanted of this life of the stream.
fn subscribe(client: &Client, name: &str, from: Option<u64>) -> tensorlend::Result<(Subscription, Option<u64>)> {
    let open = |start| client.subscription(name).from(start).open();
    let Some(wanted) = from else { return Ok((open(Start::Newest)?, None)) };
    // One that has not come as far was opened anew meanwhile: nothing of it has been sent.
    let anew = open(Start::Next)?.position() < wanted;
    Ok((open(Start::Oldest)?, Some(if anew { 0 } else { wanted })))
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
    let sender = Sender {
        transport: context.transport.clone(),
        to,
        chunk_bytes: context.settings.chunk_bytes,
        checksum: context.settings.checksum,
    };
    thread::spawn("gateway-stream", move || {
        sender.run(&shared);
        shared.close();
    })?;
    Ok(())
}

/// Takes messages while the link goes on.
fn take(shared: &Shared, mut subscription: Subscription, from: Option<u64>, here: &NodeName) {
    // What the asker has already; unless the stream was opened anew, and counts from 0 again.
    let mut from = from.unwrap_or(0);
    let mut ended = false;
    while !shared.is_closed() {
        let outlet = shared.outlet();
        if !outlet.wants() {
            drop(shared.nap(outlet));
            continue;
        }
        drop(outlet);
        let waiting = match subscription.recv_timeout(NAP) {
            Ok(message) => {
                ended = false;
                let sequence = message.sequence();
                if sequence < from {
                    continue;
                }
                from = 0;
                match Outgoing::new(message.into_value(), here.clone()) {
                    Ok(value) => Waiting::Value(sequence, value),
                    Err(why) => {
                        tracing::debug!(stream = subscription.name(), %why, "a message cannot be sent");
                        continue;
                    }
                }
            }
            Err(tensorlend::Error::StreamEnded(_)) => {
                if std::mem::replace(&mut ended, true) {
                    std::thread::sleep(NAP);
                    continue;
                }
                from = 0;
                Waiting::End
            }
            Err(error) if error.is_timeout() || matches!(error, tensorlend::Error::Damaged { .. }) => continue,
            Err(error) => {
                tracing::debug!(stream = subscription.name(), %error, "a stream cannot be followed any more");
                return;
            }
        };
        shared.outlet().on_message(waiting);
        shared.moved.notify_all();
    }
}

struct Sender {
    transport: Arc<dyn Transport>,
    to: Key,
    chunk_bytes: u32,
    checksum: bool,
}

impl Sender {
    fn run(&self, shared: &Shared) {
        while !shared.is_closed() {
            let mut outlet = shared.outlet();
            let Some((number, waiting)) = outlet.take() else {
                drop(shared.nap(outlet));
                continue;
            };
            drop(outlet);
            shared.moved.notify_all();
            let sent = match waiting {
                Waiting::End => self.say(Message { number, part: Part::End }, Body::default()),
                Waiting::Value(sequence, value) => self.send(shared, number, sequence, &value),
            };
            if let Err(error) = sent {
                // The receiver misses it, and says so.
                tracing::debug!(%error, "a message could not be sent");
            }
        }
    }

    fn send(
        &self,
        shared: &Shared,
        number: u64,
        sequence: u64,
        value: &Outgoing,
    ) -> Result<(), crate::transport::Trouble> {
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

    /// Waits until the next piece may be sent: how many bytes it has. `None`: nobody wants it any more.
    fn room(&self, shared: &Shared, number: u64, left: u64) -> Option<u64> {
        let mut outlet = shared.outlet();
        while !shared.is_closed() {
            let bytes = left.min(u64::from(self.chunk_bytes)).min(outlet.piece_bytes_max());
            match outlet.send(number, bytes) {
                Room::Now => return Some(bytes),
                Room::Later => outlet = shared.nap(outlet),
                Room::Never => return None,
            }
        }
        None
    }

    fn say(&self, message: Message, body: Body) -> Result<(), crate::transport::Trouble> {
        self.transport.send(&self.to, Frame { head: encode(&message), body })
    }
}
