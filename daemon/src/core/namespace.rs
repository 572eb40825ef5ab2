//! A namespace: its directory, who is in it, and who owns which name.

use super::answer::{Answer, Outcome, Wait};
use super::chores::Chore;
use super::client::{Client, Life};
use super::context::Context;
use super::device::DeviceNumber;
use super::effect::Effect;
use super::env::{Env, Timer};
use super::holders::Holders;
use super::kept::Pressure;
use super::lifetime::Lifetimes;
use super::list::Lists;
use super::members::Members;
use super::names::{Full, Names, find, live_home};
use super::stream::Streams;
use tensorlend_layout::catalogue::RING;
use tensorlend_layout::leases::scan_fence;
use tensorlend_layout::name;
use tensorlend_layout::wire::{Refusal, Reply};
use tensorlend_layout::word::{Absorbed, Cell, Home, HomeKind, LifeWord, MemberState, PARKED_ANY, parked_bit};

/// How long a claim may stand while somebody else wants the name.
const CLAIM_NS_MAX: u64 = 1_000_000_000;

/// A claim that nobody has looked at for so long counts as a new one.
const CLAIM_GAP_NS: u64 = 100_000_000;
/// Announcements of one client that are taken in one turn.
const ABSORB_MAX: u64 = 64;
/// How long to let announcements gather before they are looked for again: a client's ring holds more than it can announce in
/// that time.
const ABSORB_PAUSE_NS: u64 = 500_000;
/// Not in this turn any more: the timers that are due now are done in it.
const NEXT_TURN_NS: u64 = 1;
/// Names that one request may tidy.
const TIDY_MAX: usize = 256;

/// A namespace.
#[derive(Debug)]
pub struct Namespace {
    pub context: Context,
    pub names: Names,
    pub members: Members,
    pub streams: Streams,
    pub lists: Lists,
    pub lifetimes: Lifetimes,
    /// Free places of the directory's table of segments.
    pub segment_entries: Vec<u32>,
    /// When the next turn of absorbing is due.
    pub absorb_due_ns: Option<u64>,
    /// What leases keep, while memory is short.
    pub pressure: Pressure,
    /// The devices that the directory lists, in its order; `None`: one of which memory is lent no more.
    pub places: Vec<Option<DeviceNumber>>,
    /// Who may have which device memory mapped.
    pub holders: Holders,
}

impl Namespace {
    /// Names that clients have announced or are about to announce.
    fn announced(&self) -> u64 {
        let publishing = self.members.values().filter(|c| c.announces());
        let announced = publishing.map(|c| {
            // The claim first, then the ring: a name that leaves the one is in the other.
            let claims = u64::from(c.words().claim.read() != 0);
            let waiting = c.words().ring_head.read().wrapping_sub(c.absorbed);
            // More than a ring holds are a lie, for which it is ended when it comes to absorbing.
            claims + if waiting > RING as u64 { 0 } else { waiting }
        });
        announced.sum()
    }

    /// Refuses so many more names if they, and those that clients announce meanwhile, would be more than allowed.
    pub fn check_room(&mut self, more: u64) -> Result<(), Refusal> {
        // Against the fence between a client's claim and its look at the room: either its claim is seen here, or it sees
        // that there is less room.
        self.names.reserve(&self.context.directory, more);
        scan_fence();
        if self.names.room() < more.saturating_add(self.announced()) {
            self.names.reserve(&self.context.directory, 0);
            return Err(self.context.full(Full::Names));
        }
        Ok(())
    }

    /// What was reserved for the requests of this turn is anybody's again.
    pub fn end_turn(&mut self) {
        self.names.reserve(&self.context.directory, 0);
    }

    /// Whether there is memory for so many more names now; if not, it is being made.
    pub fn names_ready(&mut self, env: &mut Env, names: u64) -> bool {
        let more = names.saturating_add(self.announced());
        if self.names.ready() < more && more > names {
            // What is announced needs no memory any more once it is absorbed; and nobody may nudge.
            self.absorb_turn(env);
        }
        let more = names.saturating_add(self.announced());
        let ready = self.names.ready() >= more;
        self.prepare_names(env, more);
        ready || self.names.ready() >= more
    }

