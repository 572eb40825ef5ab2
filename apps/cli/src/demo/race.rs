//! The demo's second part, which interleaves all contenders over all sizes.

use super::lend::{Lender, Samples};
use super::table::{LeftOut, Method, Row, Stat};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of passes over all sizes below [`LARGE`]. A moment in which the machine is busy affects one of them.
const PASSES: usize = 3;
/// Number of rounds of one pass at a size. Each contender takes part in each round.
const ROUNDS: usize = 4;
/// Size from which all rounds are in the first pass, because a contender needs long to start.
const LARGE: u64 = 16 << 20;
/// Target time of one contender in one round.
const ROUND: Duration = Duration::from_millis(40);
const EXCHANGES_MAX: usize = 500;

enum Contender {
    Lend(Box<Lender>),
    #[cfg(feature = "baselines")]
    Baseline(tensorlend_baselines::Session),
}

impl Contender {
    fn start(bytes: u64, method: Method, socket: Option<&Path>) -> Result<Self, Box<dyn Error>> {
        match method {
            Method::Lend | Method::LendCopied => Ok(Self::Lend(Box::new(Lender::start(socket, bytes, method)?))),
            #[cfg(feature = "baselines")]
            Method::Serialize | Method::Copy => {
                use tensorlend_baselines::{Kind, Session, timeout};
                let kind = if method == Method::Copy { Kind::Copy } else { Kind::Serialize };
                let bytes = usize::try_from(bytes)?;
                let mut spawn = |args: &[String]| {
                    let args: Vec<String> =
                        std::iter::once("baseline".to_owned()).chain(args.iter().cloned()).collect();
                    super::children::plain(&args)
                };
                Ok(Self::Baseline(Session::start(kind, bytes, timeout(bytes), &mut spawn)?))
            }
            #[cfg(not(feature = "baselines"))]
            Method::Serialize | Method::Copy => Err(
                "this build has nothing to compare with: build `cargo build --release -p tensorlend-cli` from a clone"
                    .into(),
            ),
        }
    }

    fn run(&mut self, rounds: usize, samples: &mut Samples) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Lend(lender) => lender.run(rounds, samples),
            #[cfg(feature = "baselines")]
            Self::Baseline(session) => {
                let timings = session.run(rounds)?;
                if !timings.checksum_ok {
                    return Err("the bytes that arrived were not those that were sent".into());
                }
                samples.put.extend(timings.put_ns);
                samples.get.extend(timings.get_ns);
                samples.round_trip.extend(timings.round_trip_ns);
                Ok(())
            }
        }
    }
}

struct Entrant {
    method: Method,
    contender: Contender,
    exchanges: usize,
}

/// The rounds of all rows, and the rows that failed.
#[derive(Default)]
struct Results {
    rounds: BTreeMap<(u64, Method), Vec<Samples>>,
    left_out: Vec<LeftOut>,
}

impl Results {
    fn leave_out(&mut self, bytes: u64, method: Method, error: &dyn Error) {
        self.rounds.remove(&(bytes, method));
        self.left_out.push(LeftOut { bytes, method, reason: error.to_string() });
    }

    fn is_left_out(&self, bytes: u64, method: Method) -> bool {
        self.left_out.iter().any(|it| (it.bytes, it.method) == (bytes, method))
    }

    fn row(&self, bytes: u64, method: Method) -> Option<Row> {
        let rounds = self.rounds.get(&(bytes, method))?;
        let stat = |time: fn(&Samples) -> &[u64]| Stat::of_rounds(rounds.iter().map(time));
        Some(Row {
            bytes,
            method,
            put: stat(|it| &it.put)?,
            get: stat(|it| &it.get)?,
            round_trip: stat(|it| &it.round_trip)?,
        })
    }
}

/// Runs the plan. A contender that fails is left out with its reason, and the others continue.
pub fn run(planned: &[(u64, Method)], socket: Option<&Path>) -> (Vec<Row>, Vec<LeftOut>) {
    let bar = indicatif::ProgressBar::new(planned.len() as u64 * PASSES as u64);
    let mut results = Results::default();
    for pass in 0..PASSES {
        for group in planned.chunk_by(|a, b| a.0 == b.0) {
            bar.inc(group.len() as u64);
            let rounds = match (group[0].0 < LARGE, pass) {
                (true, _) => ROUNDS,
                (false, 0) => PASSES * ROUNDS,
                (false, _) => continue,
            };
            compete(group, rounds, socket, &mut results);
        }
    }
    bar.finish_and_clear();
    let rows = planned.iter().filter_map(|&(bytes, method)| results.row(bytes, method)).collect();
    (rows, results.left_out)
}

/// Runs some rounds at one size, in which all contenders take turns.
fn compete(group: &[(u64, Method)], rounds: usize, socket: Option<&Path>, results: &mut Results) {
    let bytes = group[0].0;
    let mut entrants = Vec::new();
    for &(_, method) in group {
        if results.is_left_out(bytes, method) {
            continue;
        }
        match enter(bytes, method, socket) {
            Ok(entrant) => entrants.push(entrant),
            Err(error) => results.leave_out(bytes, method, &*error),
        }
    }
    for _ in 0..rounds {
        entrants.retain_mut(|Entrant { method, contender, exchanges }| {
            let mut samples = Samples::default();
            let done = contender.run(*exchanges, &mut samples);
            match &done {
                Ok(()) => results.rounds.entry((bytes, *method)).or_default().push(samples),
                Err(error) => results.leave_out(bytes, *method, &**error),
            }
            done.is_ok()
        });
    }
}

fn enter(bytes: u64, method: Method, socket: Option<&Path>) -> Result<Entrant, Box<dyn Error>> {
    let mut contender = Contender::start(bytes, method, socket)?;
    // Time one exchange, to compute how many fit into a round.
    let mut trial = Samples::default();
    let start = Instant::now();
    contender.run(1, &mut trial)?;
    let exchanges = (ROUND.as_nanos() / start.elapsed().as_nanos().max(1)) as usize;
    Ok(Entrant { method, contender, exchanges: exchanges.clamp(1, EXCHANGES_MAX) })
}
