//! The central race of the design, in two processes on two processors, on real sheets. Reader R stores its lease and
//! reads the cell again; owner O replaces the cell and reads the leases. At least one of them must see the other's
//! store: otherwise O reuses a slot while R reads it. Without the fences between the two steps a processor may perform
//! its read before its store becomes visible, and this program shows that it does.
//!
//! `tensorlend-litmus [ROUNDS]` prints, for each variant, `VARIANT ROUNDS VIOLATIONS`.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use tensorlend_layout::catalogue::Catalogue;
use tensorlend_layout::leases::{self, LeaseTable};
use tensorlend_layout::number::{ClientNo, SlotNo};
use tensorlend_layout::publish;
use tensorlend_layout::raw::Sheet;
use tensorlend_layout::word::{Cell, LeaseWord, Word};
use tensorlend_os::map;
use tensorlend_os::memfd::Access;
use tensorlend_tests::filled::Random;

const ROUNDS: u32 = 400_000;
/// Number of places that rounds use in turn.
const PLACES: u32 = 64;
/// The owner's catalogue.
const OWNER: u16 = 1;

/// The variants of the two steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// As in clients: `leases::acquire` in R, `publish::overwrite` and `leases::scan_fence` in O.
    Steps,
    /// As `Steps`, but O relies on the fence in `publish::overwrite`, as it does before it reads the words of sleepers.
    Overwrite,
    /// O uses a plain store instead of an exchange, so that only its fence orders its steps.
    Fences,
    /// As `Fences`, without the fences.
    None,
}

const WAYS: [(Way, &str); 4] =
    [(Way::Steps, "steps"), (Way::Overwrite, "overwrite"), (Way::Fences, "fences"), (Way::None, "none")];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => judge(ROUNDS),
        [rounds] => judge(rounds.parse().expect("a number of rounds")),
        [role, way, rounds, folder, core] => {
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            pin(core.parse().expect("a processor"));
            let way = WAYS.iter().find(|(_, name)| *name == way).expect("a way").0;
            let party = Party::new(Path::new(folder), role == "reader");
            let seen = party.run(way, rounds.parse().expect("a number"));
            std::fs::write(Path::new(folder).join(role), seen).expect("the outcome is written");
            ExitCode::SUCCESS
        }
        _ => ExitCode::from(2),
    }
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).expect("a processor that is ours");
}

/// Runs every variant, and counts the rounds in which neither saw the other.
fn judge(rounds: u32) -> ExitCode {
    let own = sched_getaffinity(None).expect("some processors are ours");
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| own.is_set(core)).collect();
    let (Some(first), Some(last)) = (cores.first(), cores.last().filter(|_| cores.len() > 1)) else {
        println!("one processor only");
        return ExitCode::SUCCESS;
    };
    for (_, name) in WAYS {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (sheet, bytes) in [("owner", size_of::<Catalogue>()), ("reader", size_of::<LeaseTable>())] {
            let file = File::create(folder.path().join(format!("{sheet}.sheet"))).expect("a sheet");
            file.set_len(bytes as u64).expect("a sheet has a length");
        }
        let start = |role: &str, core: &usize| {
            Command::new(std::env::current_exe().expect("a program knows its own path"))
                .args([role, name, &rounds.to_string()])
                .arg(folder.path())
                .arg(core.to_string())
                .spawn()
                .expect("the other half starts")
        };
        for mut child in [start("reader", first), start("owner", last)] {
            assert!(child.wait().expect("a child ends").success(), "one half has failed");
        }
        let seen = |role: &str| std::fs::read(folder.path().join(role)).expect("the outcome is there");
        // R: 1 if its lease is valid. O: 1 if it saw no lease on the replaced value.
        let both = seen("reader").into_iter().zip(seen("owner")).filter(|&both| both == (1, 1)).count();
        println!("{name} {rounds} {both}");
    }
    ExitCode::SUCCESS
}