    /// Sees to it that there is memory for names to come, and gives back what holds none any more.
    pub fn prepare_names(&mut self, env: &mut Env, more: u64) {
        let extents = self.names.order(&self.context.directory, more);
        if self.names.is_building() {
            // The next turn goes on with it, after whoever else has something to do.
            env.set_timer(0, Timer::Names);
        }
        // First: what is made now may lie where something is given back.
        for extent in self.names.take_discarded() {
            env.effects.push(Effect::Discard { mem: self.context.directory.mem(), at: extent.at, bytes: extent.bytes });
        }
        for extent in extents {
            env.allocate(self.context.directory.mem(), extent.at, extent.bytes);
        }
    }

    /// Whether nothing would be lost with it: it is opened again when somebody joins.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.lists.is_empty() && self.streams.is_empty()
    }
}

impl Members {
    /// Checks a name and a cell that its client wants to bind.
    pub fn check_cell(&self, catalogue: u16, cell: u32) -> Result<(), Refusal> {
        let granted = self.client(catalogue)?.granted();
        if cell < granted {
            Ok(())
        } else {
            Err(Refusal::Bad(format!("cell {cell} is not among the {granted} cells of this client")))
        }
    }
}

impl Namespace {
    /// Tells a former owner that a cell is its own no more.
    pub fn disown(&mut self, env: &mut Env, home: Home) {
        let Some(client) = self.members.get_mut(home.catalogue()) else { return };
        match client.life {
            Life::Live(_) | Life::Away { .. } => {
                if client.notices.insert(home.cell()) {
                    self.context.directory.entry(home.catalogue()).notices.add(1);
                }
            }
            Life::Ended { .. } => {}
            Life::Frozen { .. } => self.collect_soon(env, home.catalogue()),
        }
    }

    /// Binds a key to a cell, whoever had it, for as long as `life` says.
    pub fn take(
        &mut self,
        env: &mut Env,
        key: &[u8],
        catalogue: u16,
        cell: u32,
        life: LifeWord,
    ) -> Result<(u32, Home), Refusal> {
        let entry = self.names.place(&self.context.directory, key).map_err(|full| self.context.full(full))?;
        Ok((entry, self.take_entry(env, entry, catalogue, cell, life)))
    }

    fn take_entry(&mut self, env: &mut Env, entry: u32, catalogue: u16, cell: u32, life: LifeWord) -> Home {
        let before = Home(self.context.directory.names[entry as usize].home.peek());
        // Before the home: an owner that sees the new home sees the new life.
        self.set_life(entry, before, Home::after(before, HomeKind::Live, catalogue, cell), life);
        if before.is_live() && (before.catalogue(), before.cell()) == (catalogue, cell) {
            return before;
        }
        tensorlend_layout::crash_point!("daemon: name about to be bound");
        let home = self.names.set(&self.context.directory, entry, HomeKind::Live, catalogue, cell);
        tensorlend_layout::crash_point!("daemon: name bound");
        self.context.directory.announce(PARKED_ANY);
        self.members.surveyed(catalogue, cell);
        if before.is_live() {
            self.context.directory.announce(parked_bit(before.catalogue()));
            self.disown(env, before);
            tensorlend_layout::crash_point!("daemon: former owner told");
        }
        if let Some(client) = self.members.get_mut(catalogue) {
            client.notices.remove(&cell);
        }
        home
    }

