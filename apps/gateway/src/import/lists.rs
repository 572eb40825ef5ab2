//! Local copies of other nodes' lists. A client's request copies the items that the local copy lacks.

use crate::context::Context;
use crate::key::Kind;
use crate::name::RemoteName;
use crate::nodes::Absence;
use crate::runtime::EventSender;
use crate::transfer::{Outcome, Request, Source};
use crate::transport::{Body, Frame, Trouble};
use crate::value::{Incoming, Piece};
use crate::wire::{AboutList, Chunk, Descriptor, Epoch, ITEMS_MAX, ListAnswer, decode, encode, item};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tensorlend::remote::RemoteAnswer;
use tensorlend::{Call, Client, ValueDraft};

/// Maximum number of items that one response describes.
const PAGE: u32 = ITEMS_MAX;
/// Maximum bytes of items in one response. The gateway fetches a larger item separately, in chunks.
const INLINE_BYTES: u32 = 1 << 20;
/// Maximum number of lists that this gateway copies at the same time.
const RUNNING_MAX: usize = 256;
/// Maximum number of lists whose identity this gateway remembers.
const KNOWN_MAX: usize = 65_536;
/// Maximum number of restarts of one copy. A copy restarts if a client clears the list during the
/// copy.
const RESTARTS_MAX: u32 = 16;

/// An item that has not been copied yet.
struct Item {
    descriptor: Arc<Descriptor>,
    number: u64,
}

type Items = VecDeque<Item>;

/// A response that describes items of a list.
struct Page {
    list: Epoch,
    /// Number of the first item that was requested.
    from: u64,
    /// Number of items of the list.
    length: u64,
    items: Items,
    /// The bytes of the first of these items. The other items come without bytes.
    pieces: Vec<Piece>,
}

struct Running {
    callers: Vec<Call>,
    /// Number of callers that asked before the last request was sent. The response to it does not count for later ones.
    asked_before: usize,
    restarts: u32,
    /// The number of the connection on which the last request was sent.
    connection: Option<u64>,
    /// The number of the last request. The gateway ignores responses to earlier ones.
    asked: u64,
    /// Whether a worker appends a page, while the last request asks for the next page.
    is_ahead: bool,
    /// The response to that request, if it came before the worker had finished.
    early: Option<Response>,
}

/// A response to the request for the items of a list from a number on, or the error instead of a response.
struct Response {
    /// The list whose items the gateway has requested. A response about another list begins with its first item.
    list: Option<Epoch>,
    from: u64,
    result: Result<Frame, Trouble>,
}

/// An event of a list that is being copied.
pub struct Event(Step);

enum Step {
    /// The node has responded to the request with this number, or has failed to respond.
    Response(RemoteName, u64, Response),
    /// A worker has appended the items whose bytes came with the response.
    Appended(Appended),
}

/// The outcome of a worker's appends, and the items that must still be appended.
struct Appended {
    name: RemoteName,
    list: Epoch,
    rest: Items,
    /// Whether the page had the last items of the list.
    is_last: bool,
    result: Result<(), AppendError>,
}

/// The purpose of a transfer: the fetched item, and the items after it.
pub struct ItemOf {
    name: RemoteName,
    list: Epoch,
    number: u64,
    rest: Items,
}

/// Copies of lists of other nodes.
pub struct Lists {
    events: EventSender<Event>,
    running: HashMap<RemoteName, Running>,
    /// For each name, the identity of the list whose items the local copy contains.
    known: HashMap<RemoteName, Epoch>,
    /// The number of the last request.
    last_number: u64,
}

impl Lists {
    /// Makes an empty collection, which posts responses to `events`.
    pub fn new(events: EventSender<Event>) -> Self {
        Self { events, running: HashMap::new(), known: HashMap::new(), last_number: 0 }
    }

    /// Handles a client's request for a list of another node.
    pub fn on_asked(&mut self, context: &Context, space: usize, name: &str, call: Call) {
        let name = match context.imported_name(space, name) {
            Ok(_) if self.running.len() >= RUNNING_MAX => {
                return context.refuse(space, call, "too many lists at once: ask again".to_owned());
            }
            Ok(name) => name,
            Err(why) => return context.refuse(space, call, why),
        };
        if let Some(running) = self.running.get_mut(&name) {
            return running.callers.push(call);
        }
        let callers = vec![call];
        let running =
            Running { callers, asked_before: 0, restarts: 0, connection: None, asked: 0, is_ahead: false, early: None };
        self.running.insert(name.clone(), running);
        self.ask(context, name);
    }

