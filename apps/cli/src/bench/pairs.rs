//! Rows for exchanges of two processes on two cores. They are compared with two threads that do the
//! same exchange with the fewest possible operations.

use tensorlend_baselines::{Duel, Game, Meter, floors};

use super::race::{Entry, Group};
use super::setting::{FLOOR, OURS, Setting, entry, launch};

const ICEORYX: &str = "iceoryx2";

const SIZES: [usize; 3] = [1 << 10, 1 << 20, 4 << 20];
/// A message of the first size has its bytes in its entry.
const TOUCHED: [usize; 4] = [32, 1 << 10, 1 << 20, 4 << 20];

pub fn groups(setting: &Setting) -> Vec<Group> {
    let cores = setting.cores;
    let mut polling = vec![entry("cacheline_one_way", FLOOR, None, move || floors::cacheline(cores))];
    for bytes in SIZES {
        let to = Some("cacheline_one_way");
        polling.push(duel(setting, "stream_poll_one_way", OURS, to, Game::StreamPoll, bytes));
        polling.push(duel(setting, "stream_poll_one_way", ICEORYX, to, Game::IceoryxPoll, bytes));
        polling.push(duel(setting, "stream_loan_one_way", OURS, to, Game::StreamLoan, bytes));
    }
    polling.push(duel(setting, "name_poll_one_way", OURS, Some("cacheline_one_way"), Game::NamePoll, 1 << 10));
    let mut touching = Vec::new();
    for bytes in TOUCHED {
        let floor = move || floors::written_read(cores, bytes);
        touching.push(entry("memory_written_read", FLOOR, None, floor).sized(bytes));
        let to = Some("memory_written_read");
        touching.push(duel(setting, "stream_poll_written_read", OURS, to, Game::StreamWrittenRead, bytes));
        touching.push(duel(setting, "stream_poll_written_read", ICEORYX, to, Game::IceoryxWrittenRead, bytes));
        touching.push(duel(setting, "stream_loan_written_read", OURS, to, Game::StreamLoanWrittenRead, bytes));
    }
    let waking = vec![
        entry("futex_one_way", FLOOR, None, move || floors::futex_wake(cores)),
        duel(setting, "stream_wake_one_way", OURS, Some("futex_one_way"), Game::StreamWake, 1 << 10),
        entry("eventfd_epoll_one_way", FLOOR, None, move || floors::eventfd_epoll(cores)),
        duel(setting, "stream_epoll_one_way", OURS, Some("eventfd_epoll_one_way"), Game::StreamEpoll, 1 << 10),
    ];
    vec![
        Group { doing: "streams and names, polled", entries: polling },
        Group { doing: "streams, written and read", entries: touching },
        Group { doing: "streams, asleep", entries: waking },
    ]
}

fn duel(
    setting: &Setting,
    name: &str,
    peer: &'static str,
    floor: Option<&'static str>,
    game: Game,
    bytes: usize,
) -> Entry {
    let Setting { cores, socket, .. } = setting.clone();
    let make = move || {
        let duel = Duel::start(game, bytes, cores, Some(&socket), &launch)?;
        Ok(Box::new(duel) as Box<dyn Meter>)
    };
    entry(name, peer, floor, make).sized(bytes)
}
