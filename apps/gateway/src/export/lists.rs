//! Lists of this machine that other nodes copy.

use super::names::Part;
use crate::context::Context;
use crate::runtime::EventSender;
use crate::transport::{Answer, Body, Frame};
use crate::value::Outgoing;
use crate::wire::{
    AboutList, AboutName, CHUNK_BYTES_MAX, Chunk, Codecs, Descriptor, Epoch, HEAD_BYTES_MAX, ListAnswer, NameAnswer,
    NameQuestion, NodeName, Packing, encode, item, words,
};
use tensorlend::{Client, Value};

/// Reports the number of bytes of items that a worker has sent.
pub struct Event(u64);

/// Handles another gateway's request for the items of a list.
pub fn on_question(
    context: &mut Context,
    events: &EventSender<Event>,
    space: usize,
    name: &str,
    about: AboutList,
    answer: Answer,
) {
    context.statistics.answered += 1;
    if about.asker.node == *context.nodes.here() || !context.is_exported(space, name) {
        return context.reply(answer, ListAnswer::Nothing);
    }
    let (client, here, epoch) = (context.client(space).clone(), context.nodes.here().clone(), context.nodes.epoch());
    let (name, events) = (name.to_owned(), events.clone());
    context.senders.run(move || {
        let described = describe(&client, &name, &here, epoch, &about);
        let (head, bytes) =
            described.unwrap_or_else(|error| (ListAnswer::Refused(words(&error.to_string())), Vec::new()));
        events.post(Event(bytes.len() as u64));
        answer(Frame { head: encode(&head), body: Body::of(bytes.into()) });
    });
}

/// Adds the bytes that a worker has sent to the statistics.
pub fn on_event(context: &mut Context, Event(bytes): Event) {
    context.statistics.sent_bytes += bytes;
}

/// Handles another gateway's request for a part of an item.
pub fn on_item_question(context: &mut Context, space: usize, name: &str, about: AboutName, answer: Answer) {
    context.statistics.answered += 1;
    let epoch = context.nodes.epoch();
    let NameQuestion::Read { stamp, offset, bytes, codecs, checksum } = about.what else {
        return context.reply(answer, NameAnswer::Done);
    };
    if bytes > CHUNK_BYTES_MAX || !context.is_exported(space, name) {
        return context.reply(answer, NameAnswer::Superseded(None));
    }
    context.statistics.sent_bytes += u64::from(bytes);
    let part = Part { stamp, offset, bytes, codecs, checksum };
    let (client, here, name) = (context.client(space).clone(), context.nodes.here().clone(), name.to_owned());
    context.senders.run(move || {
        let number = stamp.counter.saturating_sub(1);
        let is_same = || client.list_identity(&name).is_some_and(|(id, _)| identity(epoch, id) == stamp.epoch);
        let found = client.get_range(&name, number..=number).ok().and_then(|mut found| found.pop());
        let value = found.filter(|_| is_same()).and_then(|value| Outgoing::new(value, here).ok());
        match value.filter(|value| part.is_within(value)) {
            Some(value) => answer(part.pack(&value)),
            None => answer(Frame { head: encode(&NameAnswer::Superseded(None)), body: Body::default() }),
        }
    });
}

/// Returns the identity of a list for other nodes. The gateway's epoch makes the identity unique
/// among the lists of all gateways.
fn identity(epoch: Epoch, id: u64) -> Epoch {
    Epoch(epoch.0 ^ id.rotate_left(32))
}

fn describe(
    client: &Client,
    name: &str,
    here: &NodeName,
    epoch: Epoch,
    about: &AboutList,
) -> tensorlend::Result<(ListAnswer, Vec<u8>)> {
    let Some((id, length)) = client.list_identity(name) else { return Ok((ListAnswer::Nothing, Vec::new())) };
    let from = if about.list == Some(identity(epoch, id)) { about.from } else { 0 };
    let end = from.saturating_add(u64::from(about.items)).min(length).max(from);
    let values = client.get_range(name, from..end);
    match client.list_identity(name) {
        Some((now, _)) if now == id => {}
        // The list was cleared while this function read it. A response without items makes the requester ask again.
        Some(_) => {
            let said = ListAnswer::Items { list: identity(epoch, id), length, items: Vec::new(), whole: Vec::new() };
            return Ok((said, Vec::new()));
        }
        None => return Ok((ListAnswer::Nothing, Vec::new())),
    }
    let values: Vec<Value> = values?;
    if (values.len() as u64) < end - from {
        // A copy numbers its items by their order, so it cannot omit any item.
        let range = format!("of its items {from} to {end}, only {} exist", values.len());
        let why =
            "other machines copy no queue, and no list whose items end: a queue serves the processes of one machine";
        return Err(tensorlend::Error::Argument(format!("list {name:?} cannot be copied, {range}: {why}")));
    }
    let (mut items, mut room) = (Vec::new(), HEAD_BYTES_MAX / 2);
    let (mut whole, mut bytes) = (Vec::new(), Vec::new());
    for value in values {
        let outgoing = Outgoing::new(value, here.clone());
        let outgoing = outgoing.map_err(|bad| tensorlend::Error::Argument(bad.to_string()))?;
        let described = Descriptor::clone(outgoing.descriptor());
        let said: usize = described.shape.tensors().map(|(name, one)| name.len() + one.metadata.len() + 256).sum();
        if said > room && !items.is_empty() {
            break;
        }
        room = room.saturating_sub(said);
        // A response contains the bytes of its first items, without a gap between them.
        if whole.len() == items.len() && bytes.len() as u64 + outgoing.len() <= u64::from(about.bytes) {
            let (body, element) = outgoing.range(0, outgoing.len());
            let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), about.checksum);
            body.for_each(|piece| bytes.extend_from_slice(piece));
            whole.push(chunk);
        }
        items.push(described);
    }
    debug_assert!(item(identity(epoch, id), 0).counter == 1);
    Ok((ListAnswer::Items { list: identity(epoch, id), length, items, whole }, bytes))
}
