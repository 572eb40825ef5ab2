//! A run of training: epochs over a source, in an order that follows from the seed.

use crate::error::{Error, Result};
use crate::network::{Init, Network};
use crate::source::Source;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Width of the hidden layer.
    pub hidden: usize,
    pub classes: usize,
    pub epochs: usize,
    /// Learning rate.
    pub rate: f32,
    /// Initialization of weights.
    pub init: Init,
    /// Seed of the weights and of the order of the batches.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Outcome {
    /// Loss of each batch, in the order of training.
    pub losses: Vec<f32>,
    /// Time of each epoch, in seconds.
    pub epochs_s: Vec<f64>,
    /// Time of each epoch outside the network, in seconds: leasing and releasing batches.
    pub loading_s: Vec<f64>,
    /// Number of test samples classified correctly, and number of all test samples.
    pub known: (usize, usize),
}

/// Trains with one source, and tests with another.
///
/// # Errors
/// Those of the sources; [`Error::Use`] if they do not match.
pub fn run(plan: &Plan, train: &dyn Source, test: &dyn Source) -> Result<Outcome> {
    if train.width() != test.width() {
        return Err(Error::Use(format!(
            "one learns from rows of {} and is asked about rows of {}",
            train.width(),
            test.width()
        )));
    }
    let mut network = Network::new(train.width(), plan.hidden, plan.classes, plan.init, plan.seed);
    let mut order: Vec<usize> = (0..train.count()).collect();
    // Another seed than that of the weights, so that neither depends on the other's number of draws.
    let mut random = fastrand::Rng::with_seed(!plan.seed);
    let mut outcome = Outcome { losses: Vec::new(), epochs_s: Vec::new(), loading_s: Vec::new(), known: (0, 0) };
    for _ in 0..plan.epochs {
        random.shuffle(&mut order);
        let began = Instant::now();
        let mut learning = Duration::ZERO;
        for &batch in &order {
            train.show(batch, &mut |batch| {
                let began = Instant::now();
                outcome.losses.push(network.learn(batch, plan.rate));
                learning += began.elapsed();
            })?;
        }
        let whole = began.elapsed();
        outcome.epochs_s.push(whole.as_secs_f64());
        outcome.loading_s.push(whole.saturating_sub(learning).as_secs_f64());
    }
    for batch in 0..test.count() {
        test.show(batch, &mut |batch| {
            outcome.known.0 += network.known(batch);
            outcome.known.1 += batch.labels.len();
        })?;
    }
    Ok(outcome)
}
