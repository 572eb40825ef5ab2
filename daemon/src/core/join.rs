//! Joining: a namespace opens, a client gets its number and its sheets.

use super::account::limit;
use super::answer::{Answer, Lent, Outcome, What, Work};
use super::client::{Client, Life};
use super::context::{Context, DirectoryWriter};
use super::effect::{Lending, SheetPlan};
use super::env::{Env, Making, Purpose};
use super::event::{ConnId, MemId};
use super::holders::Holders;
use super::kept::Pressure;
use super::label::Label;
use super::ledger::Ledger;
use super::length;
use super::lifetime::Lifetimes;
use super::list::Lists;
use super::names::Names;
use super::namespace::Namespace;
use super::settings::{NamespaceLimits, Peer, Role};
use super::stream::Streams;
use super::tables::Table;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::catalogue::FIRST_CELLS;
use tensorlend_layout::directory::{Directory, MemberEntry, key_word};
use tensorlend_layout::header::Magic;
use tensorlend_layout::raw::View;
use tensorlend_layout::wire::{PROTOCOL_VERSION, Refusal, Reply, Welcome};
use tensorlend_layout::word::{Absorbed, Member, MemberState};

/// Bytes of a label that are kept.
const LABEL_BYTES_MAX: usize = 63;

/// A namespace whose directory is being made.
#[derive(Debug)]
pub struct Opening {
    pub ledger: Ledger,
    pub mem: MemId,
    /// Whose, if it is a private one.
    pub private: Option<u32>,
}

impl Opening {
    /// Orders a directory. The directory of a private namespace is charged to its uid.
    pub fn begin(
        env: &mut Env,
        id: u64,
        name: &str,
        private: Option<u32>,
        limits: NamespaceLimits,
    ) -> Result<Self, Refusal> {
        let geometry = length::geometry(&limits);
        // All of it is charged, although little of it is there at first: a reader that looks at the rest makes pages.
        let bytes = geometry.bytes();
        // A private one has one user.
        let shares = (env.settings.uid_share && private.is_none(), &env.settings.owners);
        let ledger = Ledger::open(&mut env.accounts, id, name, (private, limits), bytes, shares)?;
        let plan = SheetPlan { magic: Magic::Directory, owner: 0, count: 0, first: 0 };
        let mem = env.create_partly(bytes, geometry.bytes_first(), Some(plan), Purpose::Directory(id));
        Ok(Self { ledger, mem, private })
    }

    /// The directory could not be made.
    pub fn give_up(self, env: &mut Env) {
        self.ledger.close(&mut env.accounts);
    }

    /// The directory is there.
    pub fn finish(self, env: &mut Env, view: &View) -> Namespace {
        let limits = *self.ledger.limits();
        let geometry = length::geometry(&limits);
        let head = view.at(0).expect("the directory has its length");
        geometry.initialise(head, env.seed(), self.ledger.id());
        head.bytes_max.set(limits.bytes_max);
        let directory = Directory::new(view).expect("its tables lie inside");
        directory.head().wants_nudge.set(1);
        let (namespace, name) = (self.ledger.id(), self.ledger.name().to_owned());
        env.keep(self.mem, Label::Directory { namespace, life: 0, uid: self.private, name });
        let names = Names::new(&directory, limits.names_max, !env.user_mode());
        let segment_entries = (0..limits.segments_max).rev().collect();
        let mut namespace = self.namespace(directory, names, segment_entries);
        namespace.list_devices(env);
        namespace
    }

    /// The namespace of this directory, with nobody in it.
    pub fn namespace(self, directory: Directory, names: Names, segment_entries: Vec<u32>) -> Namespace {
        let limits = *self.ledger.limits();
        Namespace {
            names,
            streams: Streams::new(limits.streams_max),
            lists: Lists::new(limits.lists_max),
            lifetimes: Lifetimes::of(&directory),
            segment_entries,
            context: Context { ledger: self.ledger, directory: DirectoryWriter::new(directory, self.mem) },
            clients: BTreeMap::new(),
            numbers: VecDeque::new(),
            number_fresh: 1,
            joining: BTreeMap::new(),
            collected_ns: None,
            absorb_due_ns: None,
            faults: Vec::new(),
            pressure: Pressure::default(),
            places: Vec::new(),
            holders: Holders::default(),
        }
    }
}

