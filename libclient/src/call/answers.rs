//! The answers of one line, in the order of their requests.

use super::service::reason;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::stream::{Stream, TrySendError};
use crate::tensor::value_draft::ValueDraft;
use std::collections::BTreeMap;
use std::sync::Mutex;
use tensorlend_os::mutex::lock;

/// What is said to a request.
#[derive(Debug)]
pub enum Said {
    Answer(Box<ValueDraft>),
    Failure(String),
}

/// Sends answers, each in its turn, from whichever thread has it.
#[derive(Debug)]
pub struct Answers {
    client: Client,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// `None`: the line is closed.
    stream: Option<Stream>,
    /// Number of the request that is to be answered next.
    next: u64,
    /// What was said to later ones.
    early: BTreeMap<u64, Said>,
}

impl Answers {
    pub fn new(client: Client, stream: Stream) -> Self {
        Self { client, state: Mutex::new(State { stream: Some(stream), next: 0, early: BTreeMap::new() }) }
    }

    /// Says something to a request: sends it when its turn has come, and what waited for it. To a caller that is gone,
    /// nothing is said, and that is no error.
    ///
    /// # Errors
    /// Where something, this or what waited for it, could not be sent: then the line is closed, since those behind it would
    /// answer the wrong requests.
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
            // It has as many places as there can be requests that are not answered.
            Err(TrySendError::Full(_)) => Err(Error::StreamFull(stream.name().to_owned())),
        }
    }

    /// Wakes a caller who sleeps, if it is this request's turn.
    pub fn soon(&self, number: u64) {
        let state = lock(&self.state);
        if let Some(stream) = state.stream.as_ref().filter(|_| state.next == number) {
            stream.wake_early();
        }
    }

    /// Says nothing any more.
    pub fn close(&self) {
        let mut state = lock(&self.state);
        state.stream = None;
        state.early.clear();
    }
}
