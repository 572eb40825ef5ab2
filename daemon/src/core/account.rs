//! Accounts of bytes, segments, descriptors and sessions, for each uid and each namespace. The core returns every [`Charge`]
//! through [`Accounts::refund`]. A lost charge is a defect, at which a debug build panics.

mod charge;
mod reserve;
mod users;
pub use super::owners::SUPERUSER;
pub use charge::{Charge, Holding, Kind};

use super::length::sheet_bytes_min;
use super::settings::{Payer, RESERVED_INSPECTIONS, Settings};
use std::collections::BTreeMap;
use std::sync::Arc;
use tensorlend_layout::size::bytes_text;
use tensorlend_layout::wire::{LimitKind, Refusal};
use users::Users;

/// The number of a namespace. No other namespace ever gets the same number.
pub type NamespaceId = u64;

/// Bytes of the sheets of a few segments and streams. The accounts always reserve this much for a
/// user's first client.
const FEW_SHEETS_BYTES: u64 = 1 << 20;

/// Descriptors that the daemon has open for a session: its socket, its process and its wakeup eventfd.
const SESSION_DESCRIPTORS: u64 = 3;

#[derive(Debug)]
struct Budget {
    held: Holding,
    bytes_max: u64,
    device_bytes_max: u64,
    name: String,
    setting: String,
    device_setting: String,
    /// The process that pays for new segments.
    payer: Payer,
    /// Whether the namespace is closed. The account of a closed namespace ends with the refund of
    /// its last charge. That charge may be for memory that the daemon is still allocating.
    over: bool,
}

/// The bytes whose charges leases move from one account to another. `pressure.rs` explains when.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of other users that this uid's leases retain. These bytes count as this uid's own.
    pub keeps: u64,
    /// Bytes of this uid that leases of other users retain. These bytes do not count as this uid's own.
    pub kept: u64,
}

#[derive(Debug)]
pub struct Accounts {
    books: Arc<()>,
    users: Users,
    namespaces: BTreeMap<NamespaceId, Budget>,
    all: Holding,
    /// Number of connections for metrics that the reserve admitted.
    inspections: u32,
    pool_bytes_max: u64,
    sheet_bytes_max: u64,
    descriptors_max: u64,
    uid_bytes_max: u64,
    /// Maximum number of bytes that all devices together may lend.
    device_bytes_max: u64,
    uid_device_bytes_max: u64,
    uid_sessions_max: u32,
    uid_share: bool,
    /// Bytes of sheets that each user needs to join. A user's share is at least this much.
    sheet_bytes_least: u64,
}

pub fn is_above(held: u64, most: u64, percent: u8) -> bool {
    u128::from(held) * 100 > u128::from(most) * u128::from(percent)
}

/// Returns the refusal for a limit.
pub fn limit(
    kind: LimitKind,
    what: impl Into<String>,
    setting: impl Into<String>,
    limit: impl Into<String>,
) -> Refusal {
    Refusal::Limit { kind, what: what.into(), setting: setting.into(), limit: limit.into() }
}

/// A limit of bytes, and the bytes of which a request would exceed it.
pub struct BytesLimit {
    pub used: u64,
    pub asked: u64,
    pub most: u64,
}

impl BytesLimit {
    /// Returns the refusal of the request.
    pub fn refusal(&self, kind: LimitKind, what: impl Into<String>, setting: impl Into<String>) -> Refusal {
        let [used, asked, most] = [self.used, self.asked, self.most].map(bytes_text);
        limit(kind, what, setting, format!("{most} ({used} in use, {asked} more requested)"))
    }
}

fn sheet_bytes_least(settings: &Settings) -> u64 {
    sheet_bytes_min(&settings.private) + FEW_SHEETS_BYTES
}

fn over(used: u64, more: u64, most: u64) -> bool {
    used.checked_add(more).is_none_or(|sum| sum > most)
}

impl Accounts {
    /// Returns empty accounts.
    pub fn new(settings: &Settings) -> Self {
        Self {
            books: Arc::new(()),
            users: Users::new(Arc::clone(&settings.owners)),
            namespaces: BTreeMap::new(),
            all: Holding::default(),
            inspections: 0,
            pool_bytes_max: settings.pool_bytes_max,
            sheet_bytes_max: settings.sheet_bytes_max,
            descriptors_max: settings.descriptors_max,
            uid_bytes_max: settings.uid_bytes_max,
            device_bytes_max: settings.devices.iter().map(|device| device.bytes_max).fold(0, u64::saturating_add),
            uid_device_bytes_max: settings.uid_device_bytes_max,
            uid_sessions_max: settings.uid_sessions_max,
            uid_share: settings.uid_share,
            sheet_bytes_least: sheet_bytes_least(settings),
        }
    }