/// A label as it is kept: at most 63 bytes, cut between characters.
fn label_of(text: &str) -> String {
    let mut end = text.len().min(LABEL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl Namespace {
    fn number(&mut self) -> Result<u16, Refusal> {
        if self.number_fresh < self.context.directory.members.len() as u32 {
            self.number_fresh += 1;
            return Ok(u16::try_from(self.number_fresh - 1).expect("a directory has at most 65536 members"));
        }
        self.numbers.pop_front().ok_or_else(|| {
            let what = format!(
                "the number of clients of namespace {:?} (those gone that left tensors too)",
                self.context.ledger.name()
            );
            limit(
                what,
                format!("{}.members_max", self.context.ledger.setting()),
                self.context.ledger.limits().members_max.to_string(),
            )
        })
    }

    /// A request to join: orders the client's sheets.
    pub fn join(&mut self, env: &mut Env, conn: ConnId, peer: &Peer, label: &str, role: Role) -> Answer {
        self.check_table_share(Table::Members, peer.uid)?;
        let number = self.number()?;
        let bytes = [length::CATALOGUE, length::LEASES];
        let charged = env.charge_sheet(peer.uid, self.context.ledger.id(), bytes[0]).and_then(|first| {
            match env.charge_sheet(peer.uid, self.context.ledger.id(), bytes[1]) {
                Ok(second) => Ok([first, second]),
                Err(refusal) => {
                    env.accounts.refund(first);
                    Err(refusal)
                }
            }
        });
        let [first, second] = match charged {
            Ok(charges) => charges,
            Err(refusal) => {
                self.numbers.push_back(number);
                return Err(refusal);
            }
        };
        self.joining.insert(number, peer.uid);
        let cells = FIRST_CELLS as u64;
        let catalogue = SheetPlan { magic: Magic::Catalogue, owner: number, count: cells, first: 0 };
        let leases = SheetPlan { magic: Magic::Leases, owner: number, count: 0, first: 0 };
        let making =
            vec![env.order_sheet(conn, bytes[0], catalogue, first), env.order_sheet(conn, bytes[1], leases, second)];
        let what = What::Join { namespace: self.context.ledger.id(), number, label: label_of(label), role };
        Ok(Outcome::Working(Work { what, making }))
    }

    /// A client that was to join will not.
    pub fn unjoin(&mut self, number: u16) {
        self.joining.remove(&number);
        self.numbers.push_back(number);
    }

    /// The sheets are there: the member is written down, and only then answered.
    pub fn joined(
        &mut self,
        env: &mut Env,
        conn: ConnId,
        peer: &Peer,
        (number, label, role): (u16, String, Role),
        work: Vec<Making>,
    ) -> Outcome {
        self.joining.remove(&number);
        let [catalogue, leases] = <[Making; 2]>::try_from(work).expect("a catalogue and a lease table");
        let entry = self.context.directory.entry(number);
        let epoch = Member(entry.member.peek()).epoch().wrapping_add(1);
        let member = Member::new(MemberState::Open, epoch, catalogue.mem.0 as u32);
        write_member(entry, peer, env.now_ns, &label, self.first_grant());
        // Until it has acknowledged its sheets, nobody can look at its ring or at its leases: see [`Namespace::list_member`].
        entry.absorbed.set(Absorbed::new(MemberState::Vacant, 0).0);
        tensorlend_layout::crash_point!("daemon: member written");
        entry.member.set(member.0);
        let head = self.context.directory.head();
        head.clients.set(head.clients.peek() + 1);
        let lend = vec![
            (self.context.directory.mem(), Lending::Read),
            (catalogue.mem, Lending::Write),
            (leases.mem, Lending::Write),
            (self.context.directory.mem(), Lending::Nudge),
        ];
        env.keep(
            catalogue.mem,
            Label::Catalogue { namespace: self.context.ledger.id(), owner: number, writer: role == Role::Writer },
        );
        env.keep(leases.mem, Label::Leases { namespace: self.context.ledger.id(), owner: number });
        let client = Client {
            uid: peer.uid,
            pid: peer.pid,
            label,
            role,
            life: Life::Live(conn),
            member,
            absorbed: 0,
            catalogue: catalogue.into_part(),
            leases: Some(leases.into_part()),
            cells: Vec::new(),
            segments: BTreeMap::new(),
            notices: BTreeSet::new(),
            lent_ns: env.now_ns,
            absorbed_in: (0, 0),
            claimed: None,
            waits: false,
            watched: peer.watched,
            departing: None,
            has_lost: false,
        };
        tracing::info!(
            namespace = self.context.ledger.name(),
            client = number,
            pid = peer.pid,
            uid = peer.uid,
            label = client.label,
            "client joined"
        );
        let before = self.clients.insert(number, client);
        assert!(before.is_none(), "a number is one client's at a time");
        self.grant(number);
        Outcome::Lend(Reply::Welcome(self.welcome(env, number)), lend, Lent::Welcome)
    }

    /// What a client learns when it joins, or comes back.
    pub fn welcome(&self, env: &Env, number: u16) -> Welcome {
        let client = &self.clients[&number];
        Welcome {
            protocol: PROTOCOL_VERSION,
            daemon: env!("CARGO_PKG_VERSION").into(),
            catalogue: number,
            member: client.member.0,
            namespace: self.context.ledger.name().to_owned(),
            writer: client.role == Role::Writer,
            user_mode: env.user_mode(),
            segment_bytes: env.settings.segment_bytes,
            devices: env.offers(),
        }
    }

    /// All that a client has is mapped. What is sealed already stays so: of the seals of one acknowledgement, a daemon that was
    /// killed may have set some.
    pub fn acknowledged_all(&mut self, env: &mut Env, conn: ConnId, catalogue: u16) {
        let user_mode = env.user_mode();
        let client = self.me(catalogue);
        let mut seal = vec![client.catalogue.mem];
        client.catalogue.acked = true;
        for part in client.leases.iter_mut().chain(&mut client.cells) {
            part.acked = true;
            seal.push(part.mem);
        }
        for segment in client.segments.values_mut() {
            segment.slots.acked = true;
            seal.push(segment.slots.mem);
            // What was shelved may be in a file.
            if user_mode && segment.device.is_none() && segment.residence.is_in_memory() {
                seal.push(segment.mem);
            }
        }
        seal.extend(self.streams.acknowledged_all(catalogue));
        env.effects.extend(seal.into_iter().map(|mem| super::Effect::Seal { conn, mem }));
    }

    /// Lists a member, whose leases count from now on. Not before it has acknowledged its sheets: until then the daemon lends its
    /// lease table to nobody, and owners that reclaim memory would have to wait for it. The member takes no lease before the
    /// daemon has answered a request that it sent after its acknowledgement.
    fn list_member(&mut self, catalogue: u16) {
        tensorlend_layout::crash_point!("daemon: member not present yet");
        self.context.directory.head().present[usize::from(catalogue) / 64].set_bits(1 << (catalogue % 64));
        tensorlend_layout::crash_point!("daemon: member listed");
    }

    /// What was lent last is mapped: it is sealed, and others may read it.
    pub fn acknowledged(&mut self, env: &mut Env, catalogue: u16, lent: &Lent) {
        let user_mode = env.user_mode();
        if *lent == Lent::Welcome {
            self.list_member(catalogue);
        }
        let client = self.me(catalogue);
        let mut seal = Vec::new();
        let mut open = false;
        match *lent {
            Lent::Nothing | Lent::Back => {}
            Lent::Welcome => {
                client.catalogue.acked = true;
                // A reader announces nothing, whatever it writes into its ring.
                open = client.role == Role::Writer;
                seal.push(client.catalogue.mem);
                if let Some(leases) = &mut client.leases {
                    leases.acked = true;
                    seal.push(leases.mem);
                }
            }
            Lent::Segment(base) => {
                if let Some(segment) = client.segments.get_mut(&base) {
                    segment.slots.acked = true;
                    seal.push(segment.slots.mem);
                    if user_mode && segment.device.is_none() {
                        seal.push(segment.mem);
                    }
                }
            }
            Lent::Cells(part) => {
                if let Some(cells) = client.cells.get_mut(usize::from(part) - 1) {
                    cells.acked = true;
                    seal.push(cells.mem);
                }
            }
            Lent::Ring(place, id) => seal.extend(self.streams.acknowledged(place, id)),
        }
        if let Some(conn) = self.me(catalogue).conn() {
            env.effects.extend(seal.into_iter().map(|mem| super::Effect::Seal { conn, mem }));
        }
        if open {
            self.context.directory.entry(catalogue).absorbed.set(Absorbed::new(MemberState::Open, 0).0);
            tensorlend_layout::crash_point!("daemon: member opened");
        }
    }
}

fn write_member(entry: &MemberEntry, peer: &Peer, now_ns: u64, label: &str, announce_until: u64) {
    // A new life of this number: whoever kept something of the former one learns it here.
    entry.geometry.add(1);
    entry.process.put(u64::from(peer.pid) << 32 | u64::from(peer.uid));
    entry.since_ns.put(now_ns);
    entry.bytes.put(0);
    entry.announce_until.put(announce_until);
    let mut chunks = label.as_bytes().chunks(8);
    entry.label.iter().for_each(|word| word.put(chunks.next().map_or(0, key_word)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_given_out_once_and_then_again() {
        let limits = NamespaceLimits { members_max: 65535, ..crate::core::tests::world::limits() };
        let mut env = Env::new(crate::core::tests::world::settings());
        let opening = Opening::begin(&mut env, 1, "lab", None, limits).unwrap();
        let view = View::anonymous(length::geometry(&limits).bytes() as usize);
        let mut namespace = opening.finish(&mut env, &view);
        namespace.number_fresh = 65534;
        assert_eq!((namespace.number().unwrap(), namespace.number().unwrap()), (65534, 65535));
        assert!(matches!(namespace.number(), Err(Refusal::Limit { .. })));
        namespace.numbers.push_back(7);
        assert_eq!(namespace.number().unwrap(), 7);
        assert!(namespace.number().is_err(), "the fresh ones do not begin again");
        namespace.context.ledger.close(&mut env.accounts);
    }

    #[test]
    fn labels_are_cut_between_characters() {
        assert_eq!(label_of("camera\n1"), "camera 1");
        assert_eq!(label_of(&"é".repeat(40)), "é".repeat(31));
    }
}
