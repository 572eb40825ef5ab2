//! In user mode and without a keeper, clients bring back what a daemon before this one has lent them: their own memory, and the
//! directory. All of them are one user. In system mode a keeper is needed: nothing proves whose a segment is.
//!
//! Nothing is done with it before everybody has come whom the directory calls a client, or [`STAGED_NS`] have passed: who is
//! not there when the namespace opens owns nothing there. What belonged to clients that were gone is lost, for nobody has a
//! descriptor of it; a keeper would. Only what a daemon of this uid has made is taken, whoever brings it.

use super::Core;
use crate::core::account::{Charge, Kind, NamespaceId};
use crate::core::env::{Env, Timer};
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

/// How long those who come first wait for the others. All notice at once that a daemon has ended.
const STAGED_NS: u64 = 2_000_000_000;
/// How long newcomers wait for clients of a daemon before. They look for a daemon several times in it.
const EXPECTING_NS: u64 = 500_000_000;
/// Things that one claimant may bring.
const ITEMS_MAX: usize = 1 << 16;

/// Who somebody says that he is, by number and member word, and who he is, by process and uid.
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

    /// Whom the directory calls by this number.
    fn named(directory: &Directory, owner: u16) -> Option<Self> {
        let entry = directory.members.get(usize::from(owner))?;
        let process = entry.process.peek();
        Some(Self { owner, member: entry.member.peek(), pid: (process >> 32) as u32, uid: process as u32 })
    }

    /// Whether the directory says so too.
    fn is_genuine(&self, directory: &Directory) -> bool {
        Self::named(directory, self.owner) == Some(*self)
    }
}

/// What somebody brought.
#[derive(Debug, Default)]
struct Claim {
    /// By its label; with it what was charged for its descriptor. Its bytes count when the namespace opens.
    items: BTreeMap<Label, (Preserved, Charge)>,
    /// Whether that is everything.
    done: bool,
}

/// What was brought of one namespace.
#[derive(Debug)]
pub struct Staged {
    id: NamespaceId,
    since_ns: u64,
    /// Everybody has it: the first is as good as any.
    directory: Option<(Preserved, Charge)>,
    claims: BTreeMap<Claimant, Claim>,
    /// Whether something came since it was last asked whether it is complete.
    moved: bool,
}

impl Staged {
    /// When it is used as it is.
    pub fn until_ns(&self) -> u64 {
        self.since_ns + STAGED_NS
    }

    /// Gives all of it up.
    pub fn release(self, env: &mut Env) {
        for preserved in self.look_at(env) {
            env.release(preserved.mem);
        }
    }

    fn directory(&self) -> Option<Directory> {
        Directory::new(self.directory.as_ref()?.0.view.as_ref()?)
    }

    /// Whether everybody is there. Asked after each event: it looks only if something came.
    fn is_complete(&mut self) -> bool {
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

    /// What of it counts; the rest is released, and nothing is charged as staged any more.
    fn look_at(self, env: &mut Env) -> Vec<Preserved> {
        let directory = self.directory();
        // A number's sheets count only if the directory says that it is the number of whoever brought them.
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

/// Whether what came as this is as long as a daemon makes it. Whatever its length was made up to be is charged later.
fn has_its_length(item: Item, own: &Own, segment_bytes_max: u64) -> bool {
    let bytes = own.bytes;
    match item {
        // Its words stay as they are: it is a copy.
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

/// What came as this, if it can be this.
fn look_at(item: Item, received: &[Received], segment_bytes_max: u64) -> Result<(MemId, Own), Refusal> {
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
        // A client's own, whatever it is at its other end.
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
            Err(Refusal::Bad(format!("what is handed back as {item:?} is something else")))
        }
        _ => Err(Refusal::Bad("what is handed back was not lent by a daemon of this uid".into())),
    }
}

/// Whose this is; 0: nobody's.
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
        // Device memory is the keeper's alone to bring: nothing tells of a descriptor what it was lent for.
        Label::Directory { .. }
        | Label::Orphaned { .. }
        | Label::DeviceSegment { .. }
        | Label::Spilled { .. }
        | Label::DeviceOrphaned { .. } => 0,
    }
}

impl Core {
    /// What this peer may do in a namespace; its name tells whose it is.
    pub(super) fn role_in(&self, namespace: &str, peer: &Peer) -> Option<(Option<u32>, Role)> {
        if namespace == format!("uid:{}", peer.uid) {
            return Some((Some(peer.uid), Role::Writer));
        }
        let rule = self.env.settings.namespaces.get(namespace)?;
        Some((None, rule.role(peer)?))
    }

