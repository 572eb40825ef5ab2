//! A namespace's side of the accounts: its identity, its limits, and its refusals.
//!
//! Each table of a shared namespace's directory is a stock in which every user has a share: see `share.rs`. For names the
//! daemon also grants announcements, because clients announce names without a request to the daemon: see
//! `bindings/credit.rs`.

use super::account::{Accounts, Charge, Kind, NamespaceId, SUPERUSER, limit};
use super::owners::Owners;
use super::pool::Borrower;
use super::settings::NamespaceLimits;
use super::share::Stock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tensorlend_layout::directory::SUBSCRIBERS;
use tensorlend_layout::wire::{LimitKind, Refusal};

/// A namespace's identity and limits. Every charge, every refusal and every line of the log names
/// them.
#[derive(Debug)]
pub struct Ledger {
    id: NamespaceId,
    name: String,
    /// The key of the configuration that contains the namespace's limits.
    setting: String,
    limits: NamespaceLimits,
    /// The charge for the directory.
    charge: Charge,
    /// Whether each user may have only a share of the names and of the entries of each other table.
    shares_tables: bool,
    /// The owner of each uid.
    owners: Arc<Owners>,
}

/// The identity of a namespace, its limits, and the rules by which its users share the limits.
#[derive(Debug)]
pub struct Budget<'b> {
    pub id: NamespaceId,
    pub name: &'b str,
    /// The owner of a private namespace.
    pub private: Option<u32>,
    pub limits: NamespaceLimits,
    /// Whether each user may have only a share of each table.
    pub shares_tables: bool,
    pub owners: &'b Arc<Owners>,
}

impl Budget<'_> {
    fn open(&self, accounts: &mut Accounts, setting: &str) {
        open_budget(accounts, self.id, self.name, setting, &self.limits);
    }

    fn ledger(self, setting: String, charge: Charge) -> Ledger {
        let Self { id, name, limits, shares_tables, owners, .. } = self;
        Ledger { id, name: name.into(), setting, limits, charge, shares_tables, owners: Arc::clone(owners) }
    }
}

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

/// Opens a namespace's budget. `setting` is the key of the configuration that contains the limits.
pub fn open_budget(accounts: &mut Accounts, id: NamespaceId, name: &str, setting: &str, limits: &NamespaceLimits) {
    accounts.open(id, name, &format!("{setting}.bytes_max"), limits.bytes_max);
    accounts.bound_devices(id, &format!("{setting}.device_bytes_max"), limits.device_bytes_max);
    accounts.set_payer(id, limits.payer);
}

impl Ledger {
    /// Opens the budget of a new namespace and charges `bytes` for its directory. The namespace is
    /// charged, and also the uid if the namespace is private. With `beyond`, the charge may exceed
    /// the limits, for an administrator who opens the namespace with a reserved session.
    ///
    /// # Errors
    /// A refusal if a limit leaves no room for the directory. The budget is then closed again.
    pub fn open(accounts: &mut Accounts, budget: Budget<'_>, bytes: u64, beyond: bool) -> Result<Self, Refusal> {
        let name = budget.name;
        let setting = if budget.private.is_some() { "namespace_default".into() } else { format!("namespace.{name}") };
        budget.open(accounts, &setting);
        match accounts.charge_admission(budget.private, budget.id, bytes, beyond) {
            Ok(charge) => Ok(budget.ledger(setting, charge)),
            Err(refusal) => {
                accounts.close(budget.id);
                Err(refusal)
            }
        }
    }

    /// Opens the budget of a namespace of the previous daemon, even beyond the current limits.
    /// `setting` is the key of the configuration that contains the limits.
    pub fn reopen(accounts: &mut Accounts, budget: Budget<'_>, setting: String, bytes: u64) -> Self {
        budget.open(accounts, &setting);
        let charge = accounts.charge_recovered(budget.private, budget.id, Kind::Sheet, bytes);
        budget.ledger(setting, charge)
    }

    /// Refunds the charge for the directory and closes the budget.
    pub fn close(self, accounts: &mut Accounts) {
        accounts.refund(self.charge);
        accounts.close(self.id);
    }

    /// Returns the namespace's number.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Returns this user as a borrower in the namespace.
    pub fn borrower(&self, uid: u32) -> Borrower {
        Borrower { namespace: self.id, uid }
    }

    /// Returns the namespace's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the key of the configuration that contains the namespace's limits.
    pub fn setting(&self) -> &str {
        &self.setting
    }

    /// Returns the namespace's limits.
    pub fn limits(&self) -> &NamespaceLimits {
        &self.limits
    }

    /// Returns true if each user may have only a share of the tables.
    pub fn shares_tables(&self) -> bool {
        self.shares_tables
    }

    /// Returns true if this uid may have only its share of the tables.
    pub fn shares_with(&self, uid: u32) -> bool {
        self.shares_tables && uid != SUPERUSER
    }

    /// Returns the number of names that a new client may announce before the first grant of the
    /// daemon.
    pub fn first_grant(&self) -> u64 {
        if self.shares_tables { 0 } else { u64::MAX }
    }

    /// Returns the owner of a uid.
    pub fn owner_of(&self, uid: u32) -> u32 {
        self.owners.of(uid)
    }

    /// Returns the refusal for a full table.
    pub fn limit(&self, kind: LimitKind, what: &str, key: &str, max: u32) -> Refusal {
        limit(kind, format!("{what} in namespace {:?}", self.name), format!("{}.{key}", self.setting), max.to_string())
    }

    /// Replaces the owners of uids.
    pub fn set_owners(&mut self, owners: &Arc<Owners>) {
        self.owners = Arc::clone(owners);
    }

    /// Replaces the limits that can change while a namespace is open. `setting` is the key of the
    /// configuration that contains these limits now.
    pub fn rebound(&mut self, accounts: &mut Accounts, setting: String, new: NamespaceLimits) {
        self.setting = setting;
        (self.limits.bytes_max, self.limits.device_bytes_max) = (new.bytes_max, new.device_bytes_max);
        self.limits.payer = new.payer;
        accounts.set_payer(self.id, new.payer);
        accounts.rebound(self.id, &format!("{}.bytes_max", self.setting), new.bytes_max);
        accounts.bound_devices(self.id, &format!("{}.device_bytes_max", self.setting), new.device_bytes_max);
    }

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
