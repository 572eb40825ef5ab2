//! The client end of a service: sends requests and receives replies.

use super::channel::{Channel, Connecting};
use super::servers::Servers;
use super::service::{Id, Service, no_response, no_server};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::value::Value;
use crate::stream::message::Message;
use crate::stream::subscriber::Subscription;
use crate::tensor::sendable::Sendable;
use crate::wait::{Deadline, NAP_MAX, Timeout};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// Maximum time for a server to open its end of a channel, before the caller tries again or tries another server.
const OPENING: Duration = Duration::from_secs(1);
/// Maximum time for which the caller waits for an idle server to open a further channel. In the meantime the first
/// server could take the request.
const OPENING_IDLE: Duration = Duration::from_millis(10);
/// Maximum number of channels of one caller. A server sleeps on a word of each channel, and accepts a limited number.
const CHANNELS_MAX: usize = 2;
/// Time for which the caller keeps an unused channel.
const SPARE: Duration = Duration::from_secs(5);

/// Interval between calls of `continues` during a wait.
const ASK: Duration = Duration::from_millis(50);
/// The same interval while a channel is opening. A server that computes cannot accept a channel, and each attempt
/// costs the daemon a request.
const ASK_OPENING: Duration = Duration::from_millis(200);

/// A caller of one service, which sends requests to the service's servers, one at a time or several at once. Only one
/// thread at a time can use a caller, so open one for each thread.
///
/// With no request outstanding, the caller moves to another server if its own is busy and the other is idle or clearly
/// less loaded. Otherwise it stays with its server. It keeps the connection to one further server open for some seconds
/// after that connection's last use.
///
/// [`Client::serve`] has an example of both ends.
pub struct Caller {
    client: Client,
    service: Service,
    capacity: u32,
    pollable: bool,
    /// The channels. The first is in use. The others are idle and sorted by last use, with the oldest last.
    pub(super) channels: Vec<Channel>,
    /// A channel that its server has not opened yet.
    connecting: Option<Connecting>,
    servers: Servers,
    /// The server that the caller abandoned last. The caller prefers other servers.
    shunned: Option<Id>,
    /// The number of requests sent, over all channels.
    sent: u64,
}

impl Caller {
    /// Creates a caller without a channel.
    pub(super) fn new(client: Client, service: Service, capacity: u32, pollable: bool) -> Self {
        let (channels, servers) = (Vec::new(), Servers::default());
        Self { client, service, capacity, pollable, channels, connecting: None, servers, shunned: None, sent: 0 }
    }

    /// Sends a request and blocks until its reply arrives. If the service has no server, also waits for a server.
    ///
    /// After a timeout the caller abandons its server, with all outstanding requests, because the server may hang. The
    /// next call goes to another server, if there is one.
    ///
    /// # Errors
    /// * [`Error::Answer`] if the server reported an error, with the server's reason.
    /// * [`Error::ServerGone`] if the server ended before it responded. It may have carried out the request: see
    ///   [`Caller::call_again`].
    /// * [`Error::Timeout`] if no reply arrived in time.
    /// * [`Error::Argument`] for a draft of another client, or while requests are outstanding (see [`Caller::send`]).
    pub fn call(&mut self, request: impl Sendable, timeout: impl Into<Timeout>) -> Result<Value> {
        self.call_until(request, Deadline::new(timeout))
    }

    /// Calls a server like [`Caller::call`], for requests that may be carried out twice. If a server ends before it
    /// responds, the caller creates the request again with `make` and sends it to another server.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// #     let call = server.recv()?;
    /// #     call.respond(client.create(tensorlend::DType::U64, [1])?)
    /// # }});
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("size").open()?;
    /// let answer = caller.call_again(Duration::from_secs(10), |client| client.create(DType::U8, [480, 640, 3]))?;
    /// assert_eq!(answer.tensor()?.shape(), [1]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Caller::call`], except [`Error::ServerGone`]; and any error of `make`.
    pub fn call_again<R: Sendable>(
        &mut self,
        timeout: impl Into<Timeout>,
        mut make: impl FnMut(&Client) -> Result<R>,
    ) -> Result<Value> {
        let deadline = Deadline::new(timeout);
        loop {
            let request = make(&self.client)?;
            match self.call_until(request, deadline) {
                Err(Error::ServerGone(_)) if deadline.nap().is_some() => {}
                other => return other,
            }
        }
    }