    /// Replaces the limits. A user above a new limit keeps its memory but gets no more.
    pub fn reload(&mut self, settings: &Settings) {
        self.pool_bytes_max = settings.pool_bytes_max;
        self.sheet_bytes_max = settings.sheet_bytes_max;
        self.uid_bytes_max = settings.uid_bytes_max;
        self.uid_device_bytes_max = settings.uid_device_bytes_max;
        self.uid_sessions_max = settings.uid_sessions_max;
        self.uid_share = settings.uid_share;
        self.users.set_owners(Arc::clone(&settings.owners));
        self.sheet_bytes_least = sheet_bytes_least(settings);
    }

    /// Replaces the limit of a namespace's budget. `setting` is the key of the configuration for the limit.
    pub fn rebound(&mut self, namespace: NamespaceId, setting: &str, bytes_max: u64) {
        let budget = self.namespaces.get_mut(&namespace).expect("it was opened");
        budget.bytes_max = bytes_max;
        budget.setting = setting.into();
    }

    /// Opens a namespace's budget. `setting` is the key of the configuration for its limit.
    pub fn open(&mut self, namespace: NamespaceId, name: &str, setting: &str, bytes_max: u64) {
        let held = Holding::default();
        let budget = Budget {
            held,
            bytes_max,
            device_bytes_max: u64::MAX,
            name: name.into(),
            setting: setting.into(),
            device_setting: String::new(),
            payer: Payer::default(),
            over: false,
        };
        let before = self.namespaces.insert(namespace, budget);
        assert!(before.is_none(), "a namespace's number is used once");
    }

    /// Limits a namespace's device memory. `setting` is the key of the configuration for the limit.
    pub fn bound_devices(&mut self, namespace: NamespaceId, setting: &str, bytes_max: u64) {
        let budget = self.namespaces.get_mut(&namespace).expect("it was opened");
        budget.device_bytes_max = bytes_max;
        budget.device_setting = setting.into();
    }

    /// Sets the process that pays for a namespace's new segments.
    pub fn set_payer(&mut self, namespace: NamespaceId, payer: Payer) {
        self.namespaces.get_mut(&namespace).expect("it was opened").payer = payer;
    }

    /// Returns true if the daemon pays for the segments of this open namespace.
    pub fn is_paid_by_daemon(&self, namespace: NamespaceId) -> bool {
        self.namespaces.get(&namespace).is_some_and(|budget| !budget.over && budget.payer == Payer::Daemon)
    }

    /// Closes a namespace's budget. The account ends after the refund of its last charge.
    pub fn close(&mut self, namespace: NamespaceId) {
        let budget = self.namespaces.get_mut(&namespace).expect("a budget is closed once");
        budget.over = true;
        self.prune_budget(namespace);
    }

    pub fn is_open(&self, namespace: NamespaceId) -> bool {
        self.namespaces.get(&namespace).is_some_and(|budget| !budget.over)
    }

    /// Charges `bytes` to a namespace and, if one is given, to a uid.
    pub fn charge(
        &mut self,
        uid: Option<u32>,
        namespace: NamespaceId,
        kind: Kind,
        bytes: u64,
    ) -> Result<Charge, Refusal> {
        let budget = self.namespaces.get(&namespace).expect("charges go to open namespaces");
        if kind == Kind::Device {
            self.check_device(uid, budget, bytes)?;
        } else if over(budget.held.bytes(), bytes, budget.bytes_max) {
            let full = BytesLimit { used: budget.held.bytes(), asked: bytes, most: budget.bytes_max };
            let what = format!("the memory of namespace {:?}", budget.name);
            return Err(full.refusal(LimitKind::NamespaceBytes, what, budget.setting.clone()));
        }
        if kind == Kind::Sheet && over(self.all.sheet_bytes, bytes, self.sheet_bytes_max) {
            let full = BytesLimit { used: self.all.sheet_bytes, asked: bytes, most: self.sheet_bytes_max };
            return Err(full.refusal(LimitKind::SheetBytes, "the memory for names and tables", "pool.sheet_bytes_max"));
        }
        if over(self.ordinary_descriptors(), 1, self.descriptors_max) {
            return Err(self.no_descriptors());
        }
        if let Some(uid) = uid {
            let used = self.users.charged_bytes(uid);
            if kind != Kind::Device && over(used, bytes, self.uid_bytes_max) {
                let full = BytesLimit { used, asked: bytes, most: self.uid_bytes_max };
                return Err(full.refusal(LimitKind::UserBytes, format!("the memory of uid {uid}"), "uid.bytes_max"));
            }
            self.check_share(uid, kind, bytes)?;
            self.users.add(uid, kind, bytes);
        }
        self.namespaces.get_mut(&namespace).expect("seen above").held.add(kind, bytes);
        self.all.add(kind, bytes);
        Ok(Charge::new(&self.books, uid, namespace, kind, bytes))
    }

