//! A check whether the daemon responds. The check has its own threads, so that a sample that waits
//! for the daemon does not delay the check.

use crate::view::{Last, Snapshot, now_ms};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tensorlend::Stat;
use tensorlend::observe::Asker;
use tokio::sync::watch;

/// Maximum pause between a response and the next request.
const PAUSE: Duration = Duration::from_millis(500);
/// Time without a response after which the daemon counts as unresponsive.
const LATE: Duration = Duration::from_secs(1);

/// The last response, and the connection for the requests.
pub struct Pulse {
    last: Mutex<Last>,
    asker: Mutex<Asker>,
}

impl Pulse {
    /// Makes the check with this connection. Sends a request, and waits for the response.
    pub fn new(asker: Asker) -> Self {
        let pulse = Self { last: Mutex::default(), asker: Mutex::new(asker) };
        let stat = pulse.asker().stat().ok();
        pulse.take(stat);
        pulse
    }

    /// Returns the last known state of the daemon.
    pub fn last(&self) -> Last {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the connection for the requests.
    pub fn set_asker(&self, asker: Asker) {
        *self.asker.lock().unwrap_or_else(PoisonError::into_inner) = asker;
    }

    fn asker(&self) -> Asker {
        self.asker.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Stores a response. Returns true if the daemon has just started or stopped to respond.
    fn take(&self, stat: Option<Stat>) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = last.stat.is_some() != stat.is_some();
        if stat.is_some() {
            last.answered_ms = now_ms();
        }
        last.stat = stat.map(Arc::new);
        changes
    }

    /// Starts to send requests, until `tell` has no receivers. If the daemon stops to respond or
    /// responds again, the check updates the last sample at once, without waiting for the next
    /// sample.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub fn start(self: &Arc<Self>, tell: watch::Sender<Arc<Snapshot>>, interval: Duration) -> std::io::Result<()> {
        let (ask, asked) = channel::<()>();
        let (answer, answers) = channel();
        let pulse = self.clone();
        std::thread::Builder::new().name("question".into()).spawn(move || {
            // This thread sends one request at a time, because a request can block for as long as a client waits for a
            // daemon.
            while asked.recv().is_ok() && answer.send(pulse.asker().stat().ok()).is_ok() {}
        })?;
        let pulse = self.clone();
        std::thread::Builder::new()
            .name("pulse".into())
            .spawn(move || pulse.watch(&ask, &answers, &tell, interval.min(PAUSE)))?;
        Ok(())
    }

    fn watch(
        &self,
        ask: &Sender<()>,
        answers: &Receiver<Option<Stat>>,
        tell: &watch::Sender<Arc<Snapshot>>,
        pause: Duration,
    ) {
        while !tell.is_closed() && ask.send(()).is_ok() {
            let stat = match answers.recv_timeout(LATE) {
                Ok(stat) => stat,
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.take_and_tell(None, tell);
                    let Ok(stat) = answers.recv() else { return };
                    stat
                }
            };
            self.take_and_tell(stat, tell);
            std::thread::sleep(pause);
        }
    }

    fn take_and_tell(&self, stat: Option<Stat>, tell: &watch::Sender<Arc<Snapshot>>) {
        if self.take(stat) {
            // Read the daemon's state inside `send_modify`, which locks the sample. The sampler
            // does the same at the end of a sample. So the later of the two writers always stores
            // the latest state.
            tell.send_modify(|snapshot| *snapshot = Arc::new(snapshot.with(self.last())));
        }
    }
}
