//! The server end of a service: receives requests and sends replies.

use super::answers::{Answers, Said};
use super::load::Load;
use super::polled::new_epoll;
use super::service::{Id, Service, words};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::dataset::Dataset;
use crate::lease::items::item;
use crate::lease::lease::Lease;
use crate::lease::value::Value;
use crate::names::lifetime::Lifetime;
use crate::stream::message::{Message, Start};
use crate::stream::subscriber::Subscription;
use crate::tensor::value_draft::ValueDraft;
use crate::wait::{Deadline, Spin, Timeout};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tensorlend_layout::wire::Policy;
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// Maximum number of connected callers. The kernel lets a thread sleep on at most 128 words, and one is the
/// directory's bell.
const CALLERS_MAX: usize = 120;
/// Maximum number of connect requests that a server handles before the next request. Each of them holds a lease.
const CONNECTS_AT_ONCE: u64 = 64;
/// Number of connect requests after which the server clears the list.
const CONNECTS_MAX: u64 = 256;
/// Maximum number of outstanding requests of one caller.
const CAPACITY_MAX: u32 = 1024;

/// Options of a server. See [`Client::serve`].
///
/// There are no options so far: [`ServerBuilder::open`] opens the server.
#[derive(Debug)]
pub struct ServerBuilder {
    client: Client,
    service: String,
    pollable: bool,
}

impl ServerBuilder {
    /// Gives the server a descriptor, for an event loop.
    #[doc(hidden)]
    pub fn pollable(mut self) -> Self {
        self.pollable = true;
        self
    }

    /// Opens the server. Callers find it from now on, in addition to other servers of the same service. Blocks for some
    /// round trips to the daemon.
    ///
    /// # Errors
    /// [`Error::Name`] for an invalid name, or a service's name of more than 207 bytes; [`Error::Refused`] if
    /// this client has no right to write, or if a limit of the daemon, the namespace or the user is reached.
    pub fn open(self) -> Result<Server> {
        let service = Service::new(&self.service)?;
        sweep(&self.client, &service)?;
        let id = Id::random()?;
        let load = Arc::new(Load::new(&self.client));
        self.client.put_for(&service.presence(id), &load.presence(), Lifetime::EPHEMERAL)?;
        Ok(Server {
            connect_list: service.connect_list(id),
            client: self.client,
            service,
            id,
            connect_list_id: 0,
            connects: 0,
            channels: VecDeque::new(),
            load,
            queued: 0,
            spin: Spin::new(),
            epoll: self.pollable.then(new_epoll).transpose()?,
        })
    }
}

/// One channel on the server's side.
pub struct Channel {
    id: Id,
    pub(super) requests: Subscription,
    answers: Arc<Answers>,
}

/// A server of a service. It receives requests from all callers in turn, and responds in any order and from any
/// thread.
///
/// Several servers of one service share its callers. Each caller starts with a server of least load, and stays with
/// this server unless it is busy and another is not. Dropping the server disconnects its callers, which move to
/// another server, if there is one. A server receives on one thread, but other threads may respond to its [`Call`]s.
///
/// [`Client::serve`] has an example.
pub struct Server {
    pub(super) client: Client,
    service: Service,
    id: Id,
    pub(super) connect_list: String,
    /// The id of the connect list at the server's last read. The id changes when a server clears the list, and after
    /// all callers in the list have ended.
    pub(super) connect_list_id: u64,
    /// The number of connect requests that the server has read from that list.
    pub(super) connects: u64,
    /// The channels. The server polls the first one next.
    pub(super) channels: VecDeque<Channel>,
    load: Arc<Load>,
    /// The number of waiting requests in the load that was last stored.
    queued: u64,
    spin: Spin,
    /// An epoll instance that watches the channels' descriptors.
    pub(super) epoll: Option<OwnedFd>,
}

