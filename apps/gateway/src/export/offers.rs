//! Values that clients of this machine put on other nodes.

use super::names::Exports;
use crate::context::Context;
use crate::key::Kind;
use crate::name::RemoteName;
use crate::runtime::EventSender;
use crate::transport::{Frame, Trouble};
use crate::value::Outgoing;
use crate::wire::{
    Chunk, Codecs, Descriptor, INLINE_BYTES, NameAnswer, NameQuestion, NodeName, Packing, Shape, Stamp, TensorShape,
    decode,
};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteAnswer, VALUE, VALUE_METADATA, VALUE_PREFIX};
use tensorlend::{Call, Tensor};

/// Time after which this gateway repeats an offer. The other node must fetch the value and respond within it.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// One value that this machine offers to another node.
struct Offer {
    name: RemoteName,
    stamp: Stamp,
    value: Outgoing,
    /// Number of the offer. All attempts have the same number, so that the other node takes the
    /// value only once.
    number: u64,
    /// Time of the first attempt.
    since: Instant,
    call: Call,
}

pub struct Event(Step);

enum Step {
    /// The other node has responded, or has failed to respond.
    Response(Box<Offer>, Result<Frame, Trouble>),
    /// The pause after a failed attempt is over.
    Again(Box<Offer>),
}

/// An offer with a final result.
pub struct Settled {
    /// The name on the other node.
    pub name: RemoteName,
    /// The client's request.
    pub call: Call,
    /// The response to the client's request.
    pub answer: RemoteAnswer,
}

/// Values that clients of this machine put on other nodes. [`Exports`] holds them for those nodes to read.
pub struct Offers {
    events: EventSender<Event>,
    last_number: u64,
}

impl Offers {
    /// Makes an empty collection. Its workers post to `events`.
    pub fn new(events: EventSender<Event>) -> Self {
        Self { events, last_number: 0 }
    }

    /// Handles a client's request to put a value on another node.
    pub fn on_asked(
        &mut self,
        context: &Context,
        exports: &mut Exports,
        name: RemoteName,
        is_dataset: bool,
        call: Call,
        now: Instant,
    ) {
        let space = name.space;
        if !context.nodes.is_alive(&name.node) {
            return context.answer(space, call, &RemoteAnswer::Unreachable);
        }
        let value = match outgoing(&call, is_dataset, context.nodes.here()) {
            Ok(value) => value,
            Err(why) => return context.refuse(space, call, why),
        };
        let stamp = exports.offer(&name, value.clone());
        self.last_number += 1;
        self.offer(context, Box::new(Offer { name, stamp, value, number: self.last_number, since: now, call }));
    }

    fn offer(&self, context: &Context, offer: Box<Offer>) {
        let value = &offer.value;
        let descriptor = Descriptor::clone(value.descriptor());
        // The offer contains the bytes of a small value. The bytes of a large value would be sent
        // without effect if the other node refused. So that node fetches them in chunks when it has
        // accepted the offer.
        let along = if value.len() <= u64::from(INLINE_BYTES) { value.len() } else { 0 };
        let (body, element) = value.range(0, along);
        let checksum = context.settings.checksum;
        let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), checksum);
        let what = NameQuestion::Put { descriptor, stamp: offer.stamp, offer: offer.number, chunk };
        let (key, events) = (context.key(Kind::Name, &offer.name), self.events.clone());
        context.ask_about(key, what, body, RESPONSE_TIMEOUT, move |response| {
            events.post_later(Event(Step::Response(offer, response)));
        });
    }

    /// Applies an event. Returns the offer if it has ended.
    pub fn on_event(
        &mut self,
        context: &mut Context,
        exports: &mut Exports,
        event: Event,
        now: Instant,
    ) -> Option<Settled> {
        let (offer, response) = match event.0 {
            Step::Response(offer, response) => (offer, response),
            Step::Again(offer) => {
                self.offer(context, offer);
                return None;
            }
        };
        let node = &offer.name.node;
        let answer = match response.map(|frame| decode::<NameAnswer>(&frame.head)) {
            Ok(Ok(NameAnswer::Done)) => RemoteAnswer::here(false),
            Ok(Ok(NameAnswer::Refused(why))) => RemoteAnswer::Refused { why: format!("{node}: {why}") },
            Ok(other) => {
                let why = other.map_or_else(|bad| bad.to_string(), |_| "the reply does not fit the offer".to_owned());
                context.drop_message(node.as_str(), &why);
                RemoteAnswer::Refused { why: format!("{node}: {why}") }
            }
            Err(trouble) if now.saturating_duration_since(offer.since) < context.settings.stall_timeout => {
                context.statistics.troubles += 1;
                self.retry(context, exports, offer, &trouble);
                return None;
            }
            Err(_) => RemoteAnswer::Unreachable,
        };
        let Offer { name, stamp, call, .. } = *offer;
        exports.withdraw(&name, stamp);
        Some(Settled { name, call, answer })
    }

    fn retry(&self, context: &Context, exports: &mut Exports, offer: Box<Offer>, trouble: &Trouble) {
        // A timeout has already taken enough time, so the next attempt begins at once.
        let pause = if *trouble == Trouble::Timeout { Duration::ZERO } else { PAUSE };
        let (events, name, stamp) = (self.events.clone(), offer.name.clone(), offer.stamp);
        let is_queued = context.askers.run(move || {
            std::thread::sleep(pause);
            events.post(Event(Step::Again(offer)));
        });
        if !is_queued {
            tracing::warn!("a value that was to be put elsewhere was dropped: too much to do");
            exports.withdraw(&name, stamp);
        }
    }
}

/// Returns a copy of the value in a client's request. The original ends with the response to the
/// client, but the transport may read the value longer.
fn outgoing(call: &Call, is_dataset: bool, here: &NodeName) -> Result<Outgoing, String> {
    let request = call.value().as_dataset().ok_or("a put without a value")?;
    request.require_host("the request").map_err(|error| error.to_string())?;
    let mut parts = Vec::new();
    let mut copied = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.nbytes()];
        tensor.copy_to(&mut bytes).map_err(|error| error.to_string())?;
        parts.push((Bytes::from(bytes), tensor.dtype().item_bytes()));
        Ok::<TensorShape, String>(TensorShape::of(tensor))
    };
    let shape = if is_dataset {
        let mut members = Vec::new();
        for (name, tensor) in request {
            if let Some(name) = name.strip_prefix(VALUE_PREFIX) {
                members.push((name.to_owned(), copied(tensor)?));
            }
        }
        let metadata = match request.get(VALUE_METADATA) {
            Some(metadata) => metadata.row_major_bytes().ok_or("strided metadata")?.to_vec(),
            None => Vec::new(),
        };
        Shape::Dataset { members, metadata, timestamp_ns: request.timestamp() }
    } else {
        Shape::Tensor(copied(request.get(VALUE).ok_or("a put without a value")?)?)
    };
    let descriptor = Descriptor { origin: here.clone(), shape };
    descriptor.check().map_err(|bad| bad.to_string())?;
    Ok(Outgoing::of_bytes(descriptor, parts))
}
