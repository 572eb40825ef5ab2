//! Batches: requests that run together.

use crate::engine::{Buffer, Engine, Feed, Output, OwnedBytes, Signature};
use crate::job::Job;
use crate::statistics::Recorder;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tensorlend::{Client, DType};
use tensorlend_model::ModelOptions;

/// Duration of a run from which the caller sleeps instead of spinning. After such a run the worker
/// announces the response ([`Job::soon`]). So the caller wakes up while the worker writes the
/// response.
const SOON: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of rows of a run.
    pub rows_max: u64,
    /// Number of rows at which a batch runs without waiting for more requests.
    pub rows_min: u64,
    /// Maximum time for which the first request of a batch waits for other requests.
    pub wait: Duration,
}

impl Limits {
    /// Returns the limits from the model's options. If the model's first dimension is fixed, each
    /// batch has one request.
    pub fn new(options: &ModelOptions, signature: &Signature) -> Self {
        if !signature.is_batchable() {
            return Self { rows_max: 1, rows_min: 1, wait: Duration::ZERO };
        }
        Self {
            rows_max: options.batch_max.into(),
            rows_min: options.batch_min.unwrap_or(options.batch_max).into(),
            wait: Duration::from_secs_f64(options.batch_wait_ms / 1000.0),
        }
    }

    /// Returns true if a job can run together with other jobs.
    pub fn admits(&self, job: &Job) -> bool {
        self.rows_max > 1 && job.rows().is_some_and(|rows| rows < self.rows_max)
    }
}

/// The environment that runs jobs on a model and sends the responses.
pub struct Bench<'b> {
    pub client: &'b Client,
    pub signature: &'b Signature,
    pub recorder: &'b Mutex<Option<Recorder>>,
}

impl Bench<'_> {
    /// Runs jobs together, and responds to each. If that run fails, runs each job separately. So a
    /// job that the model cannot compute does not make the other jobs fail.
    pub fn run(&self, engine: &mut dyn Engine, mut jobs: Vec<Job>) {
        self.record(|recorder| jobs.iter_mut().for_each(|job| recorder.waited(job.begin())));
        if jobs.len() > 1 {
            match self.together(engine, &jobs) {
                Ok((answers, took)) => {
                    for (job, outputs) in jobs.drain(..).zip(answers) {
                        self.answer(job, outputs, took);
                    }
                }
                Err(why) => tracing::debug!("{} requests are run one by one: {why}", jobs.len()),
            }
        }
        for job in jobs {
            let rows = job.rows().unwrap_or(1);
            match self.alone(engine, &job) {
                Ok((outputs, took)) => {
                    self.answer(job, outputs, took);
                    // The run is recorded after the response, so that the caller does not wait for
                    // the statistics.
                    self.record(|recorder| recorder.ran(1, rows, took));
                }
                Err(why) => self.fail(job, &why),
            }
        }
    }

    fn answer(&self, job: Job, outputs: Vec<Output>, took: Duration) {
        let said = job.answer(self.client, outputs, took);
        if let Err(error) = &said {
            tracing::warn!("a response could not be sent: {error}");
        }
        self.record(|recorder| recorder.said(said.is_ok()));
    }

    /// Sends the reason for a failure to the caller of `job`.
    pub fn fail(&self, job: Job, why: &str) {
        if let Err(error) = job.fail(why) {
            tracing::warn!("a failure could not be reported: {error}");
        }
        self.record(|recorder| recorder.said(false));
    }

    /// Updates the statistics under their lock.
    pub fn record(&self, write: impl FnOnce(&mut Recorder)) {
        let mut recorder = self.recorder.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        recorder.as_mut().map(write);
    }

    /// Runs one job. The engine reads the inputs in place, and writes into the memory of the
    /// response.
    fn alone(&self, engine: &mut dyn Engine, job: &Job) -> Result<(Vec<Output>, Duration), String> {
        let mut make = |dtype: DType, shape: &[u64]| {
            self.client.create(dtype, shape).map(Buffer::Lent).map_err(|error| error.to_string())
        };
        let start = Instant::now();
        let outputs = engine.run(&job.feeds(), &job.wanted(), &mut make)?;
        let took = start.elapsed();
        if took >= SOON {
            job.soon();
        }
        Ok((outputs, took))
    }

    /// Runs several jobs at once. Concatenates their inputs, and splits each output.
    fn together(&self, engine: &mut dyn Engine, jobs: &[Job]) -> Result<(Vec<Vec<Output>>, Duration), String> {
        let rows: Vec<u64> = jobs.iter().filter_map(Job::rows).collect();
        let total: u64 = rows.iter().sum();
        let feeds: Vec<Vec<Feed<'_>>> = jobs.iter().map(Job::feeds).collect();
        let joined: Vec<(DType, Vec<u64>, OwnedBytes)> =
            (0..feeds[0].len()).map(|input| join(&feeds, input, total)).collect();
        let inputs: Vec<Feed<'_>> =
            joined.iter().map(|(dtype, shape, data)| Feed { dtype: *dtype, shape, bytes: data.bytes() }).collect();
        let mut wanted: Vec<usize> = jobs.iter().flat_map(Job::wanted).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut make = |dtype: DType, shape: &[u64]| {
            let bytes = shape.iter().product::<u64>() * dtype.item_bytes() as u64;
            Ok(Buffer::Owned(OwnedBytes::new(bytes as usize)))
        };
        let start = Instant::now();
        let mut outputs = engine.run(&inputs, &wanted, &mut make)?;
        let took = start.elapsed();
        if let Some(odd) = outputs.iter().find(|output| output.shape.first() != Some(&total)) {
            return Err(format!("an output of {total} rows has the shape {:?}", odd.shape));
        }
        self.record(|recorder| recorder.ran(jobs.len(), total, took));
        let mut answers = Vec::with_capacity(jobs.len());
        let mut from = 0;
        for (job, rows) in jobs.iter().zip(rows) {
            let parts = job.wanted().into_iter().map(|number| {
                let at = wanted.binary_search(&number).expect("all that are wanted were computed");
                part(self.client, &mut outputs[at], from, rows, total)
            });
            answers.push(parts.collect::<Result<_, _>>()?);
            from += rows;
        }
        Ok((answers, took))
    }
}

fn join(feeds: &[Vec<Feed<'_>>], input: usize, total: u64) -> (DType, Vec<u64>, OwnedBytes) {
    let first = feeds[0][input];
    let mut shape = first.shape.to_vec();
    shape[0] = total;
    let mut data = OwnedBytes::new(feeds.iter().map(|job| job[input].bytes.len()).sum());
    let mut at = 0;
    for job in feeds {
        let bytes = job[input].bytes;
        data.bytes_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    }
    (first.dtype, shape, data)
}

/// Copies rows of an output into the memory of a response.
fn part(client: &Client, output: &mut Output, from: u64, rows: u64, total: u64) -> Result<Output, String> {
    let mut shape = output.shape.clone();
    shape[0] = rows;
    let mut draft = client.create(output.dtype, &shape).map_err(|error| error.to_string())?;
    let bytes = output.buffer.bytes_mut();
    let row = bytes.len() / total as usize;
    let (from, len) = (from as usize * row, rows as usize * row);
    draft.copy_from(&bytes[from..from + len]).map_err(|error| error.to_string())?;
    Ok(Output { dtype: output.dtype, shape, buffer: Buffer::Lent(draft) })
}
