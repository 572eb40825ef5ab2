//! A gateway that runs in this process.

use crate::error::CannotStart;
use crate::hub::{Event, Hub};
use crate::runtime::Mailbox;
use crate::settings::Settings;
use crate::transport::Transport;
use std::sync::Arc;
use tensorlend_os::thread;

/// A gateway that runs in this process. Dropping the object ends the gateway.
pub struct Gateway {
    mailbox: Mailbox<Hub>,
    clock: Option<std::thread::JoinHandle<()>>,
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
            let clock = mailbox.clone();
            Ok(thread::spawn("gateway-clock", move || clock.run_clock())?)
        });
        match started {
            Ok(clock) => Ok(Self { mailbox, clock: Some(clock) }),
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

    /// Ends the gateway, and waits until its threads have ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.mailbox.post(Event::Stop);
        if let Some(clock) = self.clock.take() {
            let _ = clock.join();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}
