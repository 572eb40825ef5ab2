//! Orphaned memory: its clients returned it or have ended, and a process may still write it.

use super::{Env, Part, Probing, Timer};
use crate::core::account::{Charge, NamespaceId};
use crate::core::effect::Effect;
use crate::core::event::MemId;
use crate::core::label::Label;
use crate::core::pool::Borrower;
use std::collections::BTreeMap;

/// Pause before the second probe of orphaned memory, after which its client may have unmapped it. Each further pause is four
/// times as long.
const RETURNED_PAUSE_NS: u64 = 5_000_000;
/// Minimum pause between two probes of orphaned memory for which a request waits.
const EXPEDITE_PAUSE_NS: u64 = 400_000;
/// Maximum number of probes in a round: those that requests of one uid start at once. After the last answer of a full round,
/// the next round waits for [`EXPEDITE_PAUSE_NS`], so that the loop serves others.
const EXPEDITE_PROBES_MAX: u32 = 64;
/// Maximum age of orphaned memory for which a request waits.
const EXPEDITE_NS_MAX: u64 = 10_000_000;
/// Maximum age of a memory request for which the daemon starts further rounds of probes.
const QUIET_NS_MAX: u64 = 5_000_000;
/// Maximum pause between two probes of orphaned memory.
const ORPHANED_PAUSE_NS_MAX: u64 = 10_000_000_000;

/// The session to which the daemon had lent memory for writing. Only its process, and processes that have the memory from it,
/// such as its children, can hold the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormerWriter {
    /// The user.
    pub uid: u32,
    /// The client's number; 0 if only the daemon's predecessor knew it.
    pub client: u16,
    /// The process that connected; 0 if only the daemon's predecessor knew it.
    pub pid: u32,
}

impl FormerWriter {
    /// Returns an unidentified session of this user: only the daemon's predecessor knew its client and its process.
    pub fn unknown(uid: u32) -> Self {
        Self { uid, client: 0, pid: 0 }
    }
}

/// Orphaned memory that a process may still write. The charge stays with its user as long as a process has the memory mapped.
#[derive(Debug)]
pub struct Orphaned {
    whose: FormerWriter,
    charge: Charge,
    segment_bytes: Option<u64>,
    given_up_ns: u64,
    /// Time of the next probe, and the pause after that probe.
    next_ns: u64,
    pause_ns: u64,
    /// Time of the last probe that [`Env::expedite`] asked for.
    expedited_ns: u64,
    /// The value of `expedited_ns` at the last such probe that found the memory in use.
    answered_ns: u64,
}

/// The probes that requests of one uid have started.
#[derive(Debug, Default)]
pub struct Expedited {
    /// Number of probes whose answers are still to come.
    begun: u32,
    /// Whether this round has reached [`EXPEDITE_PROBES_MAX`].
    is_full: bool,
    /// Earliest time of the next round.
    next_ns: u64,
}

impl Orphaned {
    /// Returns true if a probe that [`Env::expedite`] asked for has no answer yet.
    fn is_looked_at(&self) -> bool {
        self.expedited_ns > self.answered_ns
    }
}

impl Env {
    /// Orphans memory that its writer may still have mapped: the daemon refunds its charge once the kernel reports that no
    /// process can write it. Then the daemon closes it, or preserves a segment that may be lent again for the same uid. Readers
    /// do not count as holders. In system mode the daemon frees the pages when it closes the memory, even under readers; in user
    /// mode, where all clients are of one user, idle readers keep the pages until they unmap them.
    pub fn orphan(&mut self, whose: FormerWriter, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        self.orphaned_ever += 1;
        let (namespace, segment, id) = (charge.namespace(), segment_bytes.is_some(), self.orphaned_ever);
        self.keep(mem, Label::Orphaned { namespace, uid: whose.uid, segment, id });
        self.orphan_again(whose, mem, charge, segment_bytes);
    }

    /// Bytes of orphaned memory that are still charged to a uid, because a process holds the memory.
    pub fn orphaned_bytes(&self, uid: u32) -> u64 {
        self.orphaned.values().filter(|it| it.whose.uid == uid).map(|it| it.charge.bytes()).sum()
    }

    /// Returns the sessions of these uids to which the daemon had lent memory that is orphaned now, each with the namespace,
    /// the number of pieces and the bytes of that memory.
    pub fn former_writers(&self, is_told: impl Fn(u32) -> bool) -> BTreeMap<(NamespaceId, FormerWriter), (u32, u64)> {
        let mut former_writers = BTreeMap::new();
        for it in self.orphaned.values().filter(|it| is_told(it.whose.uid)) {
            let (pieces, bytes): &mut (u32, u64) = former_writers.entry((it.charge.namespace(), it.whose)).or_default();
            (*pieces, *bytes) = (*pieces + 1, *bytes + it.charge.bytes());
        }
        former_writers
    }

