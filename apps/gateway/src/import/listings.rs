//! Listings of the names of other nodes. The gateway sends a request to all nodes at once. Its
//! response to the client names the nodes that did not respond.

use crate::context::Context;
use crate::key::Key;
use crate::local;
use crate::runtime::EventSender;
use crate::transport::{Body, Frame, Trouble};
use crate::wire::{AboutNames, Listed, ListedKind, NamesAnswer, NodeName, PAGE_MAX, decode, encode};
use std::collections::HashMap;
use tensorlend::remote::{RemoteAnswer, RemoteInfo, RemoteNames, split};
use tensorlend::{Call, Client, DType, Glob};

const NAMES_MAX: usize = 200_000;
/// Maximum number of listings at the same time.
const RUNNING_MAX: usize = 64;

/// The response of one node to a listing's request, or the error instead of a response.
pub struct Event {
    listing: u64,
    node: NodeName,
    glob: String,
    response: Result<Frame, Trouble>,
}

struct Listing {
    space: usize,
    wanted: Glob,
    found: Vec<(NodeName, Listed)>,
    /// Nodes that sent no response.
    silent: Vec<NodeName>,
    /// Whether the listing omits names, because there are more than it may hold.
    is_cut: bool,
    /// Number of nodes that have neither responded nor failed.
    pending: usize,
    call: Call,
}

/// Listings that clients have requested and that have no final response yet.
pub struct Listings {
    events: EventSender<Event>,
    running: HashMap<u64, Listing>,
    last_number: u64,
}

impl Listings {
    /// Makes an empty collection, which posts responses to `events`.
    pub fn new(events: EventSender<Event>) -> Self {
        Self { events, running: HashMap::new(), last_number: 0 }
    }

    /// Handles a client's request for the names of other nodes that match a glob.
    pub fn on_asked(&mut self, context: &Context, space: usize, glob: &str, call: Call) {
        let wanted = match Glob::new(glob) {
            Ok(wanted) => wanted,
            Err(error) => return context.refuse(space, call, error.to_string()),
        };
        if self.running.len() >= RUNNING_MAX {
            return context.refuse(space, call, "too many listings at once: ask again".into());
        }
        // If a glob begins with a node's name, this gateway sends a request to that node only.
        // Otherwise it requests all names of all nodes, and applies the glob to their responses.
        let named = split(glob).filter(|(node, _)| NodeName::new(node).is_ok());
        let there = named.map_or("*", |(_, rest)| rest).to_owned();
        let (mut asked, mut silent) = (Vec::new(), Vec::new());
        for (node, known) in context.nodes.iter() {
            if named.is_none_or(|(name, _)| node.as_str() == name) {
                let nodes = if known.alive { &mut asked } else { &mut silent };
                nodes.push(node.clone());
            }
        }
        self.last_number += 1;
        let number = self.last_number;
        let pending = asked.len();
        let listing = Listing { space, wanted, found: Vec::new(), silent, is_cut: false, pending, call };
        self.running.insert(number, listing);
        for node in asked {
            self.ask(context, number, node, there.clone(), None);
        }
        self.end(context, number);
    }

    fn ask(&self, context: &Context, number: u64, node: NodeName, glob: String, after: Option<(ListedKind, String)>) {
        let Some(listing) = self.running.get(&number) else { return };
        let space = context.settings.spaces[listing.space].name.clone();
        let about = AboutNames { asker: context.asker.clone(), glob: glob.clone(), after, names: PAGE_MAX };
        let frame = Frame { head: encode(&about), body: Body::default() };
        let events = self.events.clone();
        context.ask(Key::Names(node.clone(), space), frame, context.settings.answer_timeout, move |response| {
            events.post_later(Event { listing: number, node, glob, response });
        });
    }

    /// Handles a node's response to a listing's request, or the error instead of a response.
    pub fn on_event(&mut self, context: &mut Context, event: Event) {
        let Event { listing: number, node, glob, response } = event;
        let response = response.map(|frame| decode::<NamesAnswer>(&frame.head));
        if let Ok(Err(why)) = &response {
            context.drop_message(node.as_str(), why);
        }
        let Some(listing) = self.running.get_mut(&number) else { return };
        match response {
            Ok(Ok(NamesAnswer::Names { names, more })) => {
                let last = names.last().map(|listed| (listed.kind, listed.name.clone()));
                let room = NAMES_MAX - listing.found.len();
                listing.is_cut |= names.len() > room;
                listing.found.extend(names.into_iter().take(room).map(|listed| (node.clone(), listed)));
                match last.filter(|_| more) {
                    Some(last) if listing.found.len() < NAMES_MAX => {
                        return self.ask(context, number, node, glob, Some(last));
                    }
                    Some(_) => listing.is_cut = true,
                    None => {}
                }
            }
            _ => listing.silent.push(node),
        }
        listing.pending -= 1;
        self.end(context, number);
    }

    /// Responds to the client once no node's response is pending.
    fn end(&mut self, context: &Context, number: u64) {
        if self.running.get(&number).is_none_or(|listing| listing.pending > 0) {
            return;
        }
        let Some(listing) = self.running.remove(&number) else { return };
        let client = context.client(listing.space).clone();
        let import = context.settings.spaces[listing.space].import.clone();
        // A worker builds the response, because it reads the local directory for each name.
        context.senders.run(move || {
            let Listing { wanted, found, mut silent, is_cut, call, .. } = listing;
            let info = |(node, listed): (NodeName, Listed)| {
                let name = format!("{node}/{}", listed.name);
                let cached = client.exists(&name).unwrap_or(false);
                RemoteInfo { cached, ..remote_info(name, listed) }
            };
            let mut names: Vec<RemoteInfo> = found
                .into_iter()
                .map(info)
                .filter(|one| wanted.is_match(&one.name) && import.is_match(&one.name))
                .collect();
            for node in &silent {
                names.extend(copies(&client, node).into_iter().filter(|one| wanted.is_match(&one.name)));
            }
            names.sort_by(|one, other| one.name.cmp(&other.name));
            silent.sort_unstable();
            let silent = silent.into_iter().map(|node| node.to_string()).collect();
            answer(&client, call, &RemoteNames { names, silent, more: is_cut });
        });
    }
}

/// Returns the names of local copies from a node that does not respond.
fn copies(client: &Client, node: &NodeName) -> Vec<RemoteInfo> {
    let found = local::values(client, &format!("{}/*", globset::escape(node.as_str()))).unwrap_or_default();
    let info = |listed: Listed| {
        let name = listed.name.clone();
        RemoteInfo { cached: true, stale: true, ..remote_info(name, listed) }
    };
    found.into_iter().map(info).collect()
}

/// Returns the response's entry for a name of another node. `name` begins with the node. The entry
/// is marked as neither cached nor stale.
fn remote_info(name: String, listed: Listed) -> RemoteInfo {
    let (kind, dtype) = (listed.kind.word().to_owned(), listed.dtype);
    let shape = listed.shape.into_iter().map(|size| size as usize).collect();
    RemoteInfo { name, kind, dtype, shape, size: listed.size, cached: false, stale: false }
}

fn answer(client: &Client, call: Call, names: &RemoteNames) {
    let bytes = names.encode();
    let made = (|| {
        let mut draft = client.create(DType::U8, bytes.len())?;
        draft.copy_from(&bytes)?;
        draft.set_metadata(&RemoteAnswer::Names.encode())?;
        Ok::<_, tensorlend::Error>(draft)
    })();
    let done = match made {
        Ok(draft) => call.respond(draft),
        Err(error) => call.fail(error),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "a response to a client could not be sent");
    }
}
