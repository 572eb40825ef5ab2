//! The end of a schedule: first faults stop, then all clients leave.

use crate::client::{Honest, lease_entry};
use crate::sim::{File, SEGMENT, Seat, Sim};
use tensorlend_layout::directory::NameEntry;
use tensorlend_layout::leases;
use tensorlend_layout::name::{KeyKind, parse};
use tensorlend_layout::wire::{Hello, Refusal, Reply, Request};
use tensorlend_layout::word::OwnerWord;

/// Number of rounds within which every honest request must get a response. Each takes a second.
const ROUNDS: u32 = 12;

impl Sim {
    pub fn drop_lease(&mut self, h: &mut Honest, seat: &Seat) {
        if !h.held.is_empty() {
            let held = h.held.swap_remove(self.rng.index(h.held.len()));
            leases::release(lease_entry(&seat.leases, held.entry));
        }
    }

    /// The liars leave, and the kernel has memory and responds: every honest client must get its response.
    pub fn faults_stop(&mut self) {
        self.note(|| "the faults stop".into());
        self.poor = 0;
        self.disk.fails = 0;
        self.life.kills_left = 0;
        self.life.dies_after = None;
        if self.life.is_gone {
            self.daemon_begins();
        }
        self.reload_the_first();
        for actor in 0..self.actors.len() {
            if self.actors[actor].away && self.actors[actor].honest.is_some() {
                continue;
            }
            if self.actors[actor].away {
                self.ends_away(actor);
            } else if self.actors[actor].honest.is_none() {
                if self.actors[actor].connected {
                    self.hang_up(actor);
                }
                self.exit(actor);
            } else if !self.actors[actor].connected {
                self.exit(actor);
            }
        }
        for round in 0..ROUNDS {
            self.settle();
            if !self.anybody_waits() {
                break;
            }
            // A live client can delay others for at most five seconds.
            assert!(round + 1 < ROUNDS, "no answer: {}", self.who_waits());
            self.wait_until(self.now_ns + 1_000_000_000);
        }
        self.everybody_asks();
    }

    /// Delivers all packets in flight, until there are none.
    pub fn settle(&mut self) {
        self.settle_as(true);
        self.check();
    }

    /// As [`Sim::settle`], but no client reads its responses.
    fn settle_plainly(&mut self) {
        self.settle_as(false);
    }

