//! `tensorlend doctor`: finds faults of this machine's setup, and prints their remedies.

#[cfg(feature = "cuda")]
mod cuda;
mod health;
mod kernel;
mod limits;
mod report;
pub mod service;
mod socket;

use std::path::{Path, PathBuf};

use tensorlend::Stat;
use tensorlend_daemon::Config;

use crate::failure::Failure;
use crate::options::{Connection, Json};
use crate::output;
use report::{Report, State};

/// Check this machine and the daemon, and print how to fix each fault.
///
/// Each check is printed as it ends: ok, a warning (it works, but not for everything) or a failure; the remedy stands
/// below it. Without a daemon it works too, and reports the missing daemon as a failure. Kernel and limits are those of
/// this process: run it where your programs run. Exit status 3 if no daemon responds, 1 if another check fails.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  tensorlend doctor
  tensorlend doctor --json | jq -r '.checks[] | select(.state != \"ok\") | .fix'
  sudo tensorlend doctor --config /etc/tensorlend/tensorlendd.toml
")]
pub struct DoctorArgs {
    /// The daemon's configuration, to compare with the machine; default: the file on the daemon's command line, if this
    /// user may read both.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    json: Json,
}

impl DoctorArgs {
    pub fn run(&self, at: &Connection) -> Result<(), Failure> {
        let mut report = if self.json.on { Report::default() } else { Report::printing() };
        kernel::check(&mut report);
        let answered = socket::check(&mut report, at);
        let stat = answered.as_ref().map(|it| &it.stat);
        let config = self.config(&mut report, stat);
        limits::check(&mut report, stat, config.as_ref());
        #[cfg(feature = "cuda")]
        cuda::check(&mut report, stat);
        if let Some(stat) = stat {
            service::check(&mut report, stat, config.as_ref());
            health::check(&mut report, stat);
        }
        report.printed()?;
        if self.json.on {
            output::json(&report)?;
        }
        match report.count(State::Failure) {
            0 => Ok(()),
            failures => {
                let what = format!("{} failed", crate::text::count(failures, "check"));
                Err(if answered.is_none() { Failure::NoDaemon(what) } else { Failure::Other(what.into()) })
            }
        }
    }

    fn config(&self, report: &mut Report, stat: Option<&Stat>) -> Option<Config> {
        let path = self.config.clone().or_else(|| config_of(stat?.pid))?;
        match Config::load(&path) {
            Ok(config) => {
                report.ok("configuration", path.display().to_string());
                Some(config)
            }
            Err(error) if self.config.is_some() => {
                report.fail(
                    "configuration",
                    error.to_string(),
                    "run `tensorlendd --check-config` with this file: it explains the fault",
                );
                None
            }
            // The user has not named this file, so ignore a file that cannot be read.
            Err(_) => None,
        }
    }
}

/// Returns the configuration file of a running daemon, if this user may read its command line, and for a relative path
/// its working directory, which no daemon changes.
fn config_of(pid: u32) -> Option<PathBuf> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let line = String::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split('\0').collect();
    let after = words.iter().position(|word| *word == "--config").and_then(|at| words.get(at + 1)).copied();
    let path = Path::new(after.or_else(|| words.iter().find_map(|word| word.strip_prefix("--config=")))?);
    if path.is_absolute() {
        Some(path.to_owned())
    } else {
        Some(std::fs::read_link(format!("/proc/{pid}/cwd")).ok()?.join(path))
    }
}
