//! Streams and names for tokio tasks. Feature `tokio`.
//!
//! A subscription sleeps on its wake descriptor in tokio's reactor, so any number of subscriptions needs no thread. Names
//! have no descriptor: their bells are futex words in shared memory, on which only a thread can sleep. One thread sleeps on
//! them for all tasks that share an [`AsyncClient`].

mod client;
mod listener;
mod subscription;

pub use client::AsyncClient;
pub use subscription::AsyncSubscription;

use crate::error::{Error, Result};

/// Runs a function that may wait for the daemon, on one of the runtime's threads for blocking calls.
async fn blocking<T: Send + 'static>(
    doing: &'static str,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(call).await {
        Ok(done) => done,
        Err(e) => match e.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime is shutting down.
            Err(e) => Err(Error::System { doing, cause: e.into() }),
        },
    }
}
