//! The tables of a shared namespace's directory. Each table is a stock in which every user has a
//! share: see `share.rs`. For names the daemon also grants announcements, because clients announce
//! names without a request to the daemon: see `bindings/credit.rs`.

use super::account::limit;
use super::ledger::Ledger;
use super::share::Stock;
use std::collections::BTreeMap;
use tensorlend_layout::directory::SUBSCRIBERS;
use tensorlend_layout::wire::{LimitKind, Refusal};

/// A table of a directory in which several users have entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The table of clients: connected clients, disconnected clients whose tensors remain, and
    /// joining clients.
    Members,
    /// The table of segments, including segments on devices.
    Segments,
    /// The table of streams. A stream counts for its producer.
    Streams,
    /// The table of lists. A list counts for its creator. After a restart of the daemon, the list
    /// counts for the owner of the first remaining item.
    Lists,
}

impl Table {
    /// Returns the kind of limit of a user's share, the table's name for people, and the option that limits the table.
    fn words(self) -> (LimitKind, &'static str, &'static str) {
        match self {
            Self::Members => (LimitKind::MemberShare, "clients", "members_max"),
            Self::Segments => (LimitKind::SegmentShare, "segments", "segments_max"),
            Self::Streams => (LimitKind::StreamShare, "streams", "streams_max"),
            Self::Lists => (LimitKind::ListShare, "lists", "lists_max"),
        }
    }
}

/// The entries of one table by user. Entries without a user count only in `all`.
#[derive(Debug, Default)]
struct Held {
    uids: BTreeMap<u32, u64>,
    all: u64,
}

impl Held {
    fn add(&mut self, uid: Option<u32>) {
        self.all += 1;
        if let Some(uid) = uid {
            *self.uids.entry(uid).or_default() += 1;
        }
    }

    /// Returns the user's share of `total` entries if another entry would exceed the share.
    fn share_exceeded(&self, uid: u32, total: u64) -> Option<u64> {
        let own = self.uids.get(&uid).copied().unwrap_or(0);
        let stock = Stock { total, held: self.all, holders: self.uids.len() as u64 };
        // A share of a small table may be less than one entry. Each user may then have one entry
        // while one is free.
        let share = stock.share(own).max(1);
        (own >= share).then_some(share)
    }
}

impl Ledger {
    fn lines(&self, table: Table) -> u32 {
        match table {
            Table::Members => self.limits().members_max,
            Table::Segments => self.limits().segments_max,
            Table::Streams => self.limits().streams_max,
            Table::Lists => self.limits().lists_max,
        }
    }

    /// Refuses a user another entry of a table if the entry would exceed the user's share. `uids` are
    /// the owners of the used entries.
    pub fn check_table_share(
        &self,
        table: Table,
        uid: u32,
        uids: impl Iterator<Item = Option<u32>>,
    ) -> Result<(), Refusal> {
        let Some(share) = self.share_exceeded(uid, self.lines(table).into(), uids) else { return Ok(()) };
        let (kind, what, option) = table.words();
        let what = format!("the share of uid {uid} in the {what} of namespace {:?}", self.name());
        Err(limit(kind, what, format!("{}.{option}, or set uid.share to false,", self.setting()), share.to_string()))
    }

    /// Refuses a user another subscriber of a stream if the subscriber would exceed the user's share. `uids` are the
    /// owners of the subscribers.
    pub fn check_subscriber_share(
        &self,
        stream: &str,
        uid: u32,
        uids: impl Iterator<Item = Option<u32>>,
    ) -> Result<(), Refusal> {
        let Some(share) = self.share_exceeded(uid, SUBSCRIBERS as u64, uids) else { return Ok(()) };
        let what = format!("the share of uid {uid} in the {SUBSCRIBERS} subscribers of stream {stream:?}");
        Err(limit(
            LimitKind::SubscriberShare,
            what,
            "uid.share (set it to false to turn the shares off)",
            share.to_string(),
        ))
    }

    /// Returns true if the user may not have another one of `total` entries. `uids` are the owners
    /// of the used entries.
    pub fn is_above_share(&self, uid: u32, total: u64, uids: impl Iterator<Item = Option<u32>>) -> bool {
        self.share_exceeded(uid, total, uids).is_some()
    }

    /// Returns the user's share of `total` entries if another entry would exceed the share.
    fn share_exceeded(&self, uid: u32, total: u64, uids: impl Iterator<Item = Option<u32>>) -> Option<u64> {
        if !self.shares_with(uid) {
            return None;
        }
        let mut held = Held::default();
        for uid in uids {
            held.add(uid.map(|uid| self.owner_of(uid)));
        }
        held.share_exceeded(self.owner_of(uid), total)
    }
}
