//! The thread that sees when names change of which others are promised a word.

use super::Event;
use crate::runtime::EventSender;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tensorlend::{Client, NameWatch, Version};
use tensorlend_os::thread;

/// A sleep, at most.
const NAP: Duration = Duration::from_millis(500);
/// Between two looks, at least: producers ring for nobody meanwhile, and changes gather.
const PAUSE: Duration = Duration::from_millis(1);
/// A look may take this part of its thread's time.
const SHARE: u32 = 10;

/// Names that are watched in one namespace.
pub struct Watch {
    names: Arc<NameWatch>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts its thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(client: &Client, space: usize, events: &EventSender<Event>) -> std::io::Result<Self> {
        let names = Arc::new(client.watch());
        let stop = Arc::new(AtomicBool::new(false));
        let (watched, events, stopped) = (names.clone(), events.clone(), stop.clone());
        let thread = thread::spawn("gateway-watch", move || look(&watched, space, &events, &stopped))?;
        Ok(Self { names, stop, thread: Some(thread) })
    }

    /// Watches a name, of which this was seen.
    pub fn add(&self, name: &str, seen: Option<Version>) {
        self.names.add(name, seen);
    }

    /// Ends it.
    pub fn stop(&mut self) {
        // Relaxed: it says when, and nothing is handed over with it.
        self.stop.store(true, Ordering::Relaxed);
        self.names.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(names: &NameWatch, space: usize, events: &EventSender<Event>, stopped: &AtomicBool) {
    while !stopped.load(Ordering::Relaxed) {
        match names.wait(NAP) {
            Ok(changed) if changed.is_empty() => {}
            Ok(changed) => events.post(Event::Changed { space, names: changed }),
            Err(error) => {
                tracing::debug!(%error, "names cannot be watched");
                std::thread::sleep(NAP);
            }
        }
        // What a look costs grows with the names: a second one at once, with nothing to tell, shows what that is.
        let start = Instant::now();
        match names.wait(Duration::ZERO) {
            Ok(changed) if !changed.is_empty() => events.post(Event::Changed { space, names: changed }),
            _ => {}
        }
        std::thread::sleep(PAUSE.max(start.elapsed() * SHARE));
    }
}
