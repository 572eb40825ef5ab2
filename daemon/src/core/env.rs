//! What every part of the core shares: the time, the effects so far, the accounts, the pool, memory on order.

use super::account::{Accounts, Charge, Kind, NamespaceId};
use super::chores::{Chore, Chores};
use super::device::{Device, DeviceNumber};
use super::effect::{Effect, SheetPlan};
use super::event::{ConnId, MemId};
use super::label::Label;
use super::pool::{Pool, Spare};
use super::settings::{Mode, Settings};
use super::spills::{Spills, Whose};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Export;

/// Sheets, and parts of them, up to this length are made at once; longer ones beside the loop.
const PROMPT_BYTES_MAX: u64 = 1 << 20;

/// Whom an event that has to come concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Ask once more whether a client's memory is quiet.
    Probe(NamespaceId, u16),
    /// Ask once more whether a client that has not come back is there.
    Away(NamespaceId, u16),
    /// Look once more which memory of a client that is gone is in use.
    Collect(NamespaceId, u16),
    /// Go on with a client's departure.
    Departing(NamespaceId, u16),
    /// Ask whether something that was given up is quiet.
    Returned(MemId),
    /// Look for announcements.
    Absorb(NamespaceId),
    /// Try put-off requests again.
    Retry,
    /// Try those put-off requests again that were left when a step had tried as many as it may.
    Untried,
    /// Order spares.
    Spares,
    /// Open what clients have handed back.
    Staged,
    /// Go on with a table of names.
    Names,
    /// Go on with the chores.
    Chores,
    /// Look what leases keep.
    Leases(NamespaceId),
    /// End the names whose time has come.
    Lifetimes(NamespaceId),
    /// End the streams that nobody uses.
    Streams(NamespaceId),
    /// Try to spill what somebody held when it was tried last.
    Spill,
}

/// The second look at what was given up comes so much later, when its client may have unmapped it; each further one four
/// times as much.
const RETURNED_PAUSE_NS: u64 = 5_000_000;
/// Shortest pause between two looks at orphaned memory for which somebody waits.
const EXPEDITE_PAUSE_NS: u64 = 400_000;
/// Looks that requests of one uid begin at once. After the last of their answers none begin for [`EXPEDITE_PAUSE_NS`], so that the
/// loop serves others.
const EXPEDITE_LOOKS_MAX: u32 = 64;
/// How long after it was given up somebody waits for it.
const EXPEDITE_NS_MAX: u64 = 10_000_000;
/// How long after a request for memory the daemon still begins looks for it.
const QUIET_NS_MAX: u64 = 5_000_000;
/// The same in user mode, where readers must have unmapped it, too.
const QUIET_USER_NS_MAX: u64 = 1_000_000_000;
/// Longest pause between two looks at orphaned memory.
const ORPHANED_PAUSE_NS_MAX: u64 = 10_000_000_000;

/// How long after a segment was asked for a spare is made: whoever asked shall have it and map it meanwhile, and not wait
/// for what the making of another one takes.
const SPARE_PAUSE_NS: u64 = 10_000_000;

/// Ended clients' memories that are looked at in [`BURST_NS`].
const BURST: u32 = 256;
const BURST_NS: u64 = 1_000_000;

/// For whom memory is being made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A connection's request.
    Request(ConnId),
    /// A namespace's directory.
    Directory(NamespaceId),
    /// A spare segment.
    Spare,
    /// A segment that was spilled.
    Spilled(Whose),
    /// Nobody any more.
    Nobody,
}

/// Why memory is being probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// Its client ended.
    Ended(NamespaceId, u16),
    /// Its client has not come back since the daemon was replaced: its lease table.
    Away(NamespaceId, u16),
    /// Its client is about to depart, and was one of the daemon before: its lease table.
    Departing(NamespaceId, u16),
    /// It was given up, and costs until nobody can write it.
    Orphaned,
}

/// Memory on order for a request.
#[derive(Debug)]
pub struct Making {
    /// Its name.
    pub mem: MemId,
    /// What was charged for it.
    pub charge: Charge,
    /// Its length if it is a segment, which a pool counts.
    pub segment_bytes: Option<u64>,
    /// On which device it is, if it is not in host memory.
    pub device: Option<DeviceNumber>,
    /// What its descriptor is, if it is on a device and there.
    pub export: Option<Export>,
    /// Whether it is there.
    pub made: bool,
    /// Its view, if it is a sheet and there.
    pub view: Option<View>,
}

