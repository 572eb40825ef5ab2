//! Who holds how many bytes. Every [`Charge`] that is made comes back through [`Accounts::refund`].

use std::collections::BTreeMap;
use tensorlend_layout::wire::Refusal;

/// A namespace's number; never used again.
pub type NamespaceId = u64;

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tensor bytes: the pool bounds them too.
    Segment,
    /// Shared words: bounded for all together by `pool.sheet_bytes_max`.
    Sheet,
}

/// Bytes that somebody holds: a receipt, to be given back.
#[derive(Debug)]
#[must_use]
pub struct Charge {
    uid: Option<u32>,
    namespace: NamespaceId,
    kind: Kind,
    bytes: u64,
}

impl Charge {
    /// Whose budget it is in.
    pub fn namespace(&self) -> NamespaceId {
        self.namespace
    }
}

#[derive(Debug, Default)]
struct Account {
    bytes: u64,
    sessions: u32,
}

#[derive(Debug)]
struct Budget {
    bytes: u64,
    bytes_max: u64,
    name: String,
    setting: String,
    /// Its namespace is gone: it goes with its last charge, which is for memory that is still being made.
    over: bool,
}

/// All accounts.
#[derive(Debug)]
pub struct Accounts {
    uids: BTreeMap<u32, Account>,
    namespaces: BTreeMap<NamespaceId, Budget>,
    sheet_bytes: u64,
    sheet_bytes_max: u64,
    uid_bytes_max: u64,
    uid_sessions_max: u32,
}

/// A number of bytes for a person.
pub fn bytes_text(bytes: u64) -> String {
    match bytes {
        b if b >= 1 << 30 && b.is_multiple_of(1 << 30) => format!("{} GiB", b >> 30),
        b if b >= 1 << 20 && b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b >= 1 << 10 && b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} bytes"),
    }
}

/// The refusal for a limit.
pub fn limit(what: impl Into<String>, setting: impl Into<String>, limit: impl Into<String>) -> Refusal {
    Refusal::Limit { what: what.into(), setting: setting.into(), limit: limit.into() }
}

impl Accounts {
    /// No accounts yet.
    pub fn new(uid_bytes_max: u64, uid_sessions_max: u32, sheet_bytes_max: u64) -> Self {
        Self {
            uids: BTreeMap::new(),
            namespaces: BTreeMap::new(),
            sheet_bytes: 0,
            sheet_bytes_max,
            uid_bytes_max,
            uid_sessions_max,
        }
    }

    /// Opens a namespace's budget; `setting` is the key of the configuration that bounds it.
    pub fn open(&mut self, namespace: NamespaceId, name: &str, setting: &str, bytes_max: u64) {
        let budget = Budget { bytes: 0, bytes_max, name: name.into(), setting: setting.into(), over: false };
        let before = self.namespaces.insert(namespace, budget);
        assert!(before.is_none(), "a namespace's number is used once");
    }

    /// Closes a namespace's budget, as soon as it has come back whole.
    pub fn close(&mut self, namespace: NamespaceId) {
        let budget = self.namespaces.get_mut(&namespace).expect("a budget is closed once");
        budget.over = true;
        self.prune_budget(namespace);
    }

    /// Whether a namespace is there still.
    pub fn is_open(&self, namespace: NamespaceId) -> bool {
        self.namespaces.get(&namespace).is_some_and(|budget| !budget.over)
    }

    /// Charges `bytes` to a namespace and, where one is named, to a uid.
    pub fn charge(
        &mut self,
        uid: Option<u32>,
        namespace: NamespaceId,
        kind: Kind,
        bytes: u64,
    ) -> Result<Charge, Refusal> {
        let budget = self.namespaces.get_mut(&namespace).expect("charges go to open namespaces");
        let over = |used: u64, max: u64| used.checked_add(bytes).is_none_or(|sum| sum > max);
        if over(budget.bytes, budget.bytes_max) {
            let what = format!("memory of namespace {:?} ({} in use)", budget.name, bytes_text(budget.bytes));
            return Err(limit(what, budget.setting.clone(), bytes_text(budget.bytes_max)));
        }
        if kind == Kind::Sheet && over(self.sheet_bytes, self.sheet_bytes_max) {
            let what = "memory for descriptors and names";
            return Err(limit(what, "pool.sheet_bytes_max", bytes_text(self.sheet_bytes_max)));
        }
        if let Some(uid) = uid {
            let used = self.uids.get(&uid).map_or(0, |a| a.bytes);
            if over(used, self.uid_bytes_max) {
                let what = format!("memory of uid {uid} ({} in use)", bytes_text(used));
                return Err(limit(what, "uid.bytes_max", bytes_text(self.uid_bytes_max)));
            }
            self.uids.entry(uid).or_default().bytes += bytes;
        }
        budget.bytes += bytes;
        if kind == Kind::Sheet {
            self.sheet_bytes += bytes;
        }
        Ok(Charge { uid, namespace, kind, bytes })
    }

