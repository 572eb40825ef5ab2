//! Queues: lists whose items each go to one of several clients. The daemon grants the claims.

use super::Bindings;
use super::claims::Claims;
use super::list::NewItems;
use crate::core::answer::{Answer, Outcome, Wait};
use crate::core::client::Client;
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::members::Members;
use crate::core::names::live_owner_word;
use tensorlend_layout::name::{self, item_key};
use tensorlend_layout::wire::{
    ASSERTED_MAX, CLAIMS_MAX, QueueClaim, QueueItem, QueueReply, QueueRequest, Refusal, Reply,
};
use tensorlend_layout::word::LifeWord;

/// Maximum time after a restart for which items wait for the clients that may have claimed them.
const ASSERTING_NS: u64 = 5_000_000_000;
/// Maximum items that one try of a request to claim reads: items that are done leave gaps between the others.
const SEARCHED_MAX: u32 = 512;

impl Bindings {
    /// Handles a client's request about a queue.
    pub fn queue(
        &mut self,
        env: &mut Env,
        context: &mut Context,
        members: &mut Members,
        catalogue: u16,
        request: &QueueRequest,
    ) -> Answer {
        match request {
            QueueRequest::Put { list, cell, max } => {
                self.queue_put(env, context, members, catalogue, (list, *cell, *max))
            }
            QueueRequest::Claim { list } => self.queue_claim(env, context, members, catalogue, list),
            QueueRequest::Done(claim) => {
                // The items of a deleted list end in later steps.
                let existed = self.claims.has(*claim, catalogue)
                    && self.lists.has_id(claim.item.list)
                    && self.queue_remove(env, context, members, claim.item);
                tensorlend_layout::crash_point!("daemon: item confirmed");
                Ok(Outcome::Reply(Reply::Deleted { existed }))
            }
            QueueRequest::GiveBack(claim) => {
                if self.claims.has(*claim, catalogue) {
                    self.claims.give_back(claim.item);
                    tensorlend_layout::crash_point!("daemon: claim given back");
                    context.directory.announce(u64::MAX);
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
    fn queue_size(&self, list: &str) -> (u64, u64) {
        let Some((id, items)) = self.lists.id_and_items(list) else { return (0, 0) };
        let claimed = self.claims.count_of_list(id);
        (items.saturating_sub(claimed), claimed)
    }

    fn queue_put(
        &mut self,
        env: &mut Env,
        context: &mut Context,
        members: &mut Members,
        catalogue: u16,
        (list, cell, max): (&str, u32, u64),
    ) -> Answer {
        if max > 0 && self.queue_size(list).0 >= max {
            if let Some((id, _)) = self.lists.id_and_items(list) {
                self.claims.note_refused(id);
            }
            return Ok(Outcome::Reply(Reply::Queue(QueueReply::Full)));
        }
        let items = NewItems { catalogue, cells: &[cell], life: LifeWord::FOREVER };
        self.list_append(env, context, members, list, items)
    }

    fn queue_claim(
        &mut self,
        env: &mut Env,
        context: &mut Context,
        members: &Members,
        catalogue: u16,
        list: &str,
    ) -> Answer {
        name::check(list)?;
        if let Some(until_ns) = self.claims.asserted_until_ns() {
            if env.clock.now_ns() < until_ns && members.values().any(Client::is_disconnected) {
                return Ok(Outcome::Later(Wait::Asserted { until_ns }));
            }
            self.claims.all_asserted();
        }
        if self.claims.count(catalogue) >= CLAIMS_MAX {
            // The claims on items of a deleted list end with the items.
            if self.claims.of_client(catalogue).any(|item| !self.lists.has_id(item.list)) {
                return Ok(Outcome::Later(Wait::Chores));
            }
            let why = format!("a client claims at most {CLAIMS_MAX} items at a time: finish some, or give them back");
            return Err(Refusal::Bad(why));
        }
        let Some((id, _)) = self.lists.id_and_items(list) else {
            return Ok(Outcome::Reply(Reply::Queue(QueueReply::Empty)));
        };
        for _ in 0..SEARCHED_MAX {
            let Some(number) = self.claims.take_given_back(id).or_else(|| self.lists.take_next(list)) else {
                return Ok(Outcome::Reply(Reply::Queue(QueueReply::Empty)));
            };
            let item = QueueItem { list: id, number };
            // A returned client may have asserted a claim on an item that the daemon has not granted before.
            if !self.claims.is_claimed(item) && live_owner_word(&context.directory, &item_key(id, number)).is_some() {
                let claim = self.claims.grant(item, catalogue);
                tensorlend_layout::crash_point!("daemon: claim granted");
                if self.claims.take_refused(id) {
                    context.directory.announce(u64::MAX);
                }
                return Ok(Outcome::Reply(Reply::Queue(QueueReply::Claimed(claim))));
            }
        }
        // The next try continues the search where this one ended.
        Ok(Outcome::Later(Wait::Claim))
    }

    /// Removes an item; returns false if it is gone already.
    fn queue_remove(&mut self, env: &mut Env, context: &mut Context, members: &mut Members, item: QueueItem) -> bool {
        let Some(found) = live_owner_word(&context.directory, &item_key(item.list, item.number)) else { return false };
        self.remove(env, context, members, found.entry, true);
        true
    }

    /// Grants the claims that a returning client asserts, of items that no other client has claimed. They replace those of an
    /// earlier return: a client whose return failed may have given items back since, and one that returns repeatedly must not
    /// collect claims.
    pub fn assert_claims(&mut self, context: &mut Context, catalogue: u16, claims: &[QueueClaim]) {
        self.end_claims(context, catalogue);
        for &claim in claims.iter().take(ASSERTED_MAX) {
            let QueueItem { list, number } = claim.item;
            if self.lists.has_id(list)
                && !self.claims.is_claimed(claim.item)
                && live_owner_word(&context.directory, &item_key(list, number)).is_some()
            {
                self.claims.add(claim, catalogue);
            }
        }
    }

    /// Ends the claims of a client that has ended: its items wait again, before all later ones.
    pub fn end_claims(&mut self, context: &mut Context, catalogue: u16) {
        if self.claims.give_back_all(catalogue) {
            context.directory.announce(u64::MAX);
        }
    }

    /// Forgets the claims: this daemon has taken over from another one, and its clients assert them.
    pub fn restore_claims(&mut self, env: &Env) {
        self.claims = Claims::restored(env.clock.now_ns(), env.clock.now_ns() + ASSERTING_NS);
    }
}
