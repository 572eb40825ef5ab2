//! A session has a producer on its own thread, a consumer process, and the caller, which watches
//! both.
//!
//! The functions of ipc-channel have no timeout. `accept` and `recv` wait forever. So does a `send`
//! of many fragments whose receiver died, because the sender itself holds the other end of the
//! channel for the fragments. So the producer runs on its own thread. The caller watches the
//! thread's progress, and kills a consumer that stalls. In the worst case the caller abandons the
//! thread with its buffers.

use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::contender::{self, Kind, Prepared};
use super::dispatch;
use super::lookout::Lookout;
use crate::within::within;
use crate::{BaselineError, Meter, Spawn, Timings};

/// Interval at which the caller checks the consumer while the exchanges run.
const LOOK: Duration = Duration::from_millis(20);

/// Time for the consumer to end after its last order, and for the thread to end after its consumer has ended.
const GRACE: Duration = Duration::from_secs(1);

/// Returns a timeout that no healthy exchange of `bytes` bytes exceeds, even in an unoptimized
/// build on a busy machine. The timeout is 10 s, plus 1 s for each 16 MiB.
pub fn timeout(bytes: usize) -> Duration {
    Duration::from_secs(10 + (bytes >> 24) as u64)
}

/// A session with a running consumer that is ready for exchanges of one size.
///
/// Between two calls of [`run`](Self::run) the consumer sleeps, so that several sessions can be interleaved on few
/// cores. Dropping the session ends the consumer, if necessary by SIGKILL.
pub struct Session {
    consumer: Child,
    orders: Option<Sender<usize>>,
    reports: Receiver<Report>,
    progress: Arc<AtomicU64>,
    gone: Arc<AtomicBool>,
    unblock: Box<dyn Fn() + Send>,
    timeout: Duration,
    checksum_ok: bool,
    producer: Option<JoinHandle<()>>,
}

/// A report of the producing thread. The first report contains the result of the checksum, and each
/// later one the metrics of a batch.
type Report = Result<Timings, BaselineError>;

/// The consumer's arguments, and the function that ends the wait for the consumer. Or an error.
type Offer = Result<(Vec<String>, Box<dyn Fn() + Send>), BaselineError>;

impl Session {
    /// Prepares exchanges of `bytes` bytes, and starts the consumer with `spawn`. Then runs one
    /// untimed exchange, which compares checksums and warms the memory of both sides.
    ///
    /// `timeout` is the timeout of a single exchange; [`timeout()`] returns a suitable one.
    ///
    /// # Errors
    ///
    /// Any [`BaselineError`]. After an error the consumer has ended.
    pub fn start(kind: Kind, bytes: usize, timeout: Duration, spawn: &mut Spawn) -> Result<Self, BaselineError> {
        let (offers, offer) = mpsc::sync_channel(1);
        let (orders, orders_taken) = mpsc::channel();
        let (started, start) = mpsc::channel();
        let (reports_made, reports) = mpsc::channel();
        let progress = Arc::new(AtomicU64::new(0));
        let gone = Arc::new(AtomicBool::new(false));

        let desk = Desk { start, orders: orders_taken, reports: reports_made, progress: progress.clone() };
        let lookout = Lookout::Producer(gone.clone());
        let producer = std::thread::Builder::new()
            .name(format!("baseline-{kind}"))
            .spawn(move || {
                let prepared = dispatch::prepare(kind, bytes).map(|Prepared { args, meet, unblock }| {
                    let _ = offers.send(Ok((args, unblock)));
                    meet
                });
                match prepared {
                    Ok(meet) => desk.work(meet, lookout),
                    Err(error) => drop(offers.send(Err::<_, BaselineError>(error))),
                }
            })
            .map_err(BaselineError::Spawn)?;

        let offer: Offer = offer.recv().map_err(|_| BaselineError::Panicked)?;
        let (args, unblock) = offer?;
        let consumer = match spawn(&args) {
            Ok(consumer) => consumer,
            Err(error) => {
                // The thread ends because its channel is closed. It removes the segment or the
                // socket.
                drop(started);
                let _ = producer.join();
                return Err(BaselineError::Spawn(error));
            }
        };
        let _ = started.send(());

        let mut session = Self {
            consumer,
            orders: Some(orders),
            reports,
            progress,
            gone,
            unblock,
            timeout,
            checksum_ok: false,
            producer: Some(producer),
        };
        session.checksum_ok = session.report("the start of the consumer")?.checksum_ok;
        Ok(session)
    }

