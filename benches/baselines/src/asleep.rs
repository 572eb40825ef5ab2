//! Detection that a thread sleeps. The measurement of a wake-up begins with it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use crate::BaselineError;

/// Time from the kernel's report that a thread sleeps until its core is idle.
const SETTLE: Duration = Duration::from_micros(20);

/// Timeout of the wait for a thread to fall asleep.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A thread whose state in /proc is observed.
pub struct Observed {
    stat: File,
}

impl Observed {
    pub fn new(pid: u32, tid: u32) -> Result<Self, BaselineError> {
        let stat = File::open(format!("/proc/{pid}/task/{tid}/stat"));
        Ok(Self { stat: stat.map_err(BaselineError::system("look at a thread in /proc"))? })
    }

    /// Waits until the thread sleeps, and then for [`SETTLE`].
    pub fn until_asleep(&self) -> Result<(), BaselineError> {
        let start = Instant::now();
        while !self.is_asleep()? {
            if start.elapsed() > TIMEOUT {
                return Err(BaselineError::Stalled { doing: "waiting for a receiver to sleep", timeout: TIMEOUT });
            }
            std::hint::spin_loop();
        }
        let settled = Instant::now();
        while settled.elapsed() < SETTLE {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn is_asleep(&self) -> Result<bool, BaselineError> {
        let mut text = [0; 256];
        let length = self.stat.read_at(&mut text, 0).map_err(BaselineError::system("look at a thread in /proc"))?;
        Ok(state(&text[..length]) == Some(b'S'))
    }
}

/// Returns the letter of the thread's state. In the file, this letter follows the thread's name,
/// which may itself contain parentheses.
fn state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

#[cfg(test)]
mod tests {
    use super::{Observed, state};
    use std::sync::mpsc::channel;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        assert_eq!(state(b"1 (a) R b) S 0 1"), Some(b'S'));
        assert_eq!(state(b"nonsense"), None);
    }

    #[test]
    fn a_blocked_thread_sleeps_and_this_one_does_not() {
        let own = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        assert!(!Observed::new(std::process::id(), own).unwrap().is_asleep().unwrap());

        let (tell, told) = channel();
        let (wake, woken) = channel::<()>();
        let sleeper = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()).unwrap();
            let _ = woken.recv();
        });
        let tid = told.recv().unwrap();
        Observed::new(std::process::id(), tid).unwrap().until_asleep().unwrap();
        drop(wake);
        sleeper.join().unwrap();
    }
}
