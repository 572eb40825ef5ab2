//! Memory made before a client asks for it.
//!
//! A client that connects needs a catalogue and a lease table, and with its first tensor a short segment and its slot
//! records. The kernel takes longer to allocate and zero these than the daemon needs for the rest of the request. So the
//! daemon makes one of each kind ahead that clients have asked for, after a pause in which nobody asked for any.
//!
//! No client has seen this memory, and it counts against no limit until it is lent.

use super::{Made, Making, Plan, blank, finish, make};
use crate::sys::backing::Pages;
use rustix::fs::stat;
use rustix::process::{Resource, getrlimit};
use std::os::fd::OwnedFd;
use tensorlend_layout::header::Magic;
use tensorlend_os::numa::Numa;

/// Pause between a request and the making of the next memory. Clients that connect one after the other do not wait for
/// it.
const PAUSE_NS: u64 = 10_000_000;

/// Maximum length in bytes of memory that is made ahead.
const BYTES_MAX: u64 = 512 << 10;

/// Number of descriptors that must be free. Otherwise requests of clients may need those that are left.
const FREE_MIN: u64 = 64;

/// The kinds of memory that a new client needs. `None` is a segment.
const KINDS: [Option<Magic>; 4] = [Some(Magic::Catalogue), Some(Magic::Leases), None, Some(Magic::Slots)];

/// Memory made ahead, at most one of each kind.
#[derive(Debug, Default)]
pub struct Ahead {
    next: [Next; KINDS.len()],
    due_ns: Option<u64>,
    /// Whether the last request was for a short segment. The slot records that follow are of this segment, and records of
    /// other segments have other lengths.
    is_short: bool,
}

#[derive(Debug, Default)]
struct Next {
    /// The plan of the last request for this kind.
    plan: Option<Plan>,
    made: Option<OwnedFd>,
}

impl Ahead {
    /// Creates memory like [`make`], from memory made ahead if it has the wanted length.
    pub fn make(&mut self, plan: Plan, how: Making, now_ns: u64) -> Made {
        match self.take(plan, how, now_ns) {
            Some(fd) => finish(plan, fd),
            None => make(plan, how, &|| true),
        }
    }

    fn take(&mut self, plan: Plan, (_, backing): Making, now_ns: u64) -> Option<OwnedFd> {
        let magic = plan.sheet.map(|sheet| sheet.magic);
        // Advised pages are allocated through a mapping. A segment may also have reserved pages, a place, or pages of the client.
        let is_plain = match magic {
            Some(_) => backing.pages != Pages::Advised,
            None => backing.pages == Pages::Ordinary && backing.numa == Numa::Local && plan.bytes_first == plan.bytes,
        };
        let follows = std::mem::replace(&mut self.is_short, magic.is_none() && is_plain && plan.bytes <= BYTES_MAX);
        if !is_plain || plan.bytes > BYTES_MAX || (magic == Some(Magic::Slots) && !follows) {
            return None;
        }
        let next = &mut self.next[KINDS.iter().position(|kind| *kind == magic)?];
        let former = next.plan.replace(plan).map(|plan| plan.bytes);
        self.due_ns = Some(now_ns + PAUSE_NS);
        next.made.take().filter(|_| former == Some(plan.bytes))
    }

    /// Closes the waiting memory, because the process has no descriptors left. The next request for any orders it again.
    pub fn close(&mut self) {
        self.due_ns = None;
        for next in &mut self.next {
            next.made = None;
        }
    }

    /// Returns the time at which memory should be made ahead, if any should.
    pub fn due_ns(&self) -> Option<u64> {
        self.due_ns
    }

    /// Makes memory of one kind ahead. The caller calls this when it is due.
    pub fn refill(&mut self, how: Making) {
        let missing = self.next.iter_mut().filter(|next| next.made.is_none());
        let mut missing = missing.filter_map(|next| next.plan.map(|plan| (next, plan)));
        let Some((next, plan)) = missing.next().filter(|_| free_descriptors() >= FREE_MIN) else {
            self.due_ns = None;
            return;
        };
        // Only administrators may use the last free memory, and nobody has asked for this.
        match blank(Plan { reserved: false, ..plan }, how, &|| true) {
            Ok(fd) => next.made = Some(fd),
            Err(error) => {
                // The next request tries again.
                tracing::debug!("no memory is made ahead: {error}");
                self.due_ns = None;
            }
        }
    }
}

