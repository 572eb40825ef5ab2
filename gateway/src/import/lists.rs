//! Lists of other machines, mirrored when a client asks: what is here already is not fetched again.

use super::names::remote_name;
use super::transfers::{Outcome, Source};
use crate::hub::{Context, Hub};
use crate::key::{Key, Kind};
use crate::local;
use crate::transport::{Body, Frame, Trouble};
use crate::value::Incoming;
use crate::wire::{AboutList, Chunk, Descriptor, Epoch, ListAnswer, decode, encode, item};
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tensorlend::remote::RemoteAnswer;
use tensorlend::{Call, Client};

/// Items that are described at once.
const PAGE: u32 = 128;
/// Bytes of items that come with what describes them. An item that has more is asked for by itself, in as many chunks as it needs.
const WHOLE_BYTES: u32 = 1 << 20;
/// Lists that are being mirrored, at most.
const RUNNING_MAX: usize = 256;
/// Lists of which is remembered which they are, at most.
const KNOWN_MAX: usize = 65_536;
/// How often a list that was cleared meanwhile is begun anew.
const AGAIN_MAX: u32 = 16;

type Name = (usize, String);
type Items = VecDeque<(Descriptor, u64)>;

struct Running {
    calls: Vec<Call>,
    again: u32,
}

/// Lists that are mirrored.
#[derive(Default)]
pub struct Mirrors {
    running: HashMap<Name, Running>,
    /// Which list lies here under a name.
    known: HashMap<Name, Epoch>,
}

impl Hub {
    /// A client of this machine wants a list of another.
    pub fn on_list_asked(&mut self, space: usize, name: String, call: Call) {
        let say = |context: &Context, call: Call, answer: &RemoteAnswer| {
            local::answer(&context.spaces[space].client, call, answer);
        };
        let why = match remote_name(space, &name) {
            Err(why) => Some(why),
            Ok(asked) if asked.node == *self.nodes.here() => Some("this machine: leave its name out".to_owned()),
            Ok(_) if !self.context.spaces[space].settings.import.is_match(&name) => {
                Some(format!("this machine's gateway does not import {name:?}"))
            }
            Ok(_) if self.mirrors.running.len() >= RUNNING_MAX => Some("too many lists at once: ask again".to_owned()),
            Ok(_) => None,
        };
        if let Some(why) = why {
            return say(&self.context, call, &RemoteAnswer::Refused { why });
        }
        let key = (space, name);
        if let Some(running) = self.mirrors.running.get_mut(&key) {
            return running.calls.push(call);
        }
        self.mirrors.running.insert(key.clone(), Running { calls: vec![call], again: 0 });
        self.ask_items(key);
    }

    fn end_mirror(&mut self, name: &Name, answer: &RemoteAnswer) {
        let Some(running) = self.mirrors.running.remove(name) else { return };
        let client = &self.context.spaces[name.0].client;
        running.calls.into_iter().for_each(|call| local::answer(client, call, answer));
    }