    /// Runs `rounds` timed exchanges.
    ///
    /// # Errors
    ///
    /// Any [`BaselineError`]. After an error the session is unusable.
    pub fn run(&mut self, rounds: usize) -> Result<Timings, BaselineError> {
        if let Some(orders) = &self.orders {
            // Ignore an error. A thread that no longer listens has sent the reason as a report.
            let _ = orders.send(rounds);
        }
        let mut timings = self.report("an exchange")?;
        timings.checksum_ok &= self.checksum_ok;
        Ok(timings)
    }

    /// Waits for the next report, as long as the exchanges progress and the consumer lives.
    fn report(&mut self, doing: &'static str) -> Report {
        let mut seen = self.progress.load(Ordering::Relaxed);
        let mut since = Instant::now();
        loop {
            match self.reports.recv_timeout(LOOK) {
                Ok(Ok(timings)) => return Ok(timings),
                Ok(Err(error)) => return Err(self.why(error)),
                Err(RecvTimeoutError::Disconnected) => return Err(self.why(BaselineError::Panicked)),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(Some(status)) = self.consumer.try_wait() {
                // A last report may have arrived just before the consumer's end. If the report is
                // an error, the consumer's exit status describes the cause better.
                return match self.reports.try_recv() {
                    Ok(Ok(timings)) => Ok(timings),
                    Ok(Err(_)) | Err(_) => Err(BaselineError::PeerGone { status }),
                };
            }
            let progress = self.progress.load(Ordering::Relaxed);
            if progress != seen {
                (seen, since) = (progress, Instant::now());
            } else if since.elapsed() > self.timeout {
                return Err(BaselineError::Stalled { doing, timeout: self.timeout });
            }
        }
    }

    fn has_left(&self) -> bool {
        self.producer.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.consumer.try_wait(), Ok(None))
    }

    /// Returns the consumer's exit as the error if the consumer has ended, because the thread has
    /// only seen a closed channel.
    fn why(&mut self, error: BaselineError) -> BaselineError {
        let mut status = None;
        within(2 * GRACE, || {
            status = self.consumer.try_wait().ok().flatten();
            status.is_some()
        });
        match status {
            Some(status) => BaselineError::PeerGone { status },
            None => error,
        }
    }
}

impl Meter for Session {
    /// Adds each round trip as a sample.
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let timings = self.run(operations as usize)?;
        if !timings.checksum_ok {
            return Err(BaselineError::Checksum);
        }
        samples_ns.extend(timings.round_trip_ns.iter().map(|&ns| ns as f64));
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Without orders, the thread dismisses the consumer and ends, unless the thread hangs.
        self.orders = None;
        let left = within(GRACE, || self.has_left() || self.has_ended());
        let ended = left && within(GRACE, || self.has_ended());
        if !ended {
            let _ = self.consumer.kill();
            let _ = self.consumer.wait();
        }
        self.gone.store(true, Ordering::Relaxed);
        (self.unblock)();
        if within(GRACE, || self.has_left()) {
            // Ignore a panic of the thread, because `run` has reported it.
            let _ = self.producer.take().map(JoinHandle::join);
        }
    }
}

/// The part of the session that the producing thread owns.
struct Desk {
    start: Receiver<()>,
    orders: Receiver<usize>,
    reports: Sender<Report>,
    progress: Arc<AtomicU64>,
}

impl Desk {
    fn work(self, meet: contender::Meet, lookout: Lookout) {
        if self.start.recv().is_err() {
            return;
        }
        if let Err(error) = self.exchange(meet, lookout) {
            // Ignore an error, because a dropped session receives no reports.
            let _ = self.reports.send(Err(error));
        }
    }

    fn exchange(&self, meet: contender::Meet, lookout: Lookout) -> Result<(), BaselineError> {
        let mut producer = meet(lookout)?;
        self.progress.fetch_add(1, Ordering::Relaxed);
        producer.wake()?;
        let checksum_ok = producer.verify()?;
        producer.rest()?;
        let _ = self.reports.send(Ok(Timings::with_capacity(0, checksum_ok)));

        while let Ok(rounds) = self.orders.recv() {
            let mut timings = Timings::with_capacity(rounds, true);
            producer.wake()?;
            for _ in 0..rounds {
                timings.push(producer.round()?);
                self.progress.fetch_add(1, Ordering::Relaxed);
            }
            producer.rest()?;
            let _ = self.reports.send(Ok(timings));
        }
        Ok(())
    }
}
