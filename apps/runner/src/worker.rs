//! The worker: the child process for one model. It loads the model, and serves it until the model
//! is replaced or removed, or the supervisor ends.

use crate::args::Args;
use crate::batch::{Bench, Limits};
use crate::engine::{Engine, Library, Signature};
use crate::job::Job;
use crate::linger::Linger;
use crate::report::Report;
use crate::sandbox;
use crate::statistics::Recorder;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tensorlend::{Call, Client, Error, Lease, Lifetime, Server, Version};
use tensorlend_model::{ModelOptions, model_bytes_name, model_service, model_statistics_name};
use tensorlend_os::clock::duration_ms;
use tensorlend_os::mutex::lock;

/// Interval at which a worker checks its model's version, and reports to the supervisor.
const POLL: Duration = Duration::from_millis(250);
/// Interval at which a worker publishes its statistics.
const STATISTICS: Duration = Duration::from_secs(1);

/// The reason why a worker or the supervisor must end.
pub type Trouble = Box<dyn std::error::Error>;

/// Serves one model.
///
/// # Errors
/// The reason why the worker cannot continue.
pub fn run(args: &Args, model: &str) -> Result<(), Trouble> {
    confine(args)?;
    // The worker leaves its working directory, to which the path of the socket may be relative.
    let args = &args.absolute()?;
    let library = Library::open(args);
    for why in sandbox::close() {
        Report::Unconfined { why }.say()?;
    }
    let pulse = Arc::new(Pulse::default());
    let beating = pulse.clone();
    let timeout = args.timeout;
    std::thread::Builder::new().name("beat".into()).spawn(move || beating.beat(timeout))?;
    let client = args.client(&format!("tensorlend-runner {model}")).connect()?;
    let lease = match client.get(&model_bytes_name(model)) {
        Ok(lease) => lease,
        // The model was removed after the supervisor started this worker.
        Err(error) if error.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let version = lease.version();
    let (engine, signature, limits) = match load(args, library, &lease) {
        Ok(loaded) => loaded,
        Err(why) => {
            Report::Refused { version: version.words(), why }.say()?;
            return Ok(());
        }
    };
    // The lease on the model's bytes is dropped, because it would keep the memory of a replaced
    // model in use.
    drop(lease);
    let server = client.serve(&model_service(model)).open()?;
    let name = engine.name();
    *lock(&pulse.recorder) = Some(Recorder::new(name.clone()));
    Report::Serving { version: version.words(), engine: name }.say()?;
    let publishing = (pulse.clone(), client.clone(), model_statistics_name(model, std::process::id()));
    std::thread::Builder::new().name("statistics".into()).spawn(move || {
        let (pulse, client, name) = publishing;
        pulse.publish(&client, &name);
    })?;
    let bench = Bench { client: &client, signature: &signature, recorder: &pulse.recorder };
    let linger = Linger::default();
    Worker { model, version, server, limits, bench, pulse: &pulse, later: VecDeque::new(), linger }.serve(engine)
}

/// Limits the private memory of this process, and disables core files. Shared mappings, such as
/// tensors, do not count.
fn confine(args: &Args) -> std::io::Result<()> {
    // The runner's parent may have set a lower limit. A process cannot raise such a limit.
    let bytes =
        Some(getrlimit(Resource::Data).maximum.map_or(args.memory_bytes(), |most| most.min(args.memory_bytes())));
    setrlimit(Resource::Data, Rlimit { current: bytes, maximum: bytes })?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    Ok(())
}

fn load(
    args: &Args,
    library: Result<Library, String>,
    lease: &Lease,
) -> Result<(Box<dyn Engine>, Signature, Limits), String> {
    let library = library?;
    let mut options = ModelOptions::parse(lease.metadata()).map_err(|why| format!("its options: {why}"))?;
    options.batch_max = args.batch_max.unwrap_or(options.batch_max);
    options.batch_min = options.batch_min.map(|least| least.min(options.batch_max));
    options.batch_wait_ms = args.batch_wait_ms.unwrap_or(options.batch_wait_ms).clamp(0.0, 10_000.0);
    let bytes = lease.as_slice::<u8>().map_err(|error| error.to_string())?;
    if bytes.len() as u64 > args.model_bytes_max() {
        let (has, may) = (bytes.len(), args.model_bytes_max());
        return Err(format!("it has {has} bytes, and {may} are allowed: give --model-size more"));
    }
    // The publisher can change the leased bytes at any time, so the check and the engine read a copy.
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())
        .map_err(|_| format!("there is no memory for its {} bytes: give --memory more", bytes.len()))?;
    copy.extend_from_slice(bytes);
    let (engine, signature) = library.load(args, copy)?;
    let limits = Limits::new(&options, &signature);
    Ok((engine, signature, limits))
}

struct Worker<'w> {
    model: &'w str,
    version: Version,
    server: Server,
    limits: Limits,
    bench: Bench<'w>,
    pulse: &'w Pulse,
    /// Received jobs that could not join the previous batch. They run next.
    later: VecDeque<Job>,
    linger: Linger,
}