/// One of the two processes. It has both sheets mapped, and its own one writable.
struct Party {
    reads: bool,
    catalogue: Sheet<Catalogue>,
    table: Sheet<LeaseTable>,
}

impl Party {
    fn new(folder: &Path, reads: bool) -> Self {
        let open = |sheet: &str, mine: bool| -> (OwnedFd, Access) {
            let file = File::options().read(true).write(mine).open(folder.join(format!("{sheet}.sheet")));
            (file.expect("the sheet is there").into(), if mine { Access::Write } else { Access::Read })
        };
        let (owner, how) = open("owner", !reads);
        let catalogue = map::sheet(&owner, size_of::<Catalogue>(), how).expect("it can be mapped");
        let (reader, how) = open("reader", reads);
        let table = map::sheet(&reader, size_of::<LeaseTable>(), how).expect("it can be mapped");
        Self { reads, catalogue: Sheet::new(catalogue).expect("its size"), table: Sheet::new(table).expect("its size") }
    }

    /// Returns the words that serve as the two parties' step counters.
    fn counters(&self) -> (&Word, &Word) {
        let (reader, owner) = (&self.table.parked, &self.catalogue.ring_head);
        if self.reads { (reader, owner) } else { (owner, reader) }
    }

    /// A barrier of both parties.
    fn meet(&self, step: &mut u64) {
        *step += 1;
        let (mine, other) = self.counters();
        mine.set(*step);
        let mut looks = 0u32;
        while other.read() < *step {
            looks += 1;
            if looks.is_multiple_of(1 << 12) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Returns for each round 1 if this party did not see the other.
    fn run(&self, way: Way, rounds: u32) -> Vec<u8> {
        let mut random = Random(u64::from(self.reads));
        let mut step = 0;
        (0..rounds)
            .map(|round| {
                let slot = round % PLACES;
                let cell = &self.catalogue.cells[slot as usize].cell;
                let entry = &self.table.entries[0][slot as usize];
                let old = Cell::new(u64::from(round) + 1, SlotNo::new(slot));
                let new = Cell::new(u64::from(round) + 2, SlotNo::new(slot));
                if !self.reads {
                    cell.set(old.0);
                }
                self.meet(&mut step);
                // Each loads the other's cache line before it writes its own.
                assert_eq!((cell.read(), entry.read()), (old.0, 0));
                self.meet(&mut step);
                for _ in 0..random.below(24) {
                    std::hint::spin_loop();
                }
                let blind = if self.reads {
                    reader(way, entry, cell, old)
                } else {
                    owner(way, &self.catalogue.claim, entry, cell, old, new)
                };
                self.meet(&mut step);
                if self.reads {
                    leases::release(entry);
                }
                u8::from(blind)
            })
            .collect()
    }
}

/// Leases the cell's value; returns true if the lease is valid.
fn reader(way: Way, entry: &Word, cell: &Word, old: Cell) -> bool {
    let lease: LeaseWord = old.lease(ClientNo::new(OWNER));
    match way {
        Way::Steps | Way::Overwrite | Way::Fences => leases::acquire(entry, lease, &[(cell, old.0)]),
        Way::None => {
            leases::store(entry, lease);
            cell.peek() == old.0
        }
    }
}

/// Replaces the cell's value; returns true if it saw no lease on the old one. `owner_word` never changes.
fn owner(way: Way, owner_word: &Word, entry: &Word, cell: &Word, old: Cell, new: Cell) -> bool {
    match way {
        Way::Steps => {
            assert_eq!(publish::overwrite(owner_word, 0, cell, new), Some(old));
            leases::scan_fence();
        }
        Way::Overwrite => assert_eq!(publish::overwrite(owner_word, 0, cell, new), Some(old)),
        Way::Fences => {
            cell.set(new.0);
            leases::scan_fence();
        }
        Way::None => cell.set(new.0),
    }
    entry.peek() != old.lease(ClientNo::new(OWNER)).0
}
