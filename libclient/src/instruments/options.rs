//! Instruments that are on from the start of a client.

use super::limit::Limit;
use super::pressure::Callback;
use super::{AllocationInstruments, BACKTRACES, LIMIT, PRESSURE, STATISTICS, TRACKING};
use crate::error::Result;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tensorlend_os::mutex::lock;

/// The variable that names the log file of every client.
const LOG_VARIABLE: &str = "TENSORLEND_ALLOC_LOG";

/// Settings of [`crate::ClientBuilder`].
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub statistics: bool,
    pub tracking: bool,
    pub backtraces: bool,
    pub log: Option<PathBuf>,
    pub limit_bytes: Option<u64>,
    pub pressure: Option<Callback>,
}

impl Options {
    /// Creates the instruments of one client.
    pub fn build(self) -> Result<Arc<AllocationInstruments>> {
        let instruments = AllocationInstruments {
            limit: self.limit_bytes.map_or_else(Limit::default, Limit::new),
            pressure: self.pressure,
            ..AllocationInstruments::default()
        };
        instruments.set(LIMIT, self.limit_bytes.is_some());
        instruments.set(PRESSURE, instruments.pressure.is_some());
        if self.statistics {
            lock(&instruments.statistics).enable();
            instruments.set(STATISTICS, true);
        }
        if self.tracking {
            instruments.set(TRACKING, true);
        }
        instruments.set(BACKTRACES, self.backtraces);
        if let Some(path) = self.log.or_else(log_of_environment) {
            instruments.start_log(&path)?;
        }
        Ok(Arc::new(instruments))
    }
}

/// Returns the log file that the environment names. Its name contains the process number and the client's number. So
/// neither the clients of one process nor the processes of one shell overwrite each other's logs.
fn log_of_environment() -> Option<PathBuf> {
    static CLIENTS: AtomicU32 = AtomicU32::new(0);
    let path = PathBuf::from(std::env::var_os(LOG_VARIABLE).filter(|path| !path.is_empty())?);
    let client = CLIENTS.fetch_add(1, Ordering::Relaxed);
    Some(numbered(&path, std::process::id(), client))
}

fn numbered(path: &Path, process: u32, client: u32) -> PathBuf {
    let mut name: OsString = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(".{process}-{client}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_a_file_of_its_own() {
        assert_eq!(numbered(Path::new("/tmp/a.b.csv"), 7, 0), Path::new("/tmp/a.b.7-0.csv"));
        assert_eq!(numbered(Path::new("log"), 7, 12), Path::new("log.7-12"));
    }
}
