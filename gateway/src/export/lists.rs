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
        let name = name.to_owned();
        self.context.senders.run(move || {
            let said = describe(&client, &name, &here, epoch, &about)
                .unwrap_or_else(|error| ListAnswer::Refused(words(&error.to_string())));
            answer(Frame { head: encode(&said), body: Body::default() });
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
) -> tensorlend::Result<ListAnswer> {
    let Some((id, length)) = client.list_identity(name) else { return Ok(ListAnswer::Nothing) };
    let values: Vec<Value> = client.range(name, about.from..about.from.saturating_add(u64::from(about.items)))?;
    if client.list_identity(name).is_none_or(|(now, _)| now != id) {
        // Cleared in this moment: the asker asks again.
        return Ok(ListAnswer::Items { list: identity(epoch, id), length, items: Vec::new() });
    }
    let (mut items, mut room) = (Vec::new(), HEAD_BYTES_MAX / 2);
    for value in &values {
        let described = Descriptor::of(value, here.clone());
        let described = described.map_err(|bad| tensorlend::Error::Argument(bad.to_string()))?;
        let said: usize = described.shape.tensors().map(|(name, one)| name.len() + one.metadata.len() + 256).sum();
        if said > room && !items.is_empty() {
            break;
        }
        room = room.saturating_sub(said);
        items.push(described);
    }
    let length = length.max(about.from.saturating_add(items.len() as u64).min(length + items.len() as u64));
    debug_assert!(item(identity(epoch, id), 0).counter == 1);
    Ok(ListAnswer::Items { list: identity(epoch, id), length, items })
}
