//! A hostile process. It reads orders from standard input, one line each, and answers each with one line: `ok ...` or
//! `error ...`. The answer to an attack is `ok breach ...`, `ok held ...` or `ok impossible ...`.

mod attacks;
mod calls;
mod liar;
mod unprotected;

use attacks::{BY_DESCRIPTOR, Object, Outcome, Target};
use calls::Mapping;
use rustix::fs::OFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use tensorlend_layout::number::{ClientNo, CursorNo, SlotNo, StreamLine};
use tensorlend_layout::tensor::SlotInfo;
use tensorlend_layout::wire::Request;
use tensorlend_os::memfd::Access;
use tensorlend_os::packet;
use tensorlend_tests::hand::{Hand, map};
use tensorlend_tests::orders::{self, Answer};
use unprotected::Unprotected;

#[derive(Default)]
struct Attacker {
    hand: Option<Hand>,
    objects: Vec<Object>,
    bell: Option<OwnedFd>,
    /// The attacker's own memory, which it keeps mapped.
    mine: Vec<Mapping>,
    kept: Vec<OwnedFd>,
    victim: Option<Arc<Mutex<Unprotected>>>,
    listener: Option<OwnedFd>,
    record: Option<liar::Marked>,
}

fn say(outcome: Outcome) -> String {
    match outcome {
        Outcome::Breach(how) => format!("breach {how}"),
        Outcome::Held(why) => format!("held {why}"),
        Outcome::Impossible(why) => format!("impossible {why}"),
    }
}

