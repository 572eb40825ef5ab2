//! Crash points: places in the code at which a test kills the process. Each is between two stores
//! that other processes read.
//!
//! Crash points exist only in builds with the feature `crash-points`. Without the feature the macro
//! is empty. A process under test installs a [hook](install). Each crash point that the process
//! passes calls the hook with its number.

use crate::word::Word;
use std::cell::RefCell;
use std::sync::OnceLock;

/// The names of the crash points. A point's number is its index in this array. A child of a fork passes the points that
/// begin with "child". The points that begin with "daemon" or "device" are in the daemon's code. The daemon passes the
/// points that begin with "device" only if it lends device memory. A client that starts a daemon passes the points that
/// begin with "start", and the processes that it starts those that begin with "background". A daemon that takes over memory
/// passes the points that begin with "next", a client that continues its session there those that begin with "resume",
/// and an fd store those that begin with "store". docs/internals/deaths.md has the consequences of a kill at each point.
pub const POINTS: &[&str] = &[
    "lease: stored",
    "lease: confirmed",
    "lease: released",
    "overwrite: owner word looked at",
    "overwrite: cell exchanged",
    "first: claimed",
    "first: entry written",
    "first: announced",
    "first: unclaimed",
    "send: tail moved",
    "send: entry emptied",
    "send: words written",
    "send: cell stored",
    "send: head moved",
    "start: locked",
    "start: started",
    "background: started",
    "background: about to report",
    "connect: welcomed",
    "connect: mapped",
    "connect: acknowledged",
    "request: sent",
    "request: answered",
    "draft: memory looked for",
    "grow: mapped",
    "grow: lent",
    "grow: taken over",
    "return: taken out of use",
    "draft: filled",
    "draft: sealed",
    "takeover: cell filled",
    "takeover: bound",
    "delete: cell emptied",
    "rename: both names lead there",
    "overwrite: bell rung",
    "first: cell filled",
    "first: found free",
    "first: noted",
    "release: closed",
    "release: reported",
    "release: unmapped",
    "reclaim: gathered",
    "reclaim: scanned",
    "reclaim: freed",
    "cells: mapped",
    "cells: taken over",
    "tidy: closed",
    "tidy: told",
    "tidy: cells emptied",
    "notices: heard",
    "append: cells filled",
    "stream: ring mapped",
    "send: sealed",
    "send: counted",
    "stream: closed",
    "subscribe: listed",
    "subscribe: in the stream",
    "receive: cursor stands",
    "receive: cursor moved",
    "fetch: leases mapped",
    "fetch: segment mapped",
    "queue: claimed",
    "queue: leased",
    "queue: blocked",
    "queue: stopped",
    "queue: confirmation sent",
    "queue: confirmed",
    "fork: leases held",
    "fork: token mapped",
    "fork: token left to the children",
    "fork: holds ended",
    "child: forked",
    "child: lease table read-only",
    "daemon: change recorded",
    "daemon: name about to be bound",
    "daemon: name bound",
    "daemon: lifetime about to end",
    "daemon: former owner told",
    "daemon: list has both names",
    "daemon: name reserved",
    "daemon: owner word before absorbed",
    "daemon: absorbed",
    "daemon: name about to be removed",
    "daemon: tomb stored",
    "daemon: place freed",
    "daemon: key written",
    "daemon: table built",
    "daemon: table published",
    "daemon: member written",
    "daemon: member not present yet",
    "daemon: member listed",
    "daemon: reader listed",
    "daemon: announcer listed",
    "daemon: announcer opened",
    "daemon: range about to be lent",
    "daemon: range lent",
    "daemon: cells lent",
    "daemon: range taken back",
    "daemon: ending",
    "daemon: drained",
    "daemon: closed",
    "daemon: leases dropped",
    "daemon: quiet",
    "daemon: memory looked through",
    "daemon: number about to be vacant",
    "daemon: item bound",
    "daemon: items counted",
    "daemon: claim granted",
    "daemon: claim given back",
    "daemon: item confirmed",
    "daemon: request blocked",
    "daemon: blocked request answered",
    "daemon: stream written",
    "daemon: stream listed",
    "daemon: subscriber written",
    "daemon: subscriber removed",
    "daemon: stream buried",
    "daemon: stream cleared",
    "daemon: about to seal",
    "daemon: descriptors opened",
    "daemon: answered",
    "daemon: memory made",
    "device: memory made",
    "device: range about to be lent",
    "device: range lent",
    "device: range taken back, not rung",
    "next: memory adopted",
    "next: restored",
    "next: session continued",
    "resume: welcomed",
    "resume: directory replaced",
    "resume: acknowledged",
    "store: entry stored",
    "store: entry removed",
    "store: all sent",
    "describe: begun",
    "describe: words written",
    "describe: done",
];

static HOOK: OnceLock<fn(usize)> = OnceLock::new();

/// A store that changed a shared word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Store {
    /// The address of the word.
    pub at: usize,
    /// The value before the store.
    pub before: u64,
}

thread_local! {
    /// The stores of this thread. `None`: nobody records them.
    static STORES: RefCell<Option<Vec<Store>>> = const { RefCell::new(None) };
}

/// Begins to record the stores of this thread that change shared words.
pub fn record_stores() {
    STORES.set(Some(Vec::new()));
}

/// Ends the record of this thread. Returns the stores since [`record_stores`], in their order.
pub fn take_stores() -> Vec<Store> {
    STORES.take().unwrap_or_default()
}

/// Records a store of this thread that is about to change a word to `after`.
pub fn record(word: &Word, after: impl FnOnce(u64) -> u64) {
    let add = |stores: &RefCell<Option<Vec<Store>>>| {
        let mut stores = stores.borrow_mut();
        let Some(stores) = stores.as_mut() else { return };
        let before = word.peek();
        if after(before) != before {
            stores.push(Store { at: core::ptr::from_ref(word).addr(), before });
        }
    };
    // Destructors of a thread's other values store, too, when its record may be gone.
    let _ = STORES.try_with(add);
}

/// Installs `hook`, which every later crash point calls. Only the first hook of a process is
/// installed.
pub fn install(hook: fn(usize)) {
    let _ = HOOK.set(hook);
}

/// Returns the number of a crash point. An unlisted name does not compile.
pub const fn number(name: &str) -> usize {
    let mut at = 0;
    while at < POINTS.len() {
        if same(POINTS[at].as_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("this place is not in POINTS")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    at == a.len() && at == b.len()
}

/// Reports to the hook that the process passes a crash point.
pub fn pass(point: usize) {
    if let Some(hook) = HOOK.get() {
        hook(point);
    }
}
