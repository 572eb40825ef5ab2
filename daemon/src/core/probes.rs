//! Probes: queries to the kernel whether any process can still write a piece of memory.

use super::account::NamespaceId;
use super::effect::Effect;
use super::effects::Effects;
use super::event::MemId;
use std::collections::BTreeMap;
use tensorlend_layout::number::ClientNo;

/// Maximum number of probes of ended clients' memory in [`BURST_NS`].
const BURST: u32 = 256;
const BURST_NS: u64 = 1_000_000;

/// The reason for a probe of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// The client that owned the memory has ended.
    Ended(NamespaceId, ClientNo),
    /// The memory is the lease table of a client that has not reconnected since the daemon was
    /// replaced.
    Disconnected(NamespaceId, ClientNo),
    /// The memory is the lease table of a draining client of the previous daemon.
    Draining(NamespaceId, ClientNo),
    /// The memory is orphaned, and charged until no process can write it.
    Orphaned,
}

/// The kernel's response to a probe.
#[derive(Clone, Copy, Debug)]
pub struct Probed {
    pub mem: MemId,
    /// Whether no process can write the memory.
    pub quiescent: bool,
}

#[derive(Debug, Default)]
pub struct Probes {
    reasons: BTreeMap<MemId, Probing>,
    /// Number of probes since `burst_ns`: see [`Probes::may_probe`].
    burst: u32,
    burst_ns: u64,
}

impl Probes {
    /// Counts a probe of an ended client's memory. Returns false above [`BURST`] probes in [`BURST_NS`]. The daemon then serves
    /// other clients before the next probe.
    pub fn may_probe(&mut self, now_ns: u64) -> bool {
        if now_ns >= self.burst_ns + BURST_NS {
            (self.burst, self.burst_ns) = (0, now_ns);
        }
        self.burst += 1;
        self.burst <= BURST
    }

    /// Asks the kernel whether memory is quiescent.
    pub fn probe(&mut self, effects: &mut Effects, mem: MemId, why: Probing) {
        self.expect(mem, why);
        effects.push(Effect::Probe { mem });
    }

    /// Records that memory will be probed for this reason.
    pub fn expect(&mut self, mem: MemId, why: Probing) {
        self.reasons.insert(mem, why);
    }

    /// Probes memory again if a response is still pending.
    pub fn repeat(&self, effects: &mut Effects, mem: MemId) {
        if self.is_probing(mem) {
            effects.push(Effect::Probe { mem });
        }
    }

    /// Returns true if a response about memory is pending.
    pub fn is_probing(&self, mem: MemId) -> bool {
        self.reasons.contains_key(&mem)
    }

    /// Returns the reason for the pending probe of memory.
    pub fn reason(&self, mem: MemId) -> Option<Probing> {
        self.reasons.get(&mem).copied()
    }

    /// Handles the kernel's response. Returns the reason for the probe.
    pub fn responded(&mut self, mem: MemId) -> Option<Probing> {
        self.reasons.remove(&mem)
    }

    /// Removes and returns all probes, at the end of the daemon.
    pub fn take_all(&mut self) -> BTreeMap<MemId, Probing> {
        std::mem::take(&mut self.reasons)
    }
}
