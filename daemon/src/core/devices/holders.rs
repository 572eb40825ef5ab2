//! The clients that may have device memory mapped. The kernel does not report mappings of device
//! memory, so the daemon tracks them.
//!
//! A client to which the daemon lends a segment *holds* the segment. The client stops holding the
//! segment when it reports the unmapping ([`Request::Unmapped`]) or has departed, at the end of its
//! draining. An orphaned segment stays charged until its last holder has released the segment.
//!
//! [`Request::Unmapped`]: tensorlend_layout::wire::Request::Unmapped

use super::Devices;
use crate::core::account::{Charge, Kind};
use crate::core::client::Segment;
use crate::core::context::Context;
use crate::core::device::DeviceNumber;
use crate::core::env::Env;
use crate::core::event::MemId;
use crate::core::label::{Label, Preserved};
use crate::core::orders::Part;
use crate::core::outcome::{Outcome, RequestResult};
use crate::core::parts::Parts;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::wire::{LendingId, Refusal, Reply};

/// Maximum number of lendings in one message.
const LENDINGS_MAX: usize = 1024;
/// Maximum number of lendings that one client may report to a new daemon. The client's processes
/// cannot have as many mapped.
const TOLD_MAX: usize = 1 << 16;

/// An orphaned segment, which clients may still have mapped.
#[derive(Debug)]
pub struct GivenUp {
    pub mem: MemId,
    pub device: DeviceNumber,
    pub bytes: u64,
    /// The user to whose client the daemon had lent the segment.
    pub uid: u32,
    pub charge: Charge,
}

#[derive(Debug, Default)]
pub struct Holders {
    /// The holders of the segments that are lent, and of the segments that this daemon orphaned.
    held: BTreeMap<LendingId, BTreeSet<ClientNo>>,
    given_up: BTreeMap<LendingId, GivenUp>,
    /// The held lendings that a previous daemon made.
    before: BTreeSet<LendingId>,
    /// Segments that a previous daemon orphaned. Their lendings are unknown.
    recovered: Vec<GivenUp>,
    /// Clients of the previous daemon, each with the lendings that the client has reported so far.
    /// Until its last report, a client counts as a holder of every segment of the previous daemon.
    untold: BTreeMap<ClientNo, BTreeSet<LendingId>>,
    /// Lendings that clients have mapped and that no entry of the directory contains. Their
    /// segments were orphaned.
    unknown: BTreeMap<ClientNo, BTreeSet<LendingId>>,
}

impl Holders {
    /// Records that a segment is lent to its owner or a reader. `None` stands for the clients of
    /// the previous daemon. Returns true if the client holds the segment since now.
    pub fn lent(&mut self, lending: LendingId, to: Option<ClientNo>) -> bool {
        if to.is_none() {
            self.before.insert(lending);
        }
        // A client of the previous daemon may hold the segment already, and not have reported it yet.
        let has_told = to.is_some_and(|it| !self.untold.contains_key(&it));
        let holders = self.held.entry(lending).or_default();
        to.is_some_and(|it| holders.insert(it)) && has_told
    }

    /// Returns the clients that may have device memory mapped.
    pub fn numbers(&self) -> impl Iterator<Item = ClientNo> {
        let known = self.held.values().flatten().chain(self.untold.keys()).chain(self.unknown.keys());
        known.copied()
    }

    /// Checks that a release by a holder will free each orphaned segment.
    ///
    /// # Panics
    /// Panics if an orphaned segment has no holder, and so stays charged for ever.
    pub fn check(&self) {
        for lending in self.given_up.keys() {
            let holders = self.held.get(lending).expect("the holders of an orphaned segment are known");
            let is_before = !self.untold.is_empty() && self.before.contains(lending);
            assert!(!holders.is_empty() || is_before, "{lending:?} is orphaned and has a holder");
        }
    }

    /// Records a client of the previous daemon.
    pub fn was_there(&mut self, number: ClientNo) {
        self.untold.entry(number).or_default();
    }

