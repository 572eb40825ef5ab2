//! Queues: lists whose items each go to one of several clients. The daemon grants the claims.

use super::Bindings;
use super::claims::Claims;
use super::list::NewItems;
use crate::core::client::Client;
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::outcome::{Outcome, RequestResult, Wait};
use crate::core::parts::Parts;
use std::collections::BTreeSet;
use tensorlend_layout::name::{self, item_key};
use tensorlend_layout::number::{CellNo, ClientNo};
use tensorlend_layout::wire::{
    APPEND_MAX, ASSERTED_MAX, CLAIM_BATCH_MAX, CLAIMS_MAX, QueueClaim, QueueItem, QueueReply, QueueRequest, Refusal,
    Reply,
};
use tensorlend_layout::word::LifeWord;

/// Maximum time after a restart for which items wait for the clients that may have claimed them.
const ASSERTING_NS: u64 = 5_000_000_000;
/// Maximum number of items that one attempt to claim reads. Deleted items leave gaps between the
/// others.
const SEARCHED_MAX: u32 = 512;

impl Bindings {
    /// Handles a client's request about a queue.
    pub fn queue(&mut self, parts: &mut Parts<'_>, client: ClientNo, request: &QueueRequest) -> RequestResult {
        match request {
            QueueRequest::Put { list, cells, max } => self.queue_put(parts, client, (list, cells, *max)),
            QueueRequest::Claim { list, done, max, wait } => {
                name::check(list)?;
                if done.len() > CLAIM_BATCH_MAX || !(1..=CLAIM_BATCH_MAX).contains(&usize::from(*max)) {
                    let why = format!(
                        "a request confirms at most {CLAIM_BATCH_MAX} items, and claims 1 to {CLAIM_BATCH_MAX}"
                    );
                    return Err(Refusal::Bad(why));
                }
                for &claim in done {
                    self.queue_done(parts, client, claim);
                }
                self.queue_claim(parts, client, (list, *max, *wait))
            }
            QueueRequest::Done(claim) => {
                let existed = self.queue_done(parts, client, *claim);
                Ok(Outcome::Reply(Reply::Deleted { existed }))
            }
            QueueRequest::Stop => unreachable!("handled before"),
            QueueRequest::GiveBack(claim) => {
                if self.claims.has(*claim, client) {
                    self.claims.give_back(claim.item);
                    self.list_changed(claim.item.list);
                    tensorlend_layout::crash_point!("daemon: claim given back");
                    parts.context.directory.announce(u64::MAX);
                }
                Ok(Outcome::Reply(Reply::Done))
            }
            QueueRequest::Size { list } => {
                name::check(list)?;
                let (waiting, claimed) = self.queue_size(list);
                Ok(Outcome::Reply(Reply::Queue(QueueReply::Size { waiting, claimed })))
            }
        }
    }

    /// Returns the numbers of items of a list that wait, and that are claimed.
    pub fn queue_size(&self, list: &str) -> (u64, u64) {
        let Some((id, items)) = self.lists.id_and_items(list) else { return (0, 0) };
        let claimed = self.claims.count_of_list(id);
        (items.saturating_sub(claimed), claimed)
    }

    fn queue_put(
        &mut self,
        parts: &mut Parts<'_>,
        client: ClientNo,
        (list, cells, max): (&str, &[CellNo], u64),
    ) -> RequestResult {
        // All producers share one maximum, until the queue has no items.
        let known = self.lists.id_and_items(list).filter(|&(_, items)| items > 0);
        let known = known.map_or(0, |(id, _)| self.claims.maximum(id));
        if max > 0 && known > 0 && max != known {
            return Err(Refusal::Bad(format!(
                "a producer of queue {list:?} has given it a maximum of {known} waiting items, and this one gives {max}"
            )));
        }
        let (count, max) = (cells.len() as u64, max.max(known));
        let most = if max > 0 { max } else { u64::MAX };
        if !(1..=most.min(APPEND_MAX as u64)).contains(&count) {
            let most = most.min(APPEND_MAX as u64);
            let why = format!("one call puts 1 to {most} items into queue {list:?}, not {count}: put them in parts");
            return Err(Refusal::Bad(why));
        }
        let room_at = most - count;
        if self.queue_size(list).0 > room_at {
            if let Some((id, items)) = self.lists.id_and_items(list) {
                if items > 0 {
                    self.claims.set_maximum(id, max);
                }
                self.claims.note_refused(id, room_at);
            }
            return Ok(Outcome::Reply(Reply::Queue(QueueReply::Full)));
        }
        let items = NewItems { owner: client, cells, life: LifeWord::FOREVER };
        let result = self.list_append(parts, list, items)?;
        if matches!(result, Outcome::Reply(_))
            && let Some((id, _)) = self.lists.id_and_items(list)
        {
            self.claims.set_maximum(id, max);
        }
        Ok(result)
    }

    /// Notes that claims which wait for this queue may be granted.
    pub fn queue_changed(&mut self, list: &str) {
        self.changed.insert(list.to_owned());
    }

    fn list_changed(&mut self, id: u64) {
        self.changed.extend(self.lists.name_of(id).cloned());
    }

