//! Announcements: names that clients announce in shared memory. The daemon absorbs them into the
//! directory in turns. A claim in this module is a first-publication claim (`Catalogue::claim`), not
//! a claim on an item of a queue.

use super::{Binding, Bindings, is_own};
use crate::core::clock::Timer;
use crate::core::context::Context;
use crate::core::env::Env;
use crate::core::members::Members;
use crate::core::names::Full;
use crate::core::parts::Parts;
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::number::{CellNo, ClientNo, EntryNo};
use tensorlend_layout::wire::Refusal;
use tensorlend_layout::word::{Absorbed, LifeWord, MemberState, OwnerKind, OwnerWord};

/// Maximum age of a claim, in nanoseconds, while another client requests the name. A client that is
/// publishing a name for the first time claims the name in `Catalogue::claim`. The daemon ends a
/// client whose claim is older.
const CLAIM_NS_MAX: u64 = 1_000_000_000;
/// Maximum announcements of one client that one turn absorbs.
const ABSORB_MAX: u64 = 64;
/// Maximum announcements of all clients that one turn absorbs.
const TURN_MAX: u64 = 2048;
/// Pause before the daemon polls for announcements again. A client cannot fill its ring in this
/// time.
const ABSORB_PAUSE_NS: u64 = 500_000;
/// Delay of the next turn. Timers that are due now fire in this turn first.
const NEXT_TURN_NS: u64 = 1;

impl Bindings {
    /// Returns the most names that clients can have announced or be about to announce. Reads no sheet.
    pub(super) fn announced_at_most(members: &Members) -> u64 {
        members.announcing().count() as u64 * (RING as u64 + 1)
    }

    /// Returns the number of names that clients have announced or are about to announce.
    pub(super) fn announced(members: &Members) -> u64 {
        let announced = members.announcing().map(|(_, c)| {
            // The claim is read before the ring, because a client removes a name from its claim
            // only after the name is in its ring.
            let claims = u64::from(c.claim() != 0);
            claims + c.waiting(c.ring_head())
        });
        announced.sum()
    }

    /// Returns the number of names for which absorbing needs memory. Counts a claim for each client, because to read the claims
    /// costs more than memory for a few names.
    pub(super) fn absorbing_needs(members: &Members) -> u64 {
        members.announcing().map(|(_, c)| 1 + c.waiting(c.ring_head_once())).sum()
    }

    /// Ensures that no client is publishing this key for the first time. Returns `Ok(false)` if a
    /// client may be publishing the key. Either a client claims the key, or rings still contain
    /// announcements from before the check. The caller then tries again.
    pub fn settle(
        &mut self,
        parts: &mut Parts<'_>,
        uid: Option<u32>,
        key: &[u8],
        since_ns: u64,
    ) -> Result<bool, Refusal> {
        if !self.absorb_all(parts, since_ns) {
            return Ok(false);
        }
        if parts.context.directory.find_live(key).is_some() {
            return Ok(true);
        }
        if parts.context.directory.find_key(key).is_none() {
            self.check_room(parts.context, parts.members, 1)?;
        }
        let entry = self.place(parts.context, parts.members, uid, key)?;
        let owner_word = OwnerWord(parts.context.directory.names[entry.index()].owner_word.peek());
        if owner_word.kind() != OwnerKind::Reserved {
            let reserved = owner_word.then_reserved();
            self.names.set(&parts.context.directory, entry, reserved);
            self.unclaimed.remove(key);
        }
        tensorlend_layout::crash_point!("daemon: name reserved");
        if let Some(&unclaimed_ns) = self.unclaimed.get(key) {
            return Ok(self.absorb_all(parts, unclaimed_ns));
        }
        // This fence pairs with the fence of claimant P, between P's claim and P's read of this
        // owner word. Either daemon D sees the claim, or P sees the owner word.
        scan_fence();
        let hash = parts.context.directory.hash(key);
        let claimant = parts.members.announcing().find(|(_, c)| c.claim() == hash);
        let Some(claimant) = claimant.map(|(number, _)| number) else {
            // No client claims the key now. If a client has published the name, that client's ring
            // contains the name.
            self.unclaimed.insert(key.to_vec(), parts.env.clock.now_ns());
            return Ok(self.absorb_all(parts, parts.env.clock.now_ns()));
        };
        let now = parts.env.clock.now_ns();
        if parts.members.me(claimant).announcements.claim_age_ns(hash, now) > CLAIM_NS_MAX {
            parts.members.fault(claimant, "it claimed a name and did not publish it within a second");
        }
        Ok(false)
    }