    /// Returns true if a client may have device memory mapped.
    pub fn is_holder(&self, number: ClientNo) -> bool {
        let any = !(self.before.is_empty() && self.recovered.is_empty());
        any && self.untold.contains_key(&number)
            || !self.recovered.is_empty() && self.unknown.contains_key(&number)
            || self.held.values().any(|holders| holders.contains(&number))
    }

    /// Handles a client's report of the lendings that it has mapped. Returns true for the last
    /// report. A client that is not in `untold` has sent its last report before.
    fn told(&mut self, number: ClientNo, lendings: &[LendingId], last: bool) -> Result<bool, Refusal> {
        let Some(told) = self.untold.get_mut(&number) else { return Ok(false) };
        if told.len() + lendings.len() > TOLD_MAX {
            return Err(Refusal::Bad(format!("no client has more than {TOLD_MAX} segments of device memory mapped")));
        }
        told.extend(lendings);
        if !last {
            return Ok(false);
        }
        let mut unknown = self.untold.remove(&number).expect("found above");
        unknown.retain(|lending| match self.held.get_mut(lending) {
            Some(holders) => {
                holders.insert(number);
                false
            }
            None => true,
        });
        if !unknown.is_empty() {
            self.unknown.insert(number, unknown);
        }
        Ok(true)
    }

    /// Removes a client from the holders of these lendings.
    fn unmapped(&mut self, number: ClientNo, lendings: &[LendingId]) {
        for lending in lendings {
            if let Some(holders) = self.held.get_mut(lending) {
                holders.remove(&number);
            }
            if let Some(told) = self.untold.get_mut(&number) {
                told.remove(lending);
            }
            if let Some(unknown) = self.unknown.get_mut(&number) {
                unknown.remove(lending);
                if unknown.is_empty() {
                    self.unknown.remove(&number);
                }
            }
        }
    }

    /// Removes a client from the holders of all lendings.
    pub fn departed(&mut self, number: ClientNo) {
        self.untold.remove(&number);
        self.unknown.remove(&number);
        for holders in self.held.values_mut() {
            holders.remove(&number);
        }
    }

    /// Orphans a lent segment.
    fn give_up(&mut self, lending: LendingId, it: GivenUp) {
        self.held.entry(lending).or_default();
        let before = self.given_up.insert(lending, it);
        assert!(before.is_none(), "a lending ends once");
    }

    /// Returns the orphaned segments that have no holder any more.
    fn settled(&mut self) -> Vec<GivenUp> {
        let all: Vec<LendingId> = self.given_up.keys().copied().collect();
        self.settled_among(&all)
    }

    /// Returns the orphaned segments of these lendings that have no holder any more. Also returns
    /// the segments that a previous daemon orphaned, once no client can hold any of them.
    fn settled_among(&mut self, lendings: &[LendingId]) -> Vec<GivenUp> {
        let told = self.untold.is_empty();
        let mut settled = Vec::new();
        if told && self.unknown.is_empty() {
            settled.append(&mut self.recovered);
        }
        for lending in lendings {
            let free =
                self.held.get(lending).is_some_and(BTreeSet::is_empty) && (told || !self.before.contains(lending));
            if free && let Some(it) = self.given_up.remove(lending) {
                self.held.remove(lending);
                self.before.remove(lending);
                settled.push(it);
            }
        }
        settled
    }

    /// Removes and returns all orphaned segments, held or not, at the end of the daemon.
    fn drain(&mut self) -> Vec<GivenUp> {
        self.untold.clear();
        self.unknown.clear();
        self.held.clear();
        self.before.clear();
        std::mem::take(&mut self.given_up).into_values().chain(std::mem::take(&mut self.recovered)).collect()
    }
}

impl Devices {
    /// Handles a client's report of the lendings that it has mapped.
    pub fn mapped(
        &mut self,
        parts: &mut Parts<'_>,
        number: ClientNo,
        lendings: &[LendingId],
        last: bool,
    ) -> RequestResult {
        check(lendings)?;
        if lendings.iter().any(|it| !parts.env.devices.may_have_lent(it.since_ns, parts.env.clock.now_ns())) {
            return Err(Refusal::Bad("a segment of device memory that was never lent".into()));
        }
        if self.holders.told(number, lendings, last)? {
            self.settle_devices(parts.env, parts.context);
        }
        Ok(Outcome::Reply(Reply::Done))
    }