    /// Calls a server like [`Caller::call`], for callers that may have to stop waiting. The method calls `continues`
    /// about twenty times a second. When `continues` returns false, the caller abandons the server as after a timeout
    /// and returns `None`.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("resize").open()?;
    /// let image = client.create(DType::U8, [480, 640, 3])?;
    /// let mut asked = 0;
    /// let answer = caller.call_while(image, None, || { asked += 1; asked < 3 })?; // nobody serves
    /// assert!(answer.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Caller::call`].
    pub fn call_while(
        &mut self,
        request: impl Sendable,
        timeout: impl Into<Timeout>,
        mut continues: impl FnMut() -> bool,
    ) -> Result<Option<Value>> {
        self.nothing_outstanding()?;
        let deadline = Deadline::new(timeout);
        let answer = match self.send_asking(request, deadline, &mut continues) {
            Ok(Some(_)) => self.recv_asking(deadline, &mut continues),
            Ok(None) => return Ok(None),
            Err(error) => Err(error),
        };
        if matches!(&answer, Ok(None)) || answer.as_ref().is_err_and(Error::is_timeout) {
            self.give_up();
        }
        answer
    }

    /// Sends a request like [`Caller::send`], for callers that may have to stop waiting for a server: see
    /// [`Caller::call_while`].
    ///
    /// # Errors
    /// The errors of [`Caller::send`].
    pub fn send_while(
        &mut self,
        request: impl Sendable,
        timeout: impl Into<Timeout>,
        mut continues: impl FnMut() -> bool,
    ) -> Result<Option<u64>> {
        self.send_asking(request, Deadline::new(timeout), &mut continues)
    }