impl Client {
    /// Serves requests that other clients [send](Client::caller). Requests and replies are tensors or datasets. Each
    /// side writes them in place, and the other side reads them without a copy.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let other = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut server = client.serve("double").open()?;
    /// let thread = std::thread::spawn(move || -> tensorlend::Result<()> {
    ///     let call = server.recv()?;
    ///     let mut doubled = client.create(DType::F32, call.tensor()?.shape())?;
    ///     for (to, from) in doubled.as_mut_slice::<f32>()?.iter_mut().zip(call.tensor()?.as_slice::<f32>()?) {
    ///         *to = 2.0 * from;
    ///     }
    ///     call.respond(doubled)
    /// });
    ///
    /// let mut caller = other.caller("double").open()?; // in another process, usually
    /// let mut numbers = other.create(DType::F32, [3])?;
    /// numbers.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// let answer = caller.call(numbers, None)?;
    /// assert_eq!(answer.tensor()?.as_slice::<f32>()?, [2.0, 4.0, 6.0]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(&self, service: &str) -> ServerBuilder {
        ServerBuilder { client: self.clone(), service: service.to_owned(), pollable: false }
    }
}

impl Server {
    /// Receives the next request. Blocks until a request arrives.
    ///
    /// # Errors
    /// [`Error::Leases`] if the client holds 4096 leases already; the request is still there after the program has
    /// dropped some. [`Error::SessionEnded`].
    pub fn recv(&mut self) -> Result<Call> {
        self.recv_until(Deadline::new(None))
    }

    /// Receives the next request. Blocks for at most `timeout`.
    ///
    /// # Errors
    /// [`Error::Timeout`] if no request arrived in time; otherwise the errors of [`Server::recv`].
    pub fn recv_timeout(&mut self, timeout: impl Into<Timeout>) -> Result<Call> {
        self.recv_until(Deadline::new(timeout))
    }

    /// Receives the next request if there is one, without waiting. So a server can gather several requests.
    ///
    /// # Errors
    /// The errors of [`Server::recv`].
    pub fn try_recv(&mut self) -> Result<Option<Call>> {
        self.check()?;
        self.poll()
    }

    pub(super) fn check(&self) -> Result<()> {
        let session = self.client.session();
        session.check()?;
        // The session has ended: no caller can connect any more, and the existing channels are dead.
        if session.control.is_dead() { Err(session.control.ended("serve", Error::SessionEnded)) } else { Ok(()) }
    }

    /// Returns the service's name.
    pub fn service(&self) -> &str {
        &self.service.name
    }

    /// Returns the number of callers that are connected now.
    ///
    /// The number is at most 120. Further callers wait until a connected caller ends.
    pub fn callers(&self) -> usize {
        self.channels.len()
    }

    fn recv_until(&mut self, deadline: Deadline) -> Result<Call> {
        self.check()?;
        let session = self.client.session().clone();
        session.waiter().enlist(deadline)?;
        let spin = std::mem::replace(&mut self.spin, Spin::new());
        let found = spin.poll(|| self.poll());
        self.spin = spin;
        if let Some(call) = found? {
            return Ok(call);
        }
        let news = &session.directory.head().bell;
        loop {
            self.check()?;
            // Sample all bells before the deciding check.
            let sample = news.read();
            let parked = session.waiter().park(PARKED_ANY);
            let samples: Vec<u32> = self.channels.iter().map(|channel| channel.requests.park()).collect();
            let known: Vec<Id> = self.channels.iter().map(|channel| channel.id).collect();
            let found = self.poll();
            if let Ok(None) = found {
                let Some(nap) = deadline.nap() else {
                    self.unpark();
                    return Err(
                        deadline.error(format!("a request to {:?}: no client has called it", self.service.name))
                    );
                };
                // If this check added or removed channels, repeat the check with their bells.
                let is_all = self.unheard().is_none();
                if is_all && self.channels.iter().map(|channel| channel.id).eq(known) {
                    let channels =
                        self.channels.iter().zip(samples).map(|(channel, sample)| (channel.requests.bell(), sample));
                    let bells: Vec<_> = std::iter::once((news, sample)).chain(channels).collect();
                    futex::wait_any(&bells, nap);
                }
            }
            drop(parked);
            self.unpark();
            if let Some(call) = found? {
                return Ok(call);
            }
            session.control.check_daemon("wait for a request")?;
        }
    }

