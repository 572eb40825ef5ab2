//! The owners of data that every part of the core uses, and the actions that change several owners.
//! These actions refund and release memory, order segments, and orphan memory.

use super::account::{Accounts, BytesLimit, Charge, NamespaceId};
use super::chores::Chores;
use super::clock::{Clock, Timer};
use super::counters::Counters;
use super::device::DeviceTable;
use super::effect::Effect;
use super::effects::Effects;
use super::event::{ConnId, MemId};
use super::label::Label;
use super::orders::{Making, Order, Orders, Part, Purpose};
use super::orphans::{FormerWriter, Orphaned, Orphans, ProbeResult};
use super::pool::{Borrower, Pool, Spare};
use super::probes::{Probed, Probes, Probing};
use super::settings::{Peer, Settings};
use super::spills::Spills;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use tensorlend_layout::wire::{FdStoreState, Health, LimitKind, Refusal, RestartLoss};

/// Time between the end of a wake pair and its close by the daemon. The fd store closes its descriptor before.
const WAKE_ENDS_NS: u64 = 500_000_000;

/// The owners of data that every part of the core uses.
#[derive(Debug)]
pub struct Env {
    pub settings: Settings,
    pub clock: Clock,
    /// The effects of the current step.
    pub effects: Effects,
    /// The memory on order.
    pub orders: Orders,
    /// The charges of users and namespaces.
    pub accounts: Accounts,
    /// The segments of host memory.
    pub pool: Pool,
    pub spills: Spills,
    pub chores: Chores,
    pub devices: DeviceTable,
    pub probes: Probes,
    pub orphans: Orphans,
    /// Whether clients may still read a directory that this daemon has copied. The original must
    /// then stay correct.
    gathering: bool,
    /// Wake pairs that have ended, with the time at which the daemon closes them.
    ended_wakes: VecDeque<(u64, MemId, Charge)>,
    pub counters: Counters,
    /// The state of the fd store, which the system layer reports.
    pub fd_store: Option<FdStoreState>,
    /// The losses at the daemon's start.
    pub lost: RestartLoss,
    seeds: u64,
}

impl Env {
    /// Returns the refusal of a request for `asked` bytes of the pool.
    pub fn pool_is_full(&self, asked: u64) -> Refusal {
        let full = BytesLimit { used: self.pool.lent_bytes(), asked, most: self.pool.bytes_max() };
        full.refusal(LimitKind::PoolBytes, "the pool", "pool.bytes_max")
    }

    /// Returns the environment of a daemon that has lent nothing.
    pub fn new(settings: Settings) -> Self {
        let accounts = Accounts::new(&settings);
        let pool = Pool::new(
            settings.pool_bytes_max,
            settings.segment_bytes,
            settings.spare_segments,
            settings.idle_bytes_max,
        );
        Self {
            devices: DeviceTable::new(&settings.devices),
            seeds: settings.seed,
            settings,
            clock: Clock::default(),
            effects: Effects::default(),
            accounts,
            pool,
            spills: Spills::default(),
            chores: Chores::default(),
            orders: Orders::default(),
            probes: Probes::default(),
            orphans: Orphans::default(),
            gathering: false,
            ended_wakes: VecDeque::new(),
            counters: Counters::default(),
            fd_store: None,
            lost: RestartLoss::default(),
        }
    }

    /// Returns the faults of the daemon, and the losses of its last restart, as this peer may see them.
    pub fn health(&self, peer: &Peer) -> Health {
        let lost = Some(&self.lost).filter(|&lost| *lost != RestartLoss::default());
        let spill = self.spills.fault(self.settings.shows_folders_to(peer)).filter(|_| self.settings.spill.is_some());
        Health { spill, fd_store: self.fd_store.clone(), lost: lost.cloned() }
    }

    /// Returns true if clients may still read a directory that this daemon has copied.
    pub fn is_gathering(&self) -> bool {
        self.gathering
    }

    /// Records whether clients may still read a directory that this daemon has copied.
    pub fn set_gathering(&mut self, gathering: bool) {
        self.gathering = gathering;
    }

