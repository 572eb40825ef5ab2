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
    /// For the bytes of one file or tensor.
    pub fn bytes(doing: &str, bytes: u64) -> Self {
        Self::new(bytes >= BYTES_MIN, doing, bytes, "{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}")
    }

    /// For many files.
    pub fn files(doing: &str, files: usize) -> Self {
        Self::new(files >= FILES_MIN, doing, files as u64, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    fn new(long: bool, doing: &str, length: u64, template: &str) -> Self {
        let target = if long { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if !bar.is_hidden() {
            // The template is one of the two above.
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(crate::output::printable(doing));
            // One tensor is read in one piece: the clock shows that it goes on.
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
