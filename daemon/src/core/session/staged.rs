//! Staging: in user mode and without an fd store, clients hand back the directory and the memory
//! that a previous daemon lent them. All these clients are of one user. System mode needs an fd
//! store, because a client cannot prove that a segment is its own.
//!
//! The daemon uses the memory when all clients in the directory have handed theirs back, or
//! [`STAGED_NS`] have passed. A client that is absent when the namespace opens owns nothing in the
//! namespace. The memory of disconnected clients is lost, because no process has a descriptor of
//! it. An fd store would preserve that memory. The daemon accepts only memory that a daemon of this
//! uid made.

use super::Core;
use crate::core::account::{Charge, Kind, NamespaceId};
use crate::core::clock::Timer;
use crate::core::env::Env;
use crate::core::event::{ConnId, MemId, Own, Received};
use crate::core::label::{Label, Preserved};
use crate::core::length;
use crate::core::length::SLOTS_LOG2_MAX;
use crate::core::recovery::restore::Origin;
use crate::core::settings::{Peer, Role};
use std::collections::BTreeMap;
use tensorlend_layout::catalogue::CELL_PARTS;
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::stream::CAPACITY_MAX;
use tensorlend_layout::wire::{Hello, Item, Refusal, Return};
use tensorlend_layout::word::{Member, MemberState};

/// Time for which the first clients wait for the others. All clients detect the end of a daemon at
/// once.
const STAGED_NS: u64 = 2_000_000_000;
/// Time for which new clients wait for the previous daemon's clients. The latter try to connect
/// several times in this period, also on a machine under load.
const EXPECTING_NS: u64 = 2_000_000_000;
/// Maximum number of objects from one claimant.
const ITEMS_MAX: usize = 1 << 16;

/// A claimed identity (number and member word) with the identity that the kernel confirms (process and uid).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claimant {
    owner: u16,
    member: u64,
    pid: u32,
    uid: u32,
}

impl Claimant {
    fn new(peer: &Peer, owner: u16, member: u64) -> Self {
        Self { owner, member, pid: peer.pid, uid: peer.uid }
    }

    /// Returns the member that the directory lists under this number.
    fn named(directory: &Directory, owner: u16) -> Option<Self> {
        let entry = directory.members.get(usize::from(owner))?;
        let process = entry.process.peek();
        Some(Self { owner, member: entry.member.peek(), pid: (process >> 32) as u32, uid: process as u32 })
    }

    /// Returns true if the directory lists this claimant.
    fn is_genuine(&self, directory: &Directory) -> bool {
        Self::named(directory, self.owner) == Some(*self)
    }
}

/// The objects that one claimant handed back.
#[derive(Debug, Default)]
struct Claim {
    /// Objects by label, with the charges for their descriptors. Their bytes are charged when the namespace opens.
    items: BTreeMap<Label, (Preserved, Charge)>,
    /// Whether the claimant has handed back all its objects.
    done: bool,
}

/// The objects that clients handed back for one namespace.
#[derive(Debug)]
pub struct Staged {
    id: NamespaceId,
    since_ns: u64,
    /// The directory. All clients have the same directory, so the daemon uses the first one.
    directory: Option<(Preserved, Charge)>,
    claims: BTreeMap<Claimant, Claim>,
    /// Whether an object has arrived since the last check for completeness.
    moved: bool,
}

impl Staged {
    /// Returns the time at which the namespace opens, complete or not.
    pub fn until_ns(&self) -> u64 {
        self.since_ns + STAGED_NS
    }

    /// Releases all objects.
    pub fn release(self, env: &mut Env) {
        for preserved in self.take_valid(env) {
            env.release(preserved.mem);
        }
    }

    fn directory(&self) -> Option<Directory> {
        Directory::new(self.directory.as_ref()?.0.view.as_ref()?)
    }

