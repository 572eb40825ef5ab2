//! The recovery of a namespace by a daemon whose predecessor (the previous daemon) ended, perhaps
//! killed between any two of its steps.
//!
//! The directory contains the members, the owners of names, and the lendings. The sheets and
//! segments are as the previous daemon left them, and live clients continue to use them. From these
//! the daemon derives its own data: the free entries, the names of each client, and the charges.
//!
//! If the previous daemon ended within an operation, the rules of the directory decide whether the
//! operation counts. A name without an owner word does not exist. The daemon never lent a segment
//! without a descriptor. A client with unsealed sheets has never joined.

use crate::core::account::{Charge, Kind, NamespaceId};
use crate::core::client::{Announcements, Client, ClientSegments, ClientState, Residence, Segment, Sheets};
use crate::core::context::Context;
use crate::core::disconnected::DISCONNECTED_PAUSE_NS;
use crate::core::effect::Effect;
use crate::core::env::Env;
use crate::core::event::{ConnId, MemId};
use crate::core::label::{Label, Preserved};
use crate::core::length;
use crate::core::length::SLOTS_LOG2_MAX;
use crate::core::members::Members;
use crate::core::namespace::Namespace;
use crate::core::orders::Part;
use crate::core::orphans::FormerWriter;
use crate::core::parts::Parts;
use crate::core::range::SegmentId;
use crate::core::settings::Role;
use crate::core::stream::{RingId, Rings, Wakes};
use crate::core::versions::Versions;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tensorlend_layout::catalogue::{CELL_PARTS, RING};
use tensorlend_layout::directory::Bitmap;
use tensorlend_layout::directory::{Directory, MemberEntry};
use tensorlend_layout::number::{ClientNo, EntryNo, SegmentLine};
use tensorlend_layout::raw::View;
use tensorlend_layout::stream::CAPACITY_MAX;
use tensorlend_layout::word::{Absorbed, Member, MemberState, OwnerWord, ProcessWord, RangeWord, low8};

/// The parts of a namespace that did not outlive the previous daemon.
#[derive(Debug, Default)]
pub struct Lost {
    /// Names, including items of lists, whose values were in host memory.
    pub in_memory: u64,
    /// Names, including items of lists, whose values were on devices.
    pub on_devices: u64,
    pub streams: u64,
    /// Bytes of segments.
    pub bytes: u64,
}

#[derive(Default)]
struct PreservedSheets {
    catalogue: Option<(Preserved, bool)>,
    leases: Option<Preserved>,
    cells: BTreeMap<u8, Preserved>,
}

/// A namespace's directory that outlived the previous daemon.
#[derive(Clone)]
pub struct PreservedDirectory {
    pub mem: MemId,
    pub view: View,
    pub bytes: u64,
    /// The owner of a private namespace.
    pub private: Option<u32>,
    pub name: String,
}

/// The user whose client could write memory, and the kind of the memory's charge.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    pub uid: u32,
    pub kind: Kind,
}

/// The descriptors of one namespace that outlived the previous daemon.
#[derive(Default)]
pub struct Descriptors {
    pub directory: Option<PreservedDirectory>,
    clients: BTreeMap<ClientNo, PreservedSheets>,
    segments: BTreeMap<SegmentId, Preserved>,
    spilled: BTreeMap<SegmentId, Preserved>,
    pub slots: BTreeMap<SegmentId, Preserved>,
    rings: BTreeMap<RingId, Preserved>,
    wakes: Wakes,
    pub device_segments: BTreeMap<SegmentId, Preserved>,
    /// Device memory that the previous daemon had orphaned.
    pub on_devices: Vec<Preserved>,
    /// Host memory that the previous daemon had orphaned.
    pub orphaned: Vec<Preserved>,
}

