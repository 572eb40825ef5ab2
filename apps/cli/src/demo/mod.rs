//! `tensorlend demo`: passes real tensors between processes, and compares with serializing and copying them.

mod children;
mod data;
mod lend;
pub mod memory;
pub mod plot;
mod race;
pub mod table;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default file name of the plot.
const PLOT: &str = "tensorlend-demo.svg";

/// Arguments of the demo.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Files to pass from process to process (.npy, .npz, .safetensors, .png, .jpg); default: the data sets in
    /// examples/data, or smaller built-in ones
    files: Vec<PathBuf>,
    /// Use the daemon that is running instead of an embedded one
    #[arg(long)]
    connect: bool,
    /// Where to write the plot; default: tensorlend-demo.svg, or no plot if the current directory is not writable
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Also print the shortest and the longest time of each row
    #[arg(long)]
    verbose: bool,
    /// Largest tensor of the table, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    max_mib: u64,
}

/// Runs the demo. `socket` is the daemon's socket, if the user named one.
pub fn run(args: &DemoArgs, socket: Option<&Path>) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let mut out = std::io::stdout().lock();
    let broker = if args.connect { None } else { Some(tensorlend_daemon::embedded()?) };
    let socket = match (&broker, socket) {
        (Some(broker), _) => Some(broker.socket().to_owned()),
        (None, given) => given.map(Path::to_owned),
    };
    let address = socket.as_ref().map_or_else(|| "the default socket".to_owned(), |s| s.display().to_string());
    let which = if args.connect { "running daemon" } else { "embedded daemon" };
    writeln!(out, "tensorlend {}: {which} at {address}\n", tensorlend::build())?;

    data::pass(&args.files, socket.as_deref(), &mut out)?;

    let mut sizes: Vec<u64> = (0..=9).map(|step| 1024u64 << (2 * step)).collect();
    sizes.retain(|&bytes| bytes <= args.max_mib << 20);
    let plan = memory::plan(&sizes, &memory::Memory::now());
    writeln!(out, "\nMeasuring {} rows ...\n", plan.run.len())?;
    out.flush()?;
    let (rows, mut left_out) = race::run(&plan.run, socket.as_deref());
    left_out.extend(plan.left_out);
    table::render(&rows, &left_out, args.verbose, &mut out)?;
    if !rows.is_empty() {
        let path = args.plot.as_deref().unwrap_or(Path::new(PLOT));
        match plot::plot(&rows, path) {
            Ok(()) => writeln!(out, "\nPlot: {}", path.display())?,
            // Return this error, because the user has named this file.
            Err(error) if args.plot.is_some() => return Err(error.into()),
            Err(error) => writeln!(out, "\nNo plot: {error} (--plot FILE.svg)")?,
        }
    }
    if let Some(summary) = table::summary(&rows) {
        writeln!(out, "\n{summary}")?;
    }
    writeln!(out, "Took {:.0} s. Compare rows of this run, not of several runs.", start.elapsed().as_secs_f64())?;
    writeln!(
        out,
        "Next: `tensorlend put NAME FILE` and `tensorlend ls`, or the two programs at the top of the README."
    )?;
    if rows.iter().any(|row| row.method == table::Method::Lend) || sizes.is_empty() {
        Ok(())
    } else {
        Err("nothing could be lent: see the rows left out above".into())
    }
}

/// Runs a child process of the demo.
pub fn peer(args: &[String]) -> Result<(), Box<dyn Error>> {
    match args.split_first() {
        Some((role, rest)) => match role.as_str() {
            "produce" => data::produce(rest),
            "consume" => data::consume(rest),
            "lend" => lend::serve(rest),
            "bench" => crate::bench::peer(rest),
            #[cfg(feature = "baselines")]
            "baseline" => Ok(tensorlend_baselines::serve(rest)?),
            other => Err(format!("no role {other:?} in the demo").into()),
        },
        None => Err("the demo's child needs a role".into()),
    }
}

/// Timeout of any single step of the demo.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Connects a child to the given socket. If `socket` is "-", connects to the default socket.
fn connect(socket: &str, label: &str) -> Result<tensorlend::Client, tensorlend::Error> {
    let builder = tensorlend::Client::builder().label(label);
    if socket == "-" { builder.connect() } else { builder.socket(socket).connect() }
}

/// Returns the socket as an argument for [`connect`].
fn socket_argument(socket: Option<&Path>) -> String {
    socket.map_or_else(|| "-".to_owned(), |path| path.display().to_string())
}
