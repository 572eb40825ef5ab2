//! A gateway that runs in this process.

use crate::error::CannotStart;
use crate::hub::{Event, Hub};
use crate::runtime::{Mailbox, Role};
use crate::settings::Settings;
use crate::transport::Transport;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use tensorlend_os::mutex::lock;
use tensorlend_os::thread;

/// A gateway that runs in this process. Dropping the object ends the gateway.
pub struct Gateway {
    mailbox: Mailbox<Hub>,
    /// Receives a message when the state has ended.
    ended: Option<Mutex<Receiver<()>>>,
}

impl Gateway {
    /// Connects to the daemon, declares this node to the others, and starts the gateway's threads.
    ///
    /// # Errors
    /// [`CannotStart`].
    pub fn start(settings: Settings, transport: Arc<dyn Transport>) -> Result<Self, CannotStart> {
        let mailbox = Mailbox::default();
        let started = Hub::start(settings, transport, &mailbox).and_then(|hub| {
            mailbox.begin(hub);
            let (clock, (ended, ends)) = (Arc::new(Role::new(())), channel());
            for _ in 0..2 {
                let (mailbox, clock, ended) = (mailbox.clone(), clock.clone(), ended.clone());
                thread::spawn("gateway-clock", move || {
                    if mailbox.run_clock(&clock) {
                        let _ = ended.send(());
                    }
                })?;
            }
            Ok(ends)
        });
        match started {
            Ok(ends) => Ok(Self { mailbox, ended: Some(Mutex::new(ends)) }),
            Err(error) => {
                mailbox.give_up();
                Err(error)
            }
        }
    }

    /// Sets the function to call when the gateway ends without [`Gateway::stop`]. This happens when
    /// the daemon has ended the gateway's session for good.
    pub fn on_end(self, on_end: impl FnOnce() + Send + 'static) -> Self {
        self.mailbox.post(Event::OnEnd(Box::new(on_end)));
        self
    }

    /// Ends the gateway, and waits until its state has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.mailbox.post(Event::Stop);
        if let Some(ended) = self.ended.take() {
            let _ = lock(&ended).recv();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