    /// Returns true if all clients have handed back their objects. The daemon calls this function
    /// after each event. The function checks only if an object has arrived.
    pub fn is_complete(&mut self) -> bool {
        if !std::mem::take(&mut self.moved) {
            return false;
        }
        let Some(directory) = self.directory() else { return false };
        let done = |number| {
            let by = Claimant::named(&directory, number);
            by.and_then(|by| self.claims.get(&by)).is_some_and(|claim| claim.done)
        };
        let mut numbers = directory.present();
        numbers.all(|number| {
            let member = Member(directory.members[usize::from(number)].member.peek());
            member.state() != MemberState::Open || done(number)
        })
    }

    /// Returns the valid objects, and releases the rest. Refunds the charges of all staged objects.
    fn take_valid(self, env: &mut Env) -> Vec<Preserved> {
        let directory = self.directory();
        // A sheet counts only if the directory assigns its number to the client that handed it
        // back.
        let counts = |by: Claimant, label: &Label| {
            directory.as_ref().is_some_and(|d| by.is_genuine(d) && by.owner == owner_of(d, label))
        };
        let (mut preserved, mut rest) = (Vec::new(), Vec::new());
        for (by, claim) in self.claims {
            for (it, charge) in claim.items.into_values() {
                env.accounts.refund(charge);
                if counts(by, &it.label) { &mut preserved } else { &mut rest }.push(it);
            }
        }
        if let Some((it, charge)) = self.directory {
            env.accounts.refund(charge);
            preserved.push(it);
        }
        env.accounts.close(self.id);
        for it in rest {
            env.release(it.mem);
        }
        preserved
    }
}

/// Returns true if a daemon can have made an item of this length. The exact length of a directory,
/// a segment or a ring is limited later, when the daemon charges it.
fn has_its_length(item: Item, own: &Own, segment_bytes_max: u64) -> bool {
    let bytes = own.bytes;
    match item {
        // The words of this directory cannot change, because the directory is a copy.
        Item::Directory => own
            .view
            .as_ref()
            .is_none_or(|view| Directory::new(view).is_some_and(|directory| directory.geometry(bytes).is_some())),
        Item::Catalogue => bytes == length::CATALOGUE,
        Item::Leases => bytes == length::LEASES,
        Item::Cells { part } => (1..CELL_PARTS).contains(&part) && bytes == length::cells(part),
        Item::Slots { .. } => (0..=SLOTS_LOG2_MAX).any(|log2| bytes == length::slots(1 << log2)),
        Item::Ring { .. } => (0..=CAPACITY_MAX.ilog2()).any(|log2| bytes == length::ring(1 << log2)),
        Item::Segment { .. } => (1..=segment_bytes_max).contains(&bytes),
        Item::Wake { .. } => true,
    }
}

/// Returns the object, if the received descriptor can be this item. Otherwise returns a refusal.
fn identify(item: Item, received: &[Received], segment_bytes_max: u64) -> Result<(MemId, Own), Refusal> {
    let wanted = match item {
        Item::Directory => Some(Magic::Directory),
        Item::Catalogue => Some(Magic::Catalogue),
        Item::Leases => Some(Magic::Leases),
        Item::Cells { .. } => Some(Magic::Cells),
        Item::Slots { .. } => Some(Magic::Slots),
        Item::Ring { .. } => Some(Magic::Stream),
        Item::Segment { .. } | Item::Wake { .. } => None,
    };
    match (item, received) {
        // The item is a client's own socket, whatever its other end is.
        (Item::Wake { .. }, [Received { mem, wakes: true, .. }]) => {
            Ok((*mem, Own { magic: None, bytes: 0, view: None, acked: true, copied: false }))
        }
        (Item::Wake { .. }, _) => Err(Refusal::Bad("a wake descriptor is a Unix socket".into())),
        (_, [Received { mem, own: Some(own), .. }])
            if own.magic == wanted && has_its_length(item, own, segment_bytes_max) =>
        {
            Ok((*mem, own.clone()))
        }
        (_, [Received { own: Some(_), .. }]) => {
            Err(Refusal::Bad(format!("the descriptor that the client returned as {item:?} is another one")))
        }
        _ => Err(Refusal::Bad("no daemon of this uid lent the descriptor that the client returned".into())),
    }
}