/// Memory that was given up while somebody may still write it: whoever keeps it mapped keeps paying for it.
#[derive(Debug)]
pub struct Orphaned {
    /// Who had it.
    uid: u32,
    charge: Charge,
    segment_bytes: Option<u64>,
    given_up_ns: u64,
    /// When it is looked at next, and how long the pause after that is.
    next_ns: u64,
    pause_ns: u64,
    /// When [`Env::expedite`] asked about it.
    expedited_ns: u64,
    /// When the last such look was asked for that found it in use.
    answered_ns: u64,
}

/// Looks that requests of a uid have begun.
#[derive(Debug, Default)]
struct Expedited {
    /// Those whose answers are still to come.
    begun: u32,
    /// Whether there were as many as may be begun at once.
    is_full: bool,
    /// No further ones begin before.
    next_ns: u64,
}

impl Orphaned {
    /// Returns whether the kernel's answer to such a look is still to come.
    fn is_looked_at(&self) -> bool {
        self.expedited_ns > self.answered_ns
    }
}

/// A sheet that is there.
#[derive(Debug)]
pub struct Part {
    /// Its name.
    pub mem: MemId,
    /// Its words.
    pub view: View,
    /// What was charged for it.
    pub charge: Charge,
    /// Whether its writer has mapped it, so that it is sealed and others may read it.
    pub acked: bool,
}

impl Making {
    /// The sheet that was made.
    pub fn into_part(self) -> Part {
        Part {
            mem: self.mem,
            view: self.view.expect("a made sheet comes with its view"),
            charge: self.charge,
            acked: false,
        }
    }
}

/// What every part of the core shares.
#[derive(Debug)]
pub struct Env {
    pub settings: Settings,
    pub now_ns: u64,
    pub started_ns: u64,
    pub effects: Vec<Effect>,
    pub accounts: Accounts,
    pub pool: Pool,
    pub spills: Spills,
    pub chores: Chores,
    pub devices: Vec<Device>,
    pub timers: BTreeSet<(u64, Timer)>,
    pub ordered: BTreeMap<MemId, Purpose>,
    pub probing: BTreeMap<MemId, Probing>,
    /// On order still, and wanted no more.
    pub abandoned: BTreeMap<MemId, Making>,
    /// Given up, and somebody may still write it.
    pub orphaned: BTreeMap<MemId, Orphaned>,
    expedited: BTreeMap<u32, Expedited>,
    /// Probes asked for since `burst_ns`: see [`Env::may_probe`].
    burst: u32,
    burst_ns: u64,
    /// No spare is ordered before.
    spares_after_ns: u64,
    /// When put-off requests are tried again.
    pub retry_ns: Option<u64>,
    /// Whether clients may still read a directory that ours is a copy of: theirs must stay true.
    pub gathering: bool,
    /// Steps so far.
    pub turn: u64,
    pub requests: u64,
    pub refusals: u64,
    pub wakeups: u64,
    /// Names that ended because their time was over, and because their producers were gone.
    pub names_expired: u64,
    pub names_ephemeral_gone: u64,
    /// Sessions that were ended for what their leases kept.
    pub sessions_revoked: u64,
    pub memories: u64,
    /// When a device's segment was lent last: see [`Env::lending_ns`].
    pub last_lending_ns: u64,
    /// Counts what was given up: no label of a daemon before this one has a larger number.
    pub orphaned_ever: u64,
    seeds: u64,
}

impl Env {
    pub fn new(settings: Settings) -> Self {
        let accounts = Accounts::new(&settings);
        let pool = Pool::new(
            settings.pool_bytes_max,
            settings.segment_bytes,
            settings.spare_segments,
            settings.idle_bytes_max,
        );
        Self {
            devices: settings.devices.iter().map(Device::new).collect(),
            seeds: settings.seed,
            settings,
            now_ns: 0,
            started_ns: 0,
            effects: Vec::new(),
            accounts,
            pool,
            spills: Spills::default(),
            chores: Chores::default(),
            timers: BTreeSet::new(),
            ordered: BTreeMap::new(),
            probing: BTreeMap::new(),
            abandoned: BTreeMap::new(),
            orphaned: BTreeMap::new(),
            expedited: BTreeMap::new(),
            burst: 0,
            burst_ns: 0,
            spares_after_ns: 0,
            retry_ns: None,
            gathering: false,
            turn: 0,
            requests: 0,
            refusals: 0,
            wakeups: 0,
            names_expired: 0,
            names_ephemeral_gone: 0,
            sessions_revoked: 0,
            memories: 0,
            last_lending_ns: 0,
            orphaned_ever: 0,
        }
    }

    /// Whether segments are sealed for their one producer.
    pub fn user_mode(&self) -> bool {
        self.settings.mode == Mode::User
    }

