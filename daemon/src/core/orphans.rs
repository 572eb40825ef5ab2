//! Orphaned memory. Its client returned it or has ended, but a process may still write it.

use super::account::{Charge, NamespaceId};
use super::effect::Effect;
use super::effects::Effects;
use super::event::MemId;
use super::probes::Probed;
use std::collections::BTreeMap;
use tensorlend_layout::number::ClientNo;

/// Pause before the second probe of orphaned memory. The client may have unmapped the memory by
/// then. Each further pause is four times as long as the previous one.
const RETURNED_PAUSE_NS: u64 = 5_000_000;
/// Minimum pause between two probes of orphaned memory for which a request waits.
const EXPEDITE_PAUSE_NS: u64 = 400_000;
/// Maximum number of probes in one round. A round consists of the probes that requests of one uid
/// start at the same time. After the last response of a full round, the next round waits for
/// [`EXPEDITE_PAUSE_NS`], so that the loop serves other clients.
const EXPEDITE_PROBES_MAX: u32 = 64;
/// Maximum age of orphaned memory for which a request waits.
const EXPEDITE_NS_MAX: u64 = 10_000_000;
/// Maximum age of a memory request for which the daemon starts further rounds of probes.
const QUIET_NS_MAX: u64 = 5_000_000;
/// Maximum pause between two probes of orphaned memory.
const ORPHANED_PAUSE_NS_MAX: u64 = 10_000_000_000;

/// The session to which the daemon had lent memory for writing. Only the session's process can hold
/// the memory, and processes that got the memory from it, such as its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FormerWriter {
    /// The uid of the session's user.
    pub uid: u32,
    /// The client, or [`ClientNo::DAEMON`] if only the previous daemon knew the client.
    pub client: ClientNo,
    /// The pid of the process that connected, or 0 if only the previous daemon knew the process.
    pub pid: u32,
}

impl FormerWriter {
    /// Returns an unidentified session of this user. Only the previous daemon knew its client and
    /// its process.
    pub fn unknown(uid: u32) -> Self {
        Self { uid, client: ClientNo::DAEMON, pid: 0 }
    }
}

/// Orphaned memory that a process may still write. The charge stays with the memory's user as long
/// as a process has the memory mapped.
#[derive(Debug)]
pub struct Orphaned {
    pub whose: FormerWriter,
    pub charge: Charge,
    pub segment_bytes: Option<u64>,
    given_up_ns: u64,
    /// Time of the next probe, and the pause after that probe.
    next_ns: u64,
    pause_ns: u64,
    /// Time of the last probe that [`Orphans::expedite`] started.
    expedited_ns: u64,
    /// The value of `expedited_ns` at the last expedited probe that found the memory in use.
    responded_ns: u64,
}

impl Orphaned {
    /// Returns memory that is orphaned now.
    pub fn new(now_ns: u64, whose: FormerWriter, charge: Charge, segment_bytes: Option<u64>) -> Self {
        Self {
            whose,
            charge,
            segment_bytes,
            given_up_ns: now_ns,
            next_ns: 0,
            pause_ns: RETURNED_PAUSE_NS,
            expedited_ns: 0,
            responded_ns: 0,
        }
    }
}

/// The probes that requests of one uid have started.
#[derive(Debug, Default)]
struct Expedited {
    /// Number of probes whose responses are pending.
    begun: u32,
    /// Whether this round has reached [`EXPEDITE_PROBES_MAX`].
    is_full: bool,
    /// Earliest time of the next round.
    next_ns: u64,
}

impl Orphaned {
    /// Returns true if a probe from [`Orphans::expedite`] has no response yet.
    fn is_being_probed(&self) -> bool {
        self.expedited_ns > self.responded_ns
    }
}

/// The result of a probe of orphaned memory.
#[derive(Debug)]
pub enum ProbeResult {
    /// The memory is not orphaned any more.
    Gone,
    /// No process can write the memory. The memory is not orphaned any more.
    Quiescent(Orphaned),
    /// A process can still write the memory. The next probe follows after this pause, or is already
    /// scheduled.
    InUse(Option<u64>),
}

#[derive(Debug, Default)]
pub struct Orphans {
    by_mem: BTreeMap<MemId, Orphaned>,
    /// The probes that requests have started, by uid.
    expedited: BTreeMap<u32, Expedited>,
    /// The highest number of a label of orphaned memory, under this daemon and all previous
    /// daemons.
    last_id: u64,
}

impl Orphans {
    /// Returns an unused number for a label.
    pub fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Records that labels have numbers up to this one.
    pub fn reserve_ids(&mut self, id: u64) {
        self.last_id = self.last_id.max(id);
    }

    pub fn contains(&self, mem: MemId) -> bool {
        self.by_mem.contains_key(&mem)
    }