    /// Ends a live name.
    pub fn remove(&mut self, env: &mut Env, entry: u32, tell: bool) {
        let home = Home(self.context.directory.names[entry as usize].home.peek());
        // The list of which it is an item that ends with its owner's session.
        let key = if self.context.directory.life(entry).is_ephemeral() {
            self.context.directory.key(&self.context.directory.names[entry as usize])
        } else {
            None
        };
        let list = key.filter(|key| key.first() == Some(&1)).and_then(|key| key[1..].first_chunk().copied());
        tensorlend_layout::crash_point!("daemon: name about to be removed");
        self.names.bury(&self.context.directory, entry);
        // After the home: an owner that still sees its name alive still asks the daemon.
        self.end_life(entry, home);
        self.context.directory.announce(PARKED_ANY | parked_bit(home.catalogue()));
        if tell {
            self.disown(env, home);
        }
        if let Some(id) = list {
            self.item_ended(env, u64::from_le_bytes(id));
        }
    }

    /// Makes sure that nobody is publishing this key for the first time. `Ok(false)`: somebody is; ask again.
    pub fn settle(&mut self, env: &mut Env, key: &[u8], since_ns: u64) -> Result<bool, Refusal> {
        let all = env.now_ns - since_ns > CLAIM_NS_MAX;
        if !self.absorb_all(env, all) {
            return Ok(false);
        }
        if live_home(&self.context.directory, key).is_some() {
            return Ok(true);
        }
        if find(&self.context.directory, key).is_none() {
            self.check_room(1)?;
        }
        let entry = self.names.place(&self.context.directory, key).map_err(|full| self.context.full(full))?;
        let home = Home(self.context.directory.names[entry as usize].home.peek());
        if home.kind() != HomeKind::Reserved {
            self.names.set(&self.context.directory, entry, HomeKind::Reserved, 0, 0);
        }
        tensorlend_layout::crash_point!("daemon: name reserved");
        // Against the claimant's fence between its claim and its look at this home: one of us sees the other.
        scan_fence();
        let hash = self.context.directory.hash(key);
        let claims = |c: &Client| c.announces() && c.words().claim.read() == hash;
        let Some((claimant, client)) = self.members.iter_mut().find(|(_, c)| claims(c)) else {
            return Ok(self.absorb_all(env, all));
        };
        // Counted from when it was seen first, by whomever: who has waited long for others does not count it as old.
        let now = env.now_ns;
        let first = match client.claimed {
            Some((word, first, last)) if word == hash && now - last < CLAIM_GAP_NS => first,
            _ => now,
        };
        client.claimed = Some((hash, first, now));
        if now - first > CLAIM_NS_MAX {
            self.members.fault(claimant, "it claimed a name and did not publish it within a second");
        }
        Ok(false)
    }

    /// A request that had reserved a name is gone.
    pub fn unreserve(&mut self, key: &[u8]) {
        if let Some(found) = find(&self.context.directory, key)
            && found.home.kind() == HomeKind::Reserved
        {
            self.names.bury(&self.context.directory, found.entry);
        }
    }

    /// A turn of taking announcements in, because somebody nudged or because they may have gone on since the last.
    pub fn absorb_turn(&mut self, env: &mut Env) {
        let head = self.context.directory.head();
        head.wants_nudge.set(0);
        let any = self.has_announcements();
        let pause_ns = if env.gathering {
            // Who still reads the old directory finds announced names in the rings: they must not be used again.
            ABSORB_PAUSE_NS
        } else if !self.absorb_all(env, false) {
            let announced = self.announced();
            self.prepare_names(env, announced);
            // The rest in the next turn, or when there is memory for it.
            if self.names.absorbable() == 0 { ABSORB_PAUSE_NS } else { NEXT_TURN_NS }
        } else if any {
            // More will come, mostly: looked for by ourselves, so that each of them costs nobody a system call.
            ABSORB_PAUSE_NS
        } else {
            let head = self.context.directory.head();
            head.wants_nudge.set(1);
            // Against the fence between an announcement and its client's look at this word: either it is seen here, or
            // its client nudges.
            scan_fence();
            if !self.has_announcements() {
                return;
            }
            head.wants_nudge.set(0);
            NEXT_TURN_NS
        };
        let due = env.now_ns + pause_ns;
        if self.absorb_due_ns.is_none_or(|at| at > due) {
            self.absorb_due_ns = Some(due);
            env.set_timer(pause_ns, Timer::Absorb(self.context.ledger.id()));
        }
    }

