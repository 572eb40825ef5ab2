//! Names that clients announce in shared memory: taken into the directory in turns.

use super::{Bindings, is_own};
use crate::core::context::Context;
use crate::core::env::{Env, Timer};
use crate::core::members::Members;
use crate::core::names::{Full, find, live_home};
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::name;
use tensorlend_layout::wire::Refusal;
use tensorlend_layout::word::{Absorbed, Home, HomeKind, LifeWord, MemberState};

/// How long a claim may stand while somebody else wants the name.
pub(super) const CLAIM_NS_MAX: u64 = 1_000_000_000;

/// A claim that nobody has looked at for so long counts as a new one.
const CLAIM_GAP_NS: u64 = 100_000_000;
/// Announcements of one client that are taken in one turn.
const ABSORB_MAX: u64 = 64;
/// How long to let announcements gather before they are looked for again: a client's ring holds more than it can announce in
/// that time.
const ABSORB_PAUSE_NS: u64 = 500_000;
/// Not in this turn any more: the timers that are due now are done in it.
const NEXT_TURN_NS: u64 = 1;

impl Bindings {
    /// Names that clients have announced or are about to announce.
    pub(super) fn announced(members: &Members) -> u64 {
        let announced = members.announcing().map(|(_, c)| {
            // The claim first, then the ring: a name that leaves the one is in the other.
            let claims = u64::from(c.words().claim.read() != 0);
            let waiting = c.words().ring_head.read().wrapping_sub(c.absorbed);
            // More than a ring holds are a lie, for which it is ended when it comes to absorbing.
            claims + if waiting > RING as u64 { 0 } else { waiting }
        });
        announced.sum()
    }

    /// Makes sure that nobody is publishing this key for the first time. `Ok(false)`: somebody is; ask again.
    pub fn settle(
        &mut self,
        env: &mut Env,
        context: &mut Context,
        members: &mut Members,
        uid: Option<u32>,
        key: &[u8],
        since_ns: u64,
    ) -> Result<bool, Refusal> {
        let all = env.now_ns - since_ns > CLAIM_NS_MAX;
        if !self.absorb_all(env, context, members, all) {
            return Ok(false);
        }
        if live_home(&context.directory, key).is_some() {
            return Ok(true);
        }
        if find(&context.directory, key).is_none() {
            self.check_room(context, members, 1)?;
        }
        let entry = self.place(context, members, uid, key)?;
        let home = Home(context.directory.names[entry as usize].home.peek());
        if home.kind() != HomeKind::Reserved {
            self.names.set(&context.directory, entry, HomeKind::Reserved, 0, 0);
        }
        tensorlend_layout::crash_point!("daemon: name reserved");
        // Against the claimant's fence between its claim and its look at this home: one of us sees the other.
        scan_fence();
        let hash = context.directory.hash(key);
        let claimant = members.announcing().find(|(_, c)| c.words().claim.read() == hash);
        let Some(claimant) = claimant.map(|(number, _)| number) else {
            return Ok(self.absorb_all(env, context, members, all));
        };
        // Counted from when it was seen first, by whomever: who has waited long for others does not count it as old.
        let now = env.now_ns;
        let client = members.me(claimant);
        let first = match client.claimed {
            Some((word, first, last)) if word == hash && now - last < CLAIM_GAP_NS => first,
            _ => now,
        };
        client.claimed = Some((hash, first, now));
        if now - first > CLAIM_NS_MAX {
            members.fault(claimant, "it claimed a name and did not publish it within a second");
        }
        Ok(false)
    }

    /// A request that had reserved a name is gone.
    pub fn unreserve(&mut self, context: &Context, key: &[u8]) {
        if let Some(found) = find(&context.directory, key)
            && found.home.kind() == HomeKind::Reserved
        {
            self.names.bury(&context.directory, found.entry);
        }
    }

    /// A turn of taking announcements in, because somebody nudged or because they may have gone on since the last.
    pub fn absorb_turn(&mut self, env: &mut Env, context: &mut Context, members: &mut Members) {
        let head = context.directory.head();
        head.wants_nudge.set(0);
        let any = members.has_announcements();
        let pause_ns = if env.gathering {
            // Who still reads the old directory finds announced names in the rings: they must not be used again.
            ABSORB_PAUSE_NS
        } else if !self.absorb_all(env, context, members, false) {
            let announced = Self::announced(members);
            self.prepare_names(env, context, announced);
            // The rest in the next turn, or when there is memory for it.
            if self.names.absorbable() == 0 { ABSORB_PAUSE_NS } else { NEXT_TURN_NS }
        } else if any {
            // More will come, mostly: looked for by ourselves, so that each of them costs nobody a system call.
            ABSORB_PAUSE_NS
        } else {
            let head = context.directory.head();
            head.wants_nudge.set(1);
            // Against the fence between an announcement and its client's look at this word: either it is seen here, or
            // its client nudges.
            scan_fence();
            if !members.has_announcements() {
                return;
            }
            head.wants_nudge.set(0);
            NEXT_TURN_NS
        };
        let due = env.now_ns + pause_ns;
        if self.absorb_due_ns.is_none_or(|at| at > due) {
            self.absorb_due_ns = Some(due);
            env.set_timer(pause_ns, Timer::Absorb(context.ledger.id()));
        }
    }