impl Worker<'_> {
    fn serve(&mut self, mut engine: Box<dyn Engine>) -> Result<(), Trouble> {
        let mut polled = Instant::now();
        loop {
            if polled.elapsed() >= POLL {
                polled = Instant::now();
                if self.pulse.is_over() || !self.is_current() {
                    return self.drain(&mut *engine);
                }
            }
            let first = match self.later.pop_front() {
                Some(job) => job,
                None => match self.wait() {
                    Ok(call) => match self.read(call) {
                        Some(job) => job,
                        None => continue,
                    },
                    Err(error) if error.is_timeout() => continue,
                    Err(error) => return Err(error.into()),
                },
            };
            let jobs = self.gather(first)?;
            let start = Instant::now();
            self.run(&mut *engine, jobs);
            self.linger.worked(start.elapsed());
        }
    }

    /// Returns the next request. First spins if [`Linger`] allows it, then sleeps.
    fn wait(&mut self) -> Result<Call, Error> {
        if let Some(call) = self.linger.poll(|| self.server.try_recv())? {
            return Ok(call);
        }
        self.server.recv_timeout(POLL)
    }

    /// Serves the requests that callers have already sent to this worker. Callers send later
    /// requests to another worker.
    fn drain(&mut self, engine: &mut dyn Engine) -> Result<(), Trouble> {
        loop {
            let job = match self.later.pop_front() {
                Some(job) => Some(job),
                None => match self.server.try_recv()? {
                    Some(call) => self.read(call),
                    None => return Ok(()),
                },
            };
            self.run(engine, job.into_iter().collect());
        }
    }

    fn read(&self, call: Call) -> Option<Job> {
        // The worker counts as busy while it reads a job, because the preparation of a large image
        // takes long.
        let _busy = self.pulse.busy();
        match Job::read(call, self.bench.client, self.bench.signature) {
            Ok(job) => Some(job),
            Err(told) => {
                if let Err(error) = told {
                    tracing::warn!("a failure could not be reported: {error}");
                }
                self.bench.record(|recorder| recorder.said(false));
                None
            }
        }
    }

    /// Returns a batch: the first job, and the jobs that join it within the limits.
    fn gather(&mut self, first: Job) -> Result<Vec<Job>, Error> {
        if !self.limits.admits(&first) {
            return Ok(vec![first]);
        }
        let mut rows = first.rows().unwrap_or(1);
        let until = first.taken() + self.limits.wait;
        let mut jobs = vec![first];
        while rows < self.limits.rows_max {
            let job = match self.next(rows, until)? {
                Some(call) => match self.read(call) {
                    Some(job) => job,
                    None => continue,
                },
                None => break,
            };
            let more = job.rows().unwrap_or(0);
            if more == 0 || rows + more > self.limits.rows_max || !job.is_like(&jobs[0]) {
                self.later.push_back(job);
                break;
            }
            rows += more;
            jobs.push(job);
        }
        Ok(jobs)
    }

    fn next(&mut self, rows: u64, until: Instant) -> Result<Option<Call>, Error> {
        if let Some(call) = self.server.try_recv()? {
            return Ok(Some(call));
        }
        let left = until.saturating_duration_since(Instant::now());
        if rows >= self.limits.rows_min || left.is_zero() {
            return Ok(None);
        }
        match self.server.recv_timeout(left) {
            Ok(call) => Ok(Some(call)),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn run(&self, engine: &mut dyn Engine, jobs: Vec<Job>) {
        let _busy = self.pulse.busy();
        self.bench.run(engine, jobs);
    }

    fn is_current(&self) -> bool {
        match self.bench.client.info(&model_bytes_name(self.model)) {
            Ok(info) => info.version == self.version,
            // Only the error "not found" means that the model was removed. A lost session, for
            // example, does not mean that.
            Err(error) => !error.is_not_found(),
        }
    }
}

/// The state of the worker that its reporting thread reads.
#[derive(Default)]
struct Pulse {
    /// Start of the current run, in milliseconds since the worker's start, plus 1; 0: idle.
    busy_since: AtomicU64,
    over: AtomicBool,
    recorder: Mutex<Option<Recorder>>,
    start: Start,
}

struct Start(Instant);

impl Default for Start {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Pulse {
    fn now_ms(&self) -> u64 {
        duration_ms(self.start.0.elapsed())
    }

    fn busy(&self) -> Busy<'_> {
        self.busy_since.store(self.now_ms() + 1, Ordering::Relaxed);
        Busy(self)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn busy_for(&self) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => Duration::from_millis(self.now_ms().saturating_sub(since - 1)),
        }
    }

    /// Sends reports to the supervisor. After the end of the supervisor, the worker ends when its
    /// current run or the timeout of a run ends.
    fn beat(&self, timeout: Duration) {
        while (Report::Beat { busy: self.busy_for() }).say().is_ok() {
            std::thread::sleep(POLL);
        }
        self.over.store(true, Ordering::Relaxed);
        std::thread::sleep(timeout + POLL);
        std::process::exit(1);
    }

    fn publish(&self, client: &Client, name: &str) {
        while !self.is_over() {
            let news = lock(&self.recorder).as_mut().and_then(Recorder::news);
            if let Some(statistics) = news
                && let Err(error) = client.put_for(name, &statistics.encode()[..], Lifetime::EPHEMERAL)
            {
                tracing::debug!("statistics: {error}");
            }
            std::thread::sleep(STATISTICS);
        }
    }
}

/// A guard. The worker counts as busy until the guard is dropped.
struct Busy<'p>(&'p Pulse);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy_since.store(0, Ordering::Relaxed);
    }
}
