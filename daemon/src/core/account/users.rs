//! The accounts of uids. Limits and shares apply to all uids of one owner together: see [`Owners`].

use super::{Holding, Kind, Moved, SESSION_DESCRIPTORS};
use crate::core::owners::Owners;
use crate::core::share::Stock;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Debug, Default)]
struct Account {
    held: Holding,
    sessions: u32,
    /// Number of the sessions that a limit refused, and that may only request metrics.
    over: u32,
}

/// The accounts of uids. A uid has an account while it holds something or has a session.
#[derive(Debug)]
pub struct Users {
    accounts: BTreeMap<u32, Account>,
    /// The bytes whose charges leases move, by uid.
    moved: BTreeMap<u32, Moved>,
    owners: Arc<Owners>,
}

impl Users {
    pub(super) fn new(owners: Arc<Owners>) -> Self {
        Self { accounts: BTreeMap::new(), moved: BTreeMap::new(), owners }
    }

    pub(super) fn set_owners(&mut self, owners: Arc<Owners>) {
        self.owners = owners;
    }

    pub(super) fn add(&mut self, uid: u32, kind: Kind, bytes: u64) {
        self.accounts.entry(uid).or_default().held.add(kind, bytes);
    }

    pub(super) fn take(&mut self, uid: u32, kind: Kind, bytes: u64) {
        self.accounts.get_mut(&uid).expect("a charged uid has an account").held.take(kind, bytes);
        self.prune(uid);
    }

    pub(super) fn begin_session(&mut self, uid: u32) {
        let account = self.accounts.entry(uid).or_default();
        account.held.descriptors += SESSION_DESCRIPTORS;
        account.sessions += 1;
    }

    pub(super) fn end_session(&mut self, uid: u32) {
        let account = self.accounts.get_mut(&uid).expect("a session has an account");
        account.sessions -= 1;
        account.held.descriptors -= SESSION_DESCRIPTORS;
        self.prune(uid);
    }

    pub(super) fn begin_over(&mut self, uid: u32) {
        self.accounts.get_mut(&uid).expect("a session has an account").over += 1;
    }

    pub(super) fn end_over(&mut self, uid: u32) {
        self.accounts.get_mut(&uid).expect("a session has an account").over -= 1;
    }

    /// Replaces the record of the charges that leases move between accounts. Returns true if the record has changed.
    pub(super) fn move_charges(&mut self, moved: BTreeMap<u32, Moved>) -> bool {
        std::mem::replace(&mut self.moved, moved) != self.moved
    }

    /// Deletes every account.
    pub(super) fn write_off(&mut self) {
        self.accounts.clear();
    }

    /// Returns the uids that have an account.
    pub fn uids(&self) -> impl Iterator<Item = u32> + '_ {
        self.accounts.keys().copied()
    }

    pub fn held_by(&self, uid: u32) -> Holding {
        self.accounts.get(&uid).map(|account| account.held).unwrap_or_default()
    }

    pub fn sessions_of(&self, uid: u32) -> u32 {
        self.accounts.get(&uid).map_or(0, |account| account.sessions)
    }

    /// Returns the number of sessions of a uid's user.
    pub fn sessions_of_user(&self, uid: u32) -> u64 {
        self.sum(uid, |account| account.sessions.into())
    }

    /// Returns the number of connections over the limits that a uid's user has.
    pub fn over_of_user(&self, uid: u32) -> u64 {
        self.sum(uid, |account| account.over.into())
    }

    /// Returns the amount that a uid's user holds, as `of` reads it.
    pub fn held_by_user(&self, uid: u32, of: impl Fn(&Holding) -> u64) -> u64 {
        self.sum(uid, |account| of(&account.held))
    }

    /// Returns the amount of a stock that a uid's user holds, and the stock.
    pub fn stock(&self, uid: u32, total: u64, held: u64, of: impl Fn(&Holding) -> u64) -> (u64, Stock) {
        let holding = self.accounts.iter().filter(|(_, a)| of(&a.held) > 0);
        let holders = if self.owners.is_empty() {
            holding.count()
        } else {
            holding.map(|(&uid, _)| self.owners.of(uid)).collect::<BTreeSet<u32>>().len()
        };
        (self.held_by_user(uid, of), Stock { total, held, holders: holders as u64 })
    }

    /// Returns the bytes whose charge leases move to the user of `uid` (`keeps`) or to other users
    /// (`kept`).
    pub fn moved(&self, uid: u32) -> Moved {
        if self.owners.is_empty() {
            return self.moved.get(&uid).copied().unwrap_or_default();
        }
        let owner = self.owners.of(uid);
        let mut all = Moved::default();
        for (_, moved) in self.moved.iter().filter(|&(&it, _)| self.owners.of(it) == owner) {
            all.keeps += moved.keeps;
            all.kept += moved.kept;
        }
        all
    }

    /// Returns the bytes that count for the user of `uid`. The result includes other users' bytes
    /// that this user's leases retain. It excludes this user's bytes that other users' leases
    /// retain.
    pub fn charged_bytes(&self, uid: u32) -> u64 {
        let moved = self.moved(uid);
        (self.held_by_user(uid, Holding::bytes) + moved.keeps).saturating_sub(moved.kept)
    }

    /// Returns true if no uid has an account.
    pub fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Checks each account. Returns the sum of the holdings, and the number of sessions.
    ///
    /// # Panics
    /// Panics if an account holds nothing.
    pub(super) fn check(&self) -> (Holding, u64) {
        let mut all = Holding::default();
        for account in self.accounts.values() {
            all.add_all(&account.held);
            assert!(account.over <= account.sessions, "connections over the limits count as sessions");
            assert!(account.sessions > 0 || account.held != Holding::default(), "an account holds nothing");
        }
        let (keeps, kept) = self.moved.values().fold((0, 0), |(keeps, kept), it| (keeps + it.keeps, kept + it.kept));
        assert!(kept <= keeps, "{kept} bytes are moved from owners, and {keeps} to holders");
        (all, self.sessions())
    }

    pub(super) fn sessions(&self) -> u64 {
        self.accounts.values().map(|account| u64::from(account.sessions)).sum()
    }

    /// Returns the number of all connections over the limits.
    pub(super) fn over(&self) -> u64 {
        self.accounts.values().map(|account| u64::from(account.over)).sum()
    }

    /// Returns the sum over all uids of this uid's user.
    fn sum(&self, uid: u32, of: impl Fn(&Account) -> u64) -> u64 {
        if self.owners.is_empty() {
            return self.accounts.get(&uid).map_or(0, of);
        }
        let owner = self.owners.of(uid);
        self.accounts.iter().filter(|&(&it, _)| self.owners.of(it) == owner).map(|(_, account)| of(account)).sum()
    }

    fn prune(&mut self, uid: u32) {
        if self.accounts.get(&uid).is_some_and(|a| a.sessions == 0 && a.held == Holding::default()) {
            self.accounts.remove(&uid);
        }
    }
}