/// Returns the owner of an object, or 0 for an object without an owner.
fn owner_of(directory: &Directory, label: &Label) -> u16 {
    match *label {
        Label::Catalogue { owner, .. }
        | Label::Leases { owner, .. }
        | Label::Cells { owner, .. }
        | Label::Segment { owner, .. }
        | Label::Slots { owner, .. }
        | Label::Wake { catalogue: owner, .. } => owner,
        Label::Ring { place, id, .. } => {
            let line = directory.streams.get(place as usize).filter(|line| line.id.peek() == id);
            line.map_or(0, |line| line.catalogue.peek() as u16)
        }
        // Device memory comes only from an fd store, because a descriptor of device memory does not
        // show its segment.
        Label::Directory { .. }
        | Label::Orphaned { .. }
        | Label::DeviceSegment { .. }
        | Label::Spilled { .. }
        | Label::DeviceOrphaned { .. } => 0,
    }
}

impl Core {
    /// Returns the role of a peer in a namespace, and the owner of a private namespace.
    pub(super) fn role_in(&self, namespace: &str, peer: &Peer) -> Option<(Option<u32>, Role)> {
        if namespace == format!("uid:{}", peer.uid) {
            return Some((Some(peer.uid), Role::Writer));
        }
        let rule = self.env.settings.namespaces.get(namespace)?;
        Some((None, rule.role(peer)?))
    }

    /// Handles an object that a client handed back.
    pub(super) fn handed_back(
        &mut self,
        conn: ConnId,
        namespace: String,
        owner: u16,
        member: u64,
        item: Item,
        received: &[Received],
    ) -> Result<(), Refusal> {
        let unknown = || Refusal::NotFound("session to resume: this daemon does not know it".into());
        let peer = self.conns[&conn].peer.clone();
        let (uid, role) = self.role_in(&namespace, &peer).ok_or_else(unknown)?;
        let now_ns = self.env.clock.now_ns();
        let expected = self.succession.is_expecting(now_ns) || self.succession.is_staged(&namespace);
        if !expected
            || self.namespaces.id_of(&namespace).is_some()
            || self.opening.iter().any(|opening| opening.ledger.name() == namespace)
        {
            return Err(unknown());
        }
        let (mem, own) = identify(item, received, self.env.settings.pool_bytes_max)?;
        let by = Claimant::new(&peer, owner, member);
        let staged = self.staged_of(&namespace);
        let (id, claim) = (staged.id, staged.claims.get(&by));
        if claim.is_some_and(|claim| claim.items.len() >= ITEMS_MAX) {
            return Err(unknown());
        }
        let label = match item {
            Item::Directory => Label::Directory { namespace: id, life: 0, uid, name: namespace.clone() },
            Item::Catalogue => Label::Catalogue { namespace: id, owner, writer: role == Role::Writer },
            Item::Leases => Label::Leases { namespace: id, owner },
            Item::Cells { part } => Label::Cells { namespace: id, owner, part },
            Item::Segment { base } => Label::Segment { namespace: id, owner, base },
            Item::Slots { base } => Label::Slots { namespace: id, owner, base },
            Item::Ring { stream, id: stream_id } => Label::Ring { namespace: id, place: stream, id: stream_id },
            Item::Wake { id: stream_id, cursor, .. } => {
                Label::Wake { namespace: id, id: stream_id, catalogue: owner, cursor }
            }
        };
        let again = match item {
            Item::Directory => staged.directory.is_some(),
            _ => claim.is_some_and(|claim| claim.items.contains_key(&label)),
        };
        if again {
            self.env.release(mem);
            return Ok(());
        }
        if matches!(item, Item::Directory) && own.view.is_none() {
            return Err(Refusal::Bad("this directory was brought for another namespace, or too many were".into()));
        }
        // The charge is for one descriptor. The bytes are charged later, if the directory confirms
        // the object.
        let charge = self.env.accounts.charge(Some(peer.uid), id, Kind::Wake, 0)?;
        let Own { bytes, view, acked, copied, .. } = own;
        let preserved = Preserved { label: label.clone(), mem, view, bytes, acked, copied };
        let staged = self.staged_of(&namespace);
        staged.moved = true;
        match item {
            Item::Directory => staged.directory = Some((preserved, charge)),
            _ => _ = staged.claims.entry(by).or_default().items.insert(label, (preserved, charge)),
        }
        Ok(())
    }

