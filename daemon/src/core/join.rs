//! Joining a namespace. The daemon opens the namespace, and gives a client its number and its
//! sheets.

use super::client::{Announcements, Client, ClientSegments, ClientState, Sheets};
use super::context::Context;
use super::device::Device;
use super::effect::{Lending, SheetPlan};
use super::env::Env;
use super::event::ConnId;
use super::label::Label;
use super::ledger::Table;
use super::length;
use super::members::Members;
use super::namespace::Namespace;
use super::orders::{Making, Order};
use super::outcome::{Joining, Lent, Outcome, RequestResult, Task, Work};
use super::settings::{Admission, Peer, Role};
use super::versions::Versions;
use super::who::plain;
use std::collections::{BTreeMap, BTreeSet};
use tensorlend_layout::catalogue::FIRST_CELLS;
use tensorlend_layout::directory::Bitmap;
use tensorlend_layout::directory::{MemberEntry, key_word};
use tensorlend_layout::header::Magic;
use tensorlend_layout::number::ClientNo;
use tensorlend_layout::wire::{Reply, Welcome};
use tensorlend_layout::word::{Absorbed, Member, MemberState, ProcessWord, low32};

impl Namespace {
    /// Completes a request to join, after the client's sheets have been made.
    pub fn joined(&mut self, env: &mut Env, joining: Joining, work: Vec<Making>) -> Outcome {
        let number = joining.number;
        let outcome = self.members.joined(env, &self.context, joining, work);
        self.bindings.grant(&self.context, &self.members, number);
        outcome
    }
}

/// A client that is joining a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Newcomer<'a> {
    pub peer: &'a Peer,
    pub label: &'a str,
    pub role: Role,
    pub admission: Admission,
    pub versions: Versions,
}

impl Joining {
    /// Returns the new client of this member word and these sheets.
    fn into_client(self, member: Member, sheets: Sheets, now_ns: u64) -> Client {
        let Self { conn, peer, label, role, versions, .. } = self;
        Client {
            uid: peer.uid,
            pid: peer.pid,
            command: peer.command,
            label,
            role,
            versions,
            state: ClientState::Live(conn),
            member,
            shown: Some(BTreeMap::new()),
            announcements: Announcements::default(),
            sheets,
            segments: ClientSegments::default(),
            notices: BTreeSet::new(),
            lent_ns: now_ns,
            waits: false,
            watched: peer.watched,
            draining: None,
            is_revoked: false,
            has_lost: false,
        }
    }
}

fn log_joined(namespace: &str, number: ClientNo, client: &Client) {
    let (who, note) = (client.who(number), client.versions.note());
    let (pid, uid, label) = (client.pid, client.uid, client.label.as_str());
    tracing::info!(namespace, client = number.get(), pid, uid, label, "{who} joined namespace {namespace}{note}");
}

