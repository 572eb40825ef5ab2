//! In user mode and without a keeper, clients bring back what a daemon before this one has lent them: their own memory, and the
//! directory. All of them are one user. In system mode a keeper is needed: nothing proves whose a segment is.
//!
//! Nothing is done with it before everybody has come whom the directory calls a client, or [`STAGED_NS`] have passed: who is
//! not there when the namespace opens owns nothing there. What belonged to clients that were gone is lost, for nobody has a
//! descriptor of it; a keeper would. Only what a daemon of this uid has made is taken, whoever brings it.

use super::Core;
use crate::core::account::NamespaceId;
use crate::core::env::Env;
use crate::core::label::{Kept, Label};
use crate::core::settings::{Peer, Role};
use crate::core::{ConnId, MemId, Received};
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::directory::Directory;
use tensorlend_layout::header::Magic;
use tensorlend_layout::wire::{Hello, Item, Refusal, Return};
use tensorlend_layout::word::{Member, MemberState};

/// How long those who come first wait for the others. All notice at once that a daemon has ended.
const STAGED_NS: u64 = 2_000_000_000;
/// How long newcomers wait for clients of a daemon before. They look for a daemon several times in it.
const EXPECTING_NS: u64 = 500_000_000;
/// Things that one namespace's clients may bring.
const ITEMS_MAX: usize = 1 << 16;

/// What was brought of one namespace.
#[derive(Debug)]
pub struct Staged {
    id: NamespaceId,
    since_ns: u64,
    directory: bool,
    /// Who brought something: his process, uid, and member word.
    who: BTreeMap<u16, (u32, u32, u64)>,
    labels: BTreeSet<Label>,
    /// Who has brought everything.
    done: BTreeSet<u16>,
    items: Vec<Kept>,
}

impl Staged {
    /// When it is used as it is.
    pub fn until_ns(&self) -> u64 {
        self.since_ns + STAGED_NS
    }

    /// Gives all of it up.
    pub fn release(self, env: &mut Env) {
        for it in self.items {
            env.release(it.mem);
        }
    }

    fn directory(&self) -> Option<Directory> {
        let directory = self.items.iter().find(|kept| matches!(kept.label, Label::Directory { .. }))?;
        Directory::new(directory.view.as_ref()?)
    }

    /// Whether everybody is there.
    fn is_complete(&self) -> bool {
        let Some(directory) = self.directory() else { return false };
        let mut numbers = directory.present();
        numbers.all(|number| {
            let member = Member(directory.members[usize::from(number)].member.peek());
            member.state() != MemberState::Open || self.done.contains(&number)
        })
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
            || self.opening.iter().any(|opening| opening.name == namespace)
        {
            return Err(unknown());
        }
        let [Received { mem, own: Some(own), .. }] = received else {
            return Err(Refusal::Bad("what is handed back was not lent by a daemon of this uid".into()));
        };
        let wanted = match item {
            Item::Directory => Some(Magic::Directory),
            Item::Catalogue => Some(Magic::Catalogue),
            Item::Leases => Some(Magic::Leases),
            Item::Cells { .. } => Some(Magic::Cells),
            Item::Slots { .. } => Some(Magic::Slots),
            Item::Ring { .. } => Some(Magic::Stream),
            Item::Segment { .. } => None,
        };
        if own.magic != wanted {
            return Err(Refusal::Bad(format!("what is handed back as {item:?} is something else")));
        }
        if !self.staged.contains_key(&namespace) {
            self.namespace_ids += 1;
            let staged = Staged {
                id: self.namespace_ids,
                since_ns: self.env.now_ns,
                directory: false,
                who: BTreeMap::new(),
                labels: BTreeSet::new(),
                done: BTreeSet::new(),
                items: Vec::new(),
            };
            self.env.retry_after(STAGED_NS);
            self.staged.insert(namespace.clone(), staged);
        }
        let staged = self.staged.get_mut(&namespace).expect("it is there, or was made");
        let who = (peer.pid, peer.uid, member);
        if *staged.who.entry(owner).or_insert(who) != who || staged.items.len() >= ITEMS_MAX {
            return Err(unknown());
        }
        let namespace_id = staged.id;
        let label = match item {
            // Everybody has it: the first is as good as any.
            Item::Directory if std::mem::replace(&mut staged.directory, true) => {
                self.env.release(*mem);
                return Ok(());
            }
            Item::Directory => Label::Directory { namespace: namespace_id, life: 0, uid, name: namespace },
            Item::Catalogue => Label::Catalogue { namespace: namespace_id, owner, writer: role == Role::Writer },
            Item::Leases => Label::Leases { namespace: namespace_id, owner },
            Item::Cells { part } => Label::Cells { namespace: namespace_id, owner, part },
            Item::Segment { base } => Label::Segment { namespace: namespace_id, owner, base },
            Item::Slots { base } => Label::Slots { namespace: namespace_id, owner, base },
            Item::Ring { stream, id } => Label::Ring { namespace: namespace_id, place: stream, id },
        };
        if !staged.labels.insert(label.clone()) {
            self.env.release(*mem);
            return Ok(());
        }
        let view = own.view.clone();
        staged.items.push(Kept { label, mem: *mem, view, bytes: own.bytes, acked: own.acked, copied: own.copied });
        Ok(())
    }