    fn unpark(&self) {
        for channel in &self.channels {
            channel.requests.unpark();
        }
    }

    /// Handles connect requests, and polls every channel, starting with the channel whose turn it is.
    pub(super) fn poll(&mut self) -> Result<Option<Call>> {
        self.admit()?;
        for _ in 0..self.channels.len() {
            let Some(mut channel) = self.channels.pop_front() else { break };
            let number = channel.requests.position();
            match channel.requests.poll() {
                Ok(Some(message)) => {
                    let answers = channel.answers.clone();
                    self.channels.push_back(channel);
                    self.queued = self.channels.iter().map(|channel| channel.requests.waiting()).sum();
                    self.load.taken(self.queued);
                    let reply = Reply::new(&message, answers, self.load.clone(), self.client.clone());
                    return Ok(Some(Call { message, reply }));
                }
                Ok(None) => self.channels.push_back(channel),
                // The request is unreadable. Its caller waits for a response, so this server responds with the error.
                Err(error @ Error::Damaged { .. }) => {
                    let _ = channel.answers.say(number, Said::Failure(words(&error)));
                    self.channels.push_back(channel);
                }
                // The caller has closed the channel, or has ended.
                Err(Error::StreamEnded(_)) => self.hang_up(channel),
                Err(error) => {
                    self.channels.push_back(channel);
                    return Err(error);
                }
            }
        }
        if std::mem::take(&mut self.queued) > 0 {
            self.load.queued(0);
        }
        Ok(None)
    }

    /// Returns the connect list's id and the numbers of its unread requests, if there are any. Makes no round trip or system
    /// call.
    pub(super) fn unheard(&self) -> Option<(u64, std::ops::Range<u64>)> {
        let (id, end) = self.client.list_identity(&self.connect_list)?;
        let heard = if id == self.connect_list_id { self.connects } else { 0 };
        (heard < end).then_some((id, heard..end))
    }