    /// Removes the name that an abandoned request had reserved.
    pub fn unreserve(&mut self, context: &Context, key: &[u8]) {
        self.unclaimed.remove(key);
        if let Some(found) = context.directory.find_key(key)
            && found.owner_word.kind() == OwnerKind::Reserved
        {
            self.names.set_tombstone(&context.directory, found.entry);
        }
    }

    /// Performs a turn of absorbing. The caller does so because a client woke the daemon, or
    /// because clients may have announced more names since the last turn.
    pub fn absorb_turn(&mut self, parts: &mut Parts<'_>) {
        let head = parts.context.directory.head();
        head.wants_nudge.set(0);
        let pause_ns = if parts.env.is_gathering() {
            // Clients that still read the old directory find announced names in the rings, so the
            // daemon must not free the ring entries.
            ABSORB_PAUSE_NS
        } else if !self.absorb_all(parts, u64::MAX) {
            let announced = Self::absorbing_needs(parts.members);
            self.prepare_names(parts.env, parts.context, announced);
            // The daemon absorbs the rest in the next turn, or after the allocation of memory for
            // the rest.
            if self.names.absorbable() == 0 { ABSORB_PAUSE_NS } else { NEXT_TURN_NS }
        } else if self.absorbing.count_in(parts.env.clock.turn()) > 0 {
            // More announcements usually follow. While the daemon polls for them, they cost no
            // client a system call.
            ABSORB_PAUSE_NS
        } else {
            let head = parts.context.directory.head();
            head.wants_nudge.set(1);
            // This fence pairs with the fence of client P, between P's announcement and P's read of
            // `wants_nudge`. Either daemon D sees the announcement here, or P wakes D.
            scan_fence();
            if !parts.members.has_announcements() {
                return;
            }
            head.wants_nudge.set(0);
            NEXT_TURN_NS
        };
        let due = parts.env.clock.now_ns() + pause_ns;
        if self.absorb_due_ns.is_none_or(|at| at > due) {
            self.absorb_due_ns = Some(due);
            parts.env.clock.set_timer(pause_ns, Timer::Absorb(parts.context.ledger.id()));
        }
    }

    /// Absorbs a bounded number of the announcements of all clients into the directory. Returns
    /// true if the directory has all names that clients announced before the step of `since_ns`
    /// (`u64::MAX`: all announced names).
    ///
    /// A client cannot delay this result by refilling its ring, because the first call of each turn
    /// absorbs a share of each ring.
    pub fn absorb_all(&mut self, parts: &mut Parts<'_>, since_ns: u64) -> bool {
        let numbers: Vec<ClientNo> =
            parts.members.announcing().filter(|(_, c)| c.has_announced()).map(|(n, _)| n).collect();
        let share = (TURN_MAX / numbers.len().max(1) as u64).clamp(1, ABSORB_MAX);
        let turn = parts.env.clock.turn();
        let mut done = true;
        for number in numbers {
            let announcements = &mut parts.members.me(number).announcements;
            let left = TURN_MAX.saturating_sub(self.absorbing.count_in(turn));
            let most = share.saturating_sub(announcements.absorbing().count_in(turn)).min(left);
            let before = announcements.absorbed();
            let is_empty = self.absorb(parts, number, MemberState::Open, most);
            let announcements = &parts.members.me(number).announcements;
            self.absorbing.add(announcements.absorbed() - before);
            done &= is_empty || announcements.are_absorbed_since(since_ns);
        }
        done
    }

