//! The service through which clients of this machine send requests to the gateway.

use super::Event;
use crate::error::CannotStart;
use crate::runtime::{EventSender, Role};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tensorlend::remote::{RemoteAnswer, RemoteRequest, SERVICE};
use tensorlend::{Call, Client, DType, Server};
use tensorlend_os::thread;

/// Interval at which the thread polls whether it must stop.
const NAP: Duration = Duration::from_millis(200);

/// A thread that receives the requests of clients, posts them to the mailbox, and sends the resulting messages to other
/// nodes. Its spare takes over if a send waits for a full transport. The thread that applies an event sends the
/// response.
pub struct Service {
    stop: Arc<AtomicBool>,
    role: Arc<Role<Server>>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    pub fn start(client: &Client, space: usize, events: &EventSender<Event>) -> Result<Self, CannotStart> {
        let role = Arc::new(Role::new(client.serve(SERVICE).open()?));
        let mut service = Self { stop: Arc::default(), role, threads: Vec::new() };
        for _ in 0..2 {
            let (client, events, stopped) = (client.clone(), events.clone(), service.stop.clone());
            let role = service.role.clone();
            service.threads.push(thread::spawn("gateway-serve", move || {
                while let Some(server) = role.take_over() {
                    serve(&client, server, space, &events, (&role, &stopped));
                }
            })?);
        }
        Ok(service)
    }

    pub fn stop(&mut self) {
        // Relaxed: the flag publishes no other data.
        self.stop.store(true, Ordering::Relaxed);
        if self.role.end() {
            for thread in self.threads.drain(..) {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Service {
    /// Ends the first thread if the second one could not start.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Receives requests while this thread has the role.
fn serve(
    client: &Client,
    mut server: Server,
    space: usize,
    events: &EventSender<Event>,
    (role, stopped): (&Role<Server>, &AtomicBool),
) {
    while !stopped.load(Ordering::Relaxed) {
        match server.recv_timeout(NAP) {
            Ok(call) => match request(&call) {
                Ok(request) => {
                    let jobs = events.apply(Event::Asked { space, request, call });
                    let Some(returned) = role.run(server, jobs) else { return };
                    server = returned;
                }
                Err(why) => answer(client, call, &RemoteAnswer::Refused { why }),
            },
            Err(error) if error.is_timeout() => {}
            Err(error @ tensorlend::Error::SessionEnded) => {
                tracing::error!(%error, "the daemon has ended this session");
                events.post(Event::Ended);
                role.end();
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "cannot receive the requests of clients");
                std::thread::sleep(NAP);
            }
        }
    }
}

fn request(call: &Call) -> Result<RemoteRequest, String> {
    let metadata = match (call.value().as_tensor(), call.value().as_dataset()) {
        (Some(tensor), _) => tensor.metadata(),
        (_, Some(dataset)) => dataset.metadata(),
        _ => return Err("a request on a device".into()),
    };
    RemoteRequest::decode(metadata)
}

/// Sends a response to a client. A failure is only logged, because the client may have
/// disconnected.
pub fn answer(client: &Client, call: Call, answer: &RemoteAnswer) {
    let draft = || -> tensorlend::Result<tensorlend::Draft> {
        let mut draft = client.create(DType::U8, &[0])?;
        draft.set_metadata(&answer.encode())?;
        Ok(draft)
    };
    let done: tensorlend::Result<()> = match draft() {
        Ok(draft) => call.respond(draft),
        Err(error) => call.fail(error),
    };
    if let Err(error) = done {
        tracing::warn!(%error, "a response to a client could not be sent");
    }
}