    /// Accepts the callers that asked to connect.
    fn admit(&mut self) -> Result<()> {
        let Some((id, numbers)) = self.unheard() else { return Ok(()) };
        let until = numbers.end.min(numbers.start + CONNECTS_AT_ONCE);
        let mut connects = Vec::new();
        for number in numbers.start..until {
            match item(self.client.session(), &self.connect_list, id, number) {
                Ok(Some(request)) => connects.push(request),
                // The request ended with its caller, or the list was cleared. A live caller repeats its request.
                Ok(None) | Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        (self.connect_list_id, self.connects) = (id, until);
        for request in connects {
            let Some(channel) = read_connect(&request) else { continue };
            if self.channels.len() < CALLERS_MAX && self.channels.iter().all(|known| known.id != channel) {
                match self.begin(channel) {
                    Ok(channel) => self.channels.push_back(channel),
                    // The caller has ended, or there is no memory. The server drops the caller's request.
                    Err(error) if error.is_disconnected() => return Err(error),
                    Err(_) => {}
                }
            }
        }
        if self.connects >= CONNECTS_MAX {
            self.client.clear(&self.connect_list)?;
            self.connects = 0;
        }
        Ok(())
    }

    fn begin(&self, id: Id) -> Result<Channel> {
        let requests = self.client.subscription(&self.service.requests(self.id, id)).start_at(Start::Oldest);
        let requests = self.open(requests)?;
        let capacity = requests.capacity();
        if capacity > CAPACITY_MAX {
            let why = format!("the caller's channel is for {capacity} requests: give its builder 1 to {CAPACITY_MAX}");
            return Err(Error::Argument(why));
        }
        // Open the reply stream last: a caller that finds this stream knows that the server polls the caller's
        // requests.
        let answers = self.client.stream(&self.service.answers(self.id, id)).capacity(capacity).policy(Policy::Error);
        Ok(Channel { id, requests, answers: Arc::new(Answers::new(self.client.clone(), answers.open()?)) })
    }

    fn hang_up(&self, channel: Channel) {
        channel.answers.close();
        drop(channel.requests);
        let _ = self.client.delete_stream(&self.service.requests(self.id, channel.id));
        let _ = self.client.delete_stream(&self.service.answers(self.id, channel.id));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.client.session().is_forked() {
            return;
        }
        // Delete the server's name first, so that no further caller connects.
        let _ = self.client.delete(&self.service.presence(self.id));
        while let Some(channel) = self.channels.pop_front() {
            // The caller deletes the rest of the channel, after it has received the replies.
            channel.answers.close();
        }
        let _ = self.client.clear(&self.connect_list);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("service", &self.service.name)
            .field("callers", &self.channels.len())
            .finish_non_exhaustive()
    }
}

/// Reads a connect request: the number of a channel.
fn read_connect(request: &Value) -> Option<Id> {
    let number = request.as_tensor()?.as_slice::<u64>().ok()?;
    let [number] = number else { return None };
    Some(Id(*number))
}

/// Deletes the connect lists and channels of servers that have ended.
fn sweep(client: &Client, service: &Service) -> Result<()> {
    let present = client.list(&service.pattern("/.server/"))?;
    let present: Vec<Id> = present.iter().filter_map(|info| Some(service.parse(&info.name, "/.server/")?.0)).collect();
    for list in client.lists(&service.pattern("/.door/"))? {
        if service.parse(&list.name, "/.door/").is_some_and(|(server, _)| !present.contains(&server)) {
            client.clear(&list.name)?;
        }
    }
    for stream in client.streams(&service.pattern("/.line/"))? {
        if service.parse(&stream.name, "/.line/").is_some_and(|(server, _)| !present.contains(&server)) {
            client.delete_stream(&stream.name)?;
        }
    }
    Ok(())
}

/// A request that the server has received: a lease on a tensor or a dataset, with the right to respond. If the
/// program drops it without a reply, the caller receives an error.
pub struct Call {
    message: Message,
    reply: Reply,
}

impl Call {
    /// Returns the request's value.
    pub fn value(&self) -> &Value {
        self.message.value()
    }

    /// Returns the request's tensor.
    ///
    /// The lease lasts as long as this value. Until then, the caller's memory stays in use.
    ///
    /// # Errors
    /// [`Error::Kind`] if the request is a dataset.
    pub fn tensor(&self) -> Result<&Lease> {
        self.message.tensor()
    }

    /// Returns the request's dataset.
    ///
    /// # Errors
    /// [`Error::Kind`] if the request is a tensor.
    pub fn dataset(&self) -> Result<&Dataset> {
        self.message.dataset()
    }

    /// Splits the request into its value and the right to respond, for a program that needs one of them longer.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// let (image, reply) = server.recv()?.split();
    /// let mut size = client.create(tensorlend::DType::U64, [1])?;
    /// size.as_mut_slice::<u64>()?.fill(image.tensor()?.nbytes() as u64);
    /// drop(image); // its memory is the caller's again
    /// reply.respond(size)
    /// # }});
    /// # let mut caller = client.caller("size").open()?;
    /// # let answer = caller.call(client.create(tensorlend::DType::U8, [7])?, None)?;
    /// # assert_eq!(answer.tensor()?.as_slice::<u64>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(self) -> (Value, Reply) {
        (self.message.into_value(), self.reply)
    }

    /// Announces that the reply will follow within about ten microseconds, so that a sleeping caller wakes up in the
    /// meantime. This saves time after long work, when the server only has to write the reply. If the reply is late
    /// nevertheless, the caller wakes up once more.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// let call = server.recv()?;
    /// // ... long work ...
    /// # std::thread::sleep(std::time::Duration::from_millis(50));
    /// call.soon();
    /// # std::thread::sleep(std::time::Duration::from_millis(50));
    /// let mut size = client.create(tensorlend::DType::U64, [1])?;
    /// size.as_mut_slice::<u64>()?.fill(call.tensor()?.nbytes() as u64);
    /// call.respond(size)
    /// # }});
    /// # let mut caller = client.caller("size").open()?;
    /// # let answer = caller.call(client.create(tensorlend::DType::U8, [7])?, None)?;
    /// # assert_eq!(answer.tensor()?.as_slice::<u64>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soon(&self) {
        self.reply.soon();
    }