/// Returns how many descriptors this process may still open. Before Linux 6.2, the kernel does not report the number of open ones,
/// and the result is the limit.
fn free_descriptors() -> u64 {
    let open = stat("/proc/self/fd").map_or(0, |folder| folder.st_size.cast_unsigned());
    getrlimit(Resource::Nofile).current.map_or(u64::MAX, |limit| limit.saturating_sub(open))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::SheetPlan;
    use crate::sys::backing::Backing;
    use rustix::fs::fstat;
    use std::os::fd::AsFd;
    use tensorlend_layout::number::ClientNo;
    use tensorlend_os::map;
    use tensorlend_os::memfd::{self, Access};

    const BACKING: Backing = Backing { pages: Pages::Ordinary, numa: Numa::Local };
    const HOW: Making = (false, BACKING);

    fn plan(bytes: u64, magic: Option<Magic>) -> Plan {
        let sheet = magic.map(|magic| SheetPlan { magic, owner: ClientNo::new(7), count: 1, first: 0 });
        Plan { bytes, bytes_first: bytes, sheet, reserved: false }
    }

    fn waiting(ahead: &Ahead) -> Vec<u64> {
        ahead.next.iter().filter_map(|next| Some(fstat(next.made.as_ref()?).unwrap().st_size as u64)).collect()
    }

    fn refill(ahead: &mut Ahead) {
        while ahead.due_ns().is_some() {
            ahead.refill(HOW);
        }
    }

    /// Asks for a segment and its slot records.
    fn segment(ahead: &mut Ahead, bytes: u64, slots: u64) {
        if bytes <= 128 << 10 {
            ahead.make(plan(bytes, None), HOW, 0).unwrap();
        }
        ahead.make(plan(slots, Some(Magic::Slots)), HOW, 0).unwrap();
    }

    #[test]
    fn the_next_of_each_kind_waits_zeroed_and_is_lent_once() {
        let mut ahead = Ahead::default();
        assert_eq!(ahead.due_ns(), None, "a daemon without clients makes nothing");
        let plans = [plan(69632, Some(Magic::Leases)), plan(128 << 10, None)];
        for round in 1..4 {
            for plan in plans {
                let (fd, view) = ahead.make(plan, HOW, round).unwrap();
                let stat = fstat(&fd).unwrap();
                assert_eq!((stat.st_size as u64, stat.st_blocks as u64 * 512), (plan.bytes, plan.bytes));
                let bytes = map::sheet(&fd, plan.bytes as usize, Access::Write).unwrap();
                let words: &[tensorlend_layout::word::Word] = bytes.array(4096, plan.bytes as usize / 8 - 512).unwrap();
                assert!(words.iter().all(|word| word.read() == 0));
                // The data of an ended client is in no memory that another client gets.
                for word in words {
                    word.set(u64::MAX);
                }
                assert_eq!(view.is_some(), plan.sheet.is_some());
            }
            assert_eq!((waiting(&ahead), ahead.due_ns()), (vec![], Some(round + PAUSE_NS)));
            refill(&mut ahead);
            assert_eq!(waiting(&ahead), [69632, 128 << 10]);
        }
    }

    #[test]
    fn the_last_length_is_made_and_a_former_one_given_back() {
        let mut ahead = Ahead::default();
        for bytes in [8192, 16384, 8192] {
            ahead.make(plan(bytes, Some(Magic::Leases)), HOW, 0).unwrap();
            assert!(waiting(&ahead).is_empty());
            refill(&mut ahead);
            assert_eq!(waiting(&ahead), [bytes]);
        }
    }

    #[test]
    fn slot_records_of_long_segments_replace_none_of_short_ones() {
        let mut ahead = Ahead::default();
        for long in [1 << 20, 64 << 20] {
            segment(&mut ahead, 128 << 10, 69632);
            refill(&mut ahead);
            assert_eq!(waiting(&ahead), [128 << 10, 69632]);
            // A lane makes the segment itself.
            segment(&mut ahead, long, 36864);
            assert_eq!((waiting(&ahead), ahead.due_ns()), (vec![128 << 10, 69632], None));
        }
    }

    #[test]
    fn waiting_memory_has_the_seals_of_its_mode() {
        for system in [true, false] {
            let mut ahead = Ahead::default();
            for round in 0..2 {
                for plan in [plan(69632, Some(Magic::Leases)), plan(128 << 10, None)] {
                    let (fd, _) = ahead.make(plan, (system, BACKING), round).unwrap();
                    let lent = memfd::reopen(fd.as_fd(), Access::Write).unwrap();
                    assert_eq!(memfd::seal_writers(lent.as_fd()).is_ok(), !system, "{plan:?} in round {round}");
                }
                while ahead.due_ns().is_some() {
                    ahead.refill((system, BACKING));
                }
            }
        }
    }

    #[test]
    fn only_short_memory_with_pages_of_the_daemon_is_made_ahead() {
        let mut ahead = Ahead::default();
        let long = plan(BYTES_MAX + 4096, None);
        let of_the_client = Plan { bytes_first: 0, ..plan(128 << 10, None) };
        for plan in [long, of_the_client, plan(8192, Some(Magic::Slots)), plan(8192, Some(Magic::Stream))] {
            ahead.make(plan, HOW, 0).unwrap();
            assert_eq!(ahead.due_ns(), None);
        }
        let advised = (false, Backing { pages: Pages::Advised, ..BACKING });
        let placed = (false, Backing { numa: Numa::Interleave, ..BACKING });
        for (how, plan) in [(advised, plan(69632, Some(Magic::Leases))), (placed, plan(128 << 10, None))] {
            ahead.make(plan, how, 0).unwrap();
            assert_eq!(ahead.due_ns(), None);
        }
        ahead.make(plan(69632, Some(Magic::Leases)), placed, 0).unwrap();
        assert_eq!(ahead.due_ns(), Some(PAUSE_NS), "only segments have a place");
    }
}