    /// Takes everybody's announcements into the directory, a bounded number in one turn unless it must be `all`; whether
    /// those were all that there were.
    pub fn absorb_all(&mut self, env: &mut Env, context: &mut Context, members: &mut Members, all: bool) -> bool {
        let numbers: Vec<u16> = members.announcing().filter(|(_, c)| c.has_announced()).map(|(n, _)| n).collect();
        let mut done = true;
        for catalogue in numbers {
            let client = members.me(catalogue);
            if client.absorbed_in.0 != env.turn {
                client.absorbed_in = (env.turn, 0);
            }
            let most = if all { u64::MAX } else { ABSORB_MAX - client.absorbed_in.1 };
            done &= self.absorb(env, context, members, catalogue, MemberState::Open, most);
        }
        done
    }

    /// Takes at most so many of a client's announcements into the directory: each home first, then `absorbed`. Whether
    /// those were all.
    pub fn absorb(
        &mut self,
        env: &mut Env,
        context: &mut Context,
        members: &mut Members,
        catalogue: u16,
        state: MemberState,
        most: u64,
    ) -> bool {
        let client = members.me(catalogue);
        let (head, mut index) = (client.words().ring_head.read(), client.absorbed);
        if head.wrapping_sub(index) > RING as u64 {
            members.fault(catalogue, "its ring of announcements is out of order");
            return true;
        }
        if head > context.directory.entry(catalogue).announce_until.peek() {
            members.fault(catalogue, "it announced more names than it was granted");
            return true;
        }
        // Those for which there is no room wait, and are found where they were announced.
        let most = most.min(self.names.absorbable());
        let client = members.me(catalogue);
        let end = index.wrapping_add(head.wrapping_sub(index).min(most));
        if state == MemberState::Open {
            client.absorbed_in.1 = (client.absorbed_in.1 + end.wrapping_sub(index)).min(ABSORB_MAX);
        }
        while index != end {
            let client = members.me(catalogue);
            let word = client.words().ring[(index % RING as u64) as usize].peek();
            let (tag, cell) = (word >> 24, word as u32 & 0xFF_FFFF);
            if let Some(key) = client.cell(cell).and_then(announced_name)
                && context.directory.hash(&key) >> 24 == tag
            {
                let found = find(&context.directory, &key);
                let live = found.filter(|f| f.home.is_live()).map(|f| f.home);
                let own = Home::after(Home(0), HomeKind::Live, catalogue, cell);
                let lost = match live {
                    Some(home) => (home.catalogue(), home.cell()) != (catalogue, cell),
                    None => match self.place_announced(context, members, catalogue, &key) {
                        Ok(entry) => {
                            self.take_entry(env, context, members, entry, catalogue, cell, LifeWord::FOREVER);
                            false
                        }
                        Err(_) => true,
                    },
                };
                if lost && state == MemberState::Open {
                    self.disown(env, context, members, own);
                }
            }
            index += 1;
            members.me(catalogue).absorbed = index;
            tensorlend_layout::crash_point!("daemon: home before absorbed");
            context.directory.entry(catalogue).absorbed.set(Absorbed::new(state, index).0);
            tensorlend_layout::crash_point!("daemon: absorbed");
        }
        if state == MemberState::Open {
            self.grant(context, members, catalogue);
        }
        index == head
    }

    fn place_announced(
        &mut self,
        context: &Context,
        members: &Members,
        catalogue: u16,
        key: &[u8],
    ) -> Result<u32, Full> {
        let is_own = is_own(context, members, members.uid_of(catalogue));
        self.names.place_announced(&context.directory, key, is_own)
    }

    /// Takes in what an ending client has announced; nothing after it.
    pub fn drain(&mut self, env: &mut Env, context: &mut Context, members: &mut Members, catalogue: u16) {
        if !members.me(catalogue).announces() {
            return members.close_announcer(context, catalogue);
        }
        let index = members.me(catalogue).absorbed;
        context.directory.entry(catalogue).absorbed.set(Absorbed::new(MemberState::Ending, index).0);
        tensorlend_layout::crash_point!("daemon: ending");
        // Against its own look at this word after its last announcement: either we drain that one, or it learns that
        // it may not have been heard.
        scan_fence();
        self.absorb(env, context, members, catalogue, MemberState::Ending, u64::MAX);
        tensorlend_layout::crash_point!("daemon: drained");
        members.close_announcer(context, catalogue);
    }

    /// The timer of the announcements has come.
    pub fn absorb_due(&mut self, env: &mut Env, context: &mut Context, members: &mut Members, at: u64) {
        if self.absorb_due_ns.is_some_and(|due| due <= at) {
            self.absorb_due_ns = None;
            self.absorb_turn(env, context, members);
        }
    }

    /// Has the announcements looked for in this turn.
    pub fn absorb_at_once(&mut self, env: &mut Env, context: &Context) {
        self.absorb_due_ns = Some(env.now_ns);
        env.set_timer(0, Timer::Absorb(context.ledger.id()));
    }
}

/// The name beside a cell, as its client says; names of more than 64 bytes do not stand there whole.
fn announced_name(record: &tensorlend_layout::catalogue::CellRecord) -> Option<Vec<u8>> {
    let bytes = record.name_bytes.peek() as usize;
    let mut name: Vec<u8> = record.name.iter().flat_map(|w| w.peek().to_le_bytes()).collect();
    if bytes > name.len() {
        return None;
    }
    name.truncate(bytes);
    let text = core::str::from_utf8(&name).ok()?;
    name::check(text).ok()?;
    Some(name)
}
