//! One observation, in an order that misses little. It reads values before leases, so that a value that is replaced
//! in between appears once, as retired, and not as two values.

use super::display::natural;
use super::names::{Led, Names};
use super::observation::{ClientSeen, ClientState, LeaseSeen, Location, Observation, Origin, StreamSeen, ValueSeen};
use super::sheets::Sheets;
use super::slots::Slots;
use super::{ENTRIES_MAX, LEASES_MAX, MESSAGES_MAX, Observer, ages, streams};
use crate::error::Result;
use crate::session::Session;
use crate::tensor::dims::as_usize;
use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};
use tensorlend_layout::directory::DEVICES;
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::tensor::{NDIM_INLINE, SlotKind};
use tensorlend_layout::word::{Cell, LeaseWord, Member, MemberState, ProcessWord};
use tensorlend_layout::{DType, Uuid};
use tensorlend_os::clock::boottime_ns;

pub fn observe(observer: &mut Observer) -> Result<Observation> {
    let begun = Instant::now();
    let Observer { session, sheets, ages, commands } = observer;
    let session: &Session = session;
    let now_ns = boottime_ns();
    sheets.begin();
    ages.begin();
    let head = session.directory.head();
    let clients = clients(session, now_ns, |client, pid, uid, since| commands.of(client, pid, uid, since));
    commands.keep(|&(number, epoch)| {
        clients.binary_search_by_key(&number, |c| c.number).is_ok_and(|at| clients[at].epoch == epoch)
    });

    let mut values = Values { slots: Slots::lent(session, now_ns), ..Values::default() };
    fetch_records(session, sheets, &mut values.slots)?;
    let mut names = Names::walk(session, sheets)?;
    resolve(session, sheets, &mut names, &mut values)?;
    let streams = streams_of(session, sheets, &names, &mut values)?;
    values.take_in(sheets);
    let lendings: HashSet<_> = values.slots.lendings.iter().map(|&(_, lending)| lending).collect();
    let ids: HashSet<u64> = streams.iter().map(|stream| stream.id).collect();
    sheets.keep(|lending| lendings.contains(lending), |id| ids.contains(&id));

    let (held, more) = leases(session, sheets, &clients)?;
    let leases = values.take_leases(sheets, held, |key| ages.of(key, now_ns));
    ages.end();
    values.finish();
    let mut seen = Observation {
        namespace: session.welcome.namespace.clone(),
        at_ns: now_ns,
        took: begun.elapsed(),
        asked: sheets.asked,
        bytes_lent: head.bytes_lent.read(),
        bytes_max: head.bytes_max.read(),
        names_live: head.names_live.read(),
        devices: devices(session),
        clients,
        segments: values.slots.segments,
        values: values.all,
        leases,
        streams,
        lists: std::mem::take(&mut names.lists_seen),
        truncated: names.truncated || values.slots.truncated || more,
        incomplete: sheets.incomplete,
        damaged: values.slots.damaged,
    };
    add_up(&mut seen);
    Ok(seen)
}

/// Returns leases of one client on one slot. `kept` is the memory that they keep, and its value if a name, list or stream
/// still refers to it.
pub(super) fn lease_seen(
    holder: ClientNo,
    lease: LeaseWord,
    count: u64,
    (bytes, value): (u64, Option<usize>),
    (age, is_older): (Duration, bool),
) -> LeaseSeen {
    let (owner, slot, is_of_segment) = (lease.owner(), lease.slot(), lease.is_of_segment());
    LeaseSeen { holder, pid: 0, owner, slot, is_of_segment, count, bytes, value, age, is_older }
}

/// Returns the members, sorted by number.
fn clients(
    session: &Session,
    now_ns: u64,
    mut command: impl FnMut((ClientNo, u32), u32, u32, u64) -> Option<String>,
) -> Vec<ClientSeen> {
    let mut clients = Vec::new();
    for number in session.directory.present() {
        let entry = &session.directory.members[number.index()];
        let word = entry.member.read();
        let member = Member(word);
        let state = match member.state() {
            MemberState::Vacant => continue,
            MemberState::Open => ClientState::Alive,
            MemberState::Ending => ClientState::Ending,
            MemberState::Closed => ClientState::Ended,
        };
        let process = ProcessWord(entry.process.peek());
        let since_ns = entry.since_ns.peek();
        let label: Vec<u8> = entry.label.iter().flat_map(|word| word.peek().to_le_bytes()).collect();
        let bytes = entry.bytes.peek();
        if Member(entry.member.read()).epoch() != member.epoch() {
            continue;
        }
        let (pid, uid) = (process.pid(), process.uid());
        let command = match state {
            ClientState::Ended => None,
            _ => command((number, member.epoch()), pid, uid, since_ns),
        };
        clients.push(ClientSeen {
            number,
            epoch: member.epoch(),
            state,
            pid,
            uid,
            label: String::from_utf8_lossy(&label).trim_end_matches('\0').to_owned(),
            age: Duration::from_nanos(now_ns.saturating_sub(since_ns)),
            bytes,
            is_observer: number == session.me(),
            command,
            ..ClientSeen::default()
        });
    }
    clients
}

