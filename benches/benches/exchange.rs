//! A tensor passed to another process and acknowledged: by serializing, by copying, by sending memory, and through
//! tensorlend. All producers write every byte, and all consumers read every byte. Each peer is a pair of processes on two cores; a result is a round trip. `target/criterion/report` has
//! the curves.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use criterion::{AxisScale, BenchmarkId, Criterion, PlotConfiguration, SamplingMode, Throughput};
use tensorlend_baselines::{
    BaselineError, Cores, Duel, Game, Kind, Meter, Session, floors, pin, serve, timeout, unpin,
};

/// First argument of a peer process.
const PEER: &str = "__peer";
const CONSUMER: &str = "consumer";

/// 1 KB to 256 MB.
const SIZES: [usize; 10] =
    [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];

fn launch(words: &[String]) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.arg(PEER).args(words).stdin(Stdio::null());
    command
}

/// One way, for two polling processes: half of a round trip.
struct Twice(Duel);

impl Meter for Twice {
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        let first = samples_ns.len();
        self.0.measure(operations, samples_ns)?;
        for ns in &mut samples_ns[first..] {
            *ns *= 2.0;
        }
        Ok(())
    }
}

type Made = Result<Box<dyn Meter>, BaselineError>;

fn duel(game: Game, bytes: usize, cores: Cores, socket: &Path) -> Made {
    Ok(Box::new(Duel::start(game, bytes, cores, Some(socket), &launch)?))
}

fn polled(game: Game, bytes: usize, cores: Cores, socket: &Path) -> Made {
    Ok(Box::new(Twice(Duel::start(game, bytes, cores, Some(socket), &launch)?)))
}

fn session(kind: Kind, bytes: usize, cores: Cores) -> Made {
    let mut spawn = |args: &[String]| {
        let words = [CONSUMER.to_owned(), cores.second.to_string()];
        launch(&[&words, args].concat()).stdout(Stdio::null()).spawn()
    };
    Ok(Box::new(Session::start(kind, bytes, timeout(bytes), &mut spawn)?))
}

fn exchange(c: &mut Criterion, cores: Cores, socket: &Path) {
    let mut group = c.benchmark_group("exchange");
    group.plot_config(PlotConfiguration::default().summary_scale(AxisScale::Logarithmic));
    group.sampling_mode(SamplingMode::Flat).sample_size(10);
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    for bytes in SIZES {
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut bench = |name: &str, made: Made| match made {
            Ok(mut meter) => {
                group.bench_function(BenchmarkId::new(name, bytes), |b| {
                    b.iter_custom(|operations| meter.total(operations).expect("an exchange"));
                });
            }
            // A /dev/shm that is too small for one of them must not prevent the others.
            Err(error) => eprintln!("left out: {name} of {bytes} bytes: {error}"),
        };
        bench("floor: memcpy", Ok(floors::memcpy(bytes)));
        bench("tensorlend, in place", duel(Game::Lend, bytes, cores, socket));
        bench("tensorlend, copied in", duel(Game::Put, bytes, cores, socket));
        bench("tensorlend, polled", polled(Game::StreamWrittenRead, bytes, cores, socket));
        bench("iceoryx2, polled", polled(Game::IceoryxWrittenRead, bytes, cores, socket));
        for kind in Kind::ALL {
            // criterion would take a slash for a folder.
            bench(&kind.name().replace('/', " over "), session(kind, bytes, cores));
        }
    }
    group.finish();
}

fn peer(words: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    match words {
        [role, core, rest @ ..] if role == CONSUMER => {
            pin(core.parse()?)?;
            Ok(serve(rest)?)
        }
        _ => Ok(serve(words)?),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == PEER) {
        return peer(&words[1..]);
    }
    let cores = Cores::find()?;
    if cores.are_one() {
        eprintln!("left out: two processes want two cores, and this one may use one");
        return Ok(());
    }
    let broker = tensorlend_daemon::embedded()?;
    let (placement, line) = floors::calibrate(cores)?;
    println!("cores {} and {} are {}: {:.0} ns", cores.first, cores.second, placement.name(), line.p50_ns);
    // Pin this thread now: the producing threads inherit its affinity.
    pin(cores.first)?;
    let mut criterion = Criterion::default().configure_from_args();
    exchange(&mut criterion, cores, broker.socket());
    unpin()?;
    criterion.final_summary();
    Ok(())
}
