//! The tables of a shared namespace's directory, as stocks in which every user has a share: see `share.rs`. The names have
//! grants besides, since clients announce them without the daemon: see `credit.rs`.

use super::account::limit;
use super::namespace::Namespace;
use super::share::Stock;
use std::collections::BTreeMap;
use tensorlend_layout::directory::SUBSCRIBERS;
use tensorlend_layout::wire::Refusal;

/// A table of a directory in which several users have lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Clients: those that are there, those that left something, and those that are joining.
    Members,
    /// Segments, those on devices included.
    Segments,
    /// Streams. A stream is its producer's.
    Streams,
    /// Lists. A list is its creator's; after a restart of the daemon it is the owner's of the first item that is left.
    Lists,
}

impl Table {
    /// The table's name for people, and the option that bounds it.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Members => ("clients", "members_max"),
            Self::Segments => ("segments", "segments_max"),
            Self::Streams => ("streams", "streams_max"),
            Self::Lists => ("lists", "lists_max"),
        }
    }
}

/// Lines of one table, by user, whatever uids he has; those that are nobody's take their places, too.
#[derive(Debug, Default)]
struct Held {
    uids: BTreeMap<u32, u64>,
    all: u64,
}

impl Held {
    fn add(&mut self, uid: Option<u32>, lines: u64) {
        self.all += lines;
        if let Some(uid) = uid.filter(|_| lines > 0) {
            *self.uids.entry(uid).or_default() += lines;
        }
    }

    /// The user's share of `total` lines if one more would be above it.
    fn share_exceeded(&self, uid: u32, total: u64) -> Option<u64> {
        let own = self.uids.get(&uid).copied().unwrap_or(0);
        let stock = Stock { total, held: self.all, holders: self.uids.len() as u64 };
        // Where a table is so small that shares are less than a line, each user has one as long as there is one.
        let share = stock.share(own).max(1);
        (own >= share).then_some(share)
    }
}

impl Namespace {
    /// The user of a client, be it there or gone.
    pub fn uid_of(&self, catalogue: u16) -> Option<u32> {
        self.clients.get(&catalogue).map(|client| client.uid)
    }

    fn held(&self, table: Table) -> Held {
        let mut held = Held::default();
        let mut add = |uid: Option<u32>, lines| held.add(uid.map(|uid| self.context.ledger.owner_of(uid)), lines);
        match table {
            Table::Members => {
                self.clients.values().for_each(|client| add(Some(client.uid), 1));
                self.joining.values().for_each(|&uid| add(Some(uid), 1));
            }
            Table::Segments => {
                self.clients.values().for_each(|client| add(Some(client.uid), client.segments.len() as u64));
            }
            Table::Streams => self.streams.producers().for_each(|producer| add(self.uid_of(producer), 1)),
            Table::Lists => self.lists.uids().for_each(|uid| add(uid, 1)),
        }
        held
    }

    fn lines(&self, table: Table) -> u32 {
        match table {
            Table::Members => self.context.ledger.limits().members_max,
            Table::Segments => self.context.ledger.limits().segments_max,
            Table::Streams => self.context.ledger.limits().streams_max,
            Table::Lists => self.context.ledger.limits().lists_max,
        }
    }

    /// Refuses a user one more line of a table if that is more than its share.
    pub fn check_table_share(&self, table: Table, uid: u32) -> Result<(), Refusal> {
        if !self.context.ledger.shares_with(uid) {
            return Ok(());
        }
        let Some(share) = self.held(table).share_exceeded(self.context.ledger.owner_of(uid), self.lines(table).into())
        else {
            return Ok(());
        };
        let (what, option) = table.words();
        let what = format!("the share of uid {uid} in the {what} of namespace {:?}", self.context.ledger.name());
        Err(limit(
            what,
            format!("{}.{option}, or set uid.share to false,", self.context.ledger.setting()),
            share.to_string(),
        ))
    }

    /// Refuses a user one more place among a stream's subscribers if that is more than its share.
    pub fn check_subscriber_share(&self, place: u32, uid: u32) -> Result<(), Refusal> {
        if !self.context.ledger.shares_with(uid) {
            return Ok(());
        }
        let mut held = Held::default();
        self.streams.subscribers(place).for_each(|subscriber| {
            held.add(self.uid_of(subscriber).map(|uid| self.context.ledger.owner_of(uid)), 1);
        });
        let Some(share) = held.share_exceeded(self.context.ledger.owner_of(uid), SUBSCRIBERS as u64) else {
            return Ok(());
        };
        let name = self.streams.name(place);
        let what = format!("the share of uid {uid} in the {SUBSCRIBERS} subscribers of stream {name:?}");
        Err(limit(what, "uid.share (set it to false to turn the shares off)", share.to_string()))
    }
}