    fn has_announcements(&self) -> bool {
        self.members.values().any(Client::has_announced)
    }

    /// Takes everybody's announcements into the directory, a bounded number in one turn unless it must be `all`; whether
    /// those were all that there were.
    pub fn absorb_all(&mut self, env: &mut Env, all: bool) -> bool {
        let numbers: Vec<u16> = self.members.iter().filter(|(_, c)| c.has_announced()).map(|(n, _)| n).collect();
        let mut done = true;
        for catalogue in numbers {
            let client = self.members.me(catalogue);
            if client.absorbed_in.0 != env.turn {
                client.absorbed_in = (env.turn, 0);
            }
            let most = if all { u64::MAX } else { ABSORB_MAX - client.absorbed_in.1 };
            done &= self.absorb(env, catalogue, MemberState::Open, most);
        }
        done
    }

    /// Takes at most so many of a client's announcements into the directory: each home first, then `absorbed`. Whether
    /// those were all.
    pub fn absorb(&mut self, env: &mut Env, catalogue: u16, state: MemberState, most: u64) -> bool {
        let client = self.members.me(catalogue);
        let (head, mut index) = (client.words().ring_head.read(), client.absorbed);
        if head.wrapping_sub(index) > RING as u64 {
            self.members.fault(catalogue, "its ring of announcements is out of order");
            return true;
        }
        if head > self.context.directory.entry(catalogue).announce_until.peek() {
            self.members.fault(catalogue, "it announced more names than it was granted");
            return true;
        }
        // Those for which there is no room wait, and are found where they were announced.
        let most = most.min(self.names.absorbable());
        let client = self.members.me(catalogue);
        let end = index.wrapping_add(head.wrapping_sub(index).min(most));
        if state == MemberState::Open {
            client.absorbed_in.1 = (client.absorbed_in.1 + end.wrapping_sub(index)).min(ABSORB_MAX);
        }
        while index != end {
            let client = self.members.me(catalogue);
            let word = client.words().ring[(index % RING as u64) as usize].peek();
            let (tag, cell) = (word >> 24, word as u32 & 0xFF_FFFF);
            if let Some(key) = client.cell(cell).and_then(announced_name)
                && self.context.directory.hash(&key) >> 24 == tag
            {
                let found = find(&self.context.directory, &key);
                let live = found.filter(|f| f.home.is_live()).map(|f| f.home);
                let own = Home::after(Home(0), HomeKind::Live, catalogue, cell);
                let lost = match live {
                    Some(home) => (home.catalogue(), home.cell()) != (catalogue, cell),
                    None => match self.names.place_announced(&self.context.directory, &key) {
                        Ok(entry) => {
                            self.take_entry(env, entry, catalogue, cell, LifeWord::FOREVER);
                            false
                        }
                        Err(_) => true,
                    },
                };
                if lost && state == MemberState::Open {
                    self.disown(env, own);
                }
            }
            index += 1;
            self.members.me(catalogue).absorbed = index;
            tensorlend_layout::crash_point!("daemon: home before absorbed");
            self.context.directory.entry(catalogue).absorbed.set(Absorbed::new(state, index).0);
            tensorlend_layout::crash_point!("daemon: absorbed");
        }
        if state == MemberState::Open {
            self.grant(catalogue);
        }
        index == head
    }

