//! The services that all parts of a gateway use.

use crate::budget::Budget;
use crate::error::CannotStart;
use crate::key::{Key, Kind};
use crate::local::{self, Space};
use crate::name::{RemoteName, first_part, is_internal};
use crate::nodes::Nodes;
use crate::runtime::{Deferred, EventSender, Workers};
use crate::settings::Settings;
use crate::statistics::Statistics;
use crate::transport::{Answer, Body, Frame, LOSS_DELAY, OnAnswer, Transport, Trouble};
use crate::wire::{AboutName, Asker, Epoch, Head, NameQuestion, NodeName, encode};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteAnswer, node_name};
use tensorlend::{Call, Client};

/// A handler of one response. The first call takes the handler out and runs it. Later calls do
/// nothing.
type Handler = Arc<Mutex<Option<OnAnswer>>>;

fn take(handler: &Handler) -> Option<OnAnswer> {
    handler.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// The services that all parts of a gateway use: the transport, the daemon's clients, worker
/// threads, and counters.
pub struct Context {
    pub settings: Arc<Settings>,
    pub transport: Arc<dyn Transport>,
    /// This gateway's node and epoch, which its requests name.
    pub asker: Asker,
    /// All known nodes, and which of them can be reached.
    pub nodes: Nodes,
    /// The namespaces, in the order of the settings.
    pub spaces: Vec<Space>,
    /// The counters that the gateway publishes.
    pub statistics: Statistics,
    /// Bytes that may be in flight to this node.
    pub budget: Budget,
    /// Threads that copy received bytes into drafts.
    pub copiers: Workers,
    /// Threads that compress and send responses. They may wait for a full transport.
    pub senders: Workers,
    /// Threads that send requests to other nodes, if the thread that has made a request cannot send it.
    pub askers: Workers,
    /// Requests and small responses to send. The mailbox takes them after each event.
    deferred: RefCell<Vec<Deferred>>,
    /// A single thread, so that notifications are sent in order.
    pub notifier: Workers,
    /// A single thread, which delays reports of missing responses for [`Context::ask_settled`].
    late: Workers,
}

impl Context {
    /// Connects to the daemon and starts the worker threads.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn start(
        settings: Settings,
        transport: Arc<dyn Transport>,
        local: &EventSender<local::Event>,
    ) -> Result<Self, CannotStart> {
        let epoch = Epoch::draw()?;
        let settings = Arc::new(settings);
        let spaces: Result<Vec<Space>, CannotStart> =
            (0..settings.spaces.len()).map(|at| Space::open(&settings, at, local)).collect();
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        Ok(Self {
            transport,
            asker: Asker { node: settings.node.clone(), epoch },
            nodes: Nodes::new(settings.node.clone(), epoch),
            spaces: spaces?,
            statistics: Statistics { v: 1, node: settings.node.to_string(), ..Statistics::default() },
            budget: Budget::new(settings.windows_bytes),
            copiers: Workers::start("gateway-copy", threads.min(4))?,
            senders: Workers::start("gateway-send", threads)?,
            askers: Workers::start("gateway-ask", 2)?,
            notifier: Workers::start("gateway-say", 1)?,
            late: Workers::start("gateway-late", 1)?,
            deferred: RefCell::default(),
            settings,
        })
    }

    /// Returns the index of the namespace that has this name between gateways.
    pub fn space(&self, name: &str) -> Option<usize> {
        self.settings.spaces.iter().position(|space| space.name == name)
    }

    /// Returns the client that publishes copies in a namespace.
    pub fn client(&self, space: usize) -> &Client {
        &self.spaces[space].client
    }

    /// Returns the key of requests about a name, list or stream of another node.
    pub fn key(&self, kind: Kind, name: &RemoteName) -> Key {
        let space = self.settings.spaces[name.space].name.clone();
        Key::About { node: name.node.clone(), kind, space, name: Some(name.name.clone()) }
    }

    /// Parses the name of a request of a client of this machine.
    ///
    /// # Errors
    /// A text for the client if the name is not a remote name, or its node is this node.
    pub fn remote_name(&self, space: usize, name: &str) -> Result<RemoteName, String> {
        let name = RemoteName::parse(space, name)?;
        if name.node == *self.nodes.here() {
            return Err(format!("{} is this machine: leave its name out", name.node));
        }
        Ok(name)
    }

    /// Parses the name of a request that copies something to this machine.
    ///
    /// # Errors
    /// A text for the client, as in [`Context::remote_name`], or if the configuration does not
    /// import the name.
    pub fn imported_name(&self, space: usize, name: &str) -> Result<RemoteName, String> {
        let remote = self.remote_name(space, name)?;
        if !self.spaces[space].settings.import.is_match(name) {
            return Err(format!("this machine's gateway does not import {name:?}"));
        }
        Ok(remote)
    }

    /// Returns true if nodes may read this machine's value of the name. Copies, names that look like copies, and
    /// internal names are not exported.
    pub fn is_exported(&self, space: usize, name: &str) -> bool {
        // A client of this machine treats every name below a node's document as a copy, even if
        // another client published the document. If this gateway exported such a name, it would
        // send requests to itself.
        let client = self.client(space);
        let is_below_a_node =
            || client.version(&node_name(first_part(name))).is_ok_and(|known| known.is_some()) || self.is_of_node(name);
        !(is_internal(name) || name.contains('/') && is_below_a_node())
            && self.spaces[space].settings.export.is_match(name)
    }

    /// Returns true if the first part of a name is the name of a node.
    pub fn is_of_node(&self, name: &str) -> bool {
        NodeName::new(first_part(name)).is_ok_and(|node| node == *self.nodes.here() || self.nodes.get(&node).is_some())
    }

    /// Counts and logs a dropped message.
    pub fn drop_message(&mut self, from: &str, why: &dyn std::fmt::Display) {
        self.statistics.dropped += 1;
        tracing::debug!(from, %why, "a message was dropped");
    }

    /// Returns true if this gateway sent the request itself. Counts and logs such a request as dropped.
    pub fn is_loop(&mut self, asker: &Asker) -> bool {
        let is_loop = asker.node == *self.nodes.here();
        if is_loop {
            self.statistics.loops += 1;
            self.drop_message(asker.node.as_str(), &"a question that came home");
        }
        is_loop
    }

    /// Sends a request to another node. `done` gets the response, on a thread of the transport. If
    /// the queue of requests is full, `done` gets an error. `done` may only post an event for later.
    pub fn ask(
        &self,
        key: Key,
        frame: Frame,
        timeout: Duration,
        done: impl FnOnce(Result<Frame, Trouble>) + Send + 'static,
    ) {
        let transport = self.transport.clone();
        let ask = Ask { transport, key, frame, timeout, done: Some(Box::new(done)) };
        self.deferred.borrow_mut().push(self.askers.defer(move || ask.send()));
    }

    /// Sends a request as [`Context::ask`] does, but passes [`Trouble::Nobody`] to `done` only
    /// after [`LOSS_DELAY`]. Zenoh fails the requests in flight to a lost node before it reports the
    /// loss of the node. So a `done` that calls [`Nodes::absence`] needs this delay.
    pub fn ask_settled(
        &self,
        key: Key,
        frame: Frame,
        timeout: Duration,
        done: impl FnOnce(Result<Frame, Trouble>) + Send + 'static,
    ) {
        let late = self.late.clone();
        self.ask(key, frame, timeout, move |response| {
            let Err(Trouble::Nobody) = response else { return done(response) };
            let due = Instant::now() + LOSS_DELAY;
            let done: Handler = Arc::new(Mutex::new(Some(Box::new(done))));
            let settled = done.clone();
            // One thread can sleep for all reports in turn. All delays are equal, so the reports
            // are due in the order of the queue.
            let is_queued = late.run(move || {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if let Some(done) = take(&settled) {
                    done(response);
                }
            });
            if !is_queued && let Some(done) = take(&done) {
                done(Err(Trouble::Engine("too many requests without a response".into())));
            }
        });
    }

    /// Sends a request about a name of another node, or about an item of its list. `body` contains
    /// bytes only if the request offers a value.
    pub fn ask_about(
        &self,
        key: Key,
        what: NameQuestion,
        body: Body,
        timeout: Duration,
        done: impl FnOnce(Result<Frame, Trouble>) + Send + 'static,
    ) {
        let about = AboutName { asker: self.asker.clone(), what };
        self.ask(key, Frame { head: encode(&about), body }, timeout, done);
    }

    /// Sends a response to another node.
    pub fn reply(&self, answer: Answer, head: impl Head + Send + 'static) {
        self.defer(move || answer(Frame { head: encode(&head), body: Body::default() }));
    }

    /// Runs a job that sends a small response, once the state is free: the transport may be full.
    pub fn defer(&self, job: impl FnOnce() + Send + 'static) {
        self.deferred.borrow_mut().push(self.senders.defer(job));
    }

    /// Takes the jobs that were deferred.
    pub fn take_deferred(&mut self) -> Vec<Deferred> {
        std::mem::take(self.deferred.get_mut())
    }

    /// Sends a notification after all earlier ones. No response follows.
    pub fn notify(&self, key: Key, head: &impl Head) {
        let (transport, frame) = (self.transport.clone(), Frame { head: encode(head), body: Body::default() });
        self.notifier.run(move || {
            if let Err(error) = transport.send(&key, frame) {
                tracing::debug!(%error, "a notification could not be sent");
            }
        });
    }

    /// Responds to a client of this machine.
    pub fn answer(&self, space: usize, call: Call, answer: &RemoteAnswer) {
        local::answer(self.client(space), call, answer);
    }

    /// Refuses a request of a client of this machine.
    pub fn refuse(&self, space: usize, call: Call, why: String) {
        self.answer(space, call, &RemoteAnswer::Refused { why });
    }
}

/// A request that has not been sent yet. Dropping it reports an error to its handler.
struct Ask {
    transport: Arc<dyn Transport>,
    key: Key,
    frame: Frame,
    timeout: Duration,
    done: Option<OnAnswer>,
}

impl Ask {
    fn send(mut self) {
        if let Some(done) = self.done.take() {
            self.transport.ask(&self.key, std::mem::take(&mut self.frame), self.timeout, done);
        }
    }
}

impl Drop for Ask {
    fn drop(&mut self) {
        if let Some(done) = self.done.take() {
            done(Err(Trouble::Engine("too many requests".into())));
        }
    }
}