    /// Sends the reply. The caller receives its replies in the order of its requests, so an early reply waits for its
    /// turn. If the caller has ended, the method returns no error.
    ///
    /// # Errors
    /// * [`Error::Argument`] for a draft of another client, or a dataset without tensors. The caller then receives an
    ///   error.
    /// * [`Error::Refused`] if there is no memory for the reply's index or metadata.
    pub fn respond(self, answer: impl Into<ValueDraft>) -> Result<()> {
        // Free the request's memory first, because the reply may need it.
        drop(self.message);
        self.reply.respond(answer)
    }

    /// Responds with a failure. The caller receives [`Error::Answer`] with this text, cut to 64 KiB.
    ///
    /// # Errors
    /// The errors of [`Call::respond`].
    pub fn fail(self, why: impl std::fmt::Display) -> Result<()> {
        let why = why.to_string();
        drop(self.message);
        self.reply.fail(why)
    }
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("message", &self.message).finish_non_exhaustive()
    }
}

/// The right to respond to one request, once. If the program drops it without a reply, the caller receives an error.
/// See [`Call::split`].
///
/// The type is `Send`, so any thread can respond. A program may respond to the requests of one caller in any order.
/// The caller receives the replies in the order of its requests.
pub struct Reply {
    /// The request's number. `None` after the response.
    number: Option<u64>,
    answers: Arc<Answers>,
    load: Arc<Load>,
    client: Client,
}

impl Reply {
    fn new(message: &Message, answers: Arc<Answers>, load: Arc<Load>, client: Client) -> Self {
        Self { number: Some(message.sequence()), answers, load, client }
    }

    /// Announces that the reply comes soon, like [`Call::soon`].
    pub fn soon(&self) {
        if let Some(number) = self.number {
            self.answers.soon(number);
        }
    }

    /// Sends the reply, like [`Call::respond`].
    ///
    /// # Errors
    /// The errors of [`Call::respond`].
    pub fn respond(mut self, answer: impl Into<ValueDraft>) -> Result<()> {
        let draft = answer.into();
        if let Err(error) = self.check(&draft) {
            self.say(Said::Failure(words(&error)))?;
            return Err(error);
        }
        self.say(Said::Answer(draft.into()))
    }

    /// Responds with a failure, like [`Call::fail`].
    ///
    /// # Errors
    /// The errors of [`Call::respond`].
    pub fn fail(mut self, why: impl std::fmt::Display) -> Result<()> {
        self.say(Said::Failure(why.to_string()))
    }

    fn check(&self, draft: &ValueDraft) -> Result<()> {
        use crate::tensor::sendable::sealed::{INSIDE, Message as _};
        if !Arc::ptr_eq(draft.session(INSIDE), self.client.session()) {
            return Err(Error::Argument(
                "the draft of the response was made by another client: create it with the client that serves".into(),
            ));
        }
        match draft {
            ValueDraft::Dataset(several) if several.is_empty() => Err(Error::Argument(
                "the dataset has no tensor, and an empty response reports a failure: add a tensor, or refuse the request with fail"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    fn say(&mut self, said: Said) -> Result<()> {
        let Some(number) = self.number.take() else { return Ok(()) };
        // A forked child has no lease table in which to store the load.
        self.client.session().check()?;
        self.load.answered();
        self.answers.say(number, said)
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        if !self.client.session().is_forked() {
            let _ = self.say(Said::Failure("the server has dropped the request".into()));
        }
    }
}

impl std::fmt::Debug for Reply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reply").field("number", &self.number).finish_non_exhaustive()
    }
}
