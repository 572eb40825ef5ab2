//! Progress bars on standard error, if it is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Minimum amounts of work for which a bar is shown. Smaller work ends before a user could read the bar.
const BYTES_MIN: u64 = 64 << 20;
const FILES_MIN: usize = 32;

/// A progress bar, which is hidden for small work or if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Creates a bar for this number of bytes in `pieces` steps. A single step shows a spinner and a clock instead.
    pub fn bytes(doing: &str, bytes: u64, pieces: usize) -> Self {
        let template = match pieces {
            0..=1 => "{spinner} {msg} {total_bytes} {elapsed}",
            _ => "{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}",
        };
        Self::new(bytes >= BYTES_MIN, doing, bytes, template)
    }

    /// Creates a bar for many files.
    pub fn files(doing: &str, files: usize) -> Self {
        Self::new(files >= FILES_MIN, doing, files as u64, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    fn new(long: bool, doing: &str, length: u64, template: &str) -> Self {
        let target = if long { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if !bar.is_hidden() {
            // The default style is never used: all templates are valid constants.
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(crate::output::printable(doing));
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar }
    }

    pub fn advance(&self, by: u64) {
        self.bar.inc(by);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