    fn check_device(&self, uid: Option<u32>, budget: &Budget, bytes: u64) -> Result<(), Refusal> {
        let used = budget.held.device_bytes;
        if over(used, bytes, budget.device_bytes_max) {
            let full = BytesLimit { used, asked: bytes, most: budget.device_bytes_max };
            let what = format!("the device memory of namespace {:?}", budget.name);
            return Err(full.refusal(LimitKind::NamespaceDeviceBytes, what, budget.device_setting.clone()));
        }
        let Some(uid) = uid else { return Ok(()) };
        let used = self.users.held_by_user(uid, |held| held.device_bytes);
        if over(used, bytes, self.uid_device_bytes_max) {
            let full = BytesLimit { used, asked: bytes, most: self.uid_device_bytes_max };
            let what = format!("the device memory of uid {uid}");
            return Err(full.refusal(LimitKind::UserDeviceBytes, what, "uid.device_bytes_max"));
        }
        Ok(())
    }

    pub fn charge_sheet(&mut self, uid: u32, namespace: NamespaceId, bytes: u64) -> Result<Charge, Refusal> {
        self.charge(Some(uid), namespace, Kind::Sheet, bytes)
    }

    /// Charges for memory that a previous daemon granted, even beyond the current limits.
    pub fn charge_recovered(&mut self, uid: Option<u32>, namespace: NamespaceId, kind: Kind, bytes: u64) -> Charge {
        self.namespaces.get_mut(&namespace).expect("charges go to open namespaces").held.add(kind, bytes);
        if let Some(uid) = uid {
            self.users.add(uid, kind, bytes);
        }
        self.all.add(kind, bytes);
        Charge::new(&self.books, uid, namespace, kind, bytes)
    }

    pub fn refund(&mut self, mut charge: Charge) {
        charge.settle();
        let (kind, bytes) = (charge.kind, charge.bytes);
        self.namespaces.get_mut(&charge.namespace).expect("a budget outlives its charges").held.take(kind, bytes);
        self.prune_budget(charge.namespace);
        self.all.take(kind, bytes);
        if let Some(uid) = charge.uid {
            self.users.take(uid, kind, bytes);
        }
    }

    fn check_share(&self, uid: u32, kind: Kind, bytes: u64) -> Result<(), Refusal> {
        if !self.uid_share || uid == SUPERUSER {
            return Ok(());
        }
        let whose = |what: &str| format!("the share of uid {uid} in {what}");
        let or_no_shares = |setting: &str| format!("{setting}, or set uid.share to false,");
        let (own, stock) = self.users.stock(uid, self.descriptors_max, self.all.descriptors, |h| h.descriptors);
        if over(own, 1, stock.share(own)) {
            let what = whose("the daemon's descriptors");
            let setting = or_no_shares("LimitNOFILE of its unit");
            return Err(limit(LimitKind::DescriptorShare, what, setting, stock.share(own).to_string()));
        }
        let (full, what, setting, own, stock, moved) = match kind {
            Kind::Segment => {
                let (own, stock) =
                    self.users.stock(uid, self.pool_bytes_max, self.all.segment_bytes, |h| h.segment_bytes);
                (LimitKind::PoolShare, "the pool", "pool.bytes_max", own, stock, self.users.moved(uid))
            }
            Kind::Sheet => {
                let (own, stock) = self.users.stock(uid, self.sheet_bytes_max, self.all.sheet_bytes, |h| h.sheet_bytes);
                (
                    LimitKind::SheetShare,
                    "the memory for names and tables",
                    "pool.sheet_bytes_max",
                    own,
                    stock,
                    Moved::default(),
                )
            }
            // All devices count as one stock, so a user may hold all memory of one of two equal
            // devices.
            Kind::Device => {
                let (own, stock) =
                    self.users.stock(uid, self.device_bytes_max, self.all.device_bytes, |h| h.device_bytes);
                (LimitKind::DeviceShare, "the memory of all devices", "cuda.bytes_max", own, stock, Moved::default())
            }
            Kind::Wake => return Ok(()),
        };
        let charged = (own + moved.keeps).saturating_sub(moved.kept);
        let share = stock.share(own).max(if kind == Kind::Sheet { self.sheet_bytes_least } else { 0 });
        if over(charged, bytes, share) {
            let bytes = BytesLimit { used: charged, asked: bytes, most: share };
            return Err(bytes.refusal(full, whose(what), or_no_shares(setting)));
        }
        Ok(())
    }

