//! What there is on other nodes: all of them are asked at once, and who does not answer is named.

use crate::hub::{Context, Hub};
use crate::key::Key;
use crate::local;
use crate::transport::{Body, Frame};
use crate::wire::{AboutNames, Listed, ListedKind, NamesAnswer, NodeName, PAGE_MAX, decode, encode};
use std::collections::HashMap;
use tensorlend::remote::{RemoteAnswer, RemoteInfo, RemoteNames, split};
use tensorlend::{Call, Client, DType, Glob};

/// Names in one listing, at most.
const NAMES_MAX: usize = 200_000;
/// Listings that are being made, at most.
const LISTINGS_MAX: usize = 64;

struct Listing {
    space: usize,
    wanted: Glob,
    found: Vec<(NodeName, Listed)>,
    silent: Vec<NodeName>,
    more: bool,
    /// Nodes that have not answered.
    asked: usize,
    call: Call,
}

/// Listings that are being made.
#[derive(Default)]
pub struct Listings {
    running: HashMap<u64, Listing>,
    numbers: u64,
}

impl Hub {
    /// A client of this machine asks what there is on others.
    pub fn on_names_asked(&mut self, space: usize, glob: &str, call: Call) {
        let refuse = |context: &Context, call: Call, why: String| {
            local::answer(&context.spaces[space].client, call, &RemoteAnswer::Refused { why });
        };
        let wanted = match Glob::new(glob) {
            Ok(wanted) => wanted,
            Err(error) => return refuse(&self.context, call, error.to_string()),
        };
        if self.listings.running.len() >= LISTINGS_MAX {
            return refuse(&self.context, call, "too many listings at once: ask again".into());
        }
        // A node that is named, and what is wanted there; else all of them, and what fits is found here.
        let named = split(glob).filter(|(node, _)| NodeName::new(node).is_ok());
        let there = named.map_or("*", |(_, rest)| rest).to_owned();
        let nodes = self.nodes.iter().filter(|(node, _)| named.is_none_or(|(name, _)| node.as_str() == name));
        let nodes: Vec<(NodeName, bool)> = nodes.map(|(node, known)| (node.clone(), known.alive)).collect();
        let silent: Vec<NodeName> = nodes.iter().filter(|(_, alive)| !alive).map(|(node, _)| node.clone()).collect();
        let asked: Vec<NodeName> = nodes.into_iter().filter(|(_, alive)| *alive).map(|(node, _)| node).collect();
        self.listings.numbers += 1;
        let number = self.listings.numbers;
        let listing = Listing { space, wanted, found: Vec::new(), silent, more: false, asked: asked.len(), call };
        self.listings.running.insert(number, listing);
        for node in asked {
            self.ask_page(number, node, there.clone(), None);
        }
        self.end_listing(number);
    }

    fn ask_page(&mut self, number: u64, node: NodeName, glob: String, after: Option<(ListedKind, String)>) {
        let Some(listing) = self.listings.running.get(&number) else { return };
        let space = self.context.settings.spaces[listing.space].name.clone();
        let about = AboutNames { asker: self.context.asker.clone(), glob: glob.clone(), after, names: PAGE_MAX };
        let frame = Frame { head: encode(&about), body: Body::default() };
        let timeout = self.context.settings.answer_timeout;
        self.context.ask(Key::Names(node.clone(), space), frame, timeout, move |hub, _, answer| {
            let answer = answer.map(|frame| decode::<NamesAnswer>(&frame.head));
            if let Ok(Err(why)) = &answer {
                hub.context.drop_message(node.as_str(), why);
            }
            let Some(listing) = hub.listings.running.get_mut(&number) else { return };
            match answer {
                Ok(Ok(NamesAnswer::Names { names, more })) => {
                    let last = names.last().map(|listed| (listed.kind, listed.name.clone()));
                    let room = NAMES_MAX - listing.found.len();
                    listing.more |= names.len() > room;
                    listing.found.extend(names.into_iter().take(room).map(|listed| (node.clone(), listed)));
                    match last.filter(|_| more) {
                        Some(last) if listing.found.len() < NAMES_MAX => {
                            return hub.ask_page(number, node, glob, Some(last));
                        }
                        Some(_) => listing.more = true,
                        None => {}
                    }
                }
                _ => listing.silent.push(node),
            }
            listing.asked -= 1;
            hub.end_listing(number);
        });
    }

    /// Answers, once all were heard.
    fn end_listing(&mut self, number: u64) {
        if self.listings.running.get(&number).is_none_or(|listing| listing.asked > 0) {
            return;
        }
        let Some(listing) = self.listings.running.remove(&number) else { return };
        let client = self.context.spaces[listing.space].client.clone();
        let import = self.context.settings.spaces[listing.space].import.clone();
        // It looks at the broker for each name.
        self.context.senders.run(move || {
            let Listing { wanted, found, mut silent, more, call, .. } = listing;
            let info = |(node, listed): (NodeName, Listed)| {
                let name = format!("{node}/{}", listed.name);
                let cached = client.exists(&name).unwrap_or(false);
                let (kind, dtype) = (listed.kind.word().to_owned(), listed.dtype);
                RemoteInfo { name, kind, dtype, shape: listed.shape, size: listed.size, cached, stale: false }
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
            answer(&client, call, &RemoteNames { names, silent, more });
        });
    }
}

/// What lies here of a node that does not answer.
fn copies(client: &Client, node: &NodeName) -> Vec<RemoteInfo> {
    let found = client.list(&format!("{}/*", globset::escape(node.as_str()))).unwrap_or_default();
    let info = |info: tensorlend::Info| {
        let (kind, dtype, shape) = match info.kind {
            tensorlend::InfoKind::Tensor(tensor) => ("tensor", tensor.dtype.to_string(), tensor.shape),
            tensorlend::InfoKind::Dataset(_) => ("dataset", String::new(), Vec::new()),
        };
        RemoteInfo { name: info.name, kind: kind.into(), dtype, shape, size: info.nbytes, cached: true, stale: true }
    };
    found.into_iter().map(info).collect()
}

fn answer(client: &Client, call: Call, names: &RemoteNames) {
    let bytes = names.encode();
    let made = (|| {
        let mut draft = client.create(DType::U8, &[bytes.len() as u64])?;
        draft.copy_from(&bytes)?;
        draft.set_metadata(&RemoteAnswer::Names.encode())?;
        Ok::<_, tensorlend::Error>(draft)
    })();
    let done = match made {
        Ok(draft) => call.answer(draft),
        Err(error) => call.fail(error),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "a client could not be answered");
    }
}
