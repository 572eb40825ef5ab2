//! A client that writes false values into every word, next to honest clients: no process crashes, nobody reads outside
//! of valid memory, and other clients' data are unharmed.

use std::process::Command;
use std::time::{Duration, Instant};
use tensorlend::Client;
use tensorlend_layout::name::{self, KeyKind};
use tensorlend_layout::word::OwnerWord;
use tensorlend_tests::board::Board;
use tensorlend_tests::hand::Hand;
use tensorlend_tests::machine::on_machine;
use tensorlend_tests::{Agent, Daemon, PROGRAM_PATIENCE, binary, budget, eventually, number};

const BYSTANDERS: usize = 2;
/// Timeout of the return of memory. The daemon checks a segment that was leased or writable again after up to 30 s, and
/// the liar's successive sessions lease each other's memory.
const RETURN: Duration = Duration::from_mins(15);

fn steer(program: &str) -> Agent {
    Agent::steer(Command::new(binary(program)))
}

/// Returns the counters that must return to their initial values.
fn in_use(client: &Client) -> (u64, u32, u64, u32) {
    let stat = client.stat().unwrap();
    (stat.bytes_in_use, stat.segments, stat.names, stat.frozen)
}

/// Deletes everything in the directory with a name: listings leave damaged entries out.
fn forget(daemon: &Daemon, watcher: &Client) {
    let hand = Hand::join(&daemon.socket(), None).unwrap();
    let live = hand.directory.entries().filter(|(_, entry)| OwnerWord(entry.owner_word.read()).is_live());
    let keys: Vec<Vec<u8>> = live.filter_map(|(_, entry)| hand.directory.key(entry)).collect();
    for key in keys {
        match name::parse(&key) {
            Some((KeyKind::Name, name)) => {
                watcher.delete(name).unwrap();
            }
            Some((KeyKind::Stream, name)) => {
                watcher.delete_stream(name).unwrap();
            }
            Some((KeyKind::List, name)) => {
                watcher.clear(name).unwrap();
            }
            // Items are deleted with their list.
            Some((KeyKind::Item, _)) => {}
            None => panic!("a key that cannot be: {key:?}"),
        }
    }
}

#[test]
fn words_that_lie_harm_nobody_but_the_liar() {
    lies("system", budget(SMALL, Amount { kinds: 12, rounds: 200 }));
}

#[test]
fn words_that_lie_harm_nobody_in_user_mode_either() {
    lies("user", budget(SMALL, Amount { kinds: 12, rounds: 200 }));
}

/// Includes false values about tensors on a device.
#[test]
fn words_that_lie_about_devices_harm_nobody() {
    on_machine("words_that_lie_about_devices_harm_nobody", |machine| {
        let device = "[cuda]\ndevices = [\"all\"]\nsegment_bytes = \"2MiB\"\nquarantine_ms = 20\n";
        let amount = budget(SMALL, Amount { kinds: 6, rounds: 200 });
        lies_to(&machine.daemon(&format!("{}{device}", config("system"))), amount);
    });
}

fn config(mode: &str) -> String {
    format!("mode = \"{mode}\"\n[pool]\nsegment_bytes = \"1MiB\"\nbytes_max = \"512MiB\"\n")
}

/// Amount of a liar's work.
#[derive(Clone, Copy)]
struct Amount {
    /// Number of kinds of false values for each word.
    kinds: u64,
    /// Rounds in each session that ends without restoring the true values.
    rounds: u64,
}

const SMALL: Amount = Amount { kinds: 1, rounds: 25 };

fn lies(mode: &str, amount: Amount) {
    lies_to(&Daemon::start(&config(mode)), amount);
}

fn lies_to(daemon: &Daemon, amount: Amount) {
    let watcher = daemon.client();
    let socket = daemon.socket();
    // The probe that waited for the daemon's start may still be connected.
    let empty = (0, 0, 0, 0);
    eventually("an empty daemon", || in_use(&watcher) == empty);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("board");
    let board = Board::make(&path, BYSTANDERS).unwrap();
    let mut honest: Vec<Agent> = (0..BYSTANDERS)
        .map(|me| {
            let mut agent = steer("tensorlend-bystander");
            agent.ok(&format!("start {} {me} {BYSTANDERS}", socket.display()));
            agent
        })
        .collect();
    for agent in &mut honest {
        agent.tell(&format!("run {}", path.display()));
    }

    let mut liar = steer("tensorlend-attacker");
    // Another seed gives other values, for long runs.
    let seed = number("TENSORLEND_LIES_SEED", 1);
    let Amount { kinds, rounds } = amount;
    println!("TENSORLEND_LIES_SEED={seed}, {kinds} kinds of lies, {rounds} rounds in each life without truth");
    liar.tell(&format!("lie {} {} {seed} {kinds} {rounds}", socket.display(), path.display()));
    // Each false value lasts two rounds of every bystander, however long these take. If a bystander hangs, the liar
    // reports it.
    let told = liar.answer_within(PROGRAM_PATIENCE).expect("the liar comes to an end").unwrap();
    board.end();
    let mut figures = (0, 0, 0);
    for agent in &mut honest {
        let seen = agent.answer().unwrap();
        let mut words = seen.splitn(4, ' ');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        figures = (figures.0 + number(), figures.1 + number(), figures.2 + number());
        assert_eq!(words.next(), Some("[]"), "what is honest stays whole");
    }
    let told: Vec<u64> = told.split(' ').map(|word| word.parse().unwrap()).collect();
    println!(
        "{} words of a client's sheets, {} lies about them in {} lives; {} operations of honest clients survived, of which \
         {} found a damaged tensor, and {} were refused for want of memory",
        told[0],
        told[1],
        told[2] + 1,
        figures.0,
        figures.1,
        figures.2
    );
    assert!(figures.1 > 0, "nobody noticed that anything lied");

    liar.kill();
    // The liar is dead, and its tensors still exist: the honest clients see everything whole.
    for agent in &mut honest {
        agent.ok("finish");
    }
    honest.into_iter().for_each(Agent::exit);
    for info in watcher.list("*").unwrap() {
        assert!(info.name.starts_with("liar/"), "{} is left", info.name);
    }
    forget(daemon, &watcher);
    let start = Instant::now();
    while in_use(&watcher) != empty {
        assert!(start.elapsed() < RETURN, "{:?} in use, {empty:?} before", in_use(&watcher));
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("everything came back {} s after it was deleted", start.elapsed().as_secs());
    assert_eq!(watcher.stat().unwrap().clients, 1);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[test]
fn stolen_sleepers_wake_all_the_same() {
    let daemon = Daemon::start("");
    let (mut producer, mut waiter) = (daemon.agent(), daemon.agent());
    producer.ok("put x 100 0");
    waiter.ok("newer x");
    let mut thief = steer("tensorlend-attacker");
    thief.ok(&format!("join {}", daemon.socket().display()));
    const STOLEN: usize = 5;
    thief.tell(&format!("steal x {STOLEN}"));
    // Each round lets the waiter wait, and the thief requeues it to another futex, until the thief has stopped.
    let mut rounds = 0;
    let stolen = loop {
        rounds += 1;
        waiter.tell("newer x");
        let enough = thief.answer_within(Duration::from_millis(20));
        let sum = producer.ok(&format!("put x 100 {rounds}"));
        assert_eq!(waiter.answer().unwrap(), sum);
        if let Some(stolen) = enough {
            break stolen.unwrap();
        }
        assert!(rounds < 1000, "nothing could be stolen");
    };
    println!("{stolen} sleepers stolen in {rounds} rounds, every one of them woke");
}