    fn no_descriptors(&self) -> Refusal {
        limit(
            LimitKind::Descriptors,
            "the number of the daemon's descriptors",
            "LimitNOFILE of its unit",
            self.descriptors_max.to_string(),
        )
    }

    /// Counts a session of `uid`. Returns false if `uid` is over its limit. The session counts in
    /// both cases, so the caller must later call [`Accounts::end_session`].
    pub fn begin_session(&mut self, uid: u32) -> bool {
        let (own, stock) = self.users.stock(uid, self.descriptors_max, self.all.descriptors, |h| h.descriptors);
        let shared = self.uid_share && uid != SUPERUSER && over(own, SESSION_DESCRIPTORS, stock.share(own));
        let full = over(self.ordinary_descriptors(), SESSION_DESCRIPTORS, self.descriptors_max);
        self.all.descriptors += SESSION_DESCRIPTORS;
        self.users.begin_session(uid);
        self.users.sessions_of_user(uid) <= u64::from(self.uid_sessions_max) && !shared && !full
    }

    /// Returns the number of connections over the limits that the user of `uid` has.
    pub fn over_of_user(&self, uid: u32) -> u64 {
        self.users.over_of_user(uid)
    }

    /// Admits a connection over the limits, whose session is counted already. If clients have all descriptors, the
    /// connection takes a place of the reserve. Returns whether it does, or `None` if the reserve has no place. The
    /// caller must later call [`Accounts::end_over`].
    pub fn begin_over(&mut self, uid: u32) -> Option<bool> {
        let reserved = self.is_full();
        if reserved && self.inspections >= RESERVED_INSPECTIONS {
            return None;
        }
        self.inspections += u32::from(reserved);
        self.users.begin_over(uid);
        Some(reserved)
    }

    /// Ends the admission of a connection over the limits. Its session still counts.
    pub fn end_over(&mut self, uid: u32, reserved: bool) {
        self.inspections -= u32::from(reserved);
        self.users.end_over(uid);
    }

    /// Returns the number of descriptors that are not of the reserve for metrics. That reserve is in addition to the limit.
    fn ordinary_descriptors(&self) -> u64 {
        self.all.descriptors - u64::from(self.inspections) * SESSION_DESCRIPTORS
    }

    /// Returns true if clients have all descriptors that the daemon may have open for them.
    fn is_full(&self) -> bool {
        self.ordinary_descriptors() > self.descriptors_max
    }

    /// Returns the refusal of a session for a connection over the limits. `reserved` is true if the connection has a place
    /// of the reserve, because clients had all descriptors.
    pub fn too_many_sessions(&self, uid: u32, reserved: bool) -> Refusal {
        let is_over = self.users.sessions_of_user(uid) > u64::from(self.uid_sessions_max);
        if !is_over && (reserved || self.is_full()) {
            return self.no_descriptors();
        }
        if !is_over {
            let (own, stock) = self.users.stock(uid, self.descriptors_max, self.all.descriptors, |h| h.descriptors);
            return limit(
                LimitKind::DescriptorShare,
                format!("the share of uid {uid} in the daemon's descriptors"),
                "LimitNOFILE of its unit, or set uid.share to false,",
                stock.share(own).to_string(),
            );
        }
        let what = format!("the number of sessions of uid {uid}");
        limit(LimitKind::Sessions, what, "uid.sessions_max", self.uid_sessions_max.to_string())
    }