    /// Returns the bytes of orphaned segments of host memory.
    pub fn segment_bytes(&self) -> u64 {
        self.by_mem.values().filter_map(|it| it.segment_bytes).sum()
    }

    /// Checks that the kernel will report the end of each orphan's last writer, and that the probes of requests are counted.
    ///
    /// # Panics
    /// Panics if an orphan would stay charged for ever, or a request would wait for ever.
    pub fn check(&self, is_probing: impl Fn(MemId) -> bool) {
        for (&mem, orphaned) in &self.by_mem {
            assert!(is_probing(mem), "{mem:?} is orphaned, and no probe will release it");
            let bytes = orphaned.segment_bytes;
            assert!(bytes.is_none_or(|bytes| bytes == orphaned.charge.bytes()), "{mem:?} is charged in full");
        }
        for (&uid, expedited) in &self.expedited {
            let is_pending = |it: &&Orphaned| it.whose.uid == uid && it.is_being_probed();
            let pending = self.by_mem.values().filter(is_pending).count();
            assert_eq!(expedited.begun as usize, pending, "the probes for requests of uid {uid}");
        }
    }

    /// Adds memory. The caller begins the first probe.
    pub fn add(&mut self, mem: MemId, orphaned: Orphaned) {
        self.by_mem.insert(mem, orphaned);
    }

    /// Handles the kernel's response about memory.
    pub fn probed(&mut self, now_ns: u64, Probed { mem, quiescent }: Probed) -> ProbeResult {
        let Some(orphaned) = self.by_mem.get_mut(&mem) else { return ProbeResult::Gone };
        if orphaned.is_being_probed() {
            let expedited = self.expedited.get_mut(&orphaned.whose.uid).expect("it has begun a probe");
            expedited.begun -= 1;
            if expedited.begun == 0 && expedited.is_full {
                expedited.next_ns = now_ns + EXPEDITE_PAUSE_NS;
            }
        }
        if quiescent {
            return self.by_mem.remove(&mem).map_or(ProbeResult::Gone, ProbeResult::Quiescent);
        }
        orphaned.responded_ns = orphaned.expedited_ns;
        // An expedited probe before the scheduled time does not change the pauses.
        let pause_ns = (now_ns >= orphaned.next_ns).then_some(orphaned.pause_ns);
        if let Some(pause_ns) = pause_ns {
            orphaned.next_ns = now_ns + pause_ns;
            orphaned.pause_ns = (pause_ns * 4).min(ORPHANED_PAUSE_NS_MAX);
        }
        ProbeResult::InUse(pause_ns)
    }

    /// Returns the bytes of orphaned memory that are still charged to a uid, because a process
    /// holds the memory.
    pub fn bytes_of(&self, uid: u32) -> u64 {
        self.by_mem.values().filter(|it| it.whose.uid == uid).map(|it| it.charge.bytes()).sum()
    }

    /// Returns the sessions of these uids to which the daemon had lent memory that is orphaned now.
    /// For each session, also returns the namespace, the number of pieces and the bytes of that
    /// memory.
    pub fn former_writers(
        &self,
        is_asked_for: impl Fn(u32) -> bool,
    ) -> BTreeMap<(NamespaceId, FormerWriter), (u32, u64)> {
        let mut former_writers = BTreeMap::new();
        for it in self.by_mem.values().filter(|it| is_asked_for(it.whose.uid)) {
            let (pieces, bytes): &mut (u32, u64) = former_writers.entry((it.charge.namespace(), it.whose)).or_default();
            (*pieces, *bytes) = (*pieces + 1, *bytes + it.charge.bytes());
        }
        former_writers
    }

    /// Probes at once the segments that a uid has returned, for the uid's request made at
    /// `since_ns`. Returns true if the request must wait for a probe.
    ///
    /// The client unmaps a segment when it receives the daemon's response, and may request memory
    /// before the daemon's next scheduled probe. So each request waits for one probe that began
    /// after the request. Within [`QUIET_NS_MAX`] of the request, the daemon repeats the probes of
    /// segments that were returned recently. A request always waits for a probe that has begun,
    /// because the duration of a probe depends on the load of the machine.
    ///
    /// A uid that holds thousands of segments has [`EXPEDITE_PROBES_MAX`] probes at a time. The
    /// requests of such a uid visit all orphans once for each round of probes.
    pub fn expedite(&mut self, effects: &mut Effects, now: u64, uid: u32, since_ns: u64) -> bool {
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
        let worth = |l: &Orphaned| now - l.given_up_ns < EXPEDITE_NS_MAX || l.responded_ns < since_ns;
        let (mut awaited, mut begun) = (false, 0);
        for (&mem, orphaned) in self.by_mem.iter_mut().filter(|(_, l)| its(l) && worth(l)) {
            awaited = true;
            if now >= orphaned.expedited_ns + EXPEDITE_PAUSE_NS {
                orphaned.expedited_ns = now;
                effects.push(Effect::Probe { mem });
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
