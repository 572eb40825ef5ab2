//! A namespace's side of the accounts: who it is, its limits, and what it refuses.

use super::account::{Accounts, Charge, Kind, NamespaceId, SUPERUSER, limit};
use super::owners::Owners;
use super::settings::NamespaceLimits;
use std::sync::Arc;
use tensorlend_layout::wire::{LimitKind, Refusal};

/// A namespace's identity and limits, which every charge, refusal and line of the log names.
#[derive(Debug)]
pub struct Ledger {
    id: NamespaceId,
    name: String,
    /// The key of the configuration below which its limits are.
    setting: String,
    limits: NamespaceLimits,
    /// For the directory.
    charge: Charge,
    /// Whether each user may have no more than a share of the names, and of the lines of each other table.
    shares_tables: bool,
    /// Which uids are one user's.
    owners: Arc<Owners>,
}

/// Opens a namespace's budget; its limits are below the key `setting` of the configuration.
pub fn open_budget(accounts: &mut Accounts, id: NamespaceId, name: &str, setting: &str, limits: &NamespaceLimits) {
    accounts.open(id, name, &format!("{setting}.bytes_max"), limits.bytes_max);
    accounts.bound_devices(id, &format!("{setting}.device_bytes_max"), limits.device_bytes_max);
}

impl Ledger {
    /// Opens the budget of a new namespace and charges `bytes` for its directory: to the namespace, and to the uid whose private
    /// one it is; `beyond` the limits if an administrator opens it with a place of the reserve.
    ///
    /// # Errors
    /// A limit leaves no room for the directory; then there is no budget.
    pub fn open(
        accounts: &mut Accounts,
        id: NamespaceId,
        name: &str,
        (private, limits): (Option<u32>, NamespaceLimits),
        (bytes, beyond): (u64, bool),
        (shares_tables, owners): (bool, &Arc<Owners>),
    ) -> Result<Self, Refusal> {
        let setting = if private.is_some() { "namespace_default".into() } else { format!("namespace.{name}") };
        open_budget(accounts, id, name, &setting, &limits);
        match accounts.charge_admission(private, id, bytes, beyond) {
            Ok(charge) => {
                Ok(Self { id, name: name.into(), setting, limits, charge, shares_tables, owners: Arc::clone(owners) })
            }
            Err(refusal) => {
                accounts.close(id);
                Err(refusal)
            }
        }
    }

    /// As [`Ledger::open`], for a namespace of a daemon before, whatever the limits are now.
    pub fn reopen(
        accounts: &mut Accounts,
        id: NamespaceId,
        name: &str,
        (private, limits, setting): (Option<u32>, NamespaceLimits, String),
        bytes: u64,
        (shares_tables, owners): (bool, &Arc<Owners>),
    ) -> Self {
        open_budget(accounts, id, name, &setting, &limits);
        let charge = accounts.charge_kept(private, id, Kind::Sheet, bytes);
        Self { id, name: name.into(), setting, limits, charge, shares_tables, owners: Arc::clone(owners) }
    }

    /// Takes back the charge for the directory and closes the budget.
    pub fn close(self, accounts: &mut Accounts) {
        accounts.refund(self.charge);
        accounts.close(self.id);
    }

    /// The namespace's number.
    pub fn id(&self) -> NamespaceId {
        self.id
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key of the configuration below which its limits are.
    pub fn setting(&self) -> &str {
        &self.setting
    }

    /// Its limits.
    pub fn limits(&self) -> &NamespaceLimits {
        &self.limits
    }

    /// Returns true if each user may have no more than a share of the tables.
    pub fn shares_tables(&self) -> bool {
        self.shares_tables
    }

    /// Returns true if this uid may have no more than its share of the tables.
    pub fn shares_with(&self, uid: u32) -> bool {
        self.shares_tables && uid != SUPERUSER
    }

    /// The number of names that a newcomer may announce before it has been granted any.
    pub fn first_grant(&self) -> u64 {
        if self.shares_tables { 0 } else { u64::MAX }
    }

    /// The user whose uid this is.
    pub fn owner_of(&self, uid: u32) -> u32 {
        self.owners.of(uid)
    }

    /// The refusal for a table that is full.
    pub fn limit(&self, kind: LimitKind, what: &str, key: &str, max: u32) -> Refusal {
        limit(kind, format!("{what} in namespace {:?}", self.name), format!("{}.{key}", self.setting), max.to_string())
    }

    /// The uids of one user are others from now on.
    pub fn set_owners(&mut self, owners: &Arc<Owners>) {
        self.owners = Arc::clone(owners);
    }

    /// Changes what can change of the limits of a namespace that is there; `setting` is the key below which they are now.
    pub fn rebound(&mut self, accounts: &mut Accounts, setting: String, new: NamespaceLimits) {
        self.setting = setting;
        (self.limits.bytes_max, self.limits.device_bytes_max) = (new.bytes_max, new.device_bytes_max);
        accounts.rebound(self.id, &format!("{}.bytes_max", self.setting), new.bytes_max);
        accounts.bound_devices(self.id, &format!("{}.device_bytes_max", self.setting), new.device_bytes_max);
    }
}