    /// Returns the staged objects of a namespace. Begins to stage the namespace if there are none.
    fn staged_of(&mut self, namespace: &str) -> &mut Staged {
        self.succession.staged_or(namespace, || {
            let id = self.namespaces.new_id();
            self.env.accounts.open(id, namespace, "namespace.bytes_max", u64::MAX);
            // The namespace needs its own timer, because there may be no waiting request with a
            // timer.
            self.env.clock.set_timer(STAGED_NS, Timer::Staged);
            let since_ns = self.env.clock.now_ns();
            Staged { id, since_ns, directory: None, claims: BTreeMap::new(), moved: false }
        })
    }

    /// Lets this daemon expect clients of a previous daemon. For a moment, no other client opens a
    /// namespace. Returns false in system mode. There, clients do not trust each other, and nothing
    /// proves the owner of a segment that a client hands back.
    pub fn expect_clients(&mut self, now_ns: u64) -> bool {
        if self.env.settings.is_user_mode() {
            self.succession.expect_until(now_ns + EXPECTING_NS);
        }
        self.env.settings.is_user_mode()
    }

    /// Returns the maximum length in bytes of a segment that a client may hand back now. Returns
    /// `None` if clients may not hand anything back any more.
    pub fn takes_back(&self, now_ns: u64) -> Option<u64> {
        let expected = self.succession.is_expecting(now_ns) || self.succession.has_staged();
        expected.then_some(self.env.settings.pool_bytes_max)
    }

    /// Returns true if a new client's namespace is staged, or may be staged soon.
    pub(super) fn is_staged(&self, conn: ConnId, hello: &Hello) -> bool {
        let own = || format!("uid:{}", self.conns[&conn].peer.uid);
        let name = hello.namespace.clone().unwrap_or_else(own);
        let expecting = self.succession.is_expecting(self.env.clock.now_ns());
        expecting && self.namespaces.id_of(&name).is_none() || self.succession.is_staged(&name)
    }

    /// Returns true if a reconnecting client's namespace is staged and the client has handed back
    /// its objects. A client that has handed back no objects receives the error that its session is
    /// unknown. The client then hands its objects back.
    pub(super) fn is_staging(&mut self, conn: ConnId, back: &Return) -> bool {
        let by = Claimant::new(&self.conns[&conn].peer, back.catalogue, back.member);
        let staged = self.succession.staged(&back.namespace);
        let Some(staged) = staged.filter(|staged| staged.claims.contains_key(&by)) else { return false };
        let claim = staged.claims.get_mut(&by).expect("it is there");
        staged.moved |= !claim.done;
        claim.done = true;
        true
    }

    /// Opens the namespaces that are complete or have waited long enough.
    pub(super) fn open_staged(&mut self) {
        let due = self.succession.take_due(self.env.clock.now_ns());
        if due.is_empty() {
            return;
        }
        for staged in due {
            let preserved = staged.take_valid(&mut self.env);
            // The daemon stores the objects first. If an object proves useless, the daemon releases
            // it later, which also removes it from the fd store.
            for it in &preserved {
                self.env.effects.keep(it.mem, it.label.clone());
            }
            self.take_over(preserved, Origin::Clients);
        }
        // This retries the requests that wait for these namespaces.
        self.env.clock.retry_after(1);
    }
}