    /// Handles a client's report of the lendings that it has unmapped.
    pub fn unmapped(
        &mut self,
        env: &mut Env,
        context: &Context,
        number: ClientNo,
        lendings: &[LendingId],
    ) -> RequestResult {
        check(lendings)?;
        self.holders.unmapped(number, lendings);
        let settled = self.holders.settled_among(lendings);
        Self::take_back(env, context, settled);
        Ok(Outcome::Reply(Reply::Done))
    }

    /// Ends the lending of a device segment whose slot numbers are already invalid. Returns the
    /// records of the segment's slots, which the caller must orphan.
    pub fn give_up(&mut self, parts: &mut Parts<'_>, number: ClientNo, base: SlotNo, segment: Segment) -> Part {
        let on = segment.device.expect("it is on a device");
        let (Segment { mem, bytes, charge, slots, .. }, uid) = (segment, parts.members[number].uid);
        let lending = LendingId { owner: number, base, since_ns: on.since_ns };
        parts.env.devices[on.number].segments -= 1;
        self.holders.give_up(lending, GivenUp { mem, device: on.number, bytes, uid, charge });
        parts.context.directory.note_returned();
        let settled = self.holders.settled_among(&[lending]);
        Self::take_back(parts.env, parts.context, settled);
        // The segment stays charged while it has holders, also under the next daemon.
        if let Some(it) = self.holders.given_up.get(&lending) {
            self.keep_given_up(parts.env, parts.context, it);
        }
        slots
    }

    fn keep_given_up(&self, env: &mut Env, context: &Context, &GivenUp { mem, device, bytes, uid, .. }: &GivenUp) {
        let allocator = env.devices[device].settings.allocator;
        if let Some(index) = self.index_of(device).filter(|_| allocator != tensorlend_layout::wire::Allocator::Async) {
            let (namespace, id) = (context.ledger.id(), env.orphans.new_id());
            env.effects.keep(mem, Label::DeviceOrphaned { namespace, uid, device: index, bytes, id });
        }
    }

    /// Recovers a segment that the previous daemon orphaned or was about to orphan. Every client of
    /// the previous daemon may hold the segment. Returns true if the segment's device still exists.
    pub fn recover_given_up(&mut self, env: &mut Env, context: &Context, uid: u32, preserved: &Preserved) -> bool {
        let (Label::DeviceOrphaned { device: index, .. } | Label::DeviceSegment { device: index, .. }) =
            preserved.label
        else {
            return false;
        };
        let Some(device) = self.device_at(index) else { return false };
        if !env.devices[device].pool.can_count(preserved.bytes) {
            return false;
        }
        env.devices[device].pool.count_recovered(preserved.bytes);
        let charge = env.accounts.charge_recovered(Some(uid), context.ledger.id(), Kind::Device, preserved.bytes);
        let it = GivenUp { mem: preserved.mem, device, bytes: preserved.bytes, uid, charge };
        if let Label::DeviceSegment { .. } = preserved.label {
            self.keep_given_up(env, context, &it);
        }
        self.holders.recovered.push(it);
        true
    }

    /// Reclaims the orphaned segments that have no holder.
    pub fn settle_devices(&mut self, env: &mut Env, context: &Context) {
        let settled = self.holders.settled();
        Self::take_back(env, context, settled);
    }

    fn take_back(env: &mut Env, context: &Context, settled: Vec<GivenUp>) {
        for it in settled {
            env.accounts.refund(it.charge);
            env.let_go(it.device, it.mem, it.bytes, context.ledger.borrower(it.uid));
        }
    }

    /// Reclaims all orphaned segments, because no client remains.
    pub fn settle_all(&mut self, env: &mut Env, context: &Context) {
        let all = self.holders.drain();
        Self::take_back(env, context, all);
    }
}

fn check(lendings: &[LendingId]) -> Result<(), Refusal> {
    if lendings.len() > LENDINGS_MAX {
        return Err(Refusal::Bad(format!("one message names at most {LENDINGS_MAX} segments of device memory")));
    }
    Ok(())
}
