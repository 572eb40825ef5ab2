//! Pairs of real processes: copies of this program, which therefore has a `main` of its own.

use std::process::{Command, ExitCode};

use tensorlend_baselines::{BaselineError, Cores, Duel, Game, Meter, serve};
use tensorlend_tests::harness;

const PEER: &str = "__peer";

fn launch(words: &[String]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(PEER).args(words);
    command
}

/// Names of peers that this process started.
fn left() -> Vec<String> {
    let of_ours = format!("tensorlend-peer-duel-{}-", std::process::id());
    let names = |folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let all = names("/dev/shm".into()).chain(names(std::env::temp_dir()));
    all.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with(&of_ours)).collect()
}

fn every_game_that_is_built_gives_samples_and_leaves_nothing() {
    let cores = Cores::find().unwrap();
    let broker = tensorlend_daemon::embedded().unwrap();
    for game in Game::ALL {
        for bytes in [1, 5000] {
            let mut duel = match Duel::start(game, bytes, cores, Some(broker.socket()), &launch) {
                Err(BaselineError::NotBuilt { feature }) => {
                    assert!(!game.is_ours() && feature == "iceoryx2" && !cfg!(feature = "iceoryx2"));
                    continue;
                }
                other => other.unwrap_or_else(|error| panic!("{}: {error}", game.name())),
            };
            let mut samples_ns = Vec::new();
            for operations in [1, 7] {
                let before = samples_ns.len();
                duel.measure(operations, &mut samples_ns).unwrap_or_else(|error| panic!("{}: {error}", game.name()));
                assert!(samples_ns.len() > before, "{} gave no sample", game.name());
            }
            assert!(samples_ns.iter().all(|&ns| ns > 0.0), "{}: {samples_ns:?}", game.name());
        }
    }
    let client = tensorlend::Client::builder().socket(broker.socket()).connect().unwrap();
    assert!(client.streams("*").unwrap().is_empty() && client.list("*").unwrap().is_empty());
    assert_eq!(left(), [""; 0]);
}

fn a_party_that_never_comes_is_an_error() {
    let cores = Cores::find().unwrap();
    let error = Duel::start(Game::StreamPoll, 8, cores, None, &|_| Command::new("false")).err().unwrap();
    let BaselineError::PeerGone { status } = error else { panic!("{error}") };
    assert_eq!(status.code(), Some(1));
    let error = Duel::start(Game::StreamPoll, 8, cores, None, &|_| Command::new("/no/such/program")).err().unwrap();
    assert!(matches!(error, BaselineError::Spawn(_)), "{error}");
}

fn a_party_says_why_it_failed() {
    let cores = Cores::find().unwrap();
    let nowhere = std::path::Path::new("/no/such/socket");
    let error = Duel::start(Game::StreamPoll, 8, cores, Some(nowhere), &launch).err().unwrap();
    let BaselineError::Party(why) = error else { panic!("{error}") };
    assert!(why.contains("/no/such/socket"), "{why}");
}

fn a_party_started_by_hand_says_so() {
    let error = serve(&["duel".to_owned(), "x".to_owned()]).unwrap_err();
    assert!(matches!(error, BaselineError::Arguments(_)), "{error}");
}

/// The tests by name, as harnesses have them.
const TESTS: [(&str, fn()); 4] = [
    ("a_party_started_by_hand_says_so", a_party_started_by_hand_says_so),
    ("a_party_that_never_comes_is_an_error", a_party_that_never_comes_is_an_error),
    ("a_party_says_why_it_failed", a_party_says_why_it_failed),
    (
        "every_game_that_is_built_gives_samples_and_leaves_nothing",
        every_game_that_is_built_gives_samples_and_leaves_nothing,
    ),
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == PEER) {
        // It has told the one who started it why, if it failed.
        return ExitCode::from(u8::from(serve(&words[1..]).is_err()));
    }
    harness::main(&TESTS)
}