impl Descriptors {
    pub fn add(&mut self, preserved: Preserved) {
        match preserved.label {
            Label::Directory { uid, ref name, .. } => {
                if let Some(view) = preserved.view {
                    let Preserved { mem, bytes, .. } = preserved;
                    self.directory = Some(PreservedDirectory { mem, view, bytes, private: uid, name: name.clone() });
                }
            }
            Label::Catalogue { owner, writer, .. } => {
                self.clients.entry(owner).or_default().catalogue = Some((preserved, writer));
            }
            Label::Leases { owner, .. } => self.clients.entry(owner).or_default().leases = Some(preserved),
            Label::Cells { owner, part, .. } => {
                self.clients.entry(owner).or_default().cells.insert(part, preserved);
            }
            Label::Segment { owner, base, .. } => {
                self.segments.insert(SegmentId { owner, base }, preserved);
            }
            Label::Spilled { owner, base, .. } => {
                self.spilled.insert(SegmentId { owner, base }, preserved);
            }
            Label::Slots { owner, base, .. } => {
                self.slots.insert(SegmentId { owner, base }, preserved);
            }
            Label::Ring { line, id, .. } => {
                self.rings.insert(RingId { line, id }, preserved);
            }
            Label::Wake { id, client, cursor, .. } => {
                self.wakes.insert((id, client, cursor), preserved.mem);
            }
            Label::DeviceSegment { owner, base, .. } => {
                self.device_segments.insert(SegmentId { owner, base }, preserved);
            }
            Label::DeviceOrphaned { .. } => self.on_devices.push(preserved),
            Label::Orphaned { .. } => self.orphaned.push(preserved),
        }
    }
}

impl Descriptors {
    /// Returns true if there is memory for tensors of clients.
    pub fn has_segments(&self) -> bool {
        !(self.segments.is_empty() && self.spilled.is_empty() && self.device_segments.is_empty())
    }

    /// Returns the bytes of the memory and the files of all segments.
    pub fn segment_bytes(&self) -> u64 {
        let all = self.segments.values().chain(self.spilled.values()).chain(self.device_segments.values());
        all.map(|it| it.bytes).sum()
    }

    /// Returns the memory of a segment, or the file of a segment without memory. Both are complete
    /// if both exist, because the previous daemon had not removed the obsolete one yet.
    fn bytes_of(&mut self, env: &Env, key: SegmentId, bytes: u64) -> Option<(MemId, Residence)> {
        let memory = self.segments.remove(&key).filter(|it| it.bytes >= bytes && env.pool.can_count(bytes));
        if let Some(memory) = memory {
            return Some((memory.mem, Residence::Memory));
        }
        let file = self.spilled.remove(&key).filter(|it| it.bytes == bytes);
        file.map(|it| (it.mem, Residence::File { failed: None }))
    }
}

