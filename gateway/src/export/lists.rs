//! Lists that others mirror.

use super::names::{Answer, is_exported};
use crate::hub::Hub;
use crate::transport::{Body, Frame};
use crate::value::Outgoing;
use crate::wire::{
    AboutList, AboutName, CHUNK_BYTES_MAX, Chunk, Codecs, Descriptor, Epoch, HEAD_BYTES_MAX, Head, ListAnswer,
    NameAnswer, NameQuestion, NodeName, Packing, encode, item, words,
};
use tensorlend::{Client, Value};

impl Hub {
    /// Another gateway asks what a list holds.
    pub fn on_list_question(&mut self, space: usize, name: &str, about: AboutList, answer: Answer) {
        self.context.statistics.answered += 1;
        if about.asker.node == *self.nodes.here() || !is_exported(&self.context, &self.nodes, space, name) {
            return self.say_of_list(answer, &ListAnswer::Nothing);
        }
        let (client, here, epoch) =
            (self.context.spaces[space].client.clone(), self.nodes.here().clone(), self.nodes.epoch());
        let (name, post) = (name.to_owned(), self.context.post.clone());
        self.context.senders.run(move || {
            let described = describe(&client, &name, &here, epoch, &about);
            let (said, bytes) =
                described.unwrap_or_else(|error| (ListAnswer::Refused(words(&error.to_string())), Vec::new()));
            let sent = bytes.len() as u64;
            post.run(move |hub, _| hub.context.statistics.sent_bytes += sent);
            answer(Frame { head: encode(&said), body: Body::of(bytes.into()) });
        });
    }

    /// Another gateway reads an item of a list.
    pub fn on_item_question(&mut self, space: usize, name: &str, about: AboutName, answer: Answer) {
        self.context.statistics.answered += 1;
        let epoch = self.nodes.epoch();
        let NameQuestion::Read { stamp, offset, bytes, codecs, checksum } = about.what else {
            return self.say_of_list(answer, &NameAnswer::Done);
        };
        if bytes > CHUNK_BYTES_MAX || !is_exported(&self.context, &self.nodes, space, name) {
            return self.say_of_list(answer, &NameAnswer::Superseded(None));
        }
        self.context.statistics.sent_bytes += u64::from(bytes);
        let (client, here, name) =
            (self.context.spaces[space].client.clone(), self.nodes.here().clone(), name.to_owned());
        self.context.senders.run(move || {
            let number = stamp.counter.saturating_sub(1);
            let is_same = || client.list_identity(&name).is_some_and(|(id, _)| identity(epoch, id) == stamp.epoch);
            let found = client.range(&name, number..=number).ok().and_then(|mut found| found.pop());
            let value = found.filter(|_| is_same()).and_then(|value| Outgoing::new(value, here).ok());
            let value = value.filter(|value| offset.saturating_add(u64::from(bytes)) <= value.len());
            let Some(value) = value else {
                let said = NameAnswer::Superseded(None);
                return answer(Frame { head: encode(&said), body: Body::default() });
            };
            let (body, element) = value.range(offset, u64::from(bytes));
            let packing = match codecs {
                Codecs { zstd: true, .. } => Packing::Zstd,
                Codecs { lz4: true, .. } => Packing::Lz4,
                Codecs { .. } => Packing::None,
            };
            let (chunk, body) = Chunk::pack(offset, body, element, packing, codecs, checksum);
            answer(Frame { head: encode(&NameAnswer::Bytes(chunk)), body });
        });
    }

    fn say_of_list<H: Head>(&self, answer: Answer, said: &H) {
        let frame = Frame { head: encode(said), body: Body::default() };
        self.context.senders.run(move || answer(frame));
    }
}

/// A list, as others know it: two gateways' lists are never the same.
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
    let values: Vec<Value> = client.range(name, about.from..about.from.saturating_add(u64::from(about.items)))?;
    if client.list_identity(name).is_none_or(|(now, _)| now != id) {
        // Cleared in this moment: the asker asks again.
        let said = ListAnswer::Items { list: identity(epoch, id), length, items: Vec::new(), whole: Vec::new() };
        return Ok((said, Vec::new()));
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
        // Without a gap, so that it is clear whose bytes they are.
        if whole.len() == items.len() && bytes.len() as u64 + outgoing.len() <= u64::from(about.bytes) {
            let (body, element) = outgoing.range(0, outgoing.len());
            let (chunk, body) = Chunk::pack(0, body, element, Packing::None, Codecs::default(), about.checksum);
            body.for_each(|piece| bytes.extend_from_slice(piece));
            whole.push(chunk);
        }
        items.push(described);
    }
    let length = length.max(about.from.saturating_add(items.len() as u64).min(length + items.len() as u64));
    debug_assert!(item(identity(epoch, id), 0).counter == 1);
    Ok((ListAnswer::Items { list: identity(epoch, id), length, items, whole }, bytes))
}