/// Maps the slot records of all lent host memory. Does not request records of device memory, because a process that
/// maps device memory delays its return.
fn fetch_records(session: &Session, sheets: &mut Sheets, slots: &mut Slots) -> Result<()> {
    for (segment, &(at, lending)) in slots.segments.iter_mut().zip(&slots.lendings) {
        if segment.location == Location::Host {
            sheets.fetch_records(session, at, lending)?;
            segment.is_mapped = sheets.records(lending).is_some();
        }
    }
    Ok(())
}

/// Reads the cells of the names and of the lists' items.
fn resolve(session: &Session, sheets: &mut Sheets, names: &mut Names, values: &mut Values) -> Result<()> {
    let lists = std::mem::take(&mut names.lists);
    names.lists_seen.sort_by(|a, b| natural(&a.name, &b.name));
    names.resolve(session, sheets, |led, owner, cell| {
        let origin = match led {
            Led::Name(name) => Origin::Name(name),
            Led::Item { list, number } => Origin::Item { list: lists.get(&list).cloned().unwrap_or_default(), number },
        };
        values.found.push((origin, owner, cell));
    })
}

fn streams_of(session: &Session, sheets: &mut Sheets, names: &Names, values: &mut Values) -> Result<Vec<StreamSeen>> {
    let mut seen = Vec::with_capacity(names.streams.len());
    let mut left = MESSAGES_MAX;
    for (name, index) in &names.streams {
        let found = |number, producer, cell| {
            values.found.push((Origin::Message { stream: name.clone(), number }, producer, cell));
        };
        seen.extend(streams::sample(session, sheets, name, *index, &mut left, found)?);
    }
    seen.sort_by(|a, b| natural(&a.name, &b.name));
    Ok(seen)
}

fn devices(session: &Session) -> Vec<Uuid> {
    let words = &session.directory.head().devices;
    let uuids = (0..DEVICES).map(|at| [words[2 * at].read(), words[2 * at + 1].read()]);
    uuids.take_while(|words| *words != [0, 0]).map(Uuid::from_words).collect()
}

/// The number of leases for each holder, epoch and lease word.
type Held = HashMap<ages::Key, u64>;

/// Returns all live clients' leases, and whether there were more.
fn leases(session: &Session, sheets: &mut Sheets, clients: &[ClientSeen]) -> Result<(Held, bool)> {
    let mut held = Held::new();
    let mut truncated = false;
    for client in clients.iter().filter(|client| client.state != ClientState::Ended) {
        if !sheets.fetch_leases(session, client.number) {
            continue;
        }
        session.peers().with_leases(client.number, |table| {
            table.scan(|lease| {
                if held.len() < LEASES_MAX {
                    *held.entry((client.number, client.epoch, lease.0)).or_default() += 1;
                } else {
                    truncated = true;
                }
            });
        })?;
    }
    Ok((held, truncated))
}

/// Values, and their slots.
#[derive(Default)]
struct Values {
    found: Vec<(Origin, ClientNo, Cell)>,
    all: Vec<ValueSeen>,
    /// Pairs of values that share their first slot, by index.
    aliases: Vec<(usize, usize)>,
    slots: Slots,
    /// Values without a read record, such as values on devices, by owner and slot.
    unread: HashMap<(ClientNo, SlotNo), usize>,
    /// Bytes of slots that only leases keep, by lease word.
    retired: HashMap<u64, u64>,
}