    /// Asks for what is behind the items that are here.
    fn ask_items(&mut self, name: Name) {
        let Ok(asked) = remote_name(name.0, &name.1) else { return };
        let known = self.mirrors.known.contains_key(&name);
        let from = if known { self.context.spaces[name.0].client.len(&name.1) } else { 0 };
        let space = self.context.settings.spaces[name.0].name.clone();
        let key = Key::About { node: asked.node.clone(), kind: Kind::List, space, name: Some(asked.name) };
        let checksum = self.context.settings.checksum;
        let about = AboutList { asker: self.context.asker.clone(), from, items: PAGE, bytes: WHOLE_BYTES, checksum };
        let frame = Frame { head: encode(&about), body: Body::default() };
        self.context.ask(key, frame, self.context.settings.answer_timeout, move |hub, _, answer| {
            let said = match answer.map(|frame| (decode::<ListAnswer>(&frame.head), frame.body)) {
                Ok((Ok(said), body)) => (said, body),
                Ok((Err(why), _)) => {
                    hub.context.drop_message(asked.node.as_str(), &why);
                    return hub.end_mirror(&name, &RemoteAnswer::Unreachable);
                }
                Err(Trouble::Nobody) if hub.nodes.is_alive(&asked.node) => (ListAnswer::Nothing, Body::default()),
                Err(_) => {
                    let lies_here = hub.context.spaces[name.0].client.list_identity(&name.1).is_some();
                    let said = if lies_here { RemoteAnswer::Here { stale: true } } else { RemoteAnswer::Unreachable };
                    return hub.end_mirror(&name, &said);
                }
            };
            match said {
                (ListAnswer::Items { list, length, items, whole }, body) => {
                    let is_as_asked = items.len() <= PAGE as usize && body.len() as u64 <= u64::from(WHOLE_BYTES);
                    let Some(whole) = is_as_asked.then(|| apart(whole, &body)).flatten() else {
                        hub.context.drop_message(asked.node.as_str(), &"other bytes than were described, or asked for");
                        return hub.end_mirror(&name, &RemoteAnswer::Unreachable);
                    };
                    hub.on_items(name, from, list, length, items, whole);
                }
                (ListAnswer::Nothing, _) => hub.end_mirror(&name, &RemoteAnswer::Nothing),
                (ListAnswer::Refused(why), _) => hub.end_mirror(&name, &RemoteAnswer::Refused { why }),
            }
        });
    }

    fn on_items(
        &mut self,
        name: Name,
        from: u64,
        list: Epoch,
        length: u64,
        items: Vec<Descriptor>,
        whole: Vec<(Chunk, Body)>,
    ) {
        let client = self.context.spaces[name.0].client.clone();
        if self.mirrors.known.get(&name) != Some(&list) {
            // Another list than the one that lies here, or one of which that is not known.
            if let Err(error) = client.clear(&name.1) {
                return self.end_mirror(&name, &RemoteAnswer::Refused { why: error.to_string() });
            }
            if self.mirrors.known.len() >= KNOWN_MAX {
                self.mirrors.known.clear();
            }
            self.mirrors.known.insert(name.clone(), list);
            if from > 0 {
                return self.again(name);
            }
        }
        if items.is_empty() {
            // Whoever says that there is more, and does not say what, is asked no more.
            let done = from >= length;
            return if done { self.end_mirror(&name, &RemoteAnswer::Here { stale: false }) } else { self.again(name) };
        }
        let Ok(asked) = remote_name(name.0, &name.1) else { return };
        if let Some(other) = items.iter().find(|item| item.origin != asked.node) {
            self.context.statistics.loops += u64::from(other.origin == *self.nodes.here());
            self.context.drop_message(asked.node.as_str(), &"an item that is another node's");
            let why = "its items are another node's".to_owned();
            return self.end_mirror(&name, &RemoteAnswer::Refused { why });
        }
        let items: Items = items.into_iter().zip(from..).collect();
        if whole.is_empty() {
            return self.fetch_items(name, list, items);
        }
        let (post, owned) = (self.context.post.clone(), name.clone());
        let started = self.context.copiers.run(move || {
            let (rest, ended) = append_whole(&client, &owned.1, items, whole);
            post.run(move |hub, _| hub.on_appended(owned, list, rest, ended));
        });
        if !started {
            self.end_mirror(&name, &RemoteAnswer::Refused { why: "too much to do".into() });
        }
    }