    /// Returns an unpredictable seed. A member that reads a seed in its directory cannot derive other seeds from it.
    pub fn seed(&mut self) -> u64 {
        self.seeds = self.seeds.wrapping_add(1);
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.seeds);
        hasher.finish()
    }

    /// Makes a wake pair for a subscriber of this user. Returns its id.
    pub fn make_wake(&mut self, uid: u32) -> MemId {
        let mem = self.orders.new_id();
        self.effects.push(Effect::CreateWake { mem, uid });
        mem
    }

    /// Ends a wake pair. The fd store forgets it now, and the daemon closes it later. So the fd store does not make the last
    /// close, which a process that watches the pair can delay. The user pays until then.
    pub fn end_wake(&mut self, mem: MemId, charge: Charge) {
        self.effects.push(Effect::Forget { mem });
        self.ended_wakes.push_back((self.clock.now_ns() + WAKE_ENDS_NS, mem, charge));
        self.clock.set_timer(WAKE_ENDS_NS, Timer::Wakes);
    }

    /// Closes the wake pairs that ended before this time or some time earlier.
    pub fn close_ended_wakes(&mut self, until_ns: u64) {
        while let Some((_, mem, charge)) = self.ended_wakes.pop_front_if(|&mut (at_ns, ..)| at_ns <= until_ns) {
            self.accounts.refund(charge);
            self.release(mem);
        }
    }

    /// Closes memory. If the memory is still being made, the daemon closes it as soon as it exists.
    pub fn release(&mut self, mem: MemId) {
        if !self.orders.drop_purpose(mem) {
            self.effects.push(Effect::Release { mem });
        }
    }

    /// Closes a sheet and refunds its charge.
    pub fn release_part(&mut self, part: Part) {
        self.accounts.refund(part.charge);
        self.release(part.mem);
    }

    /// Abandons memory that was ordered for a request: see [`Orders::abandon`]. The memory may
    /// already exist.
    pub fn abandon(&mut self, making: Making) {
        if let Some(making) = self.orders.abandon(&mut self.effects, making) {
            let mem = making.mem;
            self.uncount(making);
            self.release(mem);
        }
    }

    /// Handles the arrival of abandoned memory, or the failure to make it.
    pub fn arrived_for_nobody(&mut self, mem: MemId, made: bool) {
        if let Some(making) = self.orders.take_abandoned(mem) {
            self.uncount(making);
        }
        if made {
            self.release(mem);
        }
    }

    /// Refunds the charge of memory that will not be lent, and subtracts the memory from its pool.
    pub fn uncount(&mut self, Making { charge, segment_bytes, device, .. }: Making) {
        self.accounts.refund(charge);
        if let Some(bytes) = segment_bytes {
            let pool = device.map_or(&mut self.pool, |number| &mut self.devices[number].pool);
            pool.forget(bytes);
        }
    }

    /// Orders a segment of `bytes` for a request. The segment is one that this borrower returned, a
    /// spare, or a new one. If the client pays for the segment, the segment is always new and has no
    /// pages, because existing pages stay charged to the cgroup of the process that touched them.
    /// Returns `None` if the pool has no room. The segment's bytes count in the pool.
    pub fn order_segment(&mut self, conn: ConnId, borrower: Borrower, bytes: u64) -> Option<(MemId, bool)> {
        let purpose = Purpose::Request(conn);
        if !self.accounts.is_paid_by_daemon(borrower.namespace) {
            for mem in self.pool.reserve(bytes)? {
                self.release(mem);
            }
            return Some((
                self.orders.create(&mut self.effects, Order { bytes_first: 0, ..Order::segment(bytes, purpose) }),
                false,
            ));
        }
        if let Some(mem) = self.pool.take_idle(borrower, bytes) {
            return Some((mem, true));
        }
        self.pool.postpone_spares(&mut self.clock);
        match self.pool.take_spare(bytes) {
            Some(Spare::Ready(mem)) => Some((mem, true)),
            Some(Spare::Ordered(mem)) => {
                self.orders.reassign(mem, purpose);
                Some((mem, false))
            }
            None => {
                for mem in self.pool.reserve(bytes)? {
                    self.release(mem);
                }
                Some((self.orders.create(&mut self.effects, Order::segment(bytes, purpose)), false))
            }
        }
    }

    /// Orders spare segments while there is room for them.
    pub fn order_spares(&mut self) {
        while let Some(bytes) = self.pool.wants_spare(self.clock.now_ns()) {
            let mem = self.orders.create(&mut self.effects, Order::segment(bytes, Purpose::Spare));
            self.pool.ordered(mem);
        }
    }

    /// Returns true if the daemon may lend a quiescent segment of this namespace again. It may not
    /// if clients pay, because the next client could belong to another cgroup.
    pub fn may_lend_again(&self, namespace: NamespaceId) -> bool {
        !self.settings.is_user_mode() && self.accounts.is_paid_by_daemon(namespace)
    }

    /// Preserves a quiescent segment for the same borrower.
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

    /// Orphans memory that the memory's writer may still have mapped. The daemon refunds the charge
    /// once the kernel reports that no process can write the memory. Then the daemon closes the
    /// memory, or preserves a segment for another loan to the same uid.
    ///
    /// Readers do not count as holders. In system mode the daemon frees the pages when it closes
    /// the memory, even while readers have them mapped. In user mode all clients are of one user,
    /// and idle readers keep the pages until they unmap the memory.
    pub fn orphan(&mut self, whose: FormerWriter, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        let (namespace, segment, id) = (charge.namespace(), segment_bytes.is_some(), self.orphans.new_id());
        self.effects.keep(mem, Label::Orphaned { namespace, uid: whose.uid, segment, id });
        self.orphan_again(whose, mem, charge, segment_bytes);
    }

    /// Orphans memory like [`Env::orphan`]. A previous daemon had already orphaned this memory.
    pub fn orphan_again(&mut self, whose: FormerWriter, mem: MemId, charge: Charge, segment_bytes: Option<u64>) {
        self.orphans.add(mem, Orphaned::new(self.clock.now_ns(), whose, charge, segment_bytes));
        self.probes.probe(&mut self.effects, mem, Probing::Orphaned);
    }

    /// Orphans a sheet like [`Env::orphan`].
    pub fn orphan_part(&mut self, whose: FormerWriter, part: Part) {
        self.orphan(whose, part.mem, part.charge, None);
    }

    /// Handles the kernel's response about orphaned memory.
    pub fn orphan_probed(&mut self, probed: Probed) {
        let mem = probed.mem;
        match self.orphans.probed(self.clock.now_ns(), probed) {
            ProbeResult::Gone => {}
            ProbeResult::Quiescent(Orphaned { whose, charge, segment_bytes, .. }) => {
                let namespace = charge.namespace();
                self.accounts.refund(charge);
                match segment_bytes {
                    None => self.release(mem),
                    Some(bytes) if self.may_lend_again(namespace) => {
                        self.effects.push(Effect::Forget { mem });
                        self.keep_idle(mem, bytes, Borrower { namespace, uid: whose.uid });
                    }
                    Some(bytes) => self.release_segment(mem, bytes),
                }
            }
            ProbeResult::InUse(pause_ns) => {
                self.probes.expect(mem, Probing::Orphaned);
                if let Some(pause_ns) = pause_ns {
                    self.clock.set_timer(pause_ns, Timer::Returned(mem));
                }
            }
        }
    }
}
