//! The end that answers.

use super::answers::{Answers, Said};
use super::load::Load;
use super::service::{Id, Service, words};
use crate::client::Client;
use crate::error::{Error, Result};
use crate::lease::items::item;
use crate::lease::value::Value;
use crate::names::lifetime::Lifetime;
use crate::stream::subscriber::{Message, Start, Subscription};
use crate::tensor::value_draft::ValueDraft;
use crate::wait::Deadline;
use crate::wait::Spin;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tensorlend_layout::wire::Policy;
use tensorlend_layout::word::PARKED_ANY;
use tensorlend_os::futex;

/// Callers at once: the kernel lets a thread sleep on 128 words, and one is the directory's.
const CALLERS_MAX: usize = 120;
/// Knocks that are looked at before the next request is: each holds a lease meanwhile.
const KNOCKS_AT_ONCE: u64 = 64;
/// Knocks at one door before it is emptied.
const KNOCKS_MAX: u64 = 256;
/// Requests that one caller may have outstanding, at most.
const CAPACITY_MAX: u32 = 1024;

/// How to serve. See [`Client::serve`].
#[derive(Debug)]
pub struct ServerBuilder {
    client: Client,
    service: String,
}

impl ServerBuilder {
    /// Says that a server is there; callers find it from now on, beside the others of the same service.
    ///
    /// # Errors
    /// [`Error::Name`], also for a service's name of more than 207 bytes; [`Error::Refused`] without the right to write, or at
    /// a limit.
    pub fn open(self) -> Result<Server> {
        let service = Service::new(&self.service)?;
        sweep(&self.client, &service)?;
        let id = Id::random()?;
        let load = Arc::new(Load::new(&self.client));
        self.client.put_for(&service.presence(id), &load.presence(), Lifetime::EPHEMERAL)?;
        Ok(Server {
            door: service.door(id),
            client: self.client,
            service,
            id,
            door_id: 0,
            knocks: 0,
            lines: VecDeque::new(),
            load,
            queued: 0,
            spin: Spin::new(),
        })
    }
}

/// One line, as its server sees it.
struct Line {
    id: Id,
    requests: Subscription,
    answers: Arc<Answers>,
}

/// One server of a service: it takes requests, from all callers in turn, and answers them, in any order and from any thread.
///
/// Several servers of one service share its callers: each caller begins with one that has least to do, and keeps to it unless it is busy
/// and another one is not. Dropping it ends the service of those whom it has served; they go to another, if there is one.
pub struct Server {
    client: Client,
    service: Service,
    id: Id,
    door: String,
    /// The list that the door was when it was last looked at: another one after the door was emptied, and after all who had
    /// knocked were gone.
    door_id: u64,
    /// Knocks of that list that were looked at.
    knocks: u64,
    /// The one to be looked at next is first.
    lines: VecDeque<Line>,
    load: Arc<Load>,
    /// Requests that lay in the lines when that was last told.
    queued: u64,
    spin: Spin,
}

impl Client {
    /// Serves: answers what others [call](Client::caller). Requests and answers are tensors or datasets, written where they are
    /// read, as everywhere.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let other = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// use tensorlend::DType;
    ///
    /// let mut server = client.serve("double").open()?;
    /// let thread = std::thread::spawn(move || -> tensorlend::Result<()> {
    ///     let call = server.recv()?;
    ///     let mut doubled = client.create(DType::F32, call.tensor()?.shape())?;
    ///     for (to, from) in doubled.as_mut_slice::<f32>()?.iter_mut().zip(call.tensor()?.as_slice::<f32>()?) {
    ///         *to = 2.0 * from;
    ///     }
    ///     call.answer(doubled)
    /// });
    ///
    /// let mut caller = other.caller("double").open()?; // in another process, usually
    /// let mut numbers = other.create(DType::F32, &[3])?;
    /// numbers.as_mut_slice::<f32>()?.copy_from_slice(&[1.0, 2.0, 3.0]);
    /// let answer = caller.call(numbers, None)?;
    /// assert_eq!(answer.as_tensor().unwrap().as_slice::<f32>()?, [2.0, 4.0, 6.0]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(&self, service: &str) -> ServerBuilder {
        ServerBuilder { client: self.clone(), service: service.to_owned() }
    }
}

