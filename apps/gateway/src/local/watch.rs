//! The thread that polls the names to which other nodes subscribe.

use super::Event;
use crate::runtime::EventSender;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlend::{Client, NameWatch, Version};
use tensorlend_os::thread;

/// Maximum duration of one wait. After each wait the thread checks whether it must stop.
const NAP: Duration = Duration::from_millis(500);
/// Minimum pause between two polls. During the pause changes accumulate, and producers do not
/// signal this thread.
const PAUSE: Duration = Duration::from_millis(1);
/// Minimum ratio of sleep to poll duration. So polls use at most about 1/SHARE of the thread's
/// time.
const SHARE: u32 = 10;

/// The watched names of one namespace.
pub struct Watch {
    names: Arc<NameWatch>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread that polls for the namespace `space`.
    ///
    /// # Errors
    /// The kernel's error, if the thread cannot be started.
    pub fn start(client: &Client, space: usize, events: &EventSender<Event>) -> std::io::Result<Self> {
        let names = Arc::new(client.watch());
        let stop = Arc::new(AtomicBool::new(false));
        let (watched, events, stopped) = (names.clone(), events.clone(), stop.clone());
        let thread = thread::spawn("gateway-watch", move || poll(&watched, space, &events, &stopped))?;
        Ok(Self { names, stop, thread: Some(thread) })
    }

    /// Watches a name, and reports it once its version differs from `seen`.
    pub fn add(&self, name: &str, seen: Option<Version>) {
        self.names.add(name, seen);
    }

    /// Stops the thread, and waits for its end.
    pub fn stop(&mut self) {
        // Relaxed: the flag publishes no other data.
        self.stop.store(true, Ordering::Relaxed);
        self.names.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn poll(names: &NameWatch, space: usize, events: &EventSender<Event>, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        match names.wait(NAP) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => events.post(Event::Changed { space, names: changed }),
            Err(error) => {
                tracing::debug!(%error, "names cannot be watched");
                std::thread::sleep(NAP);
            }
        }
        // The cost of a poll grows with the number of names. This second poll follows the first one
        // at once, so it usually finds no change. Its duration is the cost of a poll.
        let start = Instant::now();
        match names.wait(Duration::ZERO) {
            Ok(changed) if !changed.is_empty() => events.post(Event::Changed { space, names: changed }),
            _ => {}
        }
        std::thread::sleep(PAUSE.max(start.elapsed() * SHARE));
    }
}
