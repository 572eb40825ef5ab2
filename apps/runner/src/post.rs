//! The supervisor's view of a worker process.

use crate::args;
use crate::report::Report;
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tensorlend::Version;
use tensorlend_os::stderr;

/// Time without a report after which a worker counts as hung. A worker reports four times a second.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum length, in bytes, that the supervisor stores of the last line on a worker's standard
/// error.
const WORDS_MAX: usize = 512;

/// A worker's number and its report. `None` means that the worker has ended.
pub type News = (u64, Option<Report>);

/// The reason why a worker has ended unexpectedly.
pub struct Wrong {
    /// The reason, as text for the log.
    pub why: String,
    /// Whether another process killed the worker, or the kernel did for lack of memory. The model
    /// may then be valid.
    pub from_outside: bool,
}

/// Signals with which other processes or the kernel kill a worker.
const FROM_OUTSIDE: [Signal; 5] = [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// A worker process and its last reports.
pub struct Post {
    /// The worker's number. No other worker of this supervisor has the same number.
    pub number: u64,
    /// The version of the model for which the supervisor started the worker.
    pub of: Version,
    /// The version of the model that the worker serves.
    pub serving: Option<[u64; 2]>,
    /// The version that the worker could not read, with the reason.
    pub refused: Option<([u64; 2], String)>,
    pub started: Instant,
    child: Child,
    /// The time of the last report. `None` until the worker has loaded the engine's library.
    heard: Option<Instant>,
    /// The reason why the supervisor killed the worker.
    verdict: Option<String>,
    last_words: Arc<Mutex<String>>,
}

impl Post {
    /// Starts a worker for a model. The worker runs this program with the same options, and
    /// `--worker`.
    ///
    /// # Errors
    /// The kernel's error, if the process cannot start.
    pub fn start(model: &str, of: Version, number: u64, news: Sender<News>) -> std::io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).arg(format!("--worker={model}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Without a backtrace, the last line of a panic's output is the reason. A worker logs plain
        // lines, because callers get the last line.
        command.env("RUST_BACKTRACE", "0").env_remove(args::LOG_FORMAT);
        // ONNX Runtime must not take options from a model, and must not send usage data.
        command.env_remove("ORT_LOAD_CONFIG_FROM_MODEL").env("ORT_DISABLE_TELEMETRY", "1");
        let mut child = command.spawn()?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        std::thread::spawn(move || {
            for line in lines(out) {
                if let Some(report) = Report::parse(&line) {
                    let _ = news.send((number, Some(report)));
                }
            }
            let _ = news.send((number, None));
        });
        let last_words = Arc::new(Mutex::new(String::new()));
        let (words, name, is_json) = (last_words.clone(), model.to_owned(), args::logs_json());
        std::thread::spawn(move || {
            for line in lines(err).filter(|line| !line.trim().is_empty()) {
                if is_json {
                    tracing::info!(model = name, "{line}");
                } else {
                    stderr::say(&format!("{name}: {line}"));
                }
                // The panic's hint about backtraces is skipped, so that the reason remains the last
                // line.
                if !line.starts_with("note: ") {
                    *words.lock().unwrap_or_else(PoisonError::into_inner) = line;
                }
            }
        });
        let now = Instant::now();
        Ok(Self {
            number,
            of,
            serving: None,
            refused: None,
            started: now,
            child,
            heard: None,
            verdict: None,
            last_words,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Records a worker's report. Kills the worker if its run has exceeded `run_timeout`.
    pub fn hear(&mut self, report: Report, run_timeout: Duration) {
        self.heard = Some(Instant::now());
        match report {
            Report::Serving { version, .. } => self.serving = Some(version),
            Report::Refused { version, why } => self.refused = Some((version, why)),
            Report::Beat { busy } if busy > run_timeout => {
                self.kill(format!(
                    "a run did not end within {run_timeout:?}, so its worker (process {}) was killed; a runner's --timeout allows more",
                    self.pid()
                ));
            }
            Report::Beat { .. } | Report::Unconfined { .. } => {}
        }
    }

    /// Kills the worker if it has sent no report for [`SILENCE`], or if it has been loading its
    /// model for longer than `load_timeout`.
    pub fn watch(&mut self, load_timeout: Duration) {
        let pid = self.pid();
        if self.heard.is_some_and(|heard| heard.elapsed() > SILENCE) {
            self.kill(format!("its worker (process {pid}) gave no sign of life for {SILENCE:?} and was killed"));
        } else if self.serving.is_none() && self.refused.is_none() && self.started.elapsed() > load_timeout {
            self.kill(format!(
                "reading it took longer than {load_timeout:?}, so its worker (process {pid}) was killed; a runner's --load-timeout allows more"
            ));
        }
    }

    fn kill(&mut self, why: String) {
        if self.verdict.is_none() {
            tracing::warn!("{why}");
            self.verdict = Some(why);
            // An error here means that the worker has already ended.
            let _ = self.child.kill();
        }
    }

    /// Waits for the end of the worker, which has already closed its output. Returns the reason for
    /// an unexpected end, or `None`.
    pub fn end(&mut self) -> Option<Wrong> {
        let status = self.ended();
        let own = |why: String| Some(Wrong { why, from_outside: false });
        if let Some(verdict) = self.verdict.take() {
            return own(verdict);
        }
        let doing = if self.serving.is_some() { "while it served" } else { "while it read the model" };
        // Standard error has another pipe than the reports. This pause gives the thread of standard
        // error time to read the last line.
        std::thread::sleep(Duration::from_millis(20));
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let words = &words[..words.floor_char_boundary(WORDS_MAX)];
        let said = if words.is_empty() { String::new() } else { format!("; its last words: {words}") };
        let pid = self.pid();
        match status.map(|status| (status.signal(), status.code())) {
            Some((_, Some(0))) => None,
            Some((Some(signal), _)) => {
                let known = Signal::try_from(signal);
                let name = known.map_or_else(|_| signal.to_string(), |s| s.as_str().to_owned());
                let why = format!("its worker (process {pid}) was ended by {name} {doing}{said}");
                Some(Wrong { why, from_outside: known.is_ok_and(|known| FROM_OUTSIDE.contains(&known)) })
            }
            Some((None, code)) => {
                own(format!("its worker (process {pid}) failed with status {} {doing}{said}", code.unwrap_or(-1)))
            }
            None => own(format!("its worker (process {pid}) closed its output and did not end, and was killed")),
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        None
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Reads lines as text. Replaces invalid bytes, and bounds the length of a line.
fn lines(from: Option<impl Read>) -> impl Iterator<Item = String> {
    let mut reader = from.map(BufReader::new);
    std::iter::from_fn(move || {
        let mut line = Vec::new();
        let read = reader.as_mut()?.by_ref().take(1 << 16).read_until(b'\n', &mut line).ok()?;
        (read > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    })
}