    /// A seed that nobody has. A member that reads one in its directory cannot tell the others from it.
    pub fn seed(&mut self) -> u64 {
        self.seeds = self.seeds.wrapping_add(1);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seeds);
        hasher.finish()
    }

    /// Orders memory.
    pub fn create(&mut self, bytes: u64, sheet: Option<SheetPlan>, purpose: Purpose) -> MemId {
        self.create_partly(bytes, bytes, sheet, purpose, false)
    }

    /// Orders memory of which only the first bytes are there from the beginning on; `reserved`: for an administrator.
    pub fn create_partly(
        &mut self,
        bytes: u64,
        bytes_first: u64,
        sheet: Option<SheetPlan>,
        purpose: Purpose,
        reserved: bool,
    ) -> MemId {
        let mem = self.name_order(purpose);
        let background = sheet.is_none() || bytes_first > PROMPT_BYTES_MAX;
        self.effects.push(Effect::Create { mem, bytes, bytes_first, sheet, background, reserved });
        mem
    }

    /// The name of memory that is about to be ordered.
    pub fn name_order(&mut self, purpose: Purpose) -> MemId {
        let mem = self.name();
        self.ordered.insert(mem, purpose);
        mem
    }

    /// A name that nothing has.
    pub fn name(&mut self) -> MemId {
        self.memories += 1;
        MemId(self.memories)
    }

    /// Orders a part of memory.
    pub fn allocate(&mut self, mem: MemId, at: u64, bytes: u64) {
        self.effects.push(Effect::Allocate { mem, at, bytes, background: bytes > PROMPT_BYTES_MAX });
    }

    /// Orders a sheet for a request.
    pub fn order_sheet(&mut self, conn: ConnId, bytes: u64, plan: SheetPlan, charge: Charge) -> Making {
        self.order_sheet_for(conn, bytes, plan, charge, false)
    }

    /// As [`Env::order_sheet`]; `reserved`: for an administrator.
    pub fn order_sheet_for(
        &mut self,
        conn: ConnId,
        bytes: u64,
        plan: SheetPlan,
        charge: Charge,
        reserved: bool,
    ) -> Making {
        let mem = self.create_partly(bytes, bytes, Some(plan), Purpose::Request(conn), reserved);
        Making { mem, charge, segment_bytes: None, device: None, export: None, made: false, view: None }
    }

    /// Orders the records of the 2^`log2` slots of `owner` that begin with `base`.
    pub fn order_slots(
        &mut self,
        conn: ConnId,
        (owner, base, log2): (u16, u32, u8),
        bytes: u64,
        charge: Charge,
    ) -> Making {
        let plan = SheetPlan { magic: Magic::Slots, owner, count: 1 << log2, first: base.into() };
        self.order_sheet(conn, bytes, plan, charge)
    }

    /// Has memory outlive the daemon.
    pub fn keep(&mut self, mem: MemId, label: Label) {
        self.effects.push(Effect::Keep { mem, label });
    }

    /// Closes memory, or sees to it that it is closed as soon as it has been made.
    pub fn release(&mut self, mem: MemId) {
        match self.ordered.get_mut(&mem) {
            Some(purpose) => *purpose = Purpose::Nobody,
            None => self.effects.push(Effect::Release { mem }),
        }
    }

    /// Closes a sheet and takes its charge back.
    pub fn release_part(&mut self, part: Part) {
        self.accounts.refund(part.charge);
        self.release(part.mem);
    }

    /// Gives up memory that its writer may have mapped still: paid back and closed once the kernel says that nobody holds it. A segment
    /// that may be lent again is kept for the same uid. In system mode the holders that count are those who can write it: the daemon
    /// takes the pages away when it closes the memory, whoever reads it. In user mode its seal forbids that, so that readers count, too.
    pub fn orphan(&mut self, uid: u32, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        self.orphaned_ever += 1;
        let (namespace, segment, id) = (charge.namespace(), segment_bytes.is_some(), self.orphaned_ever);
        self.keep(mem, Label::Orphaned { namespace, uid, segment, id });
        self.orphan_again(uid, mem, charge, segment_bytes);
    }

    /// As [`Env::orphan`], of what has outlived the daemon that it was given back to.
    pub fn orphan_again(&mut self, uid: u32, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        let orphaned = Orphaned {
            uid,
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

    /// As [`Env::orphan`], of a sheet.
    pub fn orphan_part(&mut self, uid: u32, part: Part) {
        self.orphan(uid, part.mem, part.charge, None);
    }

    /// The kernel's answer about orphaned memory.
    pub fn orphan_probed(&mut self, mem: MemId, quiet: bool) {
        if let Some(orphaned) = self.orphaned.get(&mem).filter(|it| it.is_looked_at()) {
            let expedited = self.expedited.get_mut(&orphaned.uid).expect("it has begun a look");
            expedited.begun -= 1;
            if expedited.begun == 0 && expedited.is_full {
                expedited.next_ns = self.now_ns + EXPEDITE_PAUSE_NS;
            }
        }
        if quiet {
            let Some(Orphaned { uid, charge, segment_bytes, .. }) = self.orphaned.remove(&mem) else { return };
            let namespace = charge.namespace();
            self.accounts.refund(charge);
            match segment_bytes {
                None => self.release(mem),
                Some(bytes) if !self.user_mode() && self.accounts.is_open(namespace) => {
                    self.effects.push(Effect::Forget { mem });
                    self.keep_idle(mem, bytes, (namespace, uid));
                }
                Some(bytes) => self.release_segment(mem, bytes),
            }
        } else if let Some(orphaned) = self.orphaned.get_mut(&mem) {
            self.probing.insert(mem, Probing::Orphaned);
            orphaned.answered_ns = orphaned.expedited_ns;
            // A look out of turn changes nothing.
            if self.now_ns >= orphaned.next_ns {
                let pause_ns = orphaned.pause_ns;
                orphaned.next_ns = self.now_ns + pause_ns;
                orphaned.pause_ns = (pause_ns * 4).min(ORPHANED_PAUSE_NS_MAX);
                self.set_timer(pause_ns, Timer::Returned(mem));
            }
        }
    }

    /// Looks at once at segments that a uid has given back, for its request since `since_ns`. Returns whether the request must wait
    /// for a look. The client unmaps a segment when it has our reply, and may request memory before we look again. So each request
    /// waits for one look that began after it; within [`QUIET_NS_MAX`] of the request, looks at segments that were given back not
    /// long ago are repeated. A look that has begun is always awaited: how late its answer is depends on the load of the machine.
    /// A uid that holds thousands of segments has [`EXPEDITE_LOOKS_MAX`] looks at a time, and its requests go over all orphans
    /// once for each such round.
    pub fn expedite(&mut self, uid: u32, since_ns: u64) -> bool {
        let now = self.now_ns;
        let readers = self.user_mode();
        let is_late = now - since_ns >= if readers { QUIET_USER_NS_MAX } else { QUIET_NS_MAX };
        if let Some(expedited) = self.expedited.get(&uid)
            && (expedited.begun > 0 || now < expedited.next_ns)
        {
            return expedited.begun > 0 || !is_late;
        }
        if is_late {
            return false;
        }
        let its = |l: &Orphaned| l.uid == uid && l.segment_bytes.is_some();
        let worth = |l: &Orphaned| now - l.given_up_ns < EXPEDITE_NS_MAX || l.answered_ns < since_ns;
        let (mut awaited, mut begun) = (false, 0);
        for (&mem, orphaned) in self.orphaned.iter_mut().filter(|(_, l)| its(l) && worth(l)) {
            awaited = true;
            if now >= orphaned.expedited_ns + EXPEDITE_PAUSE_NS {
                orphaned.expedited_ns = now;
                self.effects.push(Effect::Probe { mem, readers });
                begun += 1;
            }
            if begun == EXPEDITE_LOOKS_MAX {
                break;
            }
        }
        if begun > 0 {
            self.expedited.insert(uid, Expedited { begun, is_full: begun == EXPEDITE_LOOKS_MAX, next_ns: now });
        }
        awaited
    }

    /// Gives up what was on order for a request. What is being made still costs until it has come: else whoever orders
    /// and goes, again and again, has as much made at a time as he likes.
    pub fn abandon(&mut self, making: Making) {
        if let Some(purpose) = self.ordered.get_mut(&making.mem) {
            *purpose = Purpose::Nobody;
            self.effects.push(Effect::Cancel { mem: making.mem });
            self.abandoned.insert(making.mem, making);
            return;
        }
        let mem = making.mem;
        self.abandoned.insert(mem, making);
        self.arrived_for_nobody(mem, true);
    }

    /// Something that nobody wants has come, or could not be made.
    pub fn arrived_for_nobody(&mut self, mem: MemId, made: bool) {
        if let Some(making) = self.abandoned.remove(&mem) {
            self.count_no_more(making);
        }
        if made {
            self.release(mem);
        }
    }

    /// Takes back what was charged and counted for memory that will not be lent.
    pub fn count_no_more(&mut self, Making { charge, segment_bytes, device, .. }: Making) {
        self.accounts.refund(charge);
        if let Some(bytes) = segment_bytes {
            let pool = device.map_or(&mut self.pool, |number| &mut self.devices[number].pool);
            pool.forget(bytes);
        }
    }

    /// A segment of `bytes` for a request: one that this uid gave back in this namespace, a spare, or a new one. `None`:
    /// the pool has no room. Its bytes are counted in the pool.
    pub fn order_segment(
        &mut self,
        conn: ConnId,
        (namespace, uid): (NamespaceId, u32),
        bytes: u64,
    ) -> Option<(MemId, bool)> {
        if let Some(mem) = self.pool.take_idle(namespace, uid, bytes) {
            return Some((mem, true));
        }
        if self.spares_after_ns < self.now_ns + SPARE_PAUSE_NS {
            self.spares_after_ns = self.now_ns + SPARE_PAUSE_NS;
            self.set_timer(SPARE_PAUSE_NS, Timer::Spares);
        }
        match self.pool.take_spare(bytes) {
            Some(Spare::Ready(mem)) => Some((mem, true)),
            Some(Spare::Ordered(mem)) => {
                self.ordered.insert(mem, Purpose::Request(conn));
                Some((mem, false))
            }
            None => {
                for mem in self.pool.reserve(bytes)? {
                    self.release(mem);
                }
                Some((self.create(bytes, None, Purpose::Request(conn)), false))
            }
        }
    }

    /// Orders spares while there is room for them.
    pub fn order_spares(&mut self) {
        if self.now_ns < self.spares_after_ns {
            return;
        }
        while let Some(bytes) = self.pool.wants_spare() {
            let mem = self.create(bytes, None, Purpose::Spare);
            self.pool.ordered(mem);
        }
    }

    /// Keeps a segment that nobody can write any more for the uid that had it, in its namespace.
    pub fn keep_idle(&mut self, mem: MemId, bytes: u64, whose: (NamespaceId, u32)) {
        for mem in self.pool.keep_idle(mem, bytes, whose) {
            self.release(mem);
        }
    }

    /// Closes a segment.
    pub fn release_segment(&mut self, mem: MemId, bytes: u64) {
        self.pool.forget(bytes);
        self.release(mem);
    }

    /// Whether one more of an ended client's memories may be looked at before the loop has done something else.
    pub fn may_probe(&mut self) -> bool {
        if self.now_ns >= self.burst_ns + BURST_NS {
            (self.burst, self.burst_ns) = (0, self.now_ns);
        }
        self.burst += 1;
        self.burst <= BURST
    }

    /// Asks whether memory is quiet.
    pub fn probe(&mut self, mem: MemId, why: Probing) {
        self.probing.insert(mem, why);
        self.look_at(mem, why);
    }

    /// Has the shell look at memory that is being probed. In user mode memory that was given up has no holder at all before it is
    /// closed: the daemon cannot take its pages away.
    pub fn look_at(&mut self, mem: MemId, why: Probing) {
        let readers = why == Probing::Orphaned && self.user_mode();
        self.effects.push(Effect::Probe { mem, readers });
    }

    /// Charges for a sheet.
    pub fn charge_sheet(
        &mut self,
        uid: u32,
        namespace: NamespaceId,
        bytes: u64,
    ) -> Result<Charge, tensorlend_layout::wire::Refusal> {
        self.accounts.charge(Some(uid), namespace, Kind::Sheet, bytes)
    }

    /// Has put-off requests tried again after this time, or before.
    pub fn retry_after(&mut self, after_ns: u64) {
        let at = self.now_ns + after_ns;
        // Every event tries them again and comes here: one timer is enough.
        if self.retry_ns.is_none_or(|before| before > at) {
            self.retry_ns = Some(at);
            self.set_timer(after_ns, Timer::Retry);
        }
    }

    /// Sets a timer.
    pub fn set_timer(&mut self, after_ns: u64, timer: Timer) {
        self.timers.insert((self.now_ns + after_ns, timer));
    }

    /// Queues a chore. This step begins it if no other was queued.
    pub fn take_on(&mut self, namespace: NamespaceId, chore: Chore) {
        self.chores.push(namespace, chore);
        self.arm_chores();
    }

    /// Sets the timer of the chores, unless it is set.
    pub fn arm_chores(&mut self) {
        if let Some(at) = self.chores.arm(self.now_ns) {
            self.timers.insert((at, Timer::Chores));
        }
    }

    /// Notes that the timer of the chores has fired.
    pub fn chores_due(&mut self) {
        self.chores.disarm();
    }
}