    fn send_asking(
        &mut self,
        request: impl Sendable,
        deadline: Deadline,
        continues: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>> {
        // If the server has ended with requests outstanding, the send below returns the error.
        while self.outstanding() == 0 && !self.has_server()? {
            match self.ready(deadline.at_most(ASK_OPENING)) {
                Err(error) if error.is_timeout() => {
                    deadline.nap().ok_or_else(|| deadline.error(no_server(&self.service.name)))?;
                    if !continues() {
                        return Ok(None);
                    }
                }
                other => other?,
            }
        }
        self.send_until(request, deadline).map(Some)
    }

    fn recv_asking(&mut self, deadline: Deadline, continues: &mut dyn FnMut() -> bool) -> Result<Option<Value>> {
        loop {
            match self.recv_until(deadline.at_most(ASK)).1 {
                Err(error) if error.is_timeout() => {
                    deadline.nap().ok_or_else(|| deadline.error(no_response(&self.service.name)))?;
                    if !continues() {
                        return Ok(None);
                    }
                }
                other => return other.map(Some),
            }
        }
    }

    /// Returns an error if requests are outstanding.
    #[doc(hidden)]
    pub fn nothing_outstanding(&self) -> Result<()> {
        match self.outstanding() {
            0 => Ok(()),
            some => Err(Error::Argument(format!(
                "{some} requests to {:?} have no response yet: receive their responses with recv first",
                self.service.name
            ))),
        }
    }

    fn call_until(&mut self, request: impl Sendable, deadline: Deadline) -> Result<Value> {
        self.nothing_outstanding()?;
        let answer = self.send_until(request, deadline).and_then(|_| self.recv_until(deadline).1);
        if answer.as_ref().is_err_and(Error::is_timeout) {
            self.give_up();
        }
        answer
    }

    /// Sends a request without waiting for its reply. Returns the request's number, which [`Caller::recv`] returns with
    /// the reply. Blocks for at most `timeout` if the service has no server. If the maximum number of requests is
    /// outstanding, receive a reply first.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// #     for _ in 0..3 { server.recv()?.respond(client.create(tensorlend::DType::U64, [1])?)?; }
    /// #     Ok(())
    /// # }});
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let timeout = Duration::from_secs(10);
    /// let mut caller = client.caller("size").open()?;
    /// for number in 0..3 {
    ///     assert_eq!(caller.send(client.create(DType::U8, [480, 640, 3])?, timeout)?, number);
    /// }
    /// for number in 0..3 {
    ///     let (answered, answer) = caller.recv(timeout);
    ///     assert_eq!((answered, answer?.tensor()?.nbytes()), (number, 8));
    /// }
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Timeout`] if no server appeared in time.
    /// * [`Error::ServerGone`] if earlier requests were lost with their server. This request was not sent.
    /// * [`Error::Argument`] for a draft of another client, or while the maximum number of requests is outstanding.
    pub fn send(&mut self, request: impl Sendable, timeout: impl Into<Timeout>) -> Result<u64> {
        self.send_until(request, Deadline::new(timeout))
    }

    /// Receives the reply to the oldest outstanding request, with that request's number. Blocks for at most `timeout`.
    ///
    /// # Errors
    /// * [`Error::Answer`] if the server reported an error for this request.
    /// * [`Error::ServerGone`] if the server ended: all outstanding requests are lost.
    /// * [`Error::Timeout`] if no reply arrived in time: the requests stay outstanding.
    /// * [`Error::Argument`] if no request is outstanding.
    pub fn recv(&mut self, timeout: impl Into<Timeout>) -> (u64, Result<Value>) {
        self.recv_until(Deadline::new(timeout))
    }

    /// Returns the number of outstanding requests, which were sent and have no reply yet.
    ///
    /// The number is at most [`CallerBuilder::capacity`](crate::CallerBuilder::capacity). Receive the replies with
    /// [`Caller::recv`].
    pub fn outstanding(&self) -> u64 {
        self.channels.first().map_or(0, Channel::outstanding)
    }

    /// Returns the service's name.
    pub fn service(&self) -> &str {
        &self.service.name
    }

    /// Abandons the server, with all outstanding requests. The next request goes to another server, if there is one.
    pub fn give_up(&mut self) {
        if self.channels.is_empty() {
            return;
        }
        let channel = self.channels.remove(0);
        self.shunned = Some(channel.server);
        channel.hang_up(&self.client, &self.service);
    }

    /// Returns true while the caller is connected to a live server. If requests are outstanding, this is the server that
    /// has them.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn has_server(&self) -> Result<bool> {
        self.client.session().check()?;
        let channels = if self.outstanding() > 0 { &self.channels[..1] } else { &self.channels[..] };
        channels.iter().try_fold(false, |open, channel| Ok(open || channel.is_live()?))
    }

    /// Connects to a server without sending a request. Then the first request does not wait for a server. If requests
    /// are outstanding, the method returns at once.
    ///
    /// ```no_run
    /// # let client = tensorlend::Client::connect()?;
    /// let mut caller = client.caller("resize").open()?;
    /// caller.wait_server(None)?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if no server accepted the connection in time.
    pub fn wait_server(&mut self, timeout: impl Into<Timeout>) -> Result<()> {
        self.client.session().check()?;
        self.ready(Deadline::new(timeout))
    }

    /// Waits for a server, and sends nothing. With no request outstanding, chooses the best server for the next
    /// request.
    pub(crate) fn ready(&mut self, deadline: Deadline) -> Result<()> {
        if self.outstanding() > 0 {
            return Ok(());
        }
        self.drop_ended()?;
        if self.channels.is_empty() {
            let channel = self.begin(deadline)?;
            self.channels.push(channel);
            Ok(())
        } else {
            self.choose(deadline);
            Ok(())
        }
    }

    /// Drops the channels whose servers have ended.
    pub(super) fn drop_ended(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.channels.len() {
            if self.channels[at].is_live()? {
                at += 1;
            } else {
                let channel = self.channels.remove(at);
                self.shunned = Some(channel.server);
                channel.hang_up(&self.client, &self.service);
            }
        }
        Ok(())
    }

    /// Moves to another server if the caller's own is busy and the other is clearly better. If that fails, the caller
    /// stays.
    pub(super) fn choose(&mut self, deadline: Deadline) {
        self.drop_spare();
        let here = self.channels[0].server;
        let better = self.servers.better(&self.client, &self.service, here, self.shunned);
        let Some((server, load)) = better else { return };
        match self.channels.iter().position(|channel| channel.server == server) {
            Some(at) => {
                self.channels[0].spare_since = Instant::now();
                self.channels[..=at].rotate_right(1);
            }
            None => {
                if self.open(server, load, deadline).is_err() {
                    self.servers.refuse(server);
                    self.connecting = None;
                }
            }
        }
    }

    /// Drops a channel that was unused for long, because another caller may wait for this place at the server.
    fn drop_spare(&mut self) {
        let is_spare = |channel: &mut Channel| channel.spare_since.elapsed() > SPARE;
        if self.channels.len() > 1
            && self.client.session().control.is_up()
            && let Some(channel) = self.channels.pop_if(is_spare)
        {
            channel.hang_up(&self.client, &self.service);
        }
    }

    /// Opens a channel to another server, and uses the channel if it opens soon: an idle server accepts at once. A
    /// busy server accepts after its current work. Until then, requests go to the former server.
    fn open(&mut self, server: Id, load: u64, deadline: Deadline) -> Result<()> {
        // Opening needs the daemon, and a request must not wait until a new daemon has started.
        if !self.client.session().control.is_up() {
            return Ok(());
        }
        let connecting = match &mut self.connecting {
            Some(connecting) => connecting,
            none => none.insert(Connecting::at(&self.client, &self.service, server, self.capacity, self.pollable)?),
        };
        let timeout =
            if load == 0 && connecting.since.elapsed() < OPENING_IDLE { OPENING_IDLE } else { Duration::ZERO };
        match connecting.wait(deadline.left().map_or(timeout, |left| left.min(timeout))) {
            Ok(channel) => {
                self.connecting = None;
                // The channel may lead to another server than `server`: to the server that an earlier attempt asked.
                let at = usize::from(channel.server != server);
                self.channels[0].spare_since = Instant::now();
                self.channels.insert(at, channel);
                if self.channels.len() > CHANNELS_MAX
                    && let Some(oldest) = self.channels.pop()
                {
                    oldest.hang_up(&self.client, &self.service);
                }
            }
            Err(error) if error.is_timeout() || error.is_not_found() => {
                if connecting.since.elapsed() >= OPENING {
                    self.servers.refuse(connecting.server);
                    self.connecting = None;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    pub(super) fn gone(&self) -> Error {
        Error::ServerGone(self.service.name.clone())
    }

    fn send_until(&mut self, request: impl Sendable, deadline: Deadline) -> Result<u64> {
        if self.outstanding() >= u64::from(self.capacity) {
            return Err(Error::Argument(format!(
                "{} requests to {:?} have no response yet, which is the caller's capacity: receive responses with recv, or open the caller with more capacity",
                self.outstanding(),
                self.service.name
            )));
        }
        if self.outstanding() > 0 && !self.has_server()? {
            // Check this before sending the request, so that it is certain that no server carried out the request.
            self.give_up();
            return Err(self.gone());
        }
        self.ready(deadline)?;
        let channel = self.channels.first().ok_or_else(|| self.gone())?;
        match channel.requests.send_until(request, deadline) {
            Ok(_) => {
                self.sent += 1;
                Ok(self.sent - 1)
            }
            // The server has deleted this stream, because it could not send the caller's replies.
            Err(Error::StreamEnded(_)) => {
                self.give_up();
                Err(self.gone())
            }
            Err(error) => Err(error),
        }
    }

    fn recv_until(&mut self, deadline: Deadline) -> (u64, Result<Value>) {
        let (number, answer) = self.recv_with(|answers| answers.recv_until(deadline).map(Some));
        (number, answer.and_then(|value| value.ok_or_else(|| self.gone())))
    }

    /// Receives the next response through `receive`, if there is a response.
    pub(super) fn recv_with(
        &mut self,
        receive: impl FnOnce(&mut Subscription) -> Result<Option<Message>>,
    ) -> (u64, Result<Option<Value>>) {
        let number = self.sent - self.outstanding();
        let Some(channel) = self.channels.first_mut().filter(|channel| channel.outstanding() > 0) else {
            let none = format!("no request to {:?} waits for a response: send one first", self.service.name);
            return (0, Err(Error::Argument(none)));
        };
        let answer = match receive(&mut channel.answers) {
            Ok(None) => return (number, Ok(None)),
            Ok(Some(message)) => {
                channel.waiting += 1;
                Ok(message.into_value())
            }
            Err(Error::Damaged { name, cause }) => {
                channel.waiting += 1;
                Err(Error::Damaged { name, cause })
            }
            Err(Error::Timeout { waited, .. }) => Err(Error::Timeout { what: no_response(&self.service.name), waited }),
            Err(Error::StreamEnded(_)) => {
                self.give_up();
                Err(self.gone())
            }
            Err(error) => Err(error),
        };
        (number, answer.and_then(|value| self.open_answer(value)).map(Some))
    }

    /// Returns the value of a response, or the error that the response reports. An empty dataset encodes a failure.
    fn open_answer(&self, value: Value) -> Result<Value> {
        match value.as_dataset().filter(|dataset| dataset.is_empty()) {
            Some(failure) => Err(Error::Answer {
                service: self.service.name.clone(),
                why: String::from_utf8_lossy(failure.metadata()).into_owned(),
            }),
            None => Ok(value),
        }
    }

    /// Opens a channel to the least loaded server. Waits for a server if the service has none.
    fn begin(&mut self, deadline: Deadline) -> Result<Channel> {
        // The pending channel may belong to a server that this function tries again.
        self.connecting = None;
        let session = self.client.session().clone();
        session.waiter().enlist(deadline)?;
        let news = &session.directory.head().bell;
        let error = || deadline.error(no_server(&self.service.name));
        loop {
            let sample = news.read();
            let parked = session.waiter().park(PARKED_ANY);
            self.servers.find(&self.client, &self.service)?;
            let servers = self.in_order()?;
            if servers.is_empty() {
                session.control.check_daemon("wait for a server")?;
                futex::wait(news, sample, deadline.nap().ok_or_else(error)?.min(NAP_MAX));
                continue;
            }
            drop(parked);
            for server in servers {
                let left = deadline.left().map_or(OPENING, |left| left.min(OPENING));
                if left.is_zero() {
                    return Err(error());
                }
                let connecting = Connecting::at(&self.client, &self.service, server, self.capacity, self.pollable);
                match connecting.and_then(|mut connecting| connecting.wait(left)) {
                    Ok(channel) => return Ok(channel),
                    Err(error) if error.is_timeout() || error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// Returns the servers in order of preference: by load and number of channels. The server that the caller abandoned
    /// last is at the end.
    fn in_order(&self) -> Result<Vec<Id>> {
        let mut servers: Vec<Id> = self.servers.ids().collect();
        if servers.len() > 1 {
            let mut channels: BTreeMap<Id, u64> = BTreeMap::new();
            for stream in self.client.streams(&self.service.pattern("/.line/"))? {
                if let Some((server, _)) = self.service.parse(&stream.name, "/.line/") {
                    *channels.entry(server).or_default() += 1;
                }
            }
            let session = self.client.session();
            servers.sort_by_cached_key(|&server| {
                let load = self.servers.load(session, server).unwrap_or(0);
                // Callers that start at the same time all see the same load, but each sees the channels of earlier
                // callers.
                let channels = channels.get(&server).copied().unwrap_or(0);
                (self.shunned == Some(server), load.saturating_add(channels), load)
            });
        }
        Ok(servers)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.client.session().is_forked() {
            for channel in self.channels.drain(..) {
                channel.hang_up(&self.client, &self.service);
            }
        }
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller")
            .field("service", &self.service.name)
            .field("outstanding", &self.outstanding())
            .finish_non_exhaustive()
    }
}