    /// Returns true if queues have changed since their waiting claims were tried.
    pub fn has_changed_queues(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Returns true if this queue has changed since its waiting claims were tried.
    pub fn is_changed_queue(&self, list: &str) -> bool {
        self.changed.contains(list)
    }

    /// Takes the names of the queues that have changed.
    pub fn take_changed_queues(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.changed)
    }

    /// Deletes an item that a client has claimed; returns false if the claim is over.
    fn queue_done(&mut self, parts: &mut Parts<'_>, client: ClientNo, claim: QueueClaim) -> bool {
        // The items of a deleted list end in later steps.
        let existed = self.claims.has(claim, client)
            && self.lists.has_id(claim.item.list)
            && self.queue_remove(parts, claim.item);
        tensorlend_layout::crash_point!("daemon: item confirmed");
        existed
    }

    fn queue_claim(
        &mut self,
        parts: &mut Parts<'_>,
        client: ClientNo,
        (list, max, wait): (&str, u8, bool),
    ) -> RequestResult {
        if let Some(until_ns) = self.claims.asserted_until_ns() {
            if parts.env.clock.now_ns() < until_ns && parts.members.values().any(Client::is_disconnected) {
                return Ok(Outcome::Later(Wait::Asserted { until_ns }));
            }
            self.claims.all_asserted();
        }
        let room = CLAIMS_MAX.saturating_sub(self.claims.count(client)).min(max.into());
        if room == 0 {
            // The claims on items of a deleted list end with the items.
            if self.claims.of_client(client).any(|item| !self.lists.has_id(item.list)) {
                return Ok(Outcome::Later(Wait::Chores));
            }
            let why = format!("a client claims at most {CLAIMS_MAX} items at a time: finish some, or give them back");
            return Err(Refusal::Bad(why));
        }
        let empty = if wait { Outcome::Blocked } else { Outcome::Reply(Reply::Queue(QueueReply::Empty)) };
        let Some((id, _)) = self.lists.id_and_items(list) else { return Ok(empty) };
        let mut claimed = Vec::with_capacity(room);
        for _ in 0..SEARCHED_MAX {
            if claimed.len() == room {
                break;
            }
            // After a restart, the oldest waiting item may be one that this daemon has not granted before, while a
            // client has given a later one back.
            let given_back = self.claims.take_given_back(id, self.lists.next(list));
            let Some(number) = given_back.or_else(|| self.lists.take_next(list)) else {
                if claimed.is_empty() {
                    return Ok(empty);
                }
                break;
            };
            let item = QueueItem { list: id, number };
            // A client that has reconnected may have asserted a claim on an item that this daemon
            // has not granted before.
            if !self.claims.is_claimed(item) && parts.context.directory.find_live(&item_key(id, number)).is_some() {
                claimed.push(self.claims.grant(item, client));
                tensorlend_layout::crash_point!("daemon: claim granted");
            }
        }
        if claimed.is_empty() {
            // The next try continues the search where this one ended.
            return Ok(Outcome::Later(Wait::Claim));
        }
        if self.claims.take_refused(id, self.queue_size(list).0) {
            parts.context.directory.announce(u64::MAX);
        }
        Ok(Outcome::Reply(Reply::Queue(QueueReply::Claimed(claimed))))
    }

    /// Removes an item. Returns false if the item does not exist any more.
    fn queue_remove(&mut self, parts: &mut Parts<'_>, item: QueueItem) -> bool {
        let Some(found) = parts.context.directory.find_live(&item_key(item.list, item.number)) else {
            return false;
        };
        self.remove(parts, found.entry, true);
        true
    }

    /// Grants the claims that a reconnecting client asserts, except claims on items that another
    /// client has claimed.
    ///
    /// The new claims replace the claims of an earlier attempt to reconnect. A client whose attempt
    /// failed may have given items back since then. A client that reconnects repeatedly must not
    /// accumulate claims.
    pub fn assert_claims(&mut self, context: &mut Context, client: ClientNo, claims: &[QueueClaim]) {
        self.end_claims(context, client);
        for &claim in claims.iter().take(ASSERTED_MAX) {
            let QueueItem { list, number } = claim.item;
            if self.lists.has_id(list)
                && !self.claims.is_claimed(claim.item)
                && context.directory.find_live(&item_key(list, number)).is_some()
            {
                self.claims.add(claim, client);
            }
        }
    }

    /// Ends the claims of a client that has ended. Their items wait again, before all later items.
    pub fn end_claims(&mut self, context: &mut Context, client: ClientNo) {
        let lists: BTreeSet<u64> = self.claims.of_client(client).map(|item| item.list).collect();
        if self.claims.give_back_all(client) {
            for list in lists {
                self.list_changed(list);
            }
            context.directory.announce(u64::MAX);
        }
    }

    /// Deletes the claims. This daemon has taken over from another daemon, and the clients assert
    /// their claims again.
    pub fn restore_claims(&mut self, env: &Env) {
        self.claims = Claims::restored(env.clock.now_ns(), env.clock.now_ns() + ASSERTING_NS);
    }
}
