//! The demo's second part, which interleaves all contenders over all sizes.

use super::lend::{Lender, Samples};
use super::table::{LeftOut, Method, Row, Stat};
use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

/// Number of batches of each contender. They are interleaved, so that a slow moment of the machine
/// affects all contenders.
const BATCHES: usize = 3;
/// Target time of a batch.
const BATCH: Duration = Duration::from_millis(150);
const ROUNDS_MAX: usize = 500;

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
    rounds: usize,
    samples: Samples,
}

/// Runs the plan. A contender that fails is left out with its reason, and the others continue.
pub fn run(planned: &[(u64, Method)], socket: Option<&Path>) -> (Vec<Row>, Vec<LeftOut>) {
    let bar = indicatif::ProgressBar::new(planned.len() as u64 * BATCHES as u64);
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for group in planned.chunk_by(|a, b| a.0 == b.0) {
        let bytes = group[0].0;
        let mut entrants = Vec::new();
        for &(_, method) in group {
            match enter(bytes, method, socket) {
                Ok(entrant) => entrants.push(entrant),
                Err(e) => left_out.push(LeftOut { bytes, method, reason: e.to_string() }),
            }
        }
        for _ in 0..BATCHES {
            entrants.retain_mut(|entrant| {
                bar.inc(1);
                match entrant.contender.run(entrant.rounds, &mut entrant.samples) {
                    Ok(()) => true,
                    Err(e) => {
                        left_out.push(LeftOut { bytes, method: entrant.method, reason: e.to_string() });
                        false
                    }
                }
            });
        }
        for Entrant { method, samples, .. } in &entrants {
            let stats = (Stat::of(&samples.put), Stat::of(&samples.get), Stat::of(&samples.round_trip));
            if let (Some(put), Some(get), Some(round_trip)) = stats {
                rows.push(Row { bytes, method: *method, put, get, round_trip });
            }
        }
    }
    bar.finish_and_clear();
    (rows, left_out)
}

fn enter(bytes: u64, method: Method, socket: Option<&Path>) -> Result<Entrant, Box<dyn Error>> {
    let mut contender = Contender::start(bytes, method, socket)?;
    // Time one exchange, to compute how many fit into a batch.
    let mut trial = Samples::default();
    let start = Instant::now();
    contender.run(1, &mut trial)?;
    let rounds = (BATCH.as_nanos() / start.elapsed().as_nanos().max(1)) as usize;
    Ok(Entrant { method, contender, rounds: rounds.clamp(3, ROUNDS_MAX), samples: Samples::default() })
}
