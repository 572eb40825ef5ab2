//! The end that asks.

use super::line::{Knock, Line};
use super::servers::Servers;
use super::service::{CAPACITY_DEFAULT, Id, Service};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::value::Value;
use crate::tensor::sendable::Sendable;
use crate::wait::{Deadline, NAP_MAX};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// How long a server has to open its end of a line, before it is asked again or another one is.
const OPENING: Duration = Duration::from_secs(1);
/// How long a server that is idle is waited for to open another line, while a request could go to the first.
const OPENING_IDLE: Duration = Duration::from_millis(10);
/// Lines of one caller: each is a word on which its server sleeps, and takes one of the places that it has for callers.
const LINES_MAX: usize = 2;
/// How long a line is kept that is not used.
const SPARE: Duration = Duration::from_secs(5);

/// How often who may have to stop waiting is asked.
const ASK: Duration = Duration::from_millis(50);
/// The same while a line is opened: a server that computes answers no knock meanwhile, and each one costs the daemon something.
const ASK_OPENING: Duration = Duration::from_millis(200);

/// How to call. See [`Client::caller`].
#[derive(Debug)]
pub struct CallerBuilder {
    client: Client,
    service: String,
    capacity: u32,
}

impl CallerBuilder {
    /// Requests that can be on their way at once, from 1 to 1024: rounded up to a power of two. So many requests, and as many
    /// answers, keep their memory until later ones take their places. Default: 8.
    pub fn capacity(mut self, requests: u32) -> Self {
        self.capacity = requests;
        self
    }

    /// Makes a caller. A server is looked for with the first request.
    ///
    /// # Errors
    /// [`Error::Name`], also for a service's name of more than 207 bytes; [`Error::Argument`] for a capacity that cannot be.
    pub fn open(self) -> Result<Caller> {
        if !(1..=1024).contains(&self.capacity) {
            return Err(Error::Argument(format!("a caller for {} requests at once: give 1 to 1024", self.capacity)));
        }
        let service = Service::new(&self.service)?;
        Ok(Caller {
            client: self.client,
            service,
            capacity: self.capacity,
            lines: Vec::new(),
            knock: None,
            servers: Servers::default(),
            shunned: None,
            sent: 0,
        })
    }
}

/// Asks servers of one service, one request after the other, or several on their way at once. For several threads, make several.
///
/// With nothing on its way, it goes to another server where its own is busy and that one is idle, or has clearly less to do; it keeps its
/// place otherwise. One way beside its own stays open, for some seconds after its last use.
pub struct Caller {
    client: Client,
    service: Service,
    capacity: u32,
    /// The first is in use, the others were, or are to be: nothing is on its way there. The last one was in use longest ago.
    lines: Vec<Line>,
    /// One more, that its server has not opened yet.
    knock: Option<Knock>,
    servers: Servers,
    /// The server that was given up last: another is preferred.
    shunned: Option<Id>,
    /// Requests that were sent, on whichever line.
    sent: u64,
}

impl Client {
    /// Calls: sends requests to a server of a service, for whose answers it waits. See [`Client::serve`].
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("resize").open()?;
    /// let image = client.create(DType::U8, &[480, 640, 3])?;
    /// let late = caller.call(image, Some(Duration::from_millis(10)));
    /// assert!(late.unwrap_err().is_timeout()); // nobody serves
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn caller(&self, service: &str) -> CallerBuilder {
        CallerBuilder { client: self.clone(), service: service.to_owned(), capacity: CAPACITY_DEFAULT }
    }
}

impl Caller {
    /// Sends a request and waits for its answer, for `timeout` at most; `None`: for ever. Waits for a server, too, where there is
    /// none.
    ///
    /// After a timeout the server is given up, with all that was on its way to it: it may hang. The next call goes to another,
    /// if there is one.
    ///
    /// # Errors
    /// [`Error::Answer`]: the server could not answer, for the reason that it gives. [`Error::ServerGone`]: it ended before it
    /// answered; whether it has carried the request out is not known, see [`Caller::call_again`]. [`Error::Timeout`];
    /// [`Error::Argument`] for a draft of another client, or with other requests on their way (see [`Caller::send`]).
    pub fn call(&mut self, request: impl Sendable, timeout: Option<Duration>) -> Result<Value> {
        self.call_until(request, Deadline::new(timeout))
    }