    /// Orphans memory like [`Env::orphan`], but memory that was orphaned under this daemon's predecessor.
    pub fn orphan_again(&mut self, whose: FormerWriter, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        let orphaned = Orphaned {
            whose,
            charge,
            segment_bytes,
            given_up_ns: self.now_ns,
            next_ns: 0,
            pause_ns: RETURNED_PAUSE_NS,
            expedited_ns: 0,
            answered_ns: 0,
        };
        self.orphaned.insert(mem, orphaned);
        self.probe(mem, Probing::Orphaned);
    }

    /// Orphans a sheet like [`Env::orphan`].
    pub fn orphan_part(&mut self, whose: FormerWriter, part: Part) {
        self.orphan(whose, part.mem, part.charge, None);
    }

    /// Handles the kernel's answer about orphaned memory.
    pub fn orphan_probed(&mut self, mem: MemId, quiescent: bool) {
        if let Some(orphaned) = self.orphaned.get(&mem).filter(|it| it.is_looked_at()) {
            let expedited = self.expedited.get_mut(&orphaned.whose.uid).expect("it has begun a look");
            expedited.begun -= 1;
            if expedited.begun == 0 && expedited.is_full {
                expedited.next_ns = self.now_ns + EXPEDITE_PAUSE_NS;
            }
        }
        if quiescent {
            let Some(Orphaned { whose, charge, segment_bytes, .. }) = self.orphaned.remove(&mem) else { return };
            let namespace = charge.namespace();
            self.accounts.refund(charge);
            match segment_bytes {
                None => self.release(mem),
                Some(bytes) if !self.user_mode() && self.accounts.is_open(namespace) => {
                    self.effects.push(Effect::Forget { mem });
                    self.keep_idle(mem, bytes, Borrower { namespace, uid: whose.uid });
                }
                Some(bytes) => self.release_segment(mem, bytes),
            }
        } else if let Some(orphaned) = self.orphaned.get_mut(&mem) {
            self.probing.insert(mem, Probing::Orphaned);
            orphaned.answered_ns = orphaned.expedited_ns;
            // A probe out of turn does not change the pauses.
            if self.now_ns >= orphaned.next_ns {
                let pause_ns = orphaned.pause_ns;
                orphaned.next_ns = self.now_ns + pause_ns;
                orphaned.pause_ns = (pause_ns * 4).min(ORPHANED_PAUSE_NS_MAX);
                self.set_timer(pause_ns, Timer::Returned(mem));
            }
        }
    }

    /// Probes at once the segments that a uid has returned, for its request made at `since_ns`. Returns true if the request must
    /// wait for a probe. The client unmaps a segment when it receives the daemon's response, and may request memory before the
    /// daemon's next probe. So each request waits for one probe that began after it. Within [`QUIET_NS_MAX`] of the request, the
    /// daemon repeats the probes of segments that were returned recently. A request always waits for a probe that has begun,
    /// since its duration depends on the load of the machine. A uid that holds thousands of segments has [`EXPEDITE_PROBES_MAX`]
    /// probes at a time, and its requests go over all orphans once for each such round.
    pub fn expedite(&mut self, uid: u32, since_ns: u64) -> bool {
        let now = self.now_ns;
        let is_late = now - since_ns >= QUIET_NS_MAX;
        if let Some(expedited) = self.expedited.get(&uid)
            && (expedited.begun > 0 || now < expedited.next_ns)
        {
            return expedited.begun > 0 || !is_late;
        }
        if is_late {
            return false;
        }
        let its = |l: &Orphaned| l.whose.uid == uid && l.segment_bytes.is_some();
        let worth = |l: &Orphaned| now - l.given_up_ns < EXPEDITE_NS_MAX || l.answered_ns < since_ns;
        let (mut awaited, mut begun) = (false, 0);
        for (&mem, orphaned) in self.orphaned.iter_mut().filter(|(_, l)| its(l) && worth(l)) {
            awaited = true;
            if now >= orphaned.expedited_ns + EXPEDITE_PAUSE_NS {
                orphaned.expedited_ns = now;
                self.effects.push(Effect::Probe { mem });
                begun += 1;
            }
            if begun == EXPEDITE_PROBES_MAX {
                break;
            }
        }
        if begun > 0 {
            self.expedited.insert(uid, Expedited { begun, is_full: begun == EXPEDITE_PROBES_MAX, next_ns: now });
        }
        awaited
    }
}