    /// A daemon was here before, and its clients may be: for a moment, nobody else opens a namespace. False: nobody is expected,
    /// since in system mode clients do not trust each other, and nothing proves whose a segment is that somebody brings.
    pub fn expect_clients(&mut self, now_ns: u64) -> bool {
        if self.env.user_mode() {
            self.expecting_until_ns = now_ns + EXPECTING_NS;
        }
        self.env.user_mode()
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
        let Some(staged) = self.staged.get_mut(&back.namespace) else { return false };
        let Peer { pid, uid, .. } = self.conns[&conn].peer;
        let known = staged.who.get(&back.catalogue) == Some(&(pid, uid, back.member));
        if known {
            staged.done.insert(back.catalogue);
        }
        known
    }

    /// Opens what is complete, or has waited long enough.
    pub(super) fn open_staged(&mut self) {
        let now = self.env.now_ns;
        let due = |staged: &Staged| now >= staged.until_ns() || staged.is_complete();
        let due: Vec<String> = self.staged.iter().filter(|(_, staged)| due(staged)).map(|(n, _)| n.clone()).collect();
        if due.is_empty() {
            return;
        }
        for name in due {
            let staged = self.staged.remove(&name).expect("listed above");
            let directory = staged.directory();
            // A number's sheets count only if the directory says that it is the number of whoever brought them.
            let genuine = |owner: u16| {
                let (pid, uid, member) = *staged.who.get(&owner)?;
                let entry = directory.as_ref()?.members.get(usize::from(owner))?;
                let process = u64::from(pid) << 32 | u64::from(uid);
                (entry.process.peek() == process && entry.member.peek() == member).then_some(())
            };
            let ring_owner =
                |place: u32| directory.as_ref()?.streams.get(place as usize).map(|s| s.catalogue.peek() as u16);
            let counts = |label: &Label| match *label {
                Label::Directory { .. } => true,
                Label::Catalogue { owner, .. }
                | Label::Leases { owner, .. }
                | Label::Cells { owner, .. }
                | Label::Segment { owner, .. }
                | Label::Slots { owner, .. } => genuine(owner).is_some(),
                Label::Ring { place, .. } => ring_owner(place).and_then(genuine).is_some(),
                Label::Wake { .. } => false,
            };
            let (kept, rest): (Vec<Kept>, Vec<Kept>) = staged.items.into_iter().partition(|it| counts(&it.label));
            for it in rest {
                self.env.release(it.mem);
            }
            let labels: Vec<(MemId, Label)> = kept.iter().map(|it| (it.mem, it.label.clone())).collect();
            self.take_over(kept);
            for (mem, label) in labels {
                self.env.keep(mem, label);
            }
        }
        // Those who wait for it ask again.
        self.env.retry_after(1);
    }
}