    fn end(&mut self, context: &Context, name: &RemoteName, answer: &RemoteAnswer) {
        let Some(running) = self.running.remove(name) else { return };
        running.callers.into_iter().for_each(|call| context.answer(name.space, call, answer));
    }

    /// Responds to the clients that asked before the last request was sent: the local copy has all items. Requests the items
    /// for the clients that asked later.
    fn complete(&mut self, context: &Context, name: RemoteName) {
        let Some(running) = self.running.get_mut(&name) else { return };
        let answer = RemoteAnswer::here(false);
        let served = running.callers.drain(..running.asked_before);
        served.for_each(|call| context.answer(name.space, call, &answer));
        if running.callers.is_empty() {
            self.running.remove(&name);
        } else {
            running.restarts = 0;
            self.ask(context, name);
        }
    }

    fn refuse(&mut self, context: &Context, name: &RemoteName, why: String) {
        self.end(context, name, &RemoteAnswer::Refused { why });
    }

    /// Responds to a client whose list is on an unreachable node. The response is the local copy,
    /// if there is one.
    fn end_unreachable(&mut self, context: &Context, name: &RemoteName) {
        let is_here = context.client(name.space).list_identity(&name.local()).is_some();
        let answer = if is_here { RemoteAnswer::here(true) } else { RemoteAnswer::Unreachable };
        self.end(context, name, &answer);
    }

    /// Requests the items that the local copy lacks.
    fn ask(&mut self, context: &Context, name: RemoteName) {
        if context.nodes.connection(&name.node).is_none() {
            return self.end_unreachable(context, &name);
        }
        let is_known = self.known.contains_key(&name);
        let from = if is_known { context.client(name.space).length(&name.local()) } else { 0 };
        self.ask_from(context, name, from);
    }

    /// Requests the items from a number on. Abandons earlier requests.
    fn ask_from(&mut self, context: &Context, name: RemoteName, from: u64) {
        let Some(running) = self.running.get_mut(&name) else { return };
        running.connection = context.nodes.connection(&name.node);
        self.last_number += 1;
        (running.asked, running.is_ahead, running.early) = (self.last_number, false, None);
        running.asked_before = running.callers.len();
        let (number, list) = (self.last_number, self.known.get(&name).copied());
        let checksum = context.settings.checksum;
        let about = AboutList { asker: context.asker.clone(), list, from, items: PAGE, bytes: INLINE_BYTES, checksum };
        let frame = Frame { head: encode(&about), body: Body::default() };
        let (key, events) = (context.key(Kind::List, &name), self.events.clone());
        context.ask_settled(key, frame, context.settings.answer_timeout, move |result| {
            events.post_later(Event(Step::Response(name, number, Response { list, from, result })));
        });
    }

    /// Applies an event. Returns a request if an item must be fetched.
    pub fn on_event(&mut self, context: &mut Context, event: Event) -> Option<Request<ItemOf>> {
        match event.0 {
            Step::Response(name, number, response) => {
                let running = self.running.get_mut(&name).filter(|running| running.asked == number)?;
                if running.is_ahead {
                    running.early = Some(response);
                    return None;
                }
                self.on_response(context, name, response)
            }
            Step::Appended(appended) => self.on_appended(context, appended),
        }
    }

    fn on_response(
        &mut self,
        context: &mut Context,
        name: RemoteName,
        Response { list: asked, from, result }: Response,
    ) -> Option<Request<ItemOf>> {
        let (answer, body) = match result.map(|frame| (decode::<ListAnswer>(&frame.head), frame.body)) {
            Ok((Ok(answer), body)) => (answer, body),
            Ok((Err(why), _)) => {
                context.drop_message(name.node.as_str(), &why);
                self.end(context, &name, &RemoteAnswer::Unreachable);
                return None;
            }
            Err(trouble) => {
                self.on_trouble(context, name, &trouble);
                return None;
            }
        };
        match answer {
            ListAnswer::Items { list, length, items, whole } => {
                let is_as_asked = items.len() <= PAGE as usize && body.len() as u64 <= u64::from(INLINE_BYTES);
                let Some(pieces) = is_as_asked.then(|| split(whole, &body)).flatten() else {
                    context.drop_message(name.node.as_str(), &"other bytes than were described, or asked for");
                    self.end(context, &name, &RemoteAnswer::Unreachable);
                    return None;
                };
                let from = if asked == Some(list) { from } else { 0 };
                let items = items
                    .into_iter()
                    .zip(from..)
                    .map(|(descriptor, number)| Item { descriptor: Arc::new(descriptor), number });
                self.on_page(context, name, Page { list, from, length, items: items.collect(), pieces })
            }
            ListAnswer::Nothing => {
                self.end(context, &name, &RemoteAnswer::Nothing);
                None
            }
            ListAnswer::Refused(why) => {
                self.refuse(context, &name, why);
                None
            }
        }
    }

