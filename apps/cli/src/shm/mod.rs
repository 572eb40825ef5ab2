//! `tensorlend shm`: the shared memory of this machine and its holders. Needs no daemon.

mod list;
mod profile;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use globset::{Glob, GlobMatcher};
use serde::Serialize;
use tensorlend_shm::{Kind, Options, Outcome, Scan, State, reclaim};

use crate::failure::Failure;
use crate::interrupt::Hold;
use crate::options::{Json, interval, time};
use crate::output;
use crate::text::{bytes_text, count, printable};

const EXAMPLES: &str = "\
Examples:
  tensorlend shm                              shared memory of this machine, with its holders
  tensorlend shm --name 'psm_*' --watch       as it changes
  tensorlend shm --reclaim --name 'psm_*'     remove what no process holds
  tensorlend shm -- python train.py           the memory of a program, and what its processes hold twice
";

/// Show who holds shared memory on this machine, and remove what no process holds.
///
/// Lists files of /dev/shm and of other tmpfs, memfds, segments of System V, files that are deleted but held, and huge
/// pages, of all programs. Needs no daemon. Without root, it sees the holders that this user may read.
///
/// With a program, runs it, and then reports the memory of its processes on standard error.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct ShmArgs {
    /// Only objects whose name matches this glob.
    #[arg(long, value_name = "GLOB", value_parser = glob)]
    name: Option<GlobMatcher>,
    /// Only objects that this process holds.
    #[arg(long, conflicts_with_all = ["reclaim", "program"])]
    pid: Option<u32>,
    /// Show all objects and all holders, however many there are.
    #[arg(long, conflicts_with = "program")]
    all: bool,
    /// Show the objects again and again.
    #[arg(long, conflicts_with_all = ["reclaim", "program"])]
    watch: bool,
    /// Remove this user's files of /dev/shm and segments of System V that no process has opened, mapped or attached. A
    /// file that you have put into /dev/shm for later is one of them: select by --name.
    #[arg(long, conflicts_with = "program")]
    reclaim: bool,
    /// Leave objects that have changed in this time.
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "60s", requires = "reclaim")]
    older: Duration,
    /// Also remove objects of other users. Needs root.
    #[arg(long, requires = "reclaim")]
    all_users: bool,
    /// Seconds between two samples.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,
    /// Write the report on the program to this file.
    #[arg(long, value_name = "FILE", requires = "program")]
    output: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
    /// A program to run, and its arguments. Its exit status becomes that of this command; 126 or 127 if it cannot start.
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

fn glob(text: &str) -> Result<GlobMatcher, globset::Error> {
    Glob::new(text).map(|glob| glob.compile_matcher())
}

/// A removed or kept object, for `--json`.
#[derive(Serialize)]
struct Line<'a> {
    name: &'a str,
    kind: Kind,
    bytes: u64,
    removed: bool,
    reason: Option<&'a str>,
}

impl ShmArgs {
    /// Returns true if the command runs until a signal stops it.
    pub fn is_watch(&self) -> bool {
        self.watch
    }

    pub fn run(&self) -> Result<(), Failure> {
        if !self.program.is_empty() {
            return profile::run(&self.program, self.interval, self.json.on, self.output.as_deref());
        }
        if self.reclaim {
            return self.run_reclaim();
        }
        loop {
            let scan = self.scan();
            if self.json.on {
                output::json(&list::Listing::of(&scan))?;
            } else {
                // Clears a terminal, from its upper left corner.
                let clear = if self.watch && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" };
                output::text_block(&format!("{clear}{}", list::text(&scan, self.all)))?;
            }
            if !self.watch {
                return Ok(());
            }
            std::thread::sleep(self.interval);
        }
    }

    fn scan(&self) -> Scan {
        let mut scan = tensorlend_shm::machine();
        scan.objects.retain(|object| {
            self.name.as_ref().is_none_or(|name| name.is_match(&object.name))
                && self.pid.is_none_or(|pid| object.holders.iter().any(|holder| holder.pid == pid))
        });
        scan
    }

    fn run_reclaim(&self) -> Result<(), Failure> {
        if self.all_users && !rustix::process::geteuid().is_root() {
            return Err(Failure::Usage("--all-users needs root".into()));
        }
        let hold = Hold::new().map_err(|error| Failure::Other(error.into()))?;
        let options = Options {
            older: self.older,
            all_users: self.all_users,
            names: self.name.as_ref(),
            is_interrupted: &|| hold.is_interrupted(),
            ..Options::default()
        };
        tensorlend_shm::restore(&options).map_err(|error| Failure::Other(error.into()))?;
        let scan = self.scan();
        let (mut removed, mut bytes, mut printed) = (0u64, 0, Ok(()));
        let mut report = |outcome: Outcome| {
            if outcome.kept.is_none() {
                removed += 1;
                bytes += outcome.bytes;
            }
            let line = self.outcome_text(&outcome);
            if printed.is_ok() {
                printed = line.and_then(output::line);
            }
        };
        reclaim(&scan, &options, &mut report).map_err(|error| Failure::Other(error.into()))?;
        drop(hold);
        printed?;
        if self.json.on {
            return Ok(());
        }
        let of_others = if self.all_users { 0 } else { others(&scan) };
        if of_others > 0 {
            let what = count(of_others, "object");
            output::note(&format!(
                "{what} of other users without a visible holder: root removes them with --all-users"
            ));
        }
        output::line(format_args!("reclaimed {} in {}", bytes_text(bytes), count(removed, "object")))
    }

    fn outcome_text(&self, outcome: &Outcome) -> Result<String, Failure> {
        let Outcome { name, kind, bytes, kept } = outcome;
        if self.json.on {
            let line = Line { name, kind: *kind, bytes: *bytes, removed: kept.is_none(), reason: kept.as_deref() };
            return output::json_text(&line).map_err(|error| Failure::Output(error.into()));
        }
        let object = format!("{name} ({}, {})", kind.word(), bytes_text(*bytes));
        let text =
            kept.as_ref().map_or_else(|| format!("removed {object}"), |reason| format!("kept {object}: {reason}"));
        Ok(printable(&text))
    }
}

/// Returns the number of files of other users that no visible process holds.
fn others(scan: &Scan) -> u64 {
    let own = rustix::process::geteuid().as_raw();
    let is_other =
        |object: &&tensorlend_shm::Object| object.state != State::InUse && object.uid.is_some_and(|uid| uid != own);
    scan.objects.iter().filter(is_other).count() as u64
}