    /// Items that came whole lie here, up to the one with which that ended.
    fn on_appended(&mut self, name: Name, list: Epoch, rest: Items, ended: Option<Ended>) {
        match ended {
            None => self.fetch_items(name, list, rest),
            Some(Ended::Damaged(why)) => {
                self.context.statistics.damaged += 1;
                let node = name.1.split('/').next().unwrap_or_default();
                self.context.drop_message(node, &why);
                // By itself it is asked for again if that happens again.
                self.fetch_items(name, list, rest);
            }
            Some(Ended::Meddled) => {
                self.mirrors.known.remove(&name);
                self.again(name);
            }
            Some(Ended::Refused(why)) => self.end_mirror(&name, &RemoteAnswer::Refused { why }),
        }
    }

    /// Begins anew, if it was not done too often already.
    fn again(&mut self, name: Name) {
        let Some(running) = self.mirrors.running.get_mut(&name) else { return };
        running.again += 1;
        if running.again > AGAIN_MAX {
            let why = "it is cleared again and again, or its node contradicts itself".to_owned();
            return self.end_mirror(&name, &RemoteAnswer::Refused { why });
        }
        self.ask_items(name);
    }

    fn fetch_items(&mut self, name: Name, list: Epoch, mut items: Items) {
        let Ok(asked) = remote_name(name.0, &name.1) else { return };
        let Some((descriptor, number)) = items.pop_front() else { return self.ask_items(name) };
        let client = self.context.spaces[name.0].client.clone();
        let stamp = item(list, number);
        let source = Source { space: name.0, node: asked.node, kind: Kind::List, name: asked.name, stamp };
        self.fetch(client.clone(), source, Arc::new(descriptor), None, move |hub, _, outcome| match outcome {
            Outcome::Complete(draft) => {
                if client.len(&name.1) != number {
                    // Somebody else writes there.
                    hub.mirrors.known.remove(&name);
                    return hub.again(name);
                }
                match client.append(&name.1, draft) {
                    Ok(_) => hub.fetch_items(name, list, items),
                    Err(error) => hub.end_mirror(&name, &RemoteAnswer::Refused { why: error.to_string() }),
                }
            }
            Outcome::Superseded => hub.again(name),
            Outcome::Unreachable => hub.end_mirror(&name, &RemoteAnswer::Unreachable),
            Outcome::Refused(why) => hub.end_mirror(&name, &RemoteAnswer::Refused { why }),
        });
    }
}

/// Why items that came whole were not appended.
enum Ended {
    /// Other bytes than were sent: of the first that is left.
    Damaged(String),
    /// Somebody else writes there.
    Meddled,
    /// The broker's reason.
    Refused(String),
}

/// The bytes of each chunk; `None`: there are not as many.
fn apart(chunks: Vec<Chunk>, body: &Body) -> Option<Vec<(Chunk, Body)>> {
    let bytes: u64 = chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum();
    if body.len() as u64 != bytes {
        return None;
    }
    let mut rest = Bytes::from(body.contiguous().into_owned());
    let its = |chunk: Chunk| {
        let bytes = rest.split_to(chunk.bytes as usize);
        (chunk, Body::of(bytes))
    };
    Some(chunks.into_iter().map(its).collect())
}

/// Appends items whose bytes are here; what is left then, and why, unless the bytes were all that there were.
fn append_whole(client: &Client, list: &str, mut items: Items, whole: Vec<(Chunk, Body)>) -> (Items, Option<Ended>) {
    for (chunk, body) in whole {
        let Some((descriptor, number)) = items.front() else { break };
        if client.len(list) != *number {
            return (items, Some(Ended::Meddled));
        }
        let refused = |error: tensorlend::Error| Ended::Refused(error.to_string());
        let mut incoming = match Incoming::new(client, Arc::new(descriptor.clone())) {
            Ok(incoming) => incoming,
            Err(error) => return (items, Some(refused(error))),
        };
        if let Err(why) = incoming.receive(&chunk, &body) {
            return (items, Some(Ended::Damaged(why.to_string())));
        }
        if let Err(error) = incoming.finish(client).and_then(|draft| client.append(list, draft)) {
            return (items, Some(refused(error)));
        }
        items.pop_front();
    }
    (items, None)
}