    fn settle_as(&mut self, hears: bool) {
        for _ in 0..10_000 {
            let mut moved = false;
            while let Some(order) = self.orders.pop() {
                self.answer(order, false);
                moved = true;
            }
            for actor in 0..self.actors.len() {
                let it = &self.actors[actor];
                if it.connected && ((hears && it.wakes) || (it.read && !it.outbox.is_empty())) {
                    self.deliver(actor);
                    moved = true;
                }
                if hears && self.actors[actor].away {
                    let mut h = self.actors[actor].honest.take();
                    moved |= h.as_mut().is_some_and(|h| self.comes_back(actor, h));
                    self.actors[actor].honest = h;
                } else if hears && !self.actors[actor].inbox.is_empty() {
                    self.honest_hears(actor);
                    moved = true;
                }
                if hears && !self.actors[actor].away {
                    let mut h = self.actors[actor].honest.take();
                    if let Some(h) = h.as_mut().filter(|h| h.may_stop()) {
                        self.stop_waiting(actor, h);
                        moved = true;
                    }
                    self.actors[actor].honest = h;
                }
                if hears && self.actors[actor].honest.as_ref().is_some_and(|h| h.claiming.is_some()) {
                    self.finish_claim(actor);
                    moved = true;
                }
            }
            if self.core.alarm().is_some_and(|at| at <= self.now_ns) {
                self.happen(tensorlend_daemon::core::Event::Alarm);
                moved = true;
            }
            if !moved {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn anybody_waits(&self) -> bool {
        self.actors
            .iter()
            .any(|a| (a.connected || a.away) && a.honest.as_ref().is_some_and(|h| a.away || h.asked.is_some()))
    }

    fn who_waits(&self) -> String {
        let waits = |a: &crate::sim::Actor| a.connected.then(|| a.honest.as_ref()?.asked.clone()).flatten();
        self.actors
            .iter()
            .enumerate()
            .filter_map(|(at, a)| Some(format!("client {at} asked {:?}", waits(a)?)))
            .collect()
    }

    /// Every honest client binds its own name, which must then be found if the daemon allowed it.
    fn everybody_asks(&mut self) {
        for actor in 0..self.actors.len() {
            if self.actors[actor].connected && self.actors[actor].seat.is_some() {
                self.ask_plainly(actor, &Request::Ping, "a ping");
                self.reads_files(actor);
            }
        }
    }

    /// Requests all spilled segments. Each is read back, unless the response names a limit.
    fn reads_files(&mut self, actor: usize) {
        let seat = self.actors[actor].seat.clone().expect("the caller has looked");
        for (catalogue, slot) in self.in_files(&seat) {
            let reply = self.ask_plainly(actor, &Request::SegmentOf { owner: catalogue, slot }, "a segment in a file");
            // Reading a segment back may spill the next one, and unused segments are freed in the meantime.
            let told =
                matches!(reply, Reply::Segment { .. } | Reply::Refused(Refusal::Limit { .. } | Refusal::NotFound(_)));
            assert!(told, "a segment in a file was asked for, and there came {reply:?}");
        }
    }

    pub fn ask_plainly(&mut self, actor: usize, request: &Request, what: &str) -> Reply {
        self.tell(actor, request);
        for _ in 0..4 {
            self.settle_plainly();
            if let Some((reply, lend)) = self.actors[actor].inbox.pop_front() {
                if !lend.is_empty() {
                    self.tell(actor, &Request::Ack);
                    self.settle_plainly();
                }
                return reply;
            }
            self.wait_until(self.now_ns + 1_000_000_000);
        }
        panic!("no answer to {what} of client {actor}");
    }

    /// All clients leave, their names are deleted, and nothing is left.
    pub fn clean_up(&mut self) {
        self.note(|| "everybody goes".into());
        for actor in 0..self.actors.len() {
            if self.actors[actor].connected {
                self.hang_up(actor);
            }
            self.exit(actor);
        }
        let mut refused = false;
        self.quieten();
        for (uid, namespace) in [(1, None), (2, None), (3, None), (1, Some("lab"))] {
            let name = namespace.map_or_else(|| format!("uid:{uid}"), str::to_owned);
            let there = |seat: &crate::sim::Seat| {
                seat.welcome.namespace == name && self.directories.contains_key(&seat.directory_file)
            };
            if !self.actors.iter().filter_map(|a| a.seat.as_ref()).any(there) {
                continue;
            }
            let actor = self.dial(uid, true);
            let hello = Hello { namespace: namespace.map(Into::into), ..crate::steps::hello() };
            self.tell(actor, &Request::Hello(hello));
            self.settle_plainly();
            let welcome = self.actors[actor].inbox.pop_front();
            if welcome.is_none() || !self.actors[actor].connected {
                // Memory of other clients exhausts a limit; the machine's owner would have to act.
                refused = true;
                continue;
            }
            self.tell(actor, &Request::Ack);
            self.settle_plainly();
            let directory = self.actors[actor].seat.clone().expect("welcome").directory;
            let live = |entry: &&NameEntry| OwnerWord(entry.owner_word.read()).is_live();
            let entries = directory.entries().map(|(_, entry)| entry).filter(live);
            for key in entries.filter_map(|entry| directory.key(entry)).collect::<Vec<_>>() {
                let Some((kind, name)) = parse(&key) else { continue };
                let name = name.to_owned();
                let request = match kind {
                    KeyKind::Name => Request::Delete { name },
                    KeyKind::List => Request::ListDelete { list: name },
                    KeyKind::Stream => panic!("stream {name:?} has neither producer nor subscribers, and is there"),
                    // Items are deleted with their list.
                    KeyKind::Item => continue,
                };
                self.ask_plainly(actor, &request, "a deletion");
            }
            self.check();
            self.hang_up(actor);
            self.exit(actor);
        }
        self.quieten();
        self.check();
        if refused {
            return;
        }
        let stat = self.core.stat();
        assert_eq!((stat.clients, stat.frozen, stat.segments, stat.names), (0, 0, 0, 0), "somebody is left: {stat:?}");
        assert_eq!((stat.bytes_sheets, stat.bytes_in_use), (0, 0), "bytes are left: {stat:?}");
        let on_device: u64 = stat.devices.iter().map(|device| device.bytes).sum();
        assert_eq!(on_device, 0, "device memory is left: {stat:?}");
        assert_eq!(self.names.len() as u64, stat.bytes_spare / SEGMENT, "descriptors are left: {:?}", self.left());
        assert_eq!(self.core.alarm(), None, "nothing is left to wait for");
    }

    fn left(&self) -> Vec<File> {
        self.names.values().copied().collect()
    }

    /// Waits longer than the daemon's longest pause between two polls.
    fn quieten(&mut self) {
        for _ in 0..8 {
            self.settle_plainly();
            self.wait_until(self.now_ns + 10_000_000_000);
        }
        self.settle_plainly();
    }
}