    /// Takes a charge back.
    pub fn refund(&mut self, charge: Charge) {
        self.namespaces.get_mut(&charge.namespace).expect("a budget outlives its charges").bytes -= charge.bytes;
        self.prune_budget(charge.namespace);
        if charge.kind == Kind::Sheet {
            self.sheet_bytes -= charge.bytes;
        }
        if let Some(uid) = charge.uid {
            self.uids.get_mut(&uid).expect("a charged uid has an account").bytes -= charge.bytes;
            self.prune(uid);
        }
    }

    /// Counts a session of `uid`; false if it has as many as it may. The session is counted either way, so that
    /// [`Accounts::end_session`] follows either way.
    pub fn begin_session(&mut self, uid: u32) -> bool {
        let account = self.uids.entry(uid).or_default();
        account.sessions += 1;
        account.sessions <= self.uid_sessions_max
    }

    /// Sessions of `uid`, those over the limit included.
    pub fn sessions(&self, uid: u32) -> u32 {
        self.uids.get(&uid).map_or(0, |a| a.sessions)
    }

    /// The refusal for a uid that has as many sessions as it may.
    pub fn too_many_sessions(&self, uid: u32) -> Refusal {
        limit(format!("the number of sessions of uid {uid}"), "uid.sessions_max", self.uid_sessions_max.to_string())
    }

    /// A session of `uid` is over.
    pub fn end_session(&mut self, uid: u32) {
        self.uids.get_mut(&uid).expect("a session has an account").sessions -= 1;
        self.prune(uid);
    }

    /// Bytes of all sheets.
    pub fn sheet_bytes(&self) -> u64 {
        self.sheet_bytes
    }

    /// Whether nobody holds anything.
    pub fn is_empty(&self) -> bool {
        self.uids.is_empty() && self.namespaces.is_empty() && self.sheet_bytes == 0
    }

    /// Gives up every account: what they hold stays with those who hold it.
    pub fn write_off(&mut self) {
        self.uids.clear();
        self.namespaces.clear();
        self.sheet_bytes = 0;
    }

    fn prune_budget(&mut self, namespace: NamespaceId) {
        if self.namespaces.get(&namespace).is_some_and(|b| b.over && b.bytes == 0) {
            self.namespaces.remove(&namespace);
        }
    }

    fn prune(&mut self, uid: u32) {
        if self.uids.get(&uid).is_some_and(|a| a.bytes == 0 && a.sessions == 0) {
            self.uids.remove(&uid);
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
mod tests {
    use super::*;

    #[test]
    fn limits_name_their_setting_and_charges_come_back() {
        let mut accounts = Accounts::new(100, 1, 50);
        accounts.open(1, "lab", "namespace.lab.bytes_max", 120);
        let setting = |r: Result<Charge, Refusal>| match r {
            Err(Refusal::Limit { setting, .. }) => setting,
            other => panic!("{other:?}"),
        };
        let a = accounts.charge(Some(7), 1, Kind::Segment, 90).unwrap();
        assert_eq!(setting(accounts.charge(Some(7), 1, Kind::Segment, 11)), "uid.bytes_max");
        assert_eq!(setting(accounts.charge(Some(8), 1, Kind::Segment, 31)), "namespace.lab.bytes_max");
        assert_eq!(setting(accounts.charge(Some(8), 1, Kind::Segment, u64::MAX)), "namespace.lab.bytes_max");
        let b = accounts.charge(None, 1, Kind::Sheet, 30).unwrap();
        accounts.refund(a);
        assert_eq!(setting(accounts.charge(Some(8), 1, Kind::Sheet, 21)), "pool.sheet_bytes_max");
        accounts.refund(b);
        assert!(accounts.begin_session(7) && !accounts.begin_session(7));
        accounts.end_session(7);
        accounts.end_session(7);
        accounts.close(1);
        assert!(accounts.is_empty());
    }

    #[test]
    fn bytes_read_well() {
        assert_eq!(bytes_text(64 << 20), "64 MiB");
        assert_eq!(bytes_text(3 << 30), "3 GiB");
        assert_eq!(bytes_text(1000), "1000 bytes");
        assert_eq!(bytes_text(4096), "4 KiB");
    }
}
