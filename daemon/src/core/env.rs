//! The state that every part of the core shares: the time, the effects of the step, the accounts, the pool, and memory on
//! order.

use super::account::{Accounts, Charge, Kind, NamespaceId};
use super::chores::{Chore, Chores};
use super::device::{Device, DeviceNumber};
use super::effect::{Effect, SheetPlan};
use super::event::{ConnId, MemId};
use super::label::Label;
use super::pool::{Borrower, Pool, Spare};
use super::range::SlotRange;
use super::settings::{Mode, Settings};
use super::spills::{Spills, Whose};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::Export;

mod orphaned;

use orphaned::Expedited;
pub use orphaned::{FormerWriter, Orphaned};

/// Maximum length of a sheet, or a part of one, that the daemon's loop makes itself. Worker threads make longer ones.
const PROMPT_BYTES_MAX: u64 = 1 << 20;

/// The action of a timer, and its subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    /// Probe a client's memory again.
    Probe(NamespaceId, u16),
    /// Probe again for a client that has not come back.
    Disconnected(NamespaceId, u16),
    /// Survey the memory of a disconnected client again.
    Collect(NamespaceId, u16),
    /// Continue a client's draining.
    Draining(NamespaceId, u16),
    /// Probe orphaned memory.
    Returned(MemId),
    /// Poll for announcements.
    Absorb(NamespaceId),
    /// Retry delayed requests.
    Retry,
    /// Retry the delayed requests that exceeded the last step's maximum number of retries.
    Untried,
    /// Order spares.
    Spares,
    /// Open the namespaces that returning clients have handed back.
    Staged,
    /// Continue the construction of a table of names.
    Names,
    /// Continue the chores.
    Chores,
    /// Scan the leases.
    Leases(NamespaceId),
    /// End the names whose lifetimes are over.
    Lifetimes(NamespaceId),
    /// End the streams that no client uses.
    Streams(NamespaceId),
    /// Retry a spill that failed because a process held the segment.
    Spill,
}

/// Pause after a request for a segment before the daemon makes a spare: the requester receives and maps its segment first,
/// without competing with the allocation of the next one.
const SPARE_PAUSE_NS: u64 = 10_000_000;

/// Maximum number of probes of ended clients' memory in [`BURST_NS`].
const BURST: u32 = 256;
const BURST_NS: u64 = 1_000_000;

/// The purpose of memory that is being made.
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
    /// No purpose: the requester has disconnected.
    Nobody,
}

/// The reason why memory is being probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probing {
    /// The client that owned the memory has ended.
    Ended(NamespaceId, u16),
    /// The memory is the lease table of a client that has not come back since the daemon was replaced.
    Disconnected(NamespaceId, u16),
    /// The memory is the lease table of a draining client of the daemon's predecessor.
    Draining(NamespaceId, u16),
    /// The memory is orphaned, and charged until no process can write it.
    Orphaned,
}

/// Memory that is being made for a request.
#[derive(Debug)]
pub struct Making {
    /// Its number.
    pub mem: MemId,
    /// The charge for it.
    pub charge: Charge,
    /// Length of a segment, which counts in a pool; `None` for a sheet.
    pub segment_bytes: Option<u64>,
    /// The device of the memory; `None` for host memory.
    pub device: Option<DeviceNumber>,
    /// The kind of the descriptor, for device memory that has arrived.
    pub export: Option<Export>,
    /// Whether it has arrived.
    pub made: bool,
    /// The view of a sheet that has arrived.
    pub view: Option<View>,
}

/// A sheet that exists.
#[derive(Debug)]
pub struct Part {
    /// Its memory.
    pub mem: MemId,
    /// Its words.
    pub view: View,
    /// The charge for it.
    pub charge: Charge,
    /// Whether its writer has mapped it, so that it is sealed and others may read it.
    pub acked: bool,
}

impl Making {
    /// Returns the sheet that was made.
    pub fn into_part(self) -> Part {
        Part {
            mem: self.mem,
            view: self.view.expect("a made sheet comes with its view"),
            charge: self.charge,
            acked: false,
        }
    }
}

