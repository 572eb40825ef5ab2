//! The daemon's log: as text, as JSON, or in systemd's journal.

mod floods;
mod journal;

use floods::Floods;
use journal::{Entries, Journal};
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use tensorlend_os::log_queue::{FLUSH_MAX, LogQueue};
use tensorlend_os::stderr::{self, Stderr};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, fmt};

/// The rate limit of this process's log.
static FLOODS: OnceLock<Floods> = OnceLock::new();

/// The journal, if this process writes to it.
static JOURNAL: OnceLock<LogQueue> = OnceLock::new();

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text lines on standard error
    Text,
    /// One JSON object per line on standard error
    Json,
    /// Entries of systemd's journal, with a field for each value
    Journald,
}

/// Starts the log of this process. Without a format, the log goes to the journal if standard error
/// is connected to the journal. Otherwise it goes to standard error as text.
///
/// No line waits for the reader of the log. Call [`flush`] at the end of the process. Without `TENSORLEND_LOG`, the log of a
/// daemon in the background leaves out the clients that come and go, because nothing limits its file while the daemon runs.
pub fn start(format: Option<Format>, is_background: bool) -> io::Result<()> {
    stderr::start(report_dropped);
    let default = if is_background { "info,tensorlend_daemon::core=warn" } else { "info" };
    let filter = EnvFilter::try_from_env("TENSORLEND_LOG").unwrap_or_else(|_| default.into());
    let floods = FLOODS.get_or_init(Floods::default).clone();
    let log = tracing_subscriber::registry().with(filter).with(floods);
    // If the journal is the default but cannot be reached, the log is text. systemd also reads
    // standard error.
    let journal = match format {
        Some(Format::Journald) => Some(Journal::open()?),
        None if stderr::leads_to_journal() => Journal::open().ok(),
        _ => None,
    };
    let lines = fmt::layer().with_writer(|| Stderr).with_target(false);
    match journal {
        Some(journal) => {
            let queue = JOURNAL.get_or_init(|| LogQueue::new(journal, report_dropped));
            log.with(Entries(queue.clone())).init();
        }
        None if format == Some(Format::Json) => {
            log.with(lines.json().flatten_event(true).with_current_span(false).with_span_list(false)).init();
        }
        None => log.with(lines.with_ansi(io::stderr().is_terminal())).init(),
    }
    Ok(())
}

/// Writes the counts of suppressed lines that are not written yet. The daemon calls this function
/// when it stops.
pub fn tell_left_out() {
    if let Some(floods) = FLOODS.get() {
        floods.tell_all();
    }
}

/// Reports lines that were dropped because the log's reader did not read or a write failed. The level is the highest,
/// so that every filter lets the report pass.
fn report_dropped(lines: u64) {
    tracing::error!(dropped = lines, "{}", stderr::dropped_text(lines));
}

/// Waits until the log is written, for [`FLUSH_MAX`] at most for each destination. The process calls
/// this function when it ends.
pub fn flush() {
    if let Some(journal) = JOURNAL.get() {
        journal.flush(FLUSH_MAX);
    }
    stderr::flush();
}