    /// Handles a request that has failed without a response.
    fn on_trouble(&mut self, context: &Context, name: RemoteName, trouble: &Trouble) {
        let Some(running) = self.running.get(&name) else { return };
        let absence = match trouble {
            Trouble::Nobody => context.nodes.absence(&name.node, running.connection),
            Trouble::Timeout | Trouble::Engine(_) => Absence::Lost,
        };
        match absence {
            Absence::Unserved => self.end(context, &name, &RemoteAnswer::Nothing),
            Absence::Lost => self.end_unreachable(context, &name),
            Absence::Returned => self.ask(context, name),
        }
    }

    fn on_page(&mut self, context: &mut Context, name: RemoteName, page: Page) -> Option<Request<ItemOf>> {
        let Page { list, from, length, items, pieces } = page;
        let (client, local) = (context.client(name.space).clone(), name.local());
        let former = self.known.get(&name).copied();
        // A list that replaces another one during a copy counts once, whatever follows from it.
        let is_replaced = former.is_some_and(|former| former != list);
        if is_replaced && !self.begins_again(context, &name) {
            return None;
        }
        if former != Some(list) {
            // The local copy contains items of another list, or of one whose identity this gateway does not know.
            if let Err(error) = client.clear(&local) {
                self.refuse(context, &name, error.to_string());
                return None;
            }
            self.remember(&name, list);
            if from > 0 {
                self.restart(context, name);
                return None;
            }
        }
        if items.is_empty() {
            // If the node claims more items but sends none, the gateway repeats its request a
            // limited number of times.
            match from >= length {
                true => self.complete(context, name),
                false if is_replaced => self.ask(context, name),
                false => self.restart(context, name),
            }
            return None;
        }
        if let Some(foreign) = items.iter().find(|item| item.descriptor.origin != name.node) {
            context.statistics.loops += u64::from(foreign.descriptor.origin == *context.nodes.here());
            context.drop_message(name.node.as_str(), &"an item that is another node's");
            self.refuse(context, &name, "its items are another node's".to_owned());
            return None;
        }
        if pieces.is_empty() {
            return self.fetch(context, name, list, items);
        }
        let end = from + items.len() as u64;
        let is_last = end >= length;
        let is_whole = pieces.len() == items.len();
        let (events, owned) = (self.events.clone(), name.clone());
        let is_queued = context.copiers.run(move || {
            let (rest, result) = append(&client, &local, items, pieces);
            events.post(Event(Step::Appended(Appended { name: owned, list, rest, is_last, result })));
        });
        if !is_queued {
            self.refuse(context, &name, "too much to do".into());
        } else if is_whole && !is_last {
            // The node sends the next page while the worker appends this one.
            self.ask_from(context, name.clone(), end);
            if let Some(running) = self.running.get_mut(&name) {
                running.is_ahead = true;
            }
        }
        None
    }

    fn on_appended(&mut self, context: &mut Context, appended: Appended) -> Option<Request<ItemOf>> {
        let Appended { name, list, rest, is_last, result } = appended;
        match result {
            Ok(()) if rest.is_empty() && is_last => {
                self.complete(context, name);
                None
            }
            Ok(()) => {
                let running = self.running.get_mut(&name)?;
                if std::mem::take(&mut running.is_ahead) {
                    let early = running.early.take()?;
                    return self.on_response(context, name, early);
                }
                self.fetch(context, name, list, rest)
            }
            Err(AppendError::Damaged(why)) => {
                context.statistics.damaged += 1;
                context.drop_message(name.node.as_str(), &why);
                // Fetch the damaged item separately, because such a transfer itself repeats damaged
                // chunks.
                self.fetch(context, name, list, rest)
            }
            Err(AppendError::ForeignWriter) => {
                self.known.remove(&name);
                self.restart(context, name);
                None
            }
            Err(AppendError::Refused(why)) => {
                self.refuse(context, &name, why);
                None
            }
        }
    }

    fn remember(&mut self, name: &RemoteName, list: Epoch) {
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(name.clone(), list);
    }

    /// Requests the items that the local copy lacks, at most [`RESTARTS_MAX`] times.
    fn restart(&mut self, context: &Context, name: RemoteName) {
        if self.begins_again(context, &name) {
            self.ask(context, name);
        }
    }

