//! Counts messages between up to a thousand simulated gateways. The simulation runs the gateway's own state machines,
//! and encodes each message to measure its length.
//!
//! ```sh
//! cargo bench -p tensorlend-gateway --bench scale -- --out target/gateway-scale.md
//! ```
//!
//! The results are counts in simulated time. No clock is read, so they are the same on every machine.

#[path = "../tests/scale/world.rs"]
mod world;

use clap::Parser;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use world::{Load, Traffic, World};

#[derive(Parser)]
struct Options {
    /// Numbers of nodes to simulate.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    nodes: Vec<usize>,
    /// Simulated seconds in which messages are counted. Two seconds of warm-up precede them.
    #[arg(long, default_value_t = 5)]
    seconds: u64,
    /// File for a copy of the report.
    #[arg(long)]
    out: Option<PathBuf>,
    /// `cargo bench` passes this flag to every benchmark; it has no effect.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The loads of a node: a title, reads per second, and new values per second.
const LOADS: [(&str, f64, f64); 3] = [
    ("read often, seldom new: parameters", 100.0, 0.1),
    ("read as often as new: fields of a simulation", 100.0, 100.0),
    ("new more often than read: sensors", 10.0, 1000.0),
];
const NAMES: usize = 100;
const WORKING_SET: usize = 50;

fn main() {
    let options = Options::parse();
    let mut report = String::new();
    let _ = writeln!(
        report,
        "# Messages between gateways, simulated\n\nMade by `cargo bench -p tensorlend-gateway --bench scale`: counts in simulated time, the same on \
         every machine.\n\nEach node has {NAMES} names, reads {WORKING_SET} names of others, drawn at random, and overwrites \
         its own. {} simulated seconds after the first two. Messages and bytes (keys and heads, without tensors and zenoh's own framing) \
         are those that one node sends and causes in a second.\n",
        options.seconds
    );
    for (what, reads, updates) in LOADS {
        let _ = writeln!(report, "## {what}\n\n{reads} reads and {updates} new values a second and node.\n");
        let _ = writeln!(
            report,
            "| nodes | reads without a message | questions | words | heartbeats | bytes | if every read asked | if every value were sent to all |"
        );
        let _ = writeln!(report, "|---:|---:|---:|---:|---:|---:|---:|---:|");
        for &nodes in &options.nodes {
            let load = Load { nodes, names: NAMES, working_set: WORKING_SET, reads, updates, lost_ppm: 0 };
            let mut world = World::new(load, 1);
            world.run(Duration::from_secs(2));
            let before = world.traffic;
            world.run(Duration::from_secs(options.seconds));
            let said = world.traffic.since(before);
            let each = |count: u64| count as f64 / nodes as f64 / options.seconds as f64;
            let _ = writeln!(
                report,
                "| {nodes} | {:.1} % | {:.1} | {:.1} | {:.2} | {:.0} | {:.0} | {:.0} |",
                100.0 * said.hits as f64 / (said.hits + said.asked) as f64,
                each(said.questions),
                each(said.words),
                each(said.heartbeats),
                each(said.bytes),
                each(said.hits + said.asked),
                each(said.updates) * (nodes - 1) as f64,
            );
            world.settle();
            let (good, wrong) = world.copies();
            assert_eq!(wrong, 0, "of {good} copies that are taken for good");
        }
        report.push('\n');
    }
    discovery(&options, &mut report);
    print!("{report}");
    if let Some(out) = &options.out {
        std::fs::write(out, report).expect("the report is written");
    }
}

/// Appends the section about the messages that a node's connection and disconnection cause.
fn discovery(options: &Options, report: &mut String) {
    let _ = writeln!(
        report,
        "## Nodes that come and go\n\nAll nodes begin at once; then one goes for two seconds and is back. Notices are zenoh's \
         liveliness, one for each node that hears it; questions and words are what the return makes others ask again, beyond what \
         they say anyway (100 reads, no new values).\n"
    );
    let _ = writeln!(
        report,
        "| nodes | notices at the start | bytes | notices of one that goes and returns | questions and words after it |"
    );
    let _ = writeln!(report, "|---:|---:|---:|---:|---:|");
    for &nodes in &options.nodes {
        let load = Load { nodes, names: NAMES, working_set: WORKING_SET, reads: 100.0, updates: 1e-9, lost_ppm: 0 };
        let mut world = World::new(load, 1);
        world.run(Duration::from_secs(5));
        let begun: Traffic = world.traffic;
        world.part(0, false);
        world.run(Duration::from_secs(2));
        world.part(0, true);
        world.run(Duration::from_secs(1));
        let said = world.traffic.since(begun);
        let _ = writeln!(
            report,
            "| {nodes} | {} | {} | {} | {} |",
            begun.notices,
            begun.notice_bytes,
            said.notices,
            said.questions + said.words
        );
    }
}
