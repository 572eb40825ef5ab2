//! Sends the responses of one channel in the order of their requests.

use super::service::reason;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::stream::{Stream, TrySendError};
use crate::tensor::value_draft::ValueDraft;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tensorlend_os::mutex::lock;

/// The response to a request.
#[derive(Debug)]
pub enum Said {
    Answer(Box<ValueDraft>),
    Failure(String),
}

/// Sends responses in the order of their requests. Any thread can supply a response.
#[derive(Debug)]
pub struct Answers {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None` after this channel was closed.
    stream: Option<Stream>,
    /// The number of the request whose response is sent next.
    next: u64,
    /// Responses to later requests, by the number of the request.
    early: BTreeMap<u64, Said>,
}

impl Answers {
    pub fn new(client: Client, stream: Stream) -> Self {
        Self { client, state: Mutex::new(State { stream: Some(stream), next: 0, early: BTreeMap::new() }) }
    }

    /// Supplies the response to a request. Sends the response when its turn comes, and then the later ones that wait for it.
    /// If the caller has ended, this function drops the response and returns no error.
    ///
    /// # Errors
    /// An error if this function could not send this response or a later one. It then closes the channel, because the
    /// following responses would belong to the wrong requests.
    pub fn say(&self, number: u64, said: Said) -> Result<()> {
        let mut state = lock(&self.state);
        state.early.insert(number, said);
        loop {
            let next = state.next;
            let Some(said) = state.early.remove(&next) else { return Ok(()) };
            let Some(stream) = &state.stream else {
                state.early.clear();
                return Ok(());
            };
            match self.send(stream, said) {
                Ok(()) => state.next += 1,
                Err(error) => {
                    state.stream = None;
                    state.early.clear();
                    return if matches!(error, Error::StreamEnded(_)) { Ok(()) } else { Err(error) };
                }
            }
        }
    }

    fn send(&self, stream: &Stream, said: Said) -> Result<()> {
        let draft = match said {
            Said::Answer(draft) => *draft,
            Said::Failure(why) => self.client.dataset().metadata(reason(&why))?.into(),
        };
        match stream.try_send(draft) {
            Ok(_) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            // The ring has an entry for every request that can be outstanding.
            Err(TrySendError::Full(_)) => Err(Error::StreamFull(stream.name().to_owned())),
        }
    }

    /// Wakes a sleeping caller if this request's response is the next one.
    pub fn soon(&self, number: u64) {
        let state = lock(&self.state);
        if let Some(stream) = state.stream.as_ref().filter(|_| state.next == number) {
            stream.wake_early();
        }
    }

    /// Closes the channel and drops the responses that wait.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.stream = None;
        state.early.clear();
    }
}