fn label_of(entry: &MemberEntry) -> String {
    let bytes: Vec<u8> =
        entry.label.iter().flat_map(|word| word.peek().to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Env {
    /// Recovers memory that the previous daemon had orphaned. The memory stays charged to the user
    /// to whose client the previous daemon had lent it.
    pub fn restore_orphaned(&mut self, preserved: &Preserved) {
        if let Label::Orphaned { namespace, uid, segment, .. } = preserved.label {
            let kind = if segment { Kind::Segment } else { Kind::Sheet };
            let (charge, segment_bytes) = self.charge_recovered(namespace, Owned { uid, kind }, preserved.bytes);
            self.orphan_again(FormerWriter::unknown(uid), preserved.mem, charge, segment_bytes);
        }
    }

    /// Orphans memory that the previous daemon was about to orphan or had not lent yet. The memory
    /// gets another label, because other memory may get its label later.
    pub fn orphan_recovered(&mut self, namespace: NamespaceId, owned: Owned, mem: MemId, bytes: u64) {
        let (charge, segment_bytes) = self.charge_recovered(namespace, owned, bytes);
        self.orphan(FormerWriter::unknown(owned.uid), mem, charge, segment_bytes);
    }

    fn charge_recovered(
        &mut self,
        namespace: NamespaceId,
        Owned { uid, kind }: Owned,
        bytes: u64,
    ) -> (Charge, Option<u64>) {
        let charge = self.accounts.charge_recovered(Some(uid), namespace, kind, bytes);
        let segment_bytes = (kind == Kind::Segment).then_some(bytes);
        self.pool.count_recovered(segment_bytes.unwrap_or(0));
        (charge, segment_bytes)
    }
}

impl Namespace {
    /// Fills a namespace whose directory and names exist. Removes the used descriptors from
    /// `unused`. Returns the parts that are lost.
    pub fn restore(&mut self, env: &mut Env, mut descriptors: Descriptors, unused: &mut BTreeSet<MemId>) -> Lost {
        let ended = self.restore_clients(env, &mut descriptors, unused);
        let mut lost = Lost::default();
        let on_devices = self.restore_segments(env, &mut descriptors, unused, &mut lost);
        lost.on_devices = self.forget_lost(env, &on_devices) as u64;
        lost.in_memory = self.lost_names() as u64;
        // Only existing clients may own names, so the other names end.
        for entry in self.bindings.names().owned().orphans(|owner| self.members.get(owner).is_some()) {
            self.bindings.remove(
                &mut Parts { env, context: &mut self.context, members: &mut self.members },
                entry,
                false,
            );
        }
        let mut rings: Rings = std::mem::take(&mut descriptors.rings)
            .into_iter()
            .filter_map(|(key, preserved)| {
                let uid = self.members.get(ring_owner(&self.context.directory, key, preserved.bytes)?)?.uid;
                Some((key, part(env, self.context.ledger.id(), uid, preserved)?))
            })
            .collect();
        let mut wakes = std::mem::take(&mut descriptors.wakes);
        lost.streams = self.streams.restore_streams(
            &mut Parts { env, context: &mut self.context, members: &mut self.members },
            &mut self.bindings,
            &mut rings,
            &mut wakes,
        );
        for ring in rings.into_values() {
            env.accounts.refund(ring.charge);
        }
        unused.retain(|mem| !self.streams.holds(*mem));
        self.bindings.restore_lists(&mut Parts { env, context: &mut self.context, members: &mut self.members });
        for (catalogue, live) in ended {
            if live {
                self.end_client(env, catalogue);
                continue;
            }
            self.seal_left(env, catalogue);
            self.bindings
                .end_ephemeral(&mut Parts { env, context: &mut self.context, members: &mut self.members }, catalogue);
            let rings = self.streams.rings(catalogue);
            let loud = self.members.me(catalogue).memories().chain(rings).collect();
            if let ClientState::Ended { loud: before, .. } = &mut self.members.me(catalogue).state {
                *before = loud;
            }
            self.members.probe_next(env, &self.context, catalogue);
        }
        for catalogue in self.members.numbers() {
            self.members.probe_disconnected(env, &self.context, catalogue);
        }
        self.bindings.absorb_at_once(env, &self.context);
        lost
    }

    /// Returns the client that could write this memory: the last member with this number, even if
    /// its entry is free now.
    pub fn writer_of(&self, label: &Label) -> Option<Owned> {
        let (owner, kind) = match *label {
            Label::Segment { owner, .. } => (owner, Kind::Segment),
            Label::Catalogue { owner, .. }
            | Label::Leases { owner, .. }
            | Label::Cells { owner, .. }
            | Label::Slots { owner, .. } => (owner, Kind::Sheet),
            Label::Ring { line, .. } => {
                (ClientNo::low(self.context.directory.streams.get(line.index())?.catalogue.peek()), Kind::Sheet)
            }
            Label::DeviceSegment { owner, .. } => (owner, Kind::Device),
            // Only daemons have ever had such a descriptor.
            Label::Directory { .. }
            | Label::Wake { .. }
            | Label::Spilled { .. }
            | Label::Orphaned { .. }
            | Label::DeviceOrphaned { .. } => return None,
        };
        let entry = self.context.directory.members.get(owner.index()).filter(|_| owner != ClientNo::DAEMON)?;
        Some(Owned { uid: ProcessWord(entry.process.peek()).uid(), kind })
    }

    /// Restores the members whose sheets exist. Returns the members that must end, each with a
    /// flag. `true`: this daemon must begin the end. `false`: the previous daemon began it.
    fn restore_clients(
        &mut self,
        env: &mut Env,
        descriptors: &mut Descriptors,
        unused: &mut BTreeSet<MemId>,
    ) -> Vec<(ClientNo, bool)> {
        let (mut clients, mut ended) = (BTreeMap::new(), Vec::new());
        let mut fresh = 1;
        for number in (1..self.context.directory.members.len()).filter_map(ClientNo::at) {
            if self.context.directory.entry(number).member.peek() != 0 {
                fresh = number.index() + 1;
            }
            self.restore_grant(number);
            let former = FormerMember::of(&self.context, number);
            let sheets = descriptors.clients.remove(&number).filter(|_| !former.is_vacant());
            let Some(client) = sheets.and_then(|sheets| former.restore(env, sheets, unused)) else {
                self.vacate(number);
                continue;
            };
            self.relist(number, &client);
            if !client.is_disconnected() {
                ended.push((number, false));
            } else if former.was_ending() || !client.sheets.are_mapped() {
                ended.push((number, true));
            }
            env.accounts.begin_session(client.uid);
            clients.insert(number, client);
        }
        self.members = Members::restored(clients, fresh);
        for number in self.members.numbers() {
            self.members.restore_announcer(&self.context, number);
        }
        for (number, _) in self.members.iter().filter(|(_, c)| c.is_disconnected()) {
            self.devices.was_there(number);
        }
        let head = self.context.directory.head();
        let live = || self.members.values().filter(|client| client.is_disconnected());
        head.clients.set(live().count() as u64);
        head.waiters_count.set(live().filter(|client| client.waits).count() as u64);
        ended
    }

    /// Gives a member the grant of announcements that this daemon's configuration requires. The previous daemon
    /// may have had another configuration.
    fn restore_grant(&self, number: ClientNo) {
        let entry = self.context.directory.entry(number);
        if !self.context.ledger.shares_tables() {
            entry.announce_until.set(u64::MAX);
        } else if entry.announce_until.peek() == u64::MAX {
            let absorbed = Absorbed(entry.absorbed.peek()).index();
            entry.announce_until.set(absorbed + RING as u64);
        }
    }

    /// Frees the entry of a number without a client.
    fn vacate(&self, number: ClientNo) {
        let head = self.context.directory.head();
        for words in [&head.present, &head.announcers, &head.waiters] {
            Bitmap(words).clear(number);
        }
        let entry = self.context.directory.entry(number);
        let member = Member(entry.member.peek());
        if member.state() != MemberState::Vacant {
            entry.member.set(Member::new(MemberState::Vacant, member.epoch(), 0).0);
            entry.geometry.add(1);
        }
    }

    /// Lists a client that outlived the previous daemon.
    fn relist(&self, number: ClientNo, client: &Client) {
        let head = self.context.directory.head();
        Bitmap(&head.present).set(number);
        if !client.waits {
            Bitmap(&head.waiters).clear(number);
        }
        // The previous daemon may have reclaimed a range and then ended before it changed this
        // word.
        self.context.directory.entry(number).geometry.add(1);
    }

    /// Restores the segments, and counts the bytes that are lost. Returns the ranges of device memory that are lost.
    fn restore_segments(
        &mut self,
        env: &mut Env,
        descriptors: &mut Descriptors,
        unused: &mut BTreeSet<MemId>,
        lost: &mut Lost,
    ) -> Vec<RangeWord> {
        let mut on_devices = Vec::new();
        let mut lent: BTreeMap<ClientNo, u64> = BTreeMap::new();
        for line in (0..self.context.directory.segments.len()).filter_map(SegmentLine::at) {
            let segment_entry = &self.context.directory.segments[line.index()];
            let (range, bytes) = (RangeWord(segment_entry.range.peek()), segment_entry.bytes.peek());
            let is_on_device = range.is_lent() && segment_entry.place.peek() != 0;
            if is_on_device {
                if self.restore_on_device(env, descriptors, unused, line) {
                    continue;
                }
                on_devices.push(range);
            } else if range.is_lent()
                && let Some(segment) = self.restore_in_memory(env, descriptors, unused, line)
            {
                let in_memory = if segment.residence.is_in_memory() { bytes } else { 0 };
                lost.bytes += if matches!(segment.residence, Residence::Lost) { bytes } else { 0 };
                *lent.entry(range.owner()).or_default() += in_memory;
                self.members.me(range.owner()).segments.insert(range.base(), segment);
                continue;
            }
            if range.is_lent() {
                lost.bytes += bytes;
            }
            self.unlist_lost(line);
        }
        self.segments.lowest_first();
        for catalogue in self.members.numbers() {
            self.context.directory.entry(catalogue).bytes.set(lent.get(&catalogue).copied().unwrap_or(0));
        }
        self.context.directory.head().bytes_lent.set(lent.values().sum());
        on_devices
    }

    /// Restores a segment of host memory. Returns `None` if its slots or its bytes are lost.
    fn restore_in_memory(
        &self,
        env: &mut Env,
        descriptors: &mut Descriptors,
        unused: &mut BTreeSet<MemId>,
        line: SegmentLine,
    ) -> Option<Segment> {
        let segment_entry = &self.context.directory.segments[line.index()];
        let (range, bytes) = (RangeWord(segment_entry.range.peek()), segment_entry.bytes.peek());
        let key = SegmentId { owner: range.owner(), base: range.base() };
        let found = descriptors.bytes_of(env, key, bytes);
        let slots = descriptors.slots.remove(&key)?;
        let client = self.members.get(key.owner)?;
        if !(1..=1 << SLOTS_LOG2_MAX).contains(&range.slots()) || slots.bytes != length::slots(range.slots() as usize) {
            return None;
        }
        // If the owner had released the segment for spill, only the previous daemon may have had the segment's bytes. The
        // owner must report such a segment when it reconnects. Otherwise the daemon ends the owner's session.
        let lost = || client.is_disconnected().then(|| (env.orders.new_id(), Residence::Lost));
        let (mem, residence) = found.or_else(lost)?;
        let (slots_mem, namespace) = (slots.mem, self.context.ledger.id());
        let slots = part(env, namespace, client.uid, slots)?;
        unused.remove(&mem);
        unused.remove(&slots_mem);
        match residence {
            Residence::File { .. } => env.spills.add(client.uid, bytes),
            Residence::Lost => {}
            _ => env.pool.count_recovered(bytes),
        }
        let in_memory = if residence.is_in_memory() { bytes } else { 0 };
        let charge = env.accounts.charge_recovered(Some(client.uid), namespace, Kind::Segment, in_memory);
        Some(Segment {
            mem,
            bytes,
            charge,
            slots_log2: low8(range.slots().ilog2().into()),
            slots,
            line,
            residence,
            released_ns: None,
            tried_ns: None,
            wanted_ns: None,
            device: None,
        })
    }

    /// Returns the number of names without a value that still exists. The daemon removes these names
    /// when their owners have ended: see `survey_names`.
    fn lost_names(&self) -> usize {
        let is_lost = |&(owner, entry): &(ClientNo, EntryNo)| {
            let Some(owner) = self.members.get(owner) else { return true };
            let owner_word = OwnerWord(self.context.directory.names[entry.index()].owner_word.peek());
            // A cell that exists has no value if its owner has deleted the value.
            let value = owner.value(owner_word.cell());
            value.is_none_or(|cell| cell.is_value() && !owner.has_bytes_of(cell.slot()))
        };
        self.bindings.names().owned().iter().filter(is_lost).count()
    }

    /// Frees a table entry that is already free, or whose segment was lost.
    fn unlist_lost(&mut self, line: SegmentLine) {
        let segment_entry = &self.context.directory.segments[line.index()];
        let range = RangeWord(segment_entry.range.peek());
        if range.is_lent() {
            segment_entry.range.set(0);
            if let Some(entry) = self.context.directory.members.get(range.owner().index()) {
                entry.geometry.add(1);
            }
        }
        self.segments.put_back(line);
    }
}

/// Returns the owner of a ring. The ring must have the length that the directory records.
fn ring_owner(d: &Directory, RingId { line, id }: RingId, bytes: u64) -> Option<ClientNo> {
    let stream_entry = d.streams.get(line.index())?;
    let capacity =
        u32::try_from(stream_entry.capacity.peek()).ok().filter(|it| it.is_power_of_two() && *it <= CAPACITY_MAX)?;
    let whole = bytes == length::ring(capacity);
    (stream_entry.id.peek() == id && whole).then(|| ClientNo::low(stream_entry.catalogue.peek()))
}

/// Charges a sheet and returns it.
pub(super) fn part(env: &mut Env, namespace: NamespaceId, uid: u32, preserved: Preserved) -> Option<Part> {
    let view = preserved.view?;
    let charge = env.accounts.charge_recovered(Some(uid), namespace, Kind::Sheet, preserved.bytes);
    Some(Part { mem: preserved.mem, view, charge, acked: preserved.acked })
}

/// A member of the directory, as the previous daemon left it.
#[derive(Clone, Copy)]
struct FormerMember<'a> {
    namespace: NamespaceId,
    entry: &'a MemberEntry,
    member: Member,
    absorbed: Absorbed,
    uid: u32,
    /// Whether the directory lists the member, so that other clients may map its sheets.
    listed: bool,
    /// Whether the member may sleep.
    waits: bool,
}

impl<'a> FormerMember<'a> {
    fn of(context: &'a Context, number: ClientNo) -> Self {
        let (entry, head) = (context.directory.entry(number), context.directory.head());
        Self {
            namespace: context.ledger.id(),
            entry,
            member: Member(entry.member.peek()),
            absorbed: Absorbed(entry.absorbed.peek()),
            uid: ProcessWord(entry.process.peek()).uid(),
            listed: Bitmap(&head.present).has(number),
            waits: Bitmap(&head.waiters).has(number),
        }
    }

    fn is_vacant(&self) -> bool {
        self.member.state() == MemberState::Vacant
    }

    /// Returns true if the member's leases count. So the member needs its lease table.
    fn is_open(&self) -> bool {
        self.member.state() == MemberState::Open
    }

    /// Returns true if the previous daemon had begun to end the member.
    fn was_ending(&self) -> bool {
        matches!(self.absorbed.state(), MemberState::Ending | MemberState::Closed)
    }

    /// Returns the member's client. Returns `None` if a sheet is missing without which the client cannot continue.
    fn restore(&self, env: &mut Env, sheets: PreservedSheets, unused: &mut BTreeSet<MemId>) -> Option<Client> {
        let is_writer = sheets.catalogue.as_ref()?.1;
        let sheets = self.restore_sheets(env, sheets, unused)?;
        let announcer = self.is_open() && matches!(self.absorbed.state(), MemberState::Open | MemberState::Ending);
        Some(Client {
            uid: self.uid,
            pid: ProcessWord(self.entry.process.peek()).pid(),
            command: String::new(),
            label: label_of(self.entry),
            role: if is_writer { Role::Writer } else { Role::Reader },
            versions: Versions::OWN,
            state: if self.is_open() {
                ClientState::Disconnected { pause_ns: DISCONNECTED_PAUSE_NS }
            } else {
                ClientState::Ended { loud: VecDeque::new(), pause_ns: crate::core::death::PROBE_PAUSE_NS }
            },
            member: self.member,
            shown: None,
            announcements: Announcements::restored(announcer, self.absorbed.index()),
            sheets,
            segments: ClientSegments::default(),
            notices: BTreeSet::new(),
            lent_ns: env.clock.now_ns(),
            waits: self.waits && self.is_open(),
            watched: false,
            draining: None,
            is_revoked: false,
            has_lost: false,
        })
    }

    /// Charges and returns the member's sheets.
    fn restore_sheets(&self, env: &mut Env, sheets: PreservedSheets, unused: &mut BTreeSet<MemId>) -> Option<Sheets> {
        let (catalogue, _) = sheets.catalogue?;
        let leases = sheets.leases.filter(|preserved| preserved.bytes == length::LEASES);
        if catalogue.bytes != length::CATALOGUE || self.is_open() && leases.is_none() {
            return None;
        }
        let mut catalogue = part(env, self.namespace, self.uid, catalogue)?;
        let leases = leases.filter(|_| self.is_open());
        let leases = leases.and_then(|preserved| part(env, self.namespace, self.uid, preserved));
        let mut cells = Vec::new();
        for (number, preserved) in sheets.cells {
            // A part counts only if all earlier parts exist.
            if usize::from(number) == cells.len() + 1 && number < CELL_PARTS && preserved.bytes == length::cells(number)
            {
                cells.extend(part(env, self.namespace, self.uid, preserved));
            }
        }
        for part in leases.iter().chain(&cells).chain([&catalogue]) {
            unused.remove(&part.mem);
        }
        // The previous daemon may have listed the member before it sealed the catalogue. Then it had received the
        // acknowledgement. Other clients map the catalogue from now on.
        if self.listed && self.is_open() && !catalogue.acked {
            env.effects.push(Effect::Seal { conn: ConnId(u64::MAX), mem: catalogue.mem });
            catalogue.acked = true;
        }
        Some(Sheets::new(catalogue, leases, cells))
    }
}
