//! Values that other nodes put on this one.

use crate::context::Context;
use crate::key::Kind;
use crate::name::{RemoteName, is_internal};
use crate::transfer::{Outcome, Request, Source};
use crate::transport::Answer;
use crate::value::Piece;
use crate::wire::{Asker, Descriptor, Epoch, NameAnswer, NodeName, Stamp, words};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Maximum number of offers that this gateway remembers, so that it accepts no offer twice.
const OFFERS_MAX: usize = 1024;

/// Identifies an offer of another node: the node, its gateway's epoch, and the offer's number.
type OfferId = (NodeName, Epoch, u64);

enum State {
    /// This gateway is fetching the bytes. The result is the response to these requests.
    Fetching(Vec<Answer>),
    /// The offer has this result.
    Done(NameAnswer),
}

/// An offer, as another node sends it.
pub struct Offered {
    pub descriptor: Descriptor,
    /// The value's stamp at the other node.
    pub stamp: Stamp,
    /// The number of the offer, unique for the offering gateway.
    pub number: u64,
    /// The first bytes of the value, or all of them.
    pub first: Piece,
}

/// An accepted offer. This gateway fetches its bytes.
pub struct PutOf {
    id: OfferId,
    name: String,
}

/// Values that other nodes put on this one.
#[derive(Default)]
pub struct Puts {
    offers: HashMap<OfferId, State>,
    /// Offers with a result, the oldest first.
    done: VecDeque<OfferId>,
}

impl Puts {
    /// Handles another node's offer of a value.
    pub fn on_offer(
        &mut self,
        context: &mut Context,
        space: usize,
        name: &str,
        asker: &Asker,
        offer: Offered,
        answer: Answer,
    ) -> Option<Request<PutOf>> {
        let id = (asker.node.clone(), asker.epoch, offer.number);
        match self.offers.get_mut(&id) {
            Some(State::Fetching(waiting)) => {
                // A repeated offer means that the node has abandoned its earlier request. So that
                // request needs no response.
                waiting.clear();
                waiting.push(answer);
                return None;
            }
            Some(State::Done(result)) => {
                context.reply(answer, result.clone());
                return None;
            }
            None => {}
        }
        if let Err(why) = self.accept(context, space, name, asker, &offer) {
            context.reply(answer, NameAnswer::Refused(words(&why)));
            return None;
        }
        self.offers.insert(id.clone(), State::Fetching(vec![answer]));
        let source = RemoteName { space, node: asker.node.clone(), name: name.to_owned() };
        Some(Request {
            client: context.spaces[space].puts.clone(),
            source: Source { kind: Kind::Name, name: source, stamp: offer.stamp },
            descriptor: Arc::new(offer.descriptor),
            first: Some(offer.first),
            purpose: PutOf { id, name: name.to_owned() },
        })
    }

    /// Accepts an offer and makes room for it, or returns the reason for a refusal.
    fn accept(
        &mut self,
        context: &mut Context,
        space: usize,
        name: &str,
        asker: &Asker,
        offer: &Offered,
    ) -> Result<(), String> {
        let is_accepted = context.spaces[space].settings.accept_put.is_match(name);
        if !is_accepted || is_internal(name) || context.is_of_node(name) {
            return Err(format!("{name:?} is not to be written from other machines"));
        }
        if offer.descriptor.origin != asker.node {
            context.statistics.loops += u64::from(offer.descriptor.origin == *context.nodes.here());
            context.drop_message(asker.node.as_str(), &"a value that is another node's");
            return Err("another node's value".into());
        }
        if offer.first.chunk.offset != 0 {
            let why = "bytes that are not the first ones";
            context.drop_message(asker.node.as_str(), &why);
            return Err(why.into());
        }
        if self.offers.len() >= OFFERS_MAX {
            let oldest = self.done.pop_front().ok_or("too many values are being taken")?;
            self.offers.remove(&oldest);
        }
        Ok(())
    }

    /// Publishes an offered value whose transfer has ended, and responds to the node that offered it.
    pub fn on_fetched(&mut self, context: &mut Context, put: PutOf, outcome: Outcome) {
        let PutOf { id, name } = put;
        let result = match outcome {
            Outcome::Complete(draft) => match draft.publish(&name) {
                Ok(_) => NameAnswer::Done,
                Err(error) => NameAnswer::Refused(words(&error.to_string())),
            },
            Outcome::Superseded => NameAnswer::Refused("the offer was withdrawn".into()),
            Outcome::Unreachable => NameAnswer::Refused("what was offered could not be fetched".into()),
            Outcome::Refused(why) => NameAnswer::Refused(words(&why)),
        };
        context.statistics.puts_taken += u64::from(result == NameAnswer::Done);
        if let Some(State::Fetching(waiting)) = self.offers.insert(id.clone(), State::Done(result.clone())) {
            for answer in waiting {
                context.reply(answer, result.clone());
            }
        }
        self.done.push_back(id);
    }
}