impl Server {
    /// The next request; waits for it.
    ///
    /// # Errors
    /// [`Error::Leases`] with 4096 leases held already, and the request is still there when some were dropped;
    /// [`Error::SessionEnded`].
    pub fn recv(&mut self) -> Result<Call> {
        self.recv_until(Deadline::new(None))
    }

    /// The next request; waits for `timeout` at most.
    ///
    /// # Errors
    /// [`Error::Timeout`]; otherwise as [`Server::recv`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Call> {
        self.recv_until(Deadline::new(Some(timeout)))
    }

    /// The next request, if there is one: for who gathers several.
    ///
    /// # Errors
    /// As [`Server::recv`].
    pub fn try_recv(&mut self) -> Result<Option<Call>> {
        self.check()?;
        self.look()
    }

    fn check(&self) -> Result<()> {
        let session = self.client.session();
        session.check()?;
        // Nobody can open a line to it any more, and those that there were lead nowhere.
        if session.control.is_dead() { Err(Error::SessionEnded) } else { Ok(()) }
    }

    /// The service's name.
    pub fn service(&self) -> &str {
        &self.service.name
    }

    /// Callers that it serves at the moment.
    pub fn callers(&self) -> usize {
        self.lines.len()
    }

    fn recv_until(&mut self, deadline: Deadline) -> Result<Call> {
        self.check()?;
        let session = self.client.session().clone();
        session.waiter().enlist()?;
        let spin = std::mem::replace(&mut self.spin, Spin::new());
        let found = spin.look(|| self.look());
        self.spin = spin;
        if let Some(call) = found? {
            return Ok(call);
        }
        let news = &session.directory.head().bell;
        loop {
            self.check()?;
            // All bells are sampled before the look that decides.
            let sample = news.read();
            let parked = session.waiter().park(PARKED_ANY);
            let samples: Vec<u32> = self.lines.iter().map(|line| line.requests.park()).collect();
            let known: Vec<Id> = self.lines.iter().map(|line| line.id).collect();
            let found = self.look();
            if let Ok(None) = found {
                let Some(nap) = deadline.nap() else {
                    self.unpark();
                    return Err(deadline.error(format!("a request to {:?}", self.service.name)));
                };
                // Where lines came or went with this look, it is repeated with their bells.
                let is_all = self.unheard().is_none();
                if is_all && self.lines.iter().map(|line| line.id).eq(known) {
                    let lines = self.lines.iter().zip(samples).map(|(line, sample)| (line.requests.bell(), sample));
                    let bells: Vec<_> = std::iter::once((news, sample)).chain(lines).collect();
                    futex::wait_any(&bells, nap);
                }
            }
            drop(parked);
            self.unpark();
            if let Some(call) = found? {
                return Ok(call);
            }
        }
    }

    fn unpark(&self) {
        for line in &self.lines {
            line.requests.unpark();
        }
    }

    /// Looks at the door, and at every line, from the one on whose turn it is.
    fn look(&mut self) -> Result<Option<Call>> {
        self.admit()?;
        for _ in 0..self.lines.len() {
            let Some(mut line) = self.lines.pop_front() else { break };
            let number = line.requests.position();
            match line.requests.look() {
                Ok(Some(message)) => {
                    let answers = line.answers.clone();
                    self.lines.push_back(line);
                    self.queued = self.lines.iter().map(|line| line.requests.waiting()).sum();
                    self.load.taken(self.queued);
                    let reply = Reply::new(&message, answers, self.load.clone(), self.client.clone());
                    return Ok(Some(Call { message, reply }));
                }
                Ok(None) => self.lines.push_back(line),
                // It cannot be read, and its caller waits.
                Err(error @ Error::Damaged { .. }) => {
                    let _ = line.answers.say(number, Said::Failure(words(&error)));
                    self.lines.push_back(line);
                }
                // The caller has hung up, or is gone.
                Err(Error::StreamEnded(_)) => self.hang_up(line),
                Err(error) => {
                    self.lines.push_back(line);
                    return Err(error);
                }
            }
        }
        if std::mem::take(&mut self.queued) > 0 {
            self.load.queued(0);
        }
        Ok(None)
    }

    /// The list that is the door, and the knocks there that were not looked at, if there are any. No round trip, no system call.
    fn unheard(&self) -> Option<(u64, std::ops::Range<u64>)> {
        let (id, end) = self.client.list_identity(&self.door)?;
        let heard = if id == self.door_id { self.knocks } else { 0 };
        (heard < end).then_some((id, heard..end))
    }

    /// Lets those in who have knocked.
    fn admit(&mut self) -> Result<()> {
        let Some((id, numbers)) = self.unheard() else { return Ok(()) };
        let until = numbers.end.min(numbers.start + KNOCKS_AT_ONCE);
        let mut knocks = Vec::new();
        for number in numbers.start..until {
            match item(self.client.session(), &self.door, id, number) {
                Ok(Some(knock)) => knocks.push(knock),
                // The knock has gone with its caller, or the door was emptied: a caller that is there knocks again.
                Ok(None) | Err(Error::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        (self.door_id, self.knocks) = (id, until);
        for knock in knocks {
            let Some(line) = read_knock(&knock) else { continue };
            if self.lines.len() < CALLERS_MAX && self.lines.iter().all(|known| known.id != line) {
                match self.begin(line) {
                    Ok(line) => self.lines.push_back(line),
                    // The caller is gone again, or there is no room: it will wait in vain, here.
                    Err(error) if error.is_disconnected() => return Err(error),
                    Err(_) => {}
                }
            }
        }
        if self.knocks >= KNOCKS_MAX {
            self.client.clear(&self.door)?;
            self.knocks = 0;
        }
        Ok(())
    }

    fn begin(&self, id: Id) -> Result<Line> {
        let requests = self.client.subscription(&self.service.requests(self.id, id)).from(Start::Oldest).open()?;
        let capacity = requests.capacity();
        if capacity > CAPACITY_MAX {
            return Err(Error::Argument(format!("a line for {capacity} requests")));
        }
        // Last: a caller that finds it knows that its requests are waited for.
        let answers = self.client.stream(&self.service.answers(self.id, id)).capacity(capacity).policy(Policy::Error);
        Ok(Line { id, requests, answers: Arc::new(Answers::new(self.client.clone(), answers.open()?)) })
    }

    fn hang_up(&self, line: Line) {
        line.answers.close();
        drop(line.requests);
        let _ = self.client.delete_stream(&self.service.requests(self.id, line.id));
        let _ = self.client.delete_stream(&self.service.answers(self.id, line.id));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.client.session().is_forked() {
            return;
        }
        // First, so that nobody comes any more.
        let _ = self.client.delete(&self.service.presence(self.id));
        while let Some(line) = self.lines.pop_front() {
            // Its caller removes what is left, once it has taken the answers that were given.
            line.answers.close();
        }
        let _ = self.client.clear(&self.door);
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("service", &self.service.name)
            .field("callers", &self.lines.len())
            .finish_non_exhaustive()
    }
}

/// What is said at a door: the number of a line.
fn read_knock(knock: &Value) -> Option<Id> {
    let number = knock.as_tensor()?.as_slice::<u64>().ok()?;
    let [number] = number else { return None };
    Some(Id(*number))
}

/// Removes doors and lines of servers that are gone.
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

/// A request that waits for its answer: a lease on a tensor or a dataset. Dropped without an answer, it has failed.
pub struct Call {
    message: Message,
    reply: Reply,
}

impl Call {
    /// What was sent.
    pub fn value(&self) -> &Value {
        self.message.value()
    }

    /// The tensor that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a dataset.
    pub fn tensor(&self) -> Result<&crate::Lease> {
        self.message.tensor()
    }

    /// The dataset that was sent.
    ///
    /// # Errors
    /// [`Error::Kind`] if it was a tensor.
    pub fn dataset(&self) -> Result<&crate::Dataset> {
        self.message.dataset()
    }

    /// What was sent, and the right to answer it, for who needs the one longer than the other.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// let (image, reply) = server.recv()?.split();
    /// let mut size = client.create(tensorlend::DType::U64, &[1])?;
    /// size.as_mut_slice::<u64>()?.fill(image.as_tensor().unwrap().nbytes());
    /// drop(image); // its memory is the caller's again
    /// reply.answer(size)
    /// # }});
    /// # let mut caller = client.caller("size").open()?;
    /// # let answer = caller.call(client.create(tensorlend::DType::U8, &[7])?, None)?;
    /// # assert_eq!(answer.as_tensor().unwrap().as_slice::<u64>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn split(self) -> (Value, Reply) {
        (self.message.into_value(), self.reply)
    }

    /// Says that the answer comes within some ten microseconds: a caller who sleeps is woken meanwhile. Worth while after long work,
    /// where what is left is to write the answer. An answer that is late all the same costs the caller one wake-up more.
    ///
    /// ```
    /// # let broker = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(broker.socket()).connect()?;
    /// # let mut server = client.serve("size").open()?;
    /// # let thread = std::thread::spawn({ let client = client.clone(); move || -> tensorlend::Result<()> {
    /// let call = server.recv()?;
    /// // ... long work ...
    /// # std::thread::sleep(std::time::Duration::from_millis(50));
    /// call.soon();
    /// # std::thread::sleep(std::time::Duration::from_millis(50));
    /// let mut size = client.create(tensorlend::DType::U64, &[1])?;
    /// size.as_mut_slice::<u64>()?.fill(call.tensor()?.nbytes());
    /// call.answer(size)
    /// # }});
    /// # let mut caller = client.caller("size").open()?;
    /// # let answer = caller.call(client.create(tensorlend::DType::U8, &[7])?, None)?;
    /// # assert_eq!(answer.as_tensor().unwrap().as_slice::<u64>()?, [7]);
    /// # thread.join().unwrap()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn soon(&self) {
        if let Some(number) = self.reply.number {
            self.reply.answers.soon(number);
        }
    }

    /// Answers. The caller sees its answers in the order of its requests: one that is early waits for its turn.
    /// A caller that is gone is no error.
    ///
    /// # Errors
    /// [`Error::Argument`] for a draft of another client, or a dataset without tensors; then the call has failed, and the caller
    /// is told so. [`Error::Refused`] if there is no memory for what is sent beside it.
    pub fn answer(self, answer: impl Into<ValueDraft>) -> Result<()> {
        // The request may have been all the memory that there was.
        drop(self.message);
        self.reply.answer(answer)
    }

    /// Says why there is no answer. The caller gets [`Error::Answer`] with these words, of which 64 KiB arrive.
    ///
    /// # Errors
    /// As [`Call::answer`].
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

/// The right to answer one request, once. Dropped without an answer, the request has failed. See [`Call::split`].
pub struct Reply {
    /// The request's; taken by whoever answers.
    number: Option<u64>,
    answers: Arc<Answers>,
    load: Arc<Load>,
    client: Client,
}

impl Reply {
    fn new(message: &Message, answers: Arc<Answers>, load: Arc<Load>, client: Client) -> Self {
        Self { number: Some(message.sequence()), answers, load, client }
    }

    /// Answers, as [`Call::answer`].
    ///
    /// # Errors
    /// As [`Call::answer`].
    pub fn answer(mut self, answer: impl Into<ValueDraft>) -> Result<()> {
        let draft = answer.into();
        if let Err(error) = self.check(&draft) {
            self.say(Said::Failure(words(&error)))?;
            return Err(error);
        }
        self.say(Said::Answer(draft.into()))
    }

    /// Says why there is no answer, as [`Call::fail`].
    ///
    /// # Errors
    /// As [`Call::answer`].
    pub fn fail(mut self, why: impl std::fmt::Display) -> Result<()> {
        self.say(Said::Failure(why.to_string()))
    }

    fn check(&self, draft: &ValueDraft) -> Result<()> {
        use crate::tensor::sendable::sealed::{INSIDE, Message as _};
        if !Arc::ptr_eq(draft.session(INSIDE), self.client.session()) {
            return Err(Error::Argument("the draft of the answer was made by another client".into()));
        }
        match draft {
            ValueDraft::Dataset(several) if several.is_empty() => Err(Error::Argument(
                "the dataset has no tensor, which stands for a failure: give it one, or refuse the request with fail"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    fn say(&mut self, said: Said) -> Result<()> {
        let Some(number) = self.number.take() else { return Ok(()) };
        // A child has no lease table to say it in.
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
