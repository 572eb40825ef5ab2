//! Values that clients of this machine put on others.

use super::names::{INLINE_BYTES, remote_name};
use super::transfers::Source;
use crate::hub::Hub;
use crate::key::Kind;
use crate::local;
use crate::transport::{Frame, Trouble};
use crate::value::Outgoing;
use crate::wire::{Chunk, Codecs, Descriptor, NameAnswer, NameQuestion, NodeName, Packing, Shape, TensorShape, decode};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tensorlend::remote::{RemoteAnswer, VALUE, VALUE_METADATA, VALUE_PREFIX};
use tensorlend::{Call, Tensor};

/// How long the other side has to say that it has fetched a value, before it is asked again: it fetches as many as come.
const TAKEN: Duration = Duration::from_secs(20);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// One value on offer.
struct Offering {
    source: Source,
    value: Outgoing,
    number: u64,
    /// When it was offered first.
    since: Instant,
    call: Call,
}

impl Hub {
    /// A client wants a value to be put on another node.
    pub fn on_put_asked(&mut self, space: usize, name: &str, dataset: bool, call: Call, now: Instant) {
        let refuse = |hub: &Hub, call, said| local::answer(&hub.context.spaces[space].client, call, &said);
        let why = |why| RemoteAnswer::Refused { why };
        let asked = match remote_name(space, name) {
            Ok(asked) => asked,
            Err(bad) => return refuse(self, call, why(bad)),
        };
        if asked.node == *self.nodes.here() {
            return refuse(self, call, why(format!("{} is this machine: leave its name out", asked.node)));
        }
        if !self.nodes.is_alive(&asked.node) {
            return refuse(self, call, RemoteAnswer::Unreachable);
        }
        let value = match outgoing(&call, dataset, self.nodes.here()) {
            Ok(value) => value,
            Err(bad) => return refuse(self, call, why(bad)),
        };
        let stamp = self.exports.offer(space, &asked.name, &asked.node, value.clone());
        self.imports.offers += 1;
        let source = Source { space, node: asked.node, kind: Kind::Name, name: asked.name, stamp };
        self.offer(Offering { source, value, number: self.imports.offers, since: now, call });
    }

    fn offer(&mut self, offering: Offering) {
        let Offering { source, value, number, .. } = &offering;
        let descriptor = Descriptor::clone(value.descriptor());
        // A small one goes along. Of a large one, which is fetched in chunks, nothing does: the offer may be refused.
        let along = if value.len() <= u64::from(INLINE_BYTES) { value.len() } else { 0 };
        let (body, element) = value.range(0, along);
        let checksum = self.context.settings.checksum;
        let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), checksum);
        let what = NameQuestion::Put { descriptor, stamp: source.stamp, offer: *number, chunk };
        let source = source.clone();
        self.ask_about(&source, what, body, TAKEN, move |hub, now, answer| hub.on_offered(offering, answer, now));
    }

    fn on_offered(&mut self, offering: Offering, answer: Result<Frame, Trouble>, now: Instant) {
        let said = match answer.map(|frame| decode::<NameAnswer>(&frame.head)) {
            Ok(Ok(NameAnswer::Done)) => RemoteAnswer::Here { stale: false },
            Ok(Ok(NameAnswer::Refused(why))) => {
                RemoteAnswer::Refused { why: format!("{}: {why}", offering.source.node) }
            }
            Ok(other) => {
                let why = other.map_or_else(|bad| bad.to_string(), |_| "not an answer to an offer".to_owned());
                self.context.drop_message(offering.source.node.as_str(), &why);
                RemoteAnswer::Refused { why: format!("{}: {why}", offering.source.node) }
            }
            // The number of the offer sees to it that it is taken once, however often it is made.
            Err(trouble) if now.saturating_duration_since(offering.since) < self.context.settings.patience => {
                self.context.statistics.troubles += 1;
                // A timeout was waiting enough.
                let pause = if trouble == Trouble::Timeout { Duration::ZERO } else { PAUSE };
                let post = self.context.post.clone();
                let Source { space, name, stamp, .. } = offering.source.clone();
                let later = self.context.askers.run(move || {
                    std::thread::sleep(pause);
                    post.run(move |hub, _| hub.offer(offering));
                });
                if !later {
                    tracing::warn!("a value that was to be put elsewhere was dropped: too much to do");
                    self.exports.withdraw(space, &name, stamp);
                }
                return;
            }
            Err(_) => RemoteAnswer::Unreachable,
        };
        let Offering { source, call, .. } = offering;
        self.exports.withdraw(source.space, &source.name, source.stamp);
        // Who has put a value shall not find the old one; the word that it has changed may come later than this answer.
        let name = super::cache::RemoteName { space: source.space, node: source.node, name: source.name };
        let effects = self.imports.cache.on_put(&name, now);
        self.import(effects);
        local::answer(&self.context.spaces[source.space].client, call, &said);
    }
}

/// The value that comes with a request. It is copied, since the request is answered before it can be known that nobody reads it any more.
fn outgoing(call: &Call, is_dataset: bool, here: &NodeName) -> Result<Outgoing, String> {
    let request = call.value().as_dataset().ok_or("a put without a value")?;
    let mut parts = Vec::new();
    let mut copied = |tensor: &Tensor| {
        let mut bytes = vec![0; tensor.nbytes() as usize];
        tensor.copy_to(&mut bytes).map_err(|error| error.to_string())?;
        parts.push((Bytes::from(bytes), tensor.dtype().item_bytes()));
        Ok::<TensorShape, String>(TensorShape::of(tensor))
    };
    let shape = if is_dataset {
        let mut members = Vec::new();
        for (name, tensor) in request.iter() {
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