    /// As [`Caller::call`], for requests that may be carried out twice: where a server ends before it has answered, the request
    /// is made again, for another server.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// #     let call = server.recv()?;
    /// #     call.answer(client.create(tensorlend::DType::U64, &[1])?)
    /// # }});
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("size").open()?;
    /// let answer = caller.call_again(Some(Duration::from_secs(10)), |client| client.create(DType::U8, &[480, 640, 3]))?;
    /// assert_eq!(answer.as_tensor().unwrap().shape(), [1]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Caller::call`] but [`Error::ServerGone`], and what `make` returns.
    pub fn call_again<R: Sendable>(
        &mut self,
        timeout: Option<Duration>,
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

    /// As [`Caller::call`], for who may have to stop waiting: `goes_on` is asked some twenty times a second. If it says no, the
    /// server is given up as after a timeout, and `None` comes back.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut caller = client.caller("resize").open()?;
    /// let image = client.create(DType::U8, &[480, 640, 3])?;
    /// let mut asked = 0;
    /// let answer = caller.call_while(image, None, || { asked += 1; asked < 3 })?; // nobody serves
    /// assert!(answer.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Caller::call`].
    pub fn call_while(
        &mut self,
        request: impl Sendable,
        timeout: Option<Duration>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<Value>> {
        self.nothing_outstanding()?;
        let deadline = Deadline::new(timeout);
        let answer = match self.send_asking(request, deadline, &mut goes_on) {
            Ok(Some(_)) => self.recv_asking(deadline, &mut goes_on),
            Ok(None) => return Ok(None),
            Err(error) => Err(error),
        };
        if matches!(&answer, Ok(None)) || answer.as_ref().is_err_and(Error::is_timeout) {
            self.give_up();
        }
        answer
    }

    /// As [`Caller::send`], for who may have to stop waiting for a server: see [`Caller::call_while`].
    ///
    /// # Errors
    /// As [`Caller::send`].
    pub fn send_while(
        &mut self,
        request: impl Sendable,
        timeout: Option<Duration>,
        mut goes_on: impl FnMut() -> bool,
    ) -> Result<Option<u64>> {
        self.send_asking(request, Deadline::new(timeout), &mut goes_on)
    }

    fn send_asking(
        &mut self,
        request: impl Sendable,
        deadline: Deadline,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>> {
        // Of a line that has ended with requests on their way, sending tells.
        while self.outstanding() == 0 && !self.has_server()? {
            match self.ready(deadline.at_most(ASK_OPENING)) {
                Err(error) if error.is_timeout() => {
                    deadline.nap().ok_or_else(|| deadline.error(format!("a server of {:?}", self.service.name)))?;
                    if !goes_on() {
                        return Ok(None);
                    }
                }
                other => other?,
            }
        }
        self.send_until(request, deadline).map(Some)
    }

    fn recv_asking(&mut self, deadline: Deadline, goes_on: &mut dyn FnMut() -> bool) -> Result<Option<Value>> {
        loop {
            match self.recv_until(deadline.at_most(ASK)).1 {
                Err(error) if error.is_timeout() => {
                    deadline.nap().ok_or_else(|| deadline.error(format!("an answer from {:?}", self.service.name)))?;
                    if !goes_on() {
                        return Ok(None);
                    }
                }
                other => return other.map(Some),
            }
        }
    }

    fn nothing_outstanding(&self) -> Result<()> {
        match self.outstanding() {
            0 => Ok(()),
            some => Err(Error::Argument(format!(
                "{some} requests to {:?} are on their way: take their answers with recv first",
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

    /// Sends a request, and does not wait for its answer; its number, with which the answer comes. With as many on their way as
    /// the caller has room for, answers must be taken first.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// #     for _ in 0..3 { server.recv()?.answer(client.create(tensorlend::DType::U64, &[1])?)?; }
    /// #     Ok(())
    /// # }});
    /// use std::time::Duration;
    /// use tensorlend::DType;
    ///
    /// let timeout = Some(Duration::from_secs(10));
    /// let mut caller = client.caller("size").open()?;
    /// for number in 0..3 {
    ///     assert_eq!(caller.send(client.create(DType::U8, &[480, 640, 3])?, timeout)?, number);
    /// }
    /// for number in 0..3 {
    ///     let (answered, answer) = caller.recv(timeout);
    ///     assert_eq!((answered, answer?.as_tensor().unwrap().nbytes()), (number, 8));
    /// }
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if no server was there, [`Error::ServerGone`] if requests before it were lost with their server (this
    /// one was not sent), [`Error::Argument`] for a draft of another client or with answers to be taken.
    pub fn send(&mut self, request: impl Sendable, timeout: Option<Duration>) -> Result<u64> {
        self.send_until(request, Deadline::new(timeout))
    }

    /// The answer to the first request that is on its way, and the number of that request; waits for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Answer`] of this one request; [`Error::ServerGone`] of all that are on their way; [`Error::Timeout`], and
    /// then they go on; [`Error::Argument`] if none is on its way.
    pub fn recv(&mut self, timeout: Option<Duration>) -> (u64, Result<Value>) {
        self.recv_until(Deadline::new(timeout))
    }

    /// Requests on their way: sent, and not answered yet.
    pub fn outstanding(&self) -> u64 {
        self.lines.first().map_or(0, Line::outstanding)
    }

    /// The service's name.
    pub fn service(&self) -> &str {
        &self.service.name
    }

    /// Gives the server up, with all requests that are on their way to it: the next one goes to another, if there is one.
    pub fn give_up(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let line = self.lines.remove(0);
        self.shunned = Some(line.server);
        line.hang_up(&self.client, &self.service);
    }

    /// Returns true while the caller is connected to a server that lives. With requests in flight, that is the server that
    /// has them.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn has_server(&self) -> Result<bool> {
        self.client.session().check()?;
        let lines = if self.outstanding() > 0 { &self.lines[..1] } else { &self.lines[..] };
        lines.iter().try_fold(false, |open, line| Ok(open || line.goes_on()?))
    }

    /// Connects to a server, and sends nothing: the first request then need not wait for one. `None`: waits for ever for a server
    /// to start. With requests in flight it returns at once.
    ///
    /// ```no_run
    /// # let client = tensorlend::Client::connect()?;
    /// let mut caller = client.caller("resize").open()?;
    /// caller.wait_server(None)?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Timeout`] if no server came.
    pub fn wait_server(&mut self, timeout: Option<Duration>) -> Result<()> {
        self.client.session().check()?;
        self.ready(Deadline::new(timeout))
    }

    /// Waits for a server, and sends nothing. With nothing on its way, it is the one to which a request goes best.
    pub(crate) fn ready(&mut self, deadline: Deadline) -> Result<()> {
        if self.outstanding() > 0 {
            return Ok(());
        }
        self.drop_ended()?;
        if self.lines.is_empty() {
            let line = self.begin(deadline)?;
            self.lines.push(line);
            Ok(())
        } else {
            self.choose(deadline);
            Ok(())
        }
    }

    /// Hangs up where a server has ended.
    fn drop_ended(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.lines.len() {
            if self.lines[at].goes_on()? {
                at += 1;
            } else {
                let line = self.lines.remove(at);
                self.shunned = Some(line.server);
                line.hang_up(&self.client, &self.service);
            }
        }
        Ok(())
    }

    /// Goes to another server, if its own is busy and another is worth it. Where that fails, it stays.
    fn choose(&mut self, deadline: Deadline) {
        self.drop_spare();
        let here = self.lines[0].server;
        let better = self.servers.better(&self.client, &self.service, here, self.shunned);
        let Some((server, load)) = better else { return };
        match self.lines.iter().position(|line| line.server == server) {
            Some(at) => {
                self.lines[0].spare_since = Instant::now();
                self.lines[..=at].rotate_right(1);
            }
            None => {
                if self.open(server, load, deadline).is_err() {
                    self.servers.refuse(server);
                    self.knock = None;
                }
            }
        }
    }

    /// Hangs up where nothing was asked for long: somebody else may wait for a place with that server.
    fn drop_spare(&mut self) {
        let is_spare = |line: &mut Line| line.spare_since.elapsed() > SPARE;
        if self.lines.len() > 1
            && self.client.session().control.is_up()
            && let Some(line) = self.lines.pop_if(is_spare)
        {
            line.hang_up(&self.client, &self.service);
        }
    }

    /// Opens a line to another server, and uses it if that is soon there: one that is idle answers a knock at once. Another one answers
    /// when its run has ended, and meanwhile requests go where they went.
    fn open(&mut self, server: Id, load: u64, deadline: Deadline) -> Result<()> {
        // The daemon takes part in it, and a call is not to wait for the next one.
        if !self.client.session().control.is_up() {
            return Ok(());
        }
        let knock = match &mut self.knock {
            Some(knock) => knock,
            none => none.insert(Knock::at(&self.client, &self.service, server, self.capacity)?),
        };
        let patience = if load == 0 && knock.since.elapsed() < OPENING_IDLE { OPENING_IDLE } else { Duration::ZERO };
        match knock.wait(deadline.left().map_or(patience, |left| left.min(patience))) {
            Ok(line) => {
                self.knock = None;
                // It may be another server that was knocked at before.
                let at = usize::from(line.server != server);
                self.lines[0].spare_since = Instant::now();
                self.lines.insert(at, line);
                if self.lines.len() > LINES_MAX
                    && let Some(oldest) = self.lines.pop()
                {
                    oldest.hang_up(&self.client, &self.service);
                }
            }
            Err(error) if error.is_timeout() || error.is_not_found() => {
                if knock.since.elapsed() >= OPENING {
                    self.servers.refuse(knock.server);
                    self.knock = None;
                }
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn gone(&self) -> Error {
        Error::ServerGone(self.service.name.clone())
    }

    fn send_until(&mut self, request: impl Sendable, deadline: Deadline) -> Result<u64> {
        if self.outstanding() >= u64::from(self.capacity) {
            return Err(Error::Argument(format!(
                "{} requests to {:?} are on their way, as many as can be: take answers with recv, or open the caller with more capacity",
                self.outstanding(),
                self.service.name
            )));
        }
        if self.outstanding() > 0 && !self.has_server()? {
            // Noticed before anything is sent, so that nobody need ask whether it was carried out.
            self.give_up();
            return Err(self.gone());
        }
        self.ready(deadline)?;
        let line = self.lines.first().ok_or_else(|| self.gone())?;
        match line.requests.send_until(request, deadline) {
            Ok(_) => {
                self.sent += 1;
                Ok(self.sent - 1)
            }
            // Whoever is not answered is not served any more.
            Err(Error::StreamEnded(_)) => {
                self.give_up();
                Err(self.gone())
            }
            Err(error) => Err(error),
        }
    }

    fn recv_until(&mut self, deadline: Deadline) -> (u64, Result<Value>) {
        let number = self.sent - self.outstanding();
        let Some(line) = self.lines.first_mut().filter(|line| line.outstanding() > 0) else {
            let none = format!("no request to {:?} is on its way: send one first", self.service.name);
            return (0, Err(Error::Argument(none)));
        };
        let answer = match line.answers.recv_until(deadline) {
            Ok(message) => {
                line.waiting += 1;
                Ok(message.into_value())
            }
            Err(Error::Damaged { name, cause }) => {
                line.waiting += 1;
                Err(Error::Damaged { name, cause })
            }
            Err(Error::Timeout { waited, .. }) => {
                Err(Error::Timeout { what: format!("an answer from {:?}", self.service.name), waited })
            }
            Err(Error::StreamEnded(_)) => {
                self.give_up();
                Err(self.gone())
            }
            Err(error) => Err(error),
        };
        (number, answer.and_then(|value| self.open_answer(value)))
    }

    /// An empty dataset is a failure.
    fn open_answer(&self, value: Value) -> Result<Value> {
        match value.as_dataset().filter(|dataset| dataset.is_empty()) {
            Some(failure) => Err(Error::Answer {
                service: self.service.name.clone(),
                why: String::from_utf8_lossy(failure.metadata()).into_owned(),
            }),
            None => Ok(value),
        }
    }

    /// Opens a line to the server that has least to do, and waits for one to come where there is none.
    fn begin(&mut self, deadline: Deadline) -> Result<Line> {
        // It may be one that is about to be knocked at again.
        self.knock = None;
        let session = self.client.session().clone();
        session.waiter().enlist()?;
        let news = &session.directory.head().bell;
        let error = || deadline.error(format!("a server of {:?}", self.service.name));
        loop {
            let sample = news.read();
            let parked = session.waiter().park(PARKED_ANY);
            self.servers.find(&self.client, &self.service)?;
            let servers = self.in_order()?;
            if servers.is_empty() {
                futex::wait(news, sample, deadline.nap().ok_or_else(error)?.min(NAP_MAX));
                continue;
            }
            drop(parked);
            for server in servers {
                let left = deadline.left().map_or(OPENING, |left| left.min(OPENING));
                if left.is_zero() {
                    return Err(error());
                }
                let knock = Knock::at(&self.client, &self.service, server, self.capacity);
                match knock.and_then(|mut knock| knock.wait(left)) {
                    Ok(line) => return Ok(line),
                    Err(error) if error.is_timeout() || error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// The servers that are there: the one that was given up comes last; else by what they have to do and how many lines they have.
    fn in_order(&self) -> Result<Vec<Id>> {
        let mut servers: Vec<Id> = self.servers.ids().collect();
        if servers.len() > 1 {
            let mut lines: BTreeMap<Id, u64> = BTreeMap::new();
            for stream in self.client.streams(&self.service.pattern("/.line/"))? {
                if let Some((server, _)) = self.service.parse(&stream.name, "/.line/") {
                    *lines.entry(server).or_default() += 1;
                }
            }
            let session = self.client.session();
            servers.sort_by_cached_key(|&server| {
                let load = self.servers.load(session, server).unwrap_or(0);
                // Of many who begin at once, all see the same load, and each the lines of those before it.
                let lines = lines.get(&server).copied().unwrap_or(0);
                (self.shunned == Some(server), load.saturating_add(lines), load)
            });
        }
        Ok(servers)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.client.session().is_forked() {
            for line in self.lines.drain(..) {
                line.hang_up(&self.client, &self.service);
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
