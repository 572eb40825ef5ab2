//! Progress bars for long work: on standard error, and only if that is a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Below these, work is done before anybody has read what the bar says.
const BYTES_MIN: u64 = 64 << 20;
const FILES_MIN: usize = 32;

/// A bar, or nothing.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// For so many bytes in so many pieces. One piece goes in one step: then a clock shows that it goes on.
    pub fn bytes(doing: &str, bytes: u64, pieces: usize) -> Self {
        let template = match pieces {
            0..=1 => "{spinner} {msg} {total_bytes} {elapsed}",
            _ => "{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}",
        };
        Self::new(bytes >= BYTES_MIN, doing, bytes, template)
    }

    /// For many files.
    pub fn files(doing: &str, files: usize) -> Self {
        Self::new(files >= FILES_MIN, doing, files as u64, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    fn new(long: bool, doing: &str, length: u64, template: &str) -> Self {
        let target = if long { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if !bar.is_hidden() {
            // The template is one of those above.
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
