//! Lifetimes of published values.

use crate::errors::{ResultExt, argument};
use crate::version::Version;
use pyo3::prelude::*;
use std::time::Duration;
use tensorlend::{Lifetime, ValueDraft};

/// Maximum length in bytes of a new name that is published without waiting for the daemon.
const NAME_QUICK: usize = 64;

/// The lifetime of a published value.
#[derive(Clone, Copy, Default)]
pub struct Lasting {
    lifetime: Option<Lifetime>,
}

impl Lasting {
    /// Returns true if the name ends by itself: it has a time to live, or is ephemeral.
    pub fn is_limited(self) -> bool {
        self.lifetime.is_some()
    }

    /// Parses the arguments `ttl` (in seconds) and `ephemeral`.
    pub fn new(ttl: Option<f64>, ephemeral: bool) -> PyResult<Self> {
        let ttl = match ttl {
            Some(seconds) => Some(Duration::try_from_secs_f64(seconds).map_err(|_| {
                argument(format!("a time to live of {seconds} seconds: give more than 0, or None for no limit"))
            })?),
            None => None,
        };
        let lifetime = (ttl.is_some() || ephemeral).then_some(Lifetime { ttl, ephemeral });
        Ok(Self { lifetime })
    }

    /// Publishes a draft with this lifetime. Releases the interpreter's lock if the daemon must respond.
    pub fn publish(self, py: Python<'_>, draft: ValueDraft, name: &str) -> PyResult<Version> {
        let version = match self.lifetime {
            None if name.len() <= NAME_QUICK => draft.publish(name),
            None => py.detach(|| draft.publish(name)),
            Some(lifetime) => py.detach(|| draft.publish_for(name, lifetime)),
        };
        version.or_raise().map(Version)
    }
}
