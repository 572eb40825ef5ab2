//! The progress of a survey of a disconnected client's memory: see [`crate::core::collection`].

use super::Client;
use crate::core::env::Env;
use std::collections::BTreeMap;
use tensorlend_layout::number::{ClientNo, EntryNo, SlotNo, StreamLine};
use tensorlend_layout::word::{Cell, SLOT_NONE};

/// The segments that contain the slots of some chains. The record of each slot names the next slot
/// of its chain.
///
/// Records are allegations of the client. So a chain ends when it leaves the client's segments or
/// reaches a visited slot again. A chain is empty if its first record has another generation than
/// expected.
#[derive(Debug, Default)]
pub struct Reach {
    /// A bit for each visited slot. The key is the first slot number of the slot's segment.
    segments: BTreeMap<SlotNo, Box<[u64]>>,
    /// The current chain: its next slot, and the required generation of its first slot's record.
    chain: Option<(SlotNo, Option<u64>)>,
}

impl Reach {
    /// Begins the chain of a slot. If a generation is given, the slot's record must have this
    /// generation.
    pub fn begin(&mut self, slot: SlotNo, generation: Option<u64>) {
        self.chain = Some((slot, generation));
    }

    /// Continues the chain while `continues` returns true. Returns true at the end of the chain.
    pub fn follow(&mut self, client: &Client, mut continues: impl FnMut() -> bool) -> bool {
        while let Some((slot, generation)) = self.chain {
            if !continues() {
                return false;
            }
            self.chain = None;
            if slot == SLOT_NONE {
                break;
            }
            let Some((base, words)) = client.slot(slot) else { break };
            let slots = 1usize << client.segments[&base].slots_log2;
            let seen = self.segments.entry(base).or_insert_with(|| vec![0; slots.div_ceil(64)].into());
            let another_life = generation.is_some_and(|g| g != Cell(words[0]).generation());
            let (word, bit) = ((slot - base) as usize / 64, 1 << ((slot - base) % 64));
            if another_life || seen[word] & bit != 0 {
                break;
            }
            seen[word] |= bit;
            self.chain = Some((SlotNo::low(words[2]), None));
        }
        true
    }

    /// Returns true if a chain passes through this segment.
    pub fn has(&self, base: SlotNo) -> bool {
        self.segments.contains_key(&base)
    }

    /// Returns the first slot numbers of the segments.
    pub fn bases(&self) -> impl Iterator<Item = SlotNo> + '_ {
        self.segments.keys().copied()
    }
}

/// A position among the streams of a client.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamPosition {
    /// The survey visits the streams from this entry of the table of streams on.
    pub line: StreamLine,
    /// The id of the stream that the survey visited last at this entry.
    pub id: u64,
    /// If that stream still exists, the survey continues at this entry of its ring.
    pub entry: usize,
}

impl StreamPosition {
    /// Returns the position of the next stream after this place.
    pub fn after(line: StreamLine) -> Self {
        Self { line: line + 1, ..Self::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Reads the entries of names from this number on.
    Names(EntryNo),
    /// Reads the streams from this position on.
    Streams(StreamPosition),
    /// Reads the lease tables of the clients from this number on.
    Leases(ClientNo),
    /// Frees segments to which nothing leads, from this first slot number on.
    Free(SlotNo),
}

/// The progress of a survey of a client's memory.
#[derive(Debug)]
pub struct Survey {
    pub stage: Stage,
    /// Segments to which names and streams lead.
    pub named: Reach,
    /// Segments to which leases lead.
    pub held: Reach,
    /// Chains to follow. Each chain begins at the value of a name that was renamed during the
    /// survey, or at a leased slot of the last lease table.
    pub roots: Vec<(SlotNo, Option<u64>)>,
    /// Whether the client has streams, or names with values.
    pub in_use: bool,
    pub leased: bool,
}

impl Survey {
    pub fn new() -> Self {
        Self {
            stage: Stage::Names(EntryNo::default()),
            named: Reach::default(),
            held: Reach::default(),
            roots: Vec::new(),
            in_use: false,
            leased: false,
        }
    }

    pub fn is_at_names(&self) -> bool {
        matches!(self.stage, Stage::Names(_) | Stage::Streams(_))
    }

    /// Follows all known chains. Returns true when all chains have ended.
    pub fn follow(&mut self, env: &mut Env, client: &Client) -> bool {
        let reach = if self.is_at_names() { &mut self.named } else { &mut self.held };
        loop {
            if !reach.follow(client, || env.chores.spend(1)) {
                return false;
            }
            let Some((slot, generation)) = self.roots.pop() else { return true };
            reach.begin(slot, generation);
        }
    }

    pub fn is_unused(&self, base: SlotNo) -> bool {
        !self.named.has(base) && !self.held.has(base)
    }
}
