//! Rows for round trips. In a round trip another process receives a tensor and acknowledges it,
//! through tensorlend or through another library.

use std::error::Error;

use tensorlend_baselines::{Duel, Game, Meter, pin};

use super::race::Entry;
use super::setting::{OURS, Setting, entry, launch};

/// The role of a process that receives through another library. The next argument is the process's
/// core.
pub const CONSUMER: &str = "consumer";

const NAME: &str = "exchange_round_trip";

/// Returns the rows of one size: tensorlend in place, tensorlend with a copy in, and the other libraries.
pub fn entries(setting: &Setting, floor: &'static str, bytes: usize) -> Vec<Entry> {
    let ours = |name: &str, game| {
        let Setting { cores, socket, .. } = setting.clone();
        let make = move || {
            let duel = Duel::start(game, bytes, cores, Some(&socket), &launch)?;
            Ok(Box::new(duel) as Box<dyn Meter>)
        };
        entry(name, OURS, Some(floor), make).sized(bytes)
    };
    let mut entries = vec![ours(NAME, Game::Lend), ours("exchange_put_round_trip", Game::Put)];
    entries.extend(others(setting, floor, bytes));
    entries
}

#[cfg(feature = "baselines")]
fn others(setting: &Setting, floor: &'static str, bytes: usize) -> Vec<Entry> {
    use std::process::Stdio;
    use tensorlend_baselines::{Kind, Session, timeout};

    let core = setting.cores.second.to_string();
    let other = |kind: Kind| {
        let core = core.clone();
        let make = move || {
            let mut spawn = |args: &[String]| {
                let words = [CONSUMER.to_owned(), core.clone()];
                launch(&[&words, args].concat()).stdout(Stdio::null()).spawn()
            };
            let session = Session::start(kind, bytes, timeout(bytes), &mut spawn)?;
            Ok(Box::new(session) as Box<dyn Meter>)
        };
        // Each round trip is a sample, and 500 samples suffice for the percentiles.
        entry(NAME, kind.name(), Some(floor), make).sized(bytes).at_most(500)
    };
    Kind::ALL.into_iter().map(other).collect()
}

#[cfg(not(feature = "baselines"))]
fn others(_: &Setting, floor: &'static str, bytes: usize) -> Vec<Entry> {
    let missing = || Err(tensorlend_baselines::BaselineError::NotBuilt { feature: "baselines" });
    vec![entry(NAME, "others", Some(floor), missing).sized(bytes)]
}

/// Runs a consumer process. The first argument is the process's core.
pub fn consume(args: &[String]) -> Result<(), Box<dyn Error>> {
    let Some((core, rest)) = args.split_first() else { return Err("a consumer needs a core".into()) };
    pin(core.parse()?)?;
    Ok(tensorlend_baselines::serve(rest)?)
}