    /// Counts a copy that begins again. Refuses it and returns false after [`RESTARTS_MAX`] times.
    fn begins_again(&mut self, context: &Context, name: &RemoteName) -> bool {
        let Some(running) = self.running.get_mut(name) else { return false };
        running.restarts += 1;
        let may_begin = running.restarts <= RESTARTS_MAX;
        if !may_begin {
            let why = "it is cleared again and again, or its node contradicts itself".to_owned();
            self.refuse(context, name, why);
        }
        may_begin
    }

    /// Fetches the first of the items in `rest`. If `rest` is empty, requests the next page.
    fn fetch(&mut self, context: &Context, name: RemoteName, list: Epoch, mut rest: Items) -> Option<Request<ItemOf>> {
        let Some(Item { descriptor, number }) = rest.pop_front() else {
            self.ask(context, name);
            return None;
        };
        Some(Request {
            client: context.client(name.space).clone(),
            source: Source { kind: Kind::List, name: name.clone(), stamp: item(list, number) },
            descriptor,
            first: None,
            purpose: ItemOf { name, list, number, rest },
        })
    }

    /// Appends a fetched item to the local copy, and fetches the next item.
    pub fn on_fetched(&mut self, context: &mut Context, item: ItemOf, outcome: Outcome) -> Option<Request<ItemOf>> {
        let ItemOf { name, list, number, rest } = item;
        match outcome {
            Outcome::Complete(draft) => {
                let (client, local) = (context.client(name.space), name.local());
                if client.length(&local) != number {
                    // A client of this machine has appended to the copy.
                    self.known.remove(&name);
                    self.restart(context, name);
                    return None;
                }
                match client.append(&local, draft) {
                    Ok(_) => return self.fetch(context, name, list, rest),
                    Err(error) => self.refuse(context, &name, error.to_string()),
                }
            }
            Outcome::Superseded => self.restart(context, name),
            Outcome::Unreachable => self.end(context, &name, &RemoteAnswer::Unreachable),
            Outcome::Refused(why) => self.refuse(context, &name, why),
        }
        None
    }
}

/// The reason why an item that arrived with its bytes was not appended.
enum AppendError {
    /// The received bytes differ from the sent bytes.
    Damaged(String),
    /// A client of this machine has appended to the copy.
    ForeignWriter,
    /// The daemon refused the item, for this reason.
    Refused(String),
}

/// Divides the body of a response into the bytes of its chunks. Returns `None` if their lengths do
/// not sum to the body's length.
fn split(chunks: Vec<Chunk>, body: &Body) -> Option<Vec<Piece>> {
    let bytes: u64 = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
    if body.len() as u64 != bytes {
        return None;
    }
    let mut rest = Bytes::from(body.contiguous().into_owned());
    let its = |chunk: Chunk| {
        let bytes = rest.split_to(chunk.bytes as usize);
        Piece { chunk, body: Body::of(bytes) }
    };
    Some(chunks.into_iter().map(its).collect())
}

/// Appends the items whose bytes are in `pieces`, in one request. Returns the remaining items, and an error if not all items
/// with bytes could be appended.
fn append(client: &Client, list: &str, mut items: Items, pieces: Vec<Piece>) -> (Items, Result<(), AppendError>) {
    let mut drafts = Vec::with_capacity(pieces.len());
    let mut made = Ok(());
    for (item, piece) in items.iter().zip(pieces) {
        match draft(client, item, &piece) {
            Ok(draft) => drafts.push(draft),
            Err(error) => {
                made = Err(error);
                break;
            }
        }
    }
    let first = items.front().map_or(0, |first| first.number);
    if client.length(list) != first {
        return (items, Err(AppendError::ForeignWriter));
    }
    // Append the items before one that is damaged or refused.
    match client.append_many(list, drafts) {
        Ok(appended) if !appended.is_empty() && appended.start != first => (items, Err(AppendError::ForeignWriter)),
        Ok(appended) => {
            items.drain(..(appended.end - appended.start) as usize);
            (items, made)
        }
        Err(error) => (items, Err(AppendError::Refused(error.to_string()))),
    }
}

/// Makes the draft of an item that came with its bytes.
fn draft(client: &Client, item: &Item, piece: &Piece) -> Result<ValueDraft, AppendError> {
    let refused = |error: tensorlend::Error| AppendError::Refused(error.to_string());
    let mut incoming = Incoming::new(client, item.descriptor.clone()).map_err(refused)?;
    incoming.receive(&piece.chunk, &piece.body).map_err(|why| AppendError::Damaged(why.to_string()))?;
    incoming.finish(client).map_err(refused)
}