    pub fn end_session(&mut self, uid: u32) {
        self.users.end_session(uid);
        self.all.descriptors -= SESSION_DESCRIPTORS;
    }

    pub fn users(&self) -> &Users {
        &self.users
    }

    /// Replaces the record of the charges that leases move between accounts. Returns true if the record has changed.
    pub fn move_charges(&mut self, moved: BTreeMap<u32, Moved>) -> bool {
        self.users.move_charges(moved)
    }

    pub fn held_in(&self, namespace: NamespaceId) -> Holding {
        self.namespaces.get(&namespace).map(|b| b.held).unwrap_or_default()
    }

    /// Returns the number of sessions of a uid, and its limit.
    pub fn sessions(&self, uid: u32) -> (u32, u32) {
        (self.users.sessions_of(uid), self.uid_sessions_max)
    }

    /// Returns the bytes of segments and sheets, and the descriptors, that a uid may have now.
    pub fn most(&self, uid: u32) -> (u64, u64) {
        let most = self.uid_bytes_max.min(self.pool_bytes_max.saturating_add(self.sheet_bytes_max));
        if !self.uid_share || uid == SUPERUSER {
            return (most, self.descriptors_max);
        }
        let (own, pool) = self.users.stock(uid, self.pool_bytes_max, self.all.segment_bytes, |h| h.segment_bytes);
        let segments = pool.share(own);
        let (own, sheets) = self.users.stock(uid, self.sheet_bytes_max, self.all.sheet_bytes, |h| h.sheet_bytes);
        let bytes = segments.saturating_add(sheets.share(own).max(self.sheet_bytes_least));
        let (own, stock) = self.users.stock(uid, self.descriptors_max, self.all.descriptors, |h| h.descriptors);
        (most.min(bytes), stock.share(own))
    }

    /// Returns true if a uid or a namespace is above `percent` percent of the pool bytes that it
    /// may have now.
    pub fn is_above(&self, percent: u8, uid: u32, namespace: NamespaceId) -> bool {
        let is_above = |held, most| is_above(held, most, percent);
        let in_namespace = self.namespaces.get(&namespace).is_some_and(|it| is_above(it.held.bytes(), it.bytes_max));
        let shares = self.uid_share && uid != SUPERUSER;
        let (own, pool) = self.users.stock(uid, self.pool_bytes_max, self.all.segment_bytes, |h| h.segment_bytes);
        in_namespace
            || is_above(self.users.charged_bytes(uid), self.uid_bytes_max)
            || shares && is_above(own, pool.share(own))
    }

    pub fn sheet_bytes(&self) -> u64 {
        self.all.sheet_bytes
    }

    /// Returns true if no uid and no namespace holds anything.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.namespaces.is_empty() && self.all == Holding::default() && self.inspections == 0
    }

    /// Checks that each charge belongs to a namespace, and that the uids together hold no more than
    /// all namespaces.
    ///
    /// # Panics
    /// Panics if the data is inconsistent.
    pub fn check(&self) {
        let mut namespaces = Holding::default();
        for budget in self.namespaces.values() {
            namespaces.add_all(&budget.held);
            assert!(!budget.over || budget.held != Holding::default(), "a closed budget holds nothing: {budget:?}");
        }
        let (uids, sessions) = self.users.check();
        assert!(u64::from(self.inspections) <= self.users.over(), "the reserve is for connections over the limits");
        namespaces.descriptors += sessions * SESSION_DESCRIPTORS;
        assert_eq!(namespaces, self.all, "every charge is a namespace's, every session a uid's");
        assert!(uids.is_within(&self.all), "uids hold {uids:?} of {:?}", self.all);
    }

    pub fn all_sessions(&self) -> u64 {
        self.users.sessions()
    }

    /// Deletes every account. Charges that objects still have become void, and the objects may drop
    /// them.
    pub fn write_off(&mut self) {
        self.books = Arc::new(());
        self.users.write_off();
        self.namespaces.clear();
        (self.all, self.inspections) = (Holding::default(), 0);
    }

    fn prune_budget(&mut self, namespace: NamespaceId) {
        if self.namespaces.get(&namespace).is_some_and(|b| b.over && b.held == Holding::default()) {
            self.namespaces.remove(&namespace);
        }
    }
}

impl Drop for Accounts {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            debug_assert!(self.is_empty(), "every charge comes back: {self:?}");
        }
    }
}

#[cfg(test)]
mod tests;