    /// A request to bind a name.
    pub fn bind(
        &mut self,
        env: &mut Env,
        catalogue: u16,
        (name, cell): (&str, u32),
        life: LifeWord,
        since_ns: u64,
    ) -> Answer {
        name::check(name).map_err(|e| Refusal::Bad(e.to_string()))?;
        self.members.check_cell(catalogue, cell)?;
        if self.members.me(catalogue).notices.contains(&cell) {
            // Granted to the same request before, and taken since: each takes effect once.
            let found = find(&self.context.directory, name.as_bytes());
            let (entry, home) = found.map_or((0, 0), |found| (found.entry, found.home.0));
            return Ok(Outcome::Reply(Reply::Bound { entry, home }));
        }
        if !self.names_ready(env, 1) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !self.settle(env, name.as_bytes(), since_ns)? {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let owner =
            live_home(&self.context.directory, name.as_bytes()).and_then(|f| self.members.get(f.home.catalogue()));
        let uid = owner.map(|client| client.uid);
        if uid != Some(self.members.me(catalogue).uid) {
            self.check_name_share(catalogue, 1)?;
        }
        let (entry, home) = self.take(env, name.as_bytes(), catalogue, cell, life)?;
        self.grant(catalogue);
        Ok(Outcome::Reply(Reply::Bound { entry, home: home.0 }))
    }

    /// As [`Namespace::bind`], for a name that ends by itself.
    pub fn bind_for(
        &mut self,
        env: &mut Env,
        catalogue: u16,
        (name, cell): (&str, u32),
        (ttl_ns, ephemeral): (Option<u64>, bool),
        since_ns: u64,
    ) -> Answer {
        if ttl_ns == Some(0) {
            return Err(Refusal::Bad("a time to live is a nanosecond at least".into()));
        }
        let deadline_ns = ttl_ns.map_or(0, |ttl| env.now_ns.saturating_add(ttl));
        self.bind(env, catalogue, (name, cell), LifeWord::new(deadline_ns, ephemeral), since_ns)
    }

    /// A request to delete a name, whoever owns it.
    pub fn delete(&mut self, env: &mut Env, name: &str, since_ns: u64) -> Answer {
        name::check(name).map_err(|e| Refusal::Bad(e.to_string()))?;
        if !self.absorb_all(env, env.now_ns - since_ns > CLAIM_NS_MAX) {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let Some(found) = live_home(&self.context.directory, name.as_bytes()) else {
            return Ok(Outcome::Reply(Reply::Deleted { existed: false }));
        };
        self.remove(env, found.entry, true);
        // Only now: what the owner puts or deletes after this look counts as before the home's move only if it had looked
        // at the home before that.
        scan_fence();
        let value = self.members.client(found.home.catalogue()).ok().and_then(|c| c.value(found.home.cell()));
        let existed = value.is_some_and(Cell::is_value);
        Ok(Outcome::Reply(Reply::Deleted { existed }))
    }

    /// A request of an owner to forget names that it deleted.
    pub fn tidy(&mut self, env: &mut Env, catalogue: u16, names: &[(String, u32)]) -> Answer {
        if names.len() > TIDY_MAX {
            return Err(Refusal::Bad(format!("a request tidies at most {TIDY_MAX} names, not {}", names.len())));
        }
        for (name, _) in names {
            name::check(name).map_err(|e| Refusal::Bad(e.to_string()))?;
        }
        for (name, cell) in names {
            // The client gives the cell back on this answer: it shall not be told of it once more.
            self.members.me(catalogue).notices.remove(cell);
            if let Some(found) = live_home(&self.context.directory, name.as_bytes())
                && (found.home.catalogue(), found.home.cell()) == (catalogue, *cell)
            {
                self.remove(env, found.entry, false);
            }
        }
        Ok(Outcome::Reply(Reply::Done))
    }

    /// A request to rename a name whose owner is gone and quiet. Both names lead to the one cell for a moment, which
    /// nobody writes any more.
    pub fn rename(&mut self, env: &mut Env, from: &str, to: &str, since_ns: u64) -> Answer {
        name::check(from).and_then(|()| name::check(to)).map_err(|e| Refusal::Bad(e.to_string()))?;
        if !self.names_ready(env, 1) {
            return Ok(Outcome::Later(Wait::Names));
        }
        if !self.absorb_all(env, env.now_ns - since_ns > CLAIM_NS_MAX) {
            return Ok(Outcome::Later(Wait::Claim));
        }
        let Some(found) = live_home(&self.context.directory, from.as_bytes()) else {
            return Err(Refusal::NotFound(format!("name {from:?}")));
        };
        let owner = self.members.client(found.home.catalogue())?;
        if !owner.is_frozen() {
            return Err(Refusal::NotQuiet(from.into()));
        }
        if !owner.value(found.home.cell()).is_some_and(Cell::is_value) {
            return Err(Refusal::NotFound(format!("name {from:?}")));
        }
        if from == to {
            return Ok(Outcome::Reply(Reply::Done));
        }
        if !self.settle(env, to.as_bytes(), since_ns)? {
            return Ok(Outcome::Later(Wait::Claim));
        }
        // Whoever was waited for may have deleted it: look again.
        let Some(found) = live_home(&self.context.directory, from.as_bytes()) else {
            self.unreserve(to.as_bytes());
            return Err(Refusal::NotFound(format!("name {from:?}")));
        };
        let life = self.context.directory.life(found.entry);
        self.take(env, to.as_bytes(), found.home.catalogue(), found.home.cell(), life)?;
        let found = live_home(&self.context.directory, from.as_bytes()).expect("the daemon alone moves homes");
        self.remove(env, found.entry, true);
        Ok(Outcome::Reply(Reply::Done))
    }
}

impl Members {
    /// What the daemon took from a client.
    pub fn notices(&mut self, catalogue: u16) -> Outcome {
        let notices = &mut self.me(catalogue).notices;
        let cells: Vec<u32> = std::iter::from_fn(|| notices.pop_first()).take(4096).collect();
        Outcome::Reply(Reply::Notices { cells, more: !notices.is_empty() })
    }

    /// Lists a client among those who may sleep.
    pub fn wait(&mut self, context: &Context, catalogue: u16) -> Outcome {
        let client = self.me(catalogue);
        if !std::mem::replace(&mut client.waits, true) {
            let head = context.directory.head();
            head.waiters[usize::from(catalogue) / 64].set_bits(1 << (catalogue % 64));
            head.waiters_count.add(1);
        }
        Outcome::Reply(Reply::Done)
    }

    /// Takes a client off that list.
    pub fn wait_no_more(&mut self, context: &Context, catalogue: u16) {
        if std::mem::take(&mut self.me(catalogue).waits) {
            let head = context.directory.head();
            head.waiters[usize::from(catalogue) / 64].clear_bits(1 << (catalogue % 64));
            head.waiters_count.set(head.waiters_count.peek() - 1);
        }
    }
}

impl Namespace {
    /// Has a frozen client's memory looked through before long: not at every move of its names, since each look goes
    /// over all of them.
    pub fn collect_soon(&mut self, env: &mut Env, catalogue: u16) {
        let names = self.names.owned_count(catalogue) as u64;
        let pause_ns = if names == 0 { 0 } else { 1_000_000 + names * 500 };
        if let Some(Client { life: Life::Frozen { due_ns, .. }, .. }) = self.members.get_mut(catalogue) {
            let due = env.now_ns + pause_ns;
            if due_ns.is_none_or(|at| at > due) {
                *due_ns = Some(due);
                env.set_timer(pause_ns, Timer::Collect(self.context.ledger.id(), catalogue));
            }
        }
    }
}

impl Namespace {
    /// Continues a chore. Returns what is left of it.
    pub fn go_on(&mut self, env: &mut Env, chore: Chore) -> Option<Chore> {
        match chore {
            Chore::Items(deleted) => self.remove_items(env, deleted).map(Chore::Items),
            Chore::Survey(catalogue) => self.survey(env, catalogue).then_some(Chore::Survey(catalogue)),
            Chore::Leases => self.look(env).then_some(Chore::Leases),
        }
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