impl Members {
    /// Handles a request to join. Orders the client's sheets.
    pub fn join(
        &mut self,
        env: &mut Env,
        context: &Context,
        conn: ConnId,
        Newcomer { peer, label, role, admission: Admission { administrator, beyond }, versions }: Newcomer<'_>,
    ) -> RequestResult {
        if !beyond {
            context.ledger.check_table_share(Table::Members, peer.uid, self.lines())?;
        }
        let number = self.number(context, beyond)?;
        let bytes = [length::CATALOGUE, length::LEASES];
        let (uid, namespace) = (Some(peer.uid), context.ledger.id());
        let charged = env.accounts.charge_admission(uid, namespace, bytes[0], beyond).and_then(|first| {
            match env.accounts.charge_admission(uid, namespace, bytes[1], beyond) {
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
                self.unjoin(number);
                return Err(refusal);
            }
        };
        self.joining(number, peer.uid);
        let cells = FIRST_CELLS as u64;
        let catalogue = SheetPlan { magic: Magic::Catalogue, owner: number, count: cells, first: 0 };
        let leases = SheetPlan { magic: Magic::Leases, owner: number, count: 0, first: 0 };
        let order = |bytes, plan| Order { reserved: administrator, ..Order::sheet(bytes, plan, conn) };
        let making = vec![
            env.orders.sheet(&mut env.effects, order(bytes[0], catalogue), first),
            env.orders.sheet(&mut env.effects, order(bytes[1], leases), second),
        ];
        let joining = Joining { conn, peer: peer.clone(), number, label: plain(label), role, versions };
        let task = Task::Join { namespace: context.ledger.id(), joining };
        Ok(Outcome::Working(Work { task, making }))
    }

    /// Completes a request to join. Writes the member's entry in the directory before the response.
    pub fn joined(&mut self, env: &mut Env, context: &Context, joining: Joining, work: Vec<Making>) -> Outcome {
        let number = joining.number;
        let [catalogue, leases] = <[Making; 2]>::try_from(work).expect("a catalogue and a lease table");
        let entry = context.directory.entry(number);
        let epoch = Member(entry.member.peek()).epoch().wrapping_add(1);
        let member = Member::new(MemberState::Open, epoch, low32(catalogue.mem.0));
        write_member(entry, &joining, env.clock.now_ns(), context.ledger.first_grant());
        // No client reads the new member's leases before the member has acknowledged its sheets
        // (see [`Members::list_member`]). The daemon reads the member's ring only after the member
        // has become an announcer.
        entry.absorbed.set(Absorbed::new(MemberState::Vacant, 0).0);
        tensorlend_layout::crash_point!("daemon: member written");
        entry.member.set(member.0);
        let head = context.directory.head();
        head.clients.set(head.clients.peek() + 1);
        let lend = vec![
            (context.directory.mem(), Lending::Read),
            (catalogue.mem, Lending::Write),
            (leases.mem, Lending::Write),
            (context.directory.mem(), Lending::Wakeup),
        ];
        let (namespace, writer) = (context.ledger.id(), joining.role == Role::Writer);
        env.effects.keep(catalogue.mem, Label::Catalogue { namespace, owner: number, writer });
        env.effects.keep(leases.mem, Label::Leases { namespace, owner: number });
        let sheets = Sheets::new(catalogue.into_part(), Some(leases.into_part()), Vec::new());
        let client = joining.into_client(member, sheets, env.clock.now_ns());
        log_joined(context.ledger.name(), number, &client);
        self.insert(number, client);
        Outcome::Lend(Reply::Welcome(self.welcome(env, context, number)), lend, Lent::Welcome)
    }

    /// Returns the response for a client that joins or reconnects.
    pub fn welcome(&self, env: &Env, context: &Context, number: ClientNo) -> Welcome {
        let client = &self[number];
        Welcome {
            protocol: client.versions.protocol,
            daemon: tensorlend_layout::versions::build().into(),
            client: number,
            member: client.member.0,
            namespace: context.ledger.name().to_owned(),
            writer: client.role == Role::Writer,
            user_mode: env.settings.is_user_mode(),
            segment_bytes: env.settings.segment_bytes,
            devices: env.devices.iter().map(Device::offer).collect(),
            page_lock: env.settings.page_lock,
        }
    }
}

impl Namespace {
    /// Handles the acknowledgement of all memory of a client. Memory that is already sealed stays
    /// sealed: a daemon that was killed may have set some of the seals for one acknowledgement.
    pub fn acknowledged_all(&mut self, env: &mut Env, conn: ConnId, number: ClientNo) {
        let user_mode = env.settings.is_user_mode();
        let client = self.members.me(number);
        let mut seal = client.sheets.acknowledge_all();
        for segment in client.segments.values_mut() {
            segment.slots.acked = true;
            seal.push(segment.slots.mem);
            // The bytes of a segment that was released for spill may be in a file.
            if user_mode && segment.device.is_none() && segment.residence.is_in_memory() {
                seal.push(segment.mem);
            }
        }
        seal.extend(self.streams.acknowledged_all(number));
        env.effects.extend(seal.into_iter().map(|mem| super::Effect::Seal { conn, mem }));
    }
}

impl Members {
    /// Lists a member, whose leases count from now on. The daemon lists a member only after the
    /// member's acknowledgement. Until then the daemon lends the member's lease table to no client,
    /// and owners that reclaim memory would wait for the table.
    ///
    /// The member takes no lease before the daemon has responded to a request that the member sent
    /// after its acknowledgement.
    fn list_member(context: &Context, number: ClientNo) {
        tensorlend_layout::crash_point!("daemon: member not present yet");
        Bitmap(&context.directory.head().present).set(number);
        tensorlend_layout::crash_point!("daemon: member listed");
    }
}

impl Namespace {
    /// Handles the acknowledgement of the memory that was lent last. The daemon seals the memory.
    /// From then on other clients may read it.
    pub fn acknowledged(&mut self, env: &mut Env, number: ClientNo, lent: &Lent) {
        let user_mode = env.settings.is_user_mode();
        if *lent == Lent::Welcome {
            Members::list_member(&self.context, number);
        }
        let client = self.members.me(number);
        let mut seal = Vec::new();
        match *lent {
            Lent::Nothing | Lent::OnDevice(_) | Lent::Subscription(..) | Lent::Back => {}
            Lent::Welcome => seal = client.sheets.acknowledge_first(),
            Lent::Segment(base) => {
                if let Some(segment) = client.segments.get_mut(base) {
                    segment.slots.acked = true;
                    seal.push(segment.slots.mem);
                    if user_mode && segment.device.is_none() {
                        seal.push(segment.mem);
                    }
                }
            }
            Lent::Cells(part) => seal.extend(client.sheets.acknowledge_cells(part)),
            Lent::Ring(line, id) => seal.extend(self.streams.acknowledged(line, id)),
        }
        if let Some(conn) = self.members.me(number).conn() {
            env.effects.extend(seal.into_iter().map(|mem| super::Effect::Seal { conn, mem }));
        }
    }
}

fn write_member(entry: &MemberEntry, Joining { peer, label, .. }: &Joining, now_ns: u64, announce_until: u64) {
    // A new epoch of this number begins. A client with mappings of the former epoch detects the new
    // epoch by the change of the geometry word.
    entry.geometry.add(1);
    entry.process.put(ProcessWord::new(peer.pid, peer.uid).0);
    entry.since_ns.put(now_ns);
    entry.bytes.put(0);
    entry.announce_until.put(announce_until);
    // No client has seen memory of this epoch yet.
    entry.audience.iter().for_each(|word| word.put(0));
    let mut chunks = label.as_bytes().chunks(8);
    entry.label.iter().for_each(|word| word.put(chunks.next().map_or(0, key_word)));
}