/// The state that every part of the core shares.
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
    /// Memory on order whose request was abandoned.
    pub abandoned: BTreeMap<MemId, Making>,
    /// Memory that its clients returned or left, and that a process may still write.
    pub orphaned: BTreeMap<MemId, Orphaned>,
    expedited: BTreeMap<u32, Expedited>,
    /// Number of probes since `burst_ns`: see [`Env::may_probe`].
    burst: u32,
    burst_ns: u64,
    /// Earliest time of the next order of spares.
    spares_after_ns: u64,
    /// Time of the next retry of delayed requests.
    pub retry_ns: Option<u64>,
    /// Whether clients may still read a directory of which this daemon has a copy: the original must stay correct.
    pub gathering: bool,
    /// Number of steps.
    pub turn: u64,
    pub requests: u64,
    pub refusals: u64,
    pub wakeups: u64,
    /// Names that ended because their lifetimes were over, and because their producers were gone.
    pub names_expired: u64,
    pub names_ephemeral_gone: u64,
    /// Sessions that the daemon ended for the memory that their leases retained.
    pub sessions_revoked: u64,
    pub memories: u64,
    /// Time of the last lending of a device's segment: see [`Env::lending_ns`].
    pub last_lending_ns: u64,
    /// Count of orphaned memories. No label of a predecessor has a larger number.
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

    /// Returns true if each segment is sealed for its one producer.
    pub fn user_mode(&self) -> bool {
        self.settings.mode == Mode::User
    }

    /// Returns an unpredictable seed. A member that reads a seed in its directory cannot derive other seeds from it.
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

    /// Orders memory of which only the first bytes are allocated at the beginning; `reserved` for an administrator.
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

    /// Returns an unused id for memory that the core is about to request, and notes the purpose of that memory.
    pub fn name_order(&mut self, purpose: Purpose) -> MemId {
        let mem = self.name();
        self.ordered.insert(mem, purpose);
        mem
    }

    /// Returns an unused number.
    pub fn name(&mut self) -> MemId {
        self.memories += 1;
        MemId(self.memories)
    }

    /// Orders the allocation of a part of memory.
    pub fn allocate(&mut self, mem: MemId, at: u64, bytes: u64) {
        self.effects.push(Effect::Allocate { mem, at, bytes, background: bytes > PROMPT_BYTES_MAX });
    }

    /// Orders a sheet for a request.
    pub fn order_sheet(&mut self, conn: ConnId, bytes: u64, plan: SheetPlan, charge: Charge) -> Making {
        self.order_sheet_for(conn, bytes, plan, charge, false)
    }

    /// Orders a sheet like [`Env::order_sheet`]; `reserved` for an administrator.
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

    /// Orders the records of the 2^`log2` slots of `owner` from `base` on.
    pub fn order_slots(
        &mut self,
        conn: ConnId,
        SlotRange { owner, base, log2 }: SlotRange,
        bytes: u64,
        charge: Charge,
    ) -> Making {
        let plan = SheetPlan { magic: Magic::Slots, owner, count: 1 << log2, first: base.into() };
        self.order_sheet(conn, bytes, plan, charge)
    }

    /// Stores memory in the fd store, so that it outlives the daemon.
    pub fn keep(&mut self, mem: MemId, label: Label) {
        self.effects.push(Effect::Keep { mem, label });
    }

    /// Closes memory; memory that is still being made is closed when it arrives.
    pub fn release(&mut self, mem: MemId) {
        match self.ordered.get_mut(&mem) {
            Some(purpose) => *purpose = Purpose::Nobody,
            None => self.effects.push(Effect::Release { mem }),
        }
    }

    /// Closes a sheet and refunds its charge.
    pub fn release_part(&mut self, part: Part) {
        self.accounts.refund(part.charge);
        self.release(part.mem);
    }

    /// Abandons memory on order for a request. Its charge stays until it has arrived; otherwise a client that orders and
    /// disconnects repeatedly could have an unlimited amount made at the same time.
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

    /// Handles abandoned memory that has arrived or could not be made.
    pub fn arrived_for_nobody(&mut self, mem: MemId, made: bool) {
        if let Some(making) = self.abandoned.remove(&mem) {
            self.count_no_more(making);
        }
        if made {
            self.release(mem);
        }
    }

    /// Refunds the charge of memory that will not be lent, and subtracts it from its pool.
    pub fn count_no_more(&mut self, Making { charge, segment_bytes, device, .. }: Making) {
        self.accounts.refund(charge);
        if let Some(bytes) = segment_bytes {
            let pool = device.map_or(&mut self.pool, |number| &mut self.devices[number].pool);
            pool.forget(bytes);
        }
    }

    /// Orders a segment of `bytes` for a request: one that this borrower returned, a spare, or a new one. Returns
    /// `None` if the pool has no room. The segment's bytes count in the pool.
    pub fn order_segment(&mut self, conn: ConnId, borrower: Borrower, bytes: u64) -> Option<(MemId, bool)> {
        if let Some(mem) = self.pool.take_idle(borrower, bytes) {
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

    /// Preserves a quiescent segment for its former borrower.
    pub fn keep_idle(&mut self, mem: MemId, bytes: u64, borrower: Borrower) {
        for mem in self.pool.keep_idle(mem, bytes, borrower) {
            self.release(mem);
        }
    }

    /// Closes a segment.
    pub fn release_segment(&mut self, mem: MemId, bytes: u64) {
        self.pool.forget(bytes);
        self.release(mem);
    }

    /// Counts a probe of an ended client's memory. Returns false above [`BURST`] probes in [`BURST_NS`]: the daemon then serves
    /// other clients before it probes again.
    pub fn may_probe(&mut self) -> bool {
        if self.now_ns >= self.burst_ns + BURST_NS {
            (self.burst, self.burst_ns) = (0, self.now_ns);
        }
        self.burst += 1;
        self.burst <= BURST
    }

    /// Asks the kernel whether memory is quiescent.
    pub fn probe(&mut self, mem: MemId, why: Probing) {
        self.probing.insert(mem, why);
        self.effects.push(Effect::Probe { mem });
    }

    /// Charges the bytes of a sheet.
    pub fn charge_sheet(
        &mut self,
        uid: u32,
        namespace: NamespaceId,
        bytes: u64,
    ) -> Result<Charge, tensorlend_layout::wire::Refusal> {
        self.accounts.charge(Some(uid), namespace, Kind::Sheet, bytes)
    }

    /// Schedules a retry of delayed requests after this time at the latest.
    pub fn retry_after(&mut self, after_ns: u64) {
        let at = self.now_ns + after_ns;
        // Every event retries the delayed requests, and each retry may call this again. So one timer is enough.
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
