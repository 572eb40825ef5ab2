//! The names of a shared namespace as a stock. Every user has a share of the stock: see `share.rs`.
//!
//! Clients announce names without a request to the daemon, so the daemon cannot refuse an announced
//! name. Instead the daemon grants each client a number of announcements in advance
//! (`MemberEntry.announce_until`, which only grows). Granted announcements count as names of the
//! client's user. For further names the client sends requests, which the daemon may refuse. The
//! daemon never withdraws a grant, so a grant needs no synchronization.

use super::Bindings;
use crate::core::account::{SUPERUSER, limit};
use crate::core::client::Client;
use crate::core::context::Context;
use crate::core::members::Members;
use crate::core::share::Stock;
use std::collections::BTreeMap;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{LimitKind, Refusal};

/// Maximum number of announcements granted to one client at a time.
const GRANT_MAX: u64 = 512;
/// Divisor for the sum of all clients' grants. That sum is at most the maximum number of names
/// divided by `GRANTS_PART`.
const GRANTS_PART: u64 = 8;

impl Bindings {
    /// Returns the number of announcements that the daemon has granted to a client and not absorbed yet.
    fn outstanding(context: &Context, number: ClientNo, client: &Client) -> u64 {
        if !client.announces() {
            return 0;
        }
        context.directory.entry(number).announce_until.peek().saturating_sub(client.announcements.absorbed())
    }

    /// Returns the number of a user's names, and the stock of names.
    fn name_stock(&self, context: &Context, members: &Members, uid: u32) -> (u64, Stock) {
        let mut uids: BTreeMap<u32, u64> = BTreeMap::new();
        for (number, client) in members.iter() {
            let names = self.names.owned().count(number) as u64 + Self::outstanding(context, number, client);
            *uids.entry(context.ledger.owner_of(client.uid)).or_default() += names;
        }
        let held = uids.values().sum();
        let holders = uids.values().filter(|&&names| names > 0).count() as u64;
        (
            uids.get(&context.ledger.owner_of(uid)).copied().unwrap_or(0),
            Stock { total: context.ledger.limits().names_max.into(), held, holders },
        )
    }

    /// Grants more announcements, within the user's share, to a client that has few left.
    pub fn grant(&mut self, context: &Context, members: &Members, number: ClientNo) {
        let Some(client) = members.get(number).filter(|c| context.ledger.shares_tables() && c.announces()) else {
            return;
        };
        let outstanding = Self::outstanding(context, number, client);
        let wanted = GRANT_MAX.min(u64::from(context.ledger.limits().names_max) / GRANTS_PART / members.len() as u64);
        if outstanding > wanted / 2 {
            return;
        }
        let uid = client.uid;
        let more = if uid == SUPERUSER {
            wanted
        } else {
            let (own, stock) = self.name_stock(context, members, uid);
            wanted.min(stock.share(own).saturating_sub(own))
        };
        let word = &context.directory.entry(number).announce_until;
        word.set(word.peek() + more);
    }

    /// Refuses `more` names to a client if these names exceed the share of the client's user.
    pub fn check_name_share(
        &mut self,
        context: &Context,
        members: &Members,
        number: ClientNo,
        more: u64,
    ) -> Result<(), Refusal> {
        let uid = members[number].uid;
        if !context.ledger.shares_with(uid) {
            return Ok(());
        }
        let (own, stock) = self.name_stock(context, members, uid);
        let share = stock.share(own);
        if own.saturating_add(more) > share {
            let what = format!("the share of uid {uid} in the names of namespace {:?}", context.ledger.name());
            let setting = format!("{}.names_max, or set uid.share to false,", context.ledger.setting());
            return Err(limit(LimitKind::NameShare, what, setting, share.to_string()));
        }
        Ok(())
    }
}