impl Values {
    /// Finds the slots of the values that the walk found.
    fn take_in(&mut self, sheets: &Sheets) {
        self.slots.truncated |= self.found.len() > ENTRIES_MAX + MESSAGES_MAX;
        for (origin, owner, cell) in std::mem::take(&mut self.found) {
            let at = self.all.len();
            let mut value = ValueSeen {
                origin,
                owner,
                slot: cell.slot(),
                generation: cell.generation(),
                bytes: 0,
                is_dataset: false,
                dtype: None,
                shape: None,
                timestamp_ns: 0,
                leases: 0,
            };
            if let Some(first) = self.slots.value_of(owner, cell.slot()) {
                let other = &self.all[first];
                if (other.slot, other.generation) == (value.slot, value.generation) {
                    value = ValueSeen { origin: value.origin, ..other.clone() };
                    self.aliases.push((at, first));
                }
            } else if let Some(chain) = self.slots.follow(sheets, owner, cell, Some(at)) {
                let info = chain.info;
                let is_tensor = info.kind == SlotKind::Tensor;
                value.bytes = chain.bytes;
                value.is_dataset = info.kind == SlotKind::Dataset;
                value.dtype = Some(info.dtype).filter(|_: &DType| is_tensor);
                let ndim = usize::from(info.ndim);
                value.shape =
                    (is_tensor && !info.extended && ndim <= NDIM_INLINE).then(|| as_usize(&info.dims[..ndim]).to_vec());
                value.timestamp_ns = info.timestamp_ns;
            } else {
                match self.unread.entry((owner, cell.slot())) {
                    Entry::Occupied(first) if self.all[*first.get()].generation == value.generation => {
                        self.aliases.push((at, *first.get()));
                    }
                    Entry::Occupied(_) => {}
                    Entry::Vacant(first) => drop(first.insert(at)),
                }
            }
            self.all.push(value);
        }
    }

    /// Returns the memory that a lease keeps: its bytes, and the value if a name, list or stream still refers to it.
    fn lease(&mut self, sheets: &Sheets, lease: LeaseWord, count: u64) -> (u64, Option<usize>) {
        if lease.is_of_segment() {
            let segment = self.slots.segment(lease.owner(), lease.slot());
            return (segment.map_or(0, |at| self.slots.segments[at].bytes), None);
        }
        let slot = (lease.owner(), lease.slot());
        if let Some(at) = self.slots.value_of(slot.0, slot.1).or_else(|| self.unread.get(&slot).copied()) {
            let value = &mut self.all[at];
            if Cell::new(value.generation, value.slot).lease(value.owner) == lease {
                value.leases += count;
                return (value.bytes, Some(at));
            }
        }
        if let Some(&bytes) = self.retired.get(&lease.0) {
            return (bytes, None);
        }
        let bytes = self.slots.follow_lease(sheets, lease).map_or(0, |chain| chain.bytes);
        self.retired.insert(lease.0, bytes);
        (bytes, None)
    }

    /// Adds the leases to their values. `age` returns the age of a lease, and whether the lease may be older.
    fn take_leases(
        &mut self,
        sheets: &Sheets,
        held: Held,
        mut age: impl FnMut(ages::Key) -> (Duration, bool),
    ) -> Vec<LeaseSeen> {
        let seen = held.into_iter().map(|((holder, epoch, word), count)| {
            let age = age((holder, epoch, word));
            let kept = self.lease(sheets, LeaseWord(word), count);
            lease_seen(holder, LeaseWord(word), count, kept, age)
        });
        seen.collect()
    }

    fn finish(&mut self) {
        for &(alias, first) in &self.aliases {
            self.all[alias].leases = self.all[first].leases;
        }
        let values = &self.all;
        self.slots.finish(|at| values[at].leases > 0);
    }
}

/// Sorts the leases, and adds up each client's values and leases.
pub(super) fn add_up(seen: &mut Observation) {
    let Observation { clients, values, leases, .. } = seen;
    leases.sort_by_key(|it| (Reverse((it.age, it.bytes)), it.slot, it.owner, it.holder));
    let indices: HashMap<ClientNo, usize> = clients.iter().enumerate().map(|(at, c)| (c.number, at)).collect();
    for value in values {
        if let Some(&at) = indices.get(&value.owner) {
            clients[at].values += 1;
            clients[at].value_bytes = clients[at].value_bytes.saturating_add(value.bytes);
        }
    }
    for lease in leases {
        if let Some(&at) = indices.get(&lease.holder) {
            let holder = &mut clients[at];
            lease.pid = holder.pid;
            holder.leases += lease.count;
            holder.leased_bytes = holder.leased_bytes.saturating_add(lease.bytes);
            // The oldest lease comes first.
            if holder.lease_age_max.is_none() {
                (holder.lease_age_max, holder.is_lease_older) = (Some(lease.age), lease.is_older);
            }
        }
    }
}
