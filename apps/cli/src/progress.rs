//! Progress bars on standard error, which are shown if it is a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Minimum amounts of work for which a bar is shown. Smaller work ends before a user could read the bar.
const BYTES_MIN: u64 = 64 << 20;
const FILES_MIN: usize = 32;
/// Pause between two frames.
const PAUSE: Duration = Duration::from_millis(100);

/// Number of bytes that this process has read from files and written to files, for tensors only.
static MOVED: AtomicU64 = AtomicU64::new(0);

/// Counts bytes that were read from a file or written to a file. One tensor may be most of the work
/// of a command, so its bytes must count before it is complete.
pub fn count(bytes: usize) {
    MOVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A progress bar, which is hidden for small work or if standard error is not a terminal.
pub struct Progress {
    bar: ProgressBar,
    /// Ends the thread that draws, if there is one.
    is_over: Arc<AtomicBool>,
}

impl Progress {
    /// Creates a bar for this number of bytes, with percent, rate and the time left.
    pub fn bytes(doing: &str, bytes: u64) -> Self {
        Self::bytes_on(target(bytes >= BYTES_MIN), doing, bytes)
    }

    fn bytes_on(target: ProgressDrawTarget, doing: &str, bytes: u64) -> Self {
        let template = "{msg} {wide_bar} {percent}% {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
        let it = Self::new(target, doing, bytes, template);
        if !it.bar.is_hidden() {
            let (bar, is_over, before) = (it.bar.clone(), it.is_over.clone(), MOVED.load(Ordering::Relaxed));
            std::thread::spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    // Compressed files are shorter than their tensors, but headers count, too. So
                    // limit the position.
                    let moved = MOVED.load(Ordering::Relaxed).saturating_sub(before).min(bytes);
                    bar.set_position(moved.max(bar.position()));
                    std::thread::sleep(PAUSE);
                }
            });
        }
        it
    }

    /// Creates a bar for many files.
    pub fn files(doing: &str, files: usize) -> Self {
        Self::new(target(files >= FILES_MIN), doing, files as u64, "{msg} {wide_bar} {pos}/{len} {eta}")
    }

    fn new(target: ProgressDrawTarget, doing: &str, length: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(length), target);
        if !bar.is_hidden() {
            // The default style is never used, because all templates are valid constants.
            bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_message(crate::text::printable(doing));
            bar.enable_steady_tick(PAUSE);
        }
        Self { bar, is_over: Arc::default() }
    }

    /// Adds finished work to a bar of files.
    pub fn advance(&self, by: u64) {
        self.bar.inc(by);
    }
}

/// Returns standard error for long work, and otherwise a hidden target. A bar on standard error is
/// hidden unless it is a terminal.
fn target(is_long: bool) -> ProgressDrawTarget {
    if is_long { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Mutex;

    /// A terminal that stores its output.
    #[derive(Clone, Debug, Default)]
    struct Paper(Arc<Mutex<String>>);

    impl Paper {
        fn write(&self, text: &str) {
            self.0.lock().unwrap().push_str(text);
        }
    }

    impl indicatif::TermLike for Paper {
        fn width(&self) -> u16 {
            100
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write(text);
            Ok(())
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.write(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Waits until the terminal shows the text.
    fn until(paper: &Paper, text: &str) {
        while !paper.0.lock().unwrap().contains(text) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_large_tensor_shows_percent_and_rate_before_it_is_complete() {
        let paper = Paper::default();
        let target = ProgressDrawTarget::term_like(Box::new(paper.clone()));
        let progress = Progress::bytes_on(target, "weights.npy", 64 << 40);
        until(&paper, " 0% ");
        // Other tests of this process may move some bytes, too.
        for _ in 0..1 << 20 {
            count(32 << 20);
        }
        until(&paper, " 50% ");
        until(&paper, "/s ");
        drop(progress);
    }
}
