//! The way to a slot while an instrument is on.

use super::{LIMIT, Relief};
use crate::alloc::heap::{Taken, extent_bytes};
use crate::error::{Error, Result};
use crate::session::Session;

impl Session {
    /// As [`Session::take_unwatched`], within the limit, recorded, and with the program asked before it fails.
    #[cold]
    pub fn take_watched(&self, bytes: u64) -> Result<Box<Taken>> {
        self.check()?;
        let Some((length, _)) = extent_bytes(bytes) else { return self.take_unwatched(bytes) };
        let mut attempt = 0u32;
        let failed = loop {
            let error = match self.take_within_limit(bytes, length) {
                Ok(taken) => {
                    self.instruments.allocated(taken.slot(), taken.generation(), length);
                    return Ok(taken);
                }
                Err(error) => error,
            };
            attempt = attempt.saturating_add(1);
            if !error.is_limit() || self.relief(length, attempt, &error) == Relief::GiveUp {
                break error;
            }
        };
        self.instruments.failed(length);
        Err(failed)
    }

    fn take_within_limit(&self, bytes: u64, length: u64) -> Result<Box<Taken>> {
        if !self.instruments.has(LIMIT) {
            return self.take_unwatched(bytes);
        }
        let limit = &self.instruments.limit;
        if limit.reserve(length).is_err() {
            // What was replaced or deleted and has no reader any more counts until it is looked for.
            self.notices()?;
            self.retire_closed();
            self.reclaim(true);
            limit.reserve(length).map_err(|used| Error::MemoryLimit {
                asked: length,
                used,
                limit: limit.bytes_max(),
            })?;
        }
        self.take_unwatched(bytes).inspect_err(|_| limit.give(length))
    }
}
