//! The end that asks.

use super::{CAPACITY_DEFAULT, Id, Service};
use crate::error::{Error, Result};
use crate::lease::Value;
use crate::stream::{Sendable, Stream};
use crate::subscription::{Start, Subscription};
use crate::wait::{Deadline, NAP_MAX};
use crate::{Client, DType, Policy};
use std::collections::BTreeMap;
use std::time::Duration;
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// How long a server has to open its end of a line, before it is asked again or another one is.
const OPENING: Duration = Duration::from_secs(1);

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
        Ok(Caller { client: self.client, service, capacity: self.capacity, line: None, shunned: None })
    }
}

/// One line, as its caller sees it.
struct Line {
    server: Id,
    id: Id,
    requests: Stream,
    answers: Subscription,
    /// Number of the first request that has no answer yet.
    waiting: u64,
}

impl Line {
    fn outstanding(&self) -> u64 {
        self.requests.sent() - self.waiting
    }
}

/// Asks servers of one service, one request after the other, or several on their way at once. For several threads, make several.
pub struct Caller {
    client: Client,
    service: Service,
    capacity: u32,
    line: Option<Line>,
    /// The server that was given up last: another is preferred.
    shunned: Option<Id>,
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
        while self.outstanding() == 0 && !self.is_open()? {
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

    pub(crate) fn recv_asking(
        &mut self,
        deadline: Deadline,
        goes_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Value>> {
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
        self.line.as_ref().map_or(0, Line::outstanding)
    }

    /// The service's name.
    pub fn service(&self) -> &str {
        &self.service.name
    }

    /// Gives the server up, with all requests that are on their way to it: the next one goes to another, if there is one.
    pub fn give_up(&mut self) {
        let Some(line) = self.line.take() else { return };
        self.shunned = Some(line.server);
        self.hang_up(line);
    }

    /// Whether there is a server that goes on.
    pub(crate) fn is_open(&self) -> Result<bool> {
        self.line.as_ref().map_or(Ok(false), |line| line.answers.goes_on())
    }

    /// Waits for a server, and sends nothing.
    pub(crate) fn ready(&mut self, deadline: Deadline) -> Result<()> {
        if !self.is_open()? {
            self.give_up();
            self.line = Some(self.begin(deadline)?);
        }
        Ok(())
    }

    fn gone(&self) -> Error {
        Error::ServerGone(self.service.name.clone())
    }

    pub(crate) fn send_until(&mut self, request: impl Sendable, deadline: Deadline) -> Result<u64> {
        if self.outstanding() >= u64::from(self.capacity) {
            return Err(Error::Argument(format!(
                "{} requests to {:?} are on their way, as many as can be: take answers with recv, or open the caller with more capacity",
                self.outstanding(),
                self.service.name
            )));
        }
        if self.outstanding() > 0 && !self.is_open()? {
            // Noticed before anything is sent, so that nobody need ask whether it was carried out.
            self.give_up();
            return Err(self.gone());
        }
        self.ready(deadline)?;
        let line = self.line.as_ref().ok_or_else(|| self.gone())?;
        match line.requests.send_until(request, deadline) {
            // Whoever is not answered is not served any more.
            Err(Error::StreamEnded(_)) => {
                self.give_up();
                Err(self.gone())
            }
            other => other,
        }
    }

    pub(crate) fn recv_until(&mut self, deadline: Deadline) -> (u64, Result<Value>) {
        let Some(line) = self.line.as_mut().filter(|line| line.outstanding() > 0) else {
            let none = format!("no request to {:?} is on its way: send one first", self.service.name);
            return (0, Err(Error::Argument(none)));
        };
        let number = line.waiting;
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

    /// Opens a line to the server with the fewest, and waits for one to come where there is none.
    fn begin(&mut self, deadline: Deadline) -> Result<Line> {
        let session = self.client.session().clone();
        session.enlist()?;
        let news = &session.directory.head().bell;
        let error = || deadline.error(format!("a server of {:?}", self.service.name));
        loop {
            let sample = news.read();
            let parked = session.parking.park(PARKED_ANY);
            let servers = self.servers()?;
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
                match self.knock(server, left) {
                    Ok(line) => return Ok(line),
                    Err(error) if error.is_timeout() || error.is_not_found() => {}
                    Err(error) => return Err(error),
                }
            }
        }
    }

    /// The servers that are there, the one with the fewest lines first and the one that was given up last.
    fn servers(&self) -> Result<Vec<Id>> {
        let pattern = |kind: &str| format!("{}{kind}*", globset::escape(&self.service.name));
        let mut lines: BTreeMap<Id, usize> = BTreeMap::new();
        for info in self.client.list(&pattern("/.server/"))?.iter().filter(|info| info.alive) {
            if let Some((server, "")) = self.service.parse(&info.name, "/.server/") {
                lines.insert(server, 0);
            }
        }
        if lines.len() > 1 {
            for stream in self.client.streams(&pattern("/.line/"))? {
                if let Some(count) =
                    self.service.parse(&stream.name, "/.line/").and_then(|(server, _)| lines.get_mut(&server))
                {
                    *count += 1;
                }
            }
        }
        let mut servers: Vec<Id> = lines.keys().copied().collect();
        servers.sort_by_key(|server| (self.shunned == Some(*server), lines[server]));
        Ok(servers)
    }

    fn knock(&self, server: Id, timeout: Duration) -> Result<Line> {
        let (client, id) = (&self.client, Id::random()?);
        let requests = client.stream(&self.service.requests(server, id)).capacity(self.capacity);
        let requests = requests.policy(Policy::Block).open()?;
        let opened = (|| {
            let mut knock = client.create(DType::U64, &[1])?;
            knock.as_mut_slice::<u64>()?.fill(id.0);
            client.append(&self.service.door(server), knock)?;
            client.subscription(&self.service.answers(server, id)).from(Start::Oldest).wait(timeout).open()
        })();
        match opened {
            Ok(answers) => Ok(Line { server, id, requests, answers, waiting: 0 }),
            Err(error) => {
                drop(requests);
                let _ = client.delete_stream(&self.service.requests(server, id));
                Err(error)
            }
        }
    }

    fn hang_up(&self, line: Line) {
        let Line { server, id, requests, answers, .. } = line;
        drop((requests, answers));
        let _ = self.client.delete_stream(&self.service.requests(server, id));
        let _ = self.client.delete_stream(&self.service.answers(server, id));
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if !self.client.session().is_forked()
            && let Some(line) = self.line.take()
        {
            self.hang_up(line);
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