impl Attacker {
    fn hand(&self) -> Result<&Hand, &'static str> {
        self.hand.as_ref().ok_or("not joined")
    }

    fn victim(&self) -> Result<std::sync::MutexGuard<'_, Unprotected>, &'static str> {
        Ok(self.victim.as_ref().ok_or("not a victim")?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn run(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // victim PATH: becomes the unprotected victim that lends at this path
            ["victim", path] => {
                let shared = Arc::new(Mutex::new(Unprotected::new()?));
                unprotected::serve(Path::new(path), shared.clone())?;
                self.victim = Some(shared);
                Ok(String::new())
            }
            // fresh: creates another memfd; returns its address
            ["fresh"] => {
                *self.victim()? = Unprotected::new()?;
                Ok(self.victim()?.address().to_string())
            }
            ["look"] => Ok(self.victim()?.look()?),
            ["recycle"] => Ok(self.victim()?.recycle().map(|()| String::new())?),
            ["stalled"] => Ok(self.victim()?.is_stalled().to_string()),
            ["would-block"] => Ok(self.victim()?.would_block()?.to_string()),

            // take-unprotected PATH
            ["take-unprotected", path] => {
                let (lent, bell) = unprotected::fetch(Path::new(path))?;
                self.objects = vec![Object { what: "memfd", lent, at: 0 }];
                self.bell = Some(bell);
                Ok(String::new())
            }
            // join SOCKET [NAMESPACE]
            ["join", socket, ref rest @ ..] => {
                self.hand = Some(Hand::join(Path::new(socket), rest.first().copied())?);
                Ok(String::new())
            }
            // take NAME all|segment: takes every descriptor that a reader of the name is lent
            ["take", name, what] => self.take(name, what == "all"),
            // pry NAMESPACE: requests every possible object of another namespace; returns how many were lent
            ["pry", namespace] => self.pry(namespace),
            // attack NAME PID ADDRESS
            ["attack", name, pid, address] => {
                let target = Target { pid: pid.parse()?, address: address.parse()? };
                Ok(say(attacks::attack(name, &self.objects, target).ok_or("no such attack")?))
            }
            // battery: tries everything that needs only descriptors
            ["battery"] => {
                let nobody = Target { pid: 0, address: 0 };
                let tried = BY_DESCRIPTOR.iter().filter_map(|name| {
                    let outcome = attacks::attack(name, &self.objects, nobody)?;
                    matches!(outcome, Outcome::Breach(_)).then_some(*name)
                });
                let breached: Vec<&str> = tried.collect();
                Ok(say(if breached.is_empty() {
                    Outcome::Held(format!("{} tried", BY_DESCRIPTOR.len()))
                } else {
                    Outcome::Breach(breached.join(", "))
                }))
            }
            // listen PATH, then accept: an accomplice waits for descriptors
            ["listen", path] => {
                let flags = SocketFlags::CLOEXEC;
                let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
                rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
                tensorlend_tests::open_to_all(Path::new(path));
                rustix::net::listen(&socket, 1)?;
                self.listener = Some(socket);
                Ok(String::new())
            }
            ["accept"] => {
                let from = rustix::net::accept(self.listener.as_ref().ok_or("not listening")?)?;
                let packet = packet::receive(from, RecvFlags::empty())?;
                self.objects = packet
                    .descriptors
                    .into_iter()
                    .map(|fd| Object { what: "passed on", lent: vec![fd], at: 0 })
                    .collect();
                Ok(self.objects.len().to_string())
            }
            // pass PATH: passes the first descriptors on
            ["pass", path] => {
                let socket = tensorlend_tests::hand::dial(Path::new(path))?;
                let all: Vec<_> = self.objects.iter().flat_map(|it| &it.lent).map(AsFd::as_fd).take(4).collect();
                packet::send(socket, b"take", &all, SendFlags::empty())?;
                Ok(String::new())
            }
            ["stall"] => {
                let (kept, granted) = attacks::stall(&self.objects);
                self.kept.extend(kept);
                Ok(granted.to_string())
            }
            // jam: fills the eventfd by which the victim wakes this process, and clears its non-blocking flag
            ["jam"] => jam(self.bell.as_ref().ok_or("no bell")?).map(|()| String::new()),
            // trap STREAM: subscribes as a sleeper that never reads its wake descriptor; also jams the daemon's wakeup eventfd
            ["trap", stream] => self.trap(stream),
            // hoard: maps its own memory so that children inherit it
            ["hoard"] => self.hoard(),
            ["hoard-unprotected"] => {
                for object in &self.objects {
                    self.mine.push(Mapping::new(&object.lent[0], 1 << 20, libc::PROT_READ | libc::PROT_WRITE)?);
                }
                Ok(String::new())
            }
            // ghost fork|vm GO DONE: dies, and leaves a process behind that writes when ordered
            ["ghost", how, go, done] => {
                calls::leave_ghost(Path::new(go), Path::new(done), std::mem::take(&mut self.mine), how == "vm")
            }
            // leave: hangs up, and keeps its mappings
            ["leave"] => {
                self.hand = None;
                Ok(String::new())
            }
            // lie SOCKET BOARD SEED KINDS ROUNDS: see `liar.rs`
            ["lie", socket, board, seed, kinds, rounds] => {
                liar::lie(Path::new(socket), Path::new(board), seed.parse()?, kinds.parse()?, rounds.parse()?)
            }
            // publish-marked SOCKET PLACE NAME: publishes a tensor and finds its record, whose words `twist` can change
            ["publish-marked", socket, place, name] => {
                self.record = Some(liar::Marked::publish(Path::new(socket), place, name)?);
                Ok(String::new())
            }
            // twist WORD VALUE: writes a word of the record; returns the previous value
            ["twist", word, value] => {
                let record = self.record.as_ref().ok_or("no record")?;
                Ok(record.twist(word.parse()?, value.parse()?)?.to_string())
            }
            // steal NAME ROUNDS: requeues the sleepers on the bells of the name's owner, until this many were requeued
            ["steal", name, ref rest @ ..] => self.steal(name, rest.first().unwrap_or(&"1").parse()?),
            ["strike"] => {
                self.mine.iter().for_each(Mapping::flip);
                Ok(self.mine.len().to_string())
            }
            _ => Err(format!("no such order: {line}").into()),
        }
    }

    fn pry(&mut self, namespace: &str) -> Answer {
        let hand = self.hand()?;
        let mut lent = 0;
        for number in (0..64).map(ClientNo::new).filter(|number| *number != hand.welcome.client) {
            let parts = (0..3).map(|part| Request::CellsOf { client: number, part });
            let slots = (0..64).map(|at| Request::SegmentOf { owner: number, slot: SlotNo::new(at * 64) });
            let wakes = (0..4).map(|cursor| Request::WakeDescriptor {
                stream: StreamLine::new(0),
                subscriber: number,
                cursor: CursorNo::new(cursor),
            });
            for request in parts.chain(slots).chain(wakes).chain([Request::LeasesOf { client: number }]) {
                lent += hand.ask(&request)?.1.len();
            }
        }
        // Also tries to join another user's private namespace by its name.
        let socket = rustix::net::getpeername(&hand.socket)?.ok_or("no address")?;
        let socket = SocketAddrUnix::try_from(socket)?;
        let path = std::str::from_utf8(socket.path_bytes().ok_or("no path")?)?;
        lent += usize::from(Hand::join(Path::new(path), Some(namespace)).is_ok());
        Ok(lent.to_string())
    }

    fn take(&mut self, name: &str, all: bool) -> Answer {
        let hand = self.hand()?;
        let (catalogue, cell, cells, leases) = hand.follow(name)?;
        let lent = hand.segment_of(catalogue, cell.slot())?;
        let slots = map(&lent.slots, Access::Read)?;
        let words: &[tensorlend_layout::word::Word] =
            slots.array(4096 + (cell.slot() - lent.base) as usize * 128, 16).ok_or("the slot is not there")?;
        let record = SlotInfo::unpack(&std::array::from_fn(|i| words[i].read()))?;
        let mut objects = vec![Object { what: "segment", lent: vec![lent.segment], at: record.data_offset }];
        if all {
            let directory = hand.directory_fd.try_clone()?;
            for (what, fd) in
                [("slots", lent.slots), ("catalogue", cells), ("leases", leases), ("directory", directory)]
            {
                objects.push(Object { what, lent: vec![fd], at: 0 });
            }
        }
        self.objects = objects;
        Ok(record.data_offset.to_string())
    }

    fn steal(&mut self, name: &str, count: usize) -> Answer {
        let hand = self.hand()?;
        let (_, _, cells, _) = hand.follow(name)?;
        let view = map(&cells, Access::Read)?;
        let bell: &tensorlend_layout::word::Bell = view.at(128).ok_or("no bell")?;
        let mut stolen = 0;
        let own = Box::leak(Box::new(std::sync::atomic::AtomicU32::new(0)));
        while stolen < count {
            let more = calls::steal_sleepers(bell.futex(), own)
                + calls::steal_sleepers(hand.directory.head().bell.futex(), own);
            stolen += more;
            if more == 0 {
                std::thread::yield_now();
            }
        }
        Ok(stolen.to_string())
    }

    fn trap(&mut self, stream: &str) -> Answer {
        let hand = self.hand()?;
        hand.leases.cursors[0].parked.set(2);
        let (.., ours) = hand.subscribe(stream, 0)?;
        // It never reads: the producer's bytes fill the queue.
        rustix::io::ioctl_fionbio(&ours, false)?;
        jam(&hand.wakeup)?;
        self.kept.push(ours);
        Ok(String::new())
    }

    fn hoard(&mut self) -> Answer {
        let hand = self.hand.as_ref().ok_or("not joined")?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let mut bases = Vec::new();
        for _ in 0..4 {
            let mapped = hand.segment(1 << 20, 4, |lent| {
                bases.push(lent.base);
                Ok([Mapping::new(&lent.segment, lent.bytes, both)?, Mapping::new(&lent.slots, 4096, both)?])
            })?;
            self.mine.extend(mapped);
        }
        // Returns one segment as if none of it were mapped any more.
        hand.ask(&Request::ReturnSegment { base: bases[0] })?;
        Ok(self.mine.len().to_string())
    }
}

fn jam(bell: &OwnedFd) -> Result<(), Box<dyn std::error::Error>> {
    rustix::io::ioctl_fionbio(bell, true)?;
    let most = (u64::MAX - 1).to_ne_bytes();
    let _ = rustix::io::read(bell, &mut [0; 8]);
    rustix::io::write(bell, &most)?;
    rustix::io::ioctl_fionbio(bell, false)?;
    assert!(!rustix::fs::fcntl_getfl(bell)?.contains(OFlags::NONBLOCK));
    Ok(())
}

fn main() {
    orders::end_with_parent();
    let mut attacker = Attacker::default();
    orders::obey(|line| attacker.run(line));
    // The mappings must stay until the process ends.
    attacker.mine.drain(..).for_each(Mapping::keep);
}