    /// Absorbs at most `most` of a client's announcements into the directory. Stores each owner
    /// word first, then `absorbed`. Returns true if no announcements remain.
    pub fn absorb(&mut self, parts: &mut Parts<'_>, number: ClientNo, state: MemberState, most: u64) -> bool {
        let client = parts.members.me(number);
        let (head, mut index) = (client.ring_head(), client.announcements.absorbed());
        if head.wrapping_sub(index) > RING as u64 {
            parts.members.fault(number, "its ring of announcements is out of order");
            return true;
        }
        if head > parts.context.directory.entry(number).announce_until.peek() {
            parts.members.fault(number, "it announced more names than it was granted");
            return true;
        }
        // Announcements without room wait in the ring, where look-ups find them.
        let most = most.min(self.names.absorbable());
        let client = parts.members.me(number);
        let end = index.wrapping_add(head.wrapping_sub(index).min(most));
        if state == MemberState::Open {
            client.announcements.absorbing().add(end.wrapping_sub(index));
        }
        let (tags, cells): (Vec<u64>, Vec<CellNo>) =
            client.announcements(index, end).map(|word| (word >> 24, CellNo::low(word))).unzip();
        let names = client.sheets.names(&cells);
        for ((tag, cell), name) in tags.into_iter().zip(cells).zip(names) {
            if let Some(key) = name
                && let hash = parts.context.directory.hash(&key)
                && hash >> 24 == tag
            {
                let found = parts.context.directory.find_hashed(hash, &key);
                let live = found.filter(|f| f.owner_word.is_live()).map(|f| f.owner_word);
                let own = OwnerWord(0).then_live(number, cell);
                let lost = match live {
                    Some(owner_word) => (owner_word.owner(), owner_word.cell()) != (number, cell),
                    None => match found.map_or_else(
                        || self.add_announced(parts.context, parts.members, number, hash, &key),
                        |found| Ok(found.entry),
                    ) {
                        Ok(entry) => {
                            let binding = Binding { owner: number, cell, life: LifeWord::FOREVER };
                            self.take_entry(parts, entry, binding);
                            false
                        }
                        Err(_) => true,
                    },
                };
                if lost && state == MemberState::Open {
                    self.notify_former_owner(parts, own);
                }
            }
            index += 1;
            parts.members.me(number).announcements.absorb_up_to(index);
            tensorlend_layout::crash_point!("daemon: owner word before absorbed");
            parts.context.directory.entry(number).absorbed.set(Absorbed::new(state, index).0);
            tensorlend_layout::crash_point!("daemon: absorbed");
        }
        parts.members.me(number).announcements.mark(head, parts.env.clock.now_ns());
        if state == MemberState::Open {
            self.grant(parts.context, parts.members, number);
        }
        index == head
    }

    fn add_announced(
        &mut self,
        context: &Context,
        members: &Members,
        number: ClientNo,
        hash: u64,
        key: &[u8],
    ) -> Result<EntryNo, Full> {
        let is_own = is_own(context, members, members.uid_of(number));
        self.names.add_announced(&context.directory, hash, key, is_own)
    }

    /// Absorbs all announcements of an ending client. Later announcements have no effect.
    pub fn drain(&mut self, parts: &mut Parts<'_>, number: ClientNo) {
        if !parts.members.me(number).announces() {
            return parts.members.close_announcer(parts.context, number);
        }
        let index = parts.members.me(number).announcements.absorbed();
        parts.context.directory.entry(number).absorbed.set(Absorbed::new(MemberState::Ending, index).0);
        tensorlend_layout::crash_point!("daemon: ending");
        // This fence pairs with client P's read of this word after P's last announcement. Either
        // daemon D drains that announcement, or P learns that D may have missed it.
        scan_fence();
        self.absorb(parts, number, MemberState::Ending, u64::MAX);
        tensorlend_layout::crash_point!("daemon: drained");
        parts.members.close_announcer(parts.context, number);
    }

    /// Handles the timer for absorbing announcements.
    pub fn absorb_due(&mut self, parts: &mut Parts<'_>, at: u64) {
        if self.absorb_due_ns.is_some_and(|due| due <= at) {
            self.absorb_due_ns = None;
            self.absorb_turn(parts);
        }
    }

    /// Schedules a poll for announcements in this turn.
    pub fn absorb_at_once(&mut self, env: &mut Env, context: &Context) {
        self.absorb_due_ns = Some(env.clock.now_ns());
        env.clock.set_timer(0, Timer::Absorb(context.ledger.id()));
    }
}