    /// A client brings something.
    pub(super) fn handed_back(
        &mut self,
        conn: ConnId,
        namespace: String,
        (owner, member): (u16, u64),
        item: Item,
        received: &[Received],
    ) -> Result<(), Refusal> {
        let unknown = || Refusal::NotFound("session to go on with: this daemon does not know it".into());
        let peer = self.conns[&conn].peer.clone();
        let (uid, role) = self.role_in(&namespace, &peer).ok_or_else(unknown)?;
        let expected = self.env.now_ns < self.expecting_until_ns || self.staged.contains_key(&namespace);
        if !expected
            || self.by_name.contains_key(&namespace)
            || self.opening.iter().any(|opening| opening.ledger.name() == namespace)
        {
            return Err(unknown());
        }
        let (mem, own) = look_at(item, received, self.env.settings.pool_bytes_max)?;
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
        // One descriptor; what its length costs it costs if the directory says that it counts.
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

    /// What is staged of a namespace, from now on if nothing was.
    fn staged_of(&mut self, namespace: &str) -> &mut Staged {
        if !self.staged.contains_key(namespace) {
            self.namespace_ids += 1;
            let id = self.namespace_ids;
            self.env.accounts.open(id, namespace, "namespace.bytes_max", u64::MAX);
            let staged =
                Staged { id, since_ns: self.env.now_ns, directory: None, claims: BTreeMap::new(), moved: false };
            // Of its own: nobody may wait for it, and a request's timer has others to serve.
            self.env.set_timer(STAGED_NS, Timer::Staged);
            self.staged.insert(namespace.to_owned(), staged);
        }
        self.staged.get_mut(namespace).expect("it is there, or was made")
    }

    /// A daemon was here before, and its clients may be: for a moment, nobody else opens a namespace. False: nobody is expected,
    /// since in system mode clients do not trust each other, and nothing proves whose a segment is that somebody brings.
    pub fn expect_clients(&mut self, now_ns: u64) -> bool {
        if self.env.user_mode() {
            self.expecting_until_ns = now_ns + EXPECTING_NS;
        }
        self.env.user_mode()
    }

    /// How long a segment may be that a client brings at this moment, in bytes; `None`: clients may bring nothing, now and
    /// ever after.
    pub fn takes_back(&self, now_ns: u64) -> Option<u64> {
        let expected = now_ns < self.expecting_until_ns || !self.staged.is_empty();
        expected.then_some(self.env.settings.pool_bytes_max)
    }

    /// Whether a newcomer's namespace is being put together, or may be about to be.
    pub(super) fn is_staged(&self, conn: ConnId, hello: &Hello) -> bool {
        let own = || format!("uid:{}", self.conns[&conn].peer.uid);
        let name = hello.namespace.clone().unwrap_or_else(own);
        let expecting = self.env.now_ns < self.expecting_until_ns && !self.by_name.contains_key(&name);
        expecting || self.staged.contains_key(&name)
    }

    /// Whether that of one who comes back is, and he has brought what he has. Who has not is told that nobody knows him, and
    /// then does.
    pub(super) fn is_staging(&mut self, conn: ConnId, back: &Return) -> bool {
        let by = Claimant::new(&self.conns[&conn].peer, back.catalogue, back.member);
        let staged = self.staged.get_mut(&back.namespace);
        let Some(staged) = staged.filter(|staged| staged.claims.contains_key(&by)) else { return false };
        let claim = staged.claims.get_mut(&by).expect("it is there");
        staged.moved |= !claim.done;
        claim.done = true;
        true
    }

    /// Opens what is complete, or has waited long enough.
    pub(super) fn open_staged(&mut self) {
        let now = self.env.now_ns;
        let due = |staged: &mut Staged| now >= staged.until_ns() || staged.is_complete();
        let due: Vec<String> = self.staged.iter_mut().filter_map(|(name, it)| due(it).then(|| name.clone())).collect();
        if due.is_empty() {
            return;
        }
        for name in due {
            let staged = self.staged.remove(&name).expect("listed above");
            let preserved = staged.look_at(&mut self.env);
            // First: what turns out to be of no use is released, and then kept no longer.
            for it in &preserved {
                self.env.keep(it.mem, it.label.clone());
            }
            self.take_over(preserved, Origin::Clients);
        }
        // Those who wait for it ask again.
        self.env.retry_after(1);
    }
}
