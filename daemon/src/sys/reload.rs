//! Reloading the configuration on SIGHUP.

use crate::config::{Config, ConfigError};
use crate::core::settings::{Mode, Settings};
use crate::options::{self, Takes};
use crate::sys::limits;

/// Reads the configuration that the daemon's command line names.
pub type Load = Box<dyn Fn() -> Result<Config, ConfigError> + Send>;

/// Reads the configuration again, and knows the one in effect.
pub struct Reloader {
    load: Load,
    /// The configuration in effect: options that need a restart have the values of the start.
    running: Config,
    mode: Mode,
    /// Changed options that need a restart to take effect.
    put_off: Vec<String>,
    /// The error of the last read, if the file was rejected.
    error: Option<String>,
    pool_bytes_max: u64,
    /// Users and groups of namespaces that were not found, and their places in the file.
    unknown: Vec<String>,
    /// The reason why segments cannot be spilled, found at the start.
    spill_fault: Option<String>,
}

impl Reloader {
    /// Creates the reloader of a daemon that was started with `running`.
    pub fn new(load: Load, running: Config, mode: Mode, pool_bytes_max: u64) -> Self {
        let (put_off, unknown) = (Vec::new(), Vec::new());
        Self { load, running, mode, put_off, error: None, pool_bytes_max, unknown, spill_fault: None }
    }

    /// Adds faults despite which the daemon runs; the log and the status report them.
    pub fn with_faults(mut self, unknown: Vec<String>, spill: Option<ConfigError>) -> Self {
        self.spill_fault = spill.map(|error| error.to_string());
        if let Some(fault) = &self.spill_fault {
            tracing::warn!("nothing is spilled until this is put right: {fault}");
        }
        self.note_unknown(unknown);
        self
    }

    /// Returns true if users or groups of namespaces were not found.
    pub fn has_unknown(&self) -> bool {
        !self.unknown.is_empty()
    }

    /// Returns the configuration and mode with which to look them up.
    pub fn running(&self) -> (Config, Mode) {
        (self.running.clone(), self.mode)
    }

    /// Applies the result of a lookup outside the loop. `None`: nothing has changed, or the configuration has changed
    /// in the meantime.
    pub fn found(&mut self, config: &Config, settings: Settings, unknown: Vec<String>) -> Option<Settings> {
        if unknown == self.unknown || *config != self.running {
            return None;
        }
        self.note_unknown(unknown);
        self.pool_bytes_max = settings.pool_bytes_max;
        Some(settings)
    }

    fn note_unknown(&mut self, unknown: Vec<String>) {
        for it in unknown.iter().filter(|it| !self.unknown.contains(it)) {
            tracing::warn!("{it}: this entry grants nothing until it can be found");
        }
        for it in self.unknown.iter().filter(|it| !unknown.contains(it)) {
            tracing::info!("no longer so: {it}");
        }
        self.unknown = unknown;
    }

    /// Reads the configuration. `None`: it is invalid, which is logged, and the previous one stays in effect.
    pub fn read(&mut self) -> Option<Settings> {
        match self.try_read() {
            Ok(settings) => {
                self.error = None;
                Some(settings)
            }
            Err(error) => {
                tracing::error!("the configuration was not reloaded, and stays as it is: {error}");
                self.error = Some(error.to_string());
                None
            }
        }
    }

    fn try_read(&mut self) -> Result<Settings, ConfigError> {
        let wanted = (self.load)()?;
        // The file must also be valid for the next daemon's start.
        limits::settings(&wanted, limits::mode(wanted.mode))?;
        limits::backing(&wanted)?;
        let changes = options::changes(&self.running, &wanted);
        let next = options::without_restart(wanted, &self.running);
        let (settings, unknown) = limits::settings_and_unknown(&next, self.mode)?;
        for change in &changes {
            let option = &change.option;
            match change.takes {
                Takes::Now => tracing::info!(option, "{change}"),
                Takes::NewNamespace => tracing::info!(option, "{change}, in namespaces that are made from now on"),
                Takes::Restart => tracing::warn!(option, "{change}, but not before the daemon is restarted"),
            }
        }
        let put_off = changes.into_iter().filter(|change| change.takes == Takes::Restart);
        self.put_off = put_off.map(|change| change.option).collect();
        self.running = next;
        self.note_unknown(unknown);
        self.pool_bytes_max = settings.pool_bytes_max;
        tracing::info!("configuration reloaded");
        Ok(settings)
    }

    /// Returns a line for `systemctl status`.
    pub fn status(&self) -> String {
        let (version, mode) = (env!("CARGO_PKG_VERSION"), self.mode);
        let pool = self.pool_bytes_max >> 20;
        let put_off = match &self.put_off[..] {
            [] => String::new(),
            options => format!("; a restart is needed for {}", options.join(", ")),
        };
        let error = self.error.as_ref().map(|error| format!("; the configuration was not reloaded: {error}"));
        let error = error.unwrap_or_default();
        let runs = format!("tensorlendd {version} runs in {mode:?} mode, pool.bytes_max {pool} MiB{put_off}{error}");
        let faults = self.unknown.iter().chain(&self.spill_fault).map(ToString::to_string);
        std::iter::once(runs).chain(faults).collect::<Vec<String>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_wrong_configuration_changes_nothing_and_a_right_one_what_it_can() {
        let file = Arc::new(Mutex::new(String::new()));
        let read = Arc::clone(&file);
        let load: Load = Box::new(move || Config::parse(&read.lock().unwrap()));
        let mut reloader = Reloader::new(load, Config::default(), Mode::User, 1 << 30);
        let mut with = |text: &str| {
            *file.lock().unwrap() = text.to_owned();
            (reloader.read(), reloader.status())
        };

        let (settings, status) =
            with("[pool]\nbytes_max = \"256MiB\"\nsegment_bytes = \"2MiB\"\n[uid]\nsessions_max = 3");
        let settings = settings.unwrap();
        assert_eq!((settings.pool_bytes_max, settings.uid_sessions_max), (256 << 20, 3));
        assert_eq!(settings.segment_bytes, 64 << 20, "clients were told the length");
        assert!(status.ends_with("pool.bytes_max 256 MiB; a restart is needed for pool.segment_bytes"), "{status}");

        for wrong in ["[pool]\nbytes = 1", "[uid]\nsessions_max = 0"] {
            let (settings, status) = with(wrong);
            assert!(settings.is_none(), "{wrong}");
            assert!(
                status.contains("256 MiB") && status.contains("; the configuration was not reloaded: the con"),
                "{status}"
            );
        }
        // Valid for the next daemon, but not for this one, whose segments are longer.
        let (settings, status) = with("[pool]\nbytes_max = \"4MiB\"\nsegment_bytes = \"1MiB\"");
        assert!(settings.is_none() && status.contains("pool.segment_bytes is 67108864"), "{status}");

        // A user who does not exist gets no rights; the rest applies.
        let (settings, status) = with("[uid]\nsessions_max = 9\n[namespace.lab]\nreaders = [\"no-such-user-here\"]");
        let settings = settings.unwrap();
        assert_eq!(settings.uid_sessions_max, 9);
        assert!(settings.namespaces["lab"].readers.is_empty());
        assert!(status.contains("; namespace.lab.readers: there is no user \"no-such-user-here\""), "{status}");

        let (settings, status) = with("");
        assert!(settings.unwrap().uid_sessions_max > 3);
        assert!(!status.contains(';'), "{status}");
    }
}
