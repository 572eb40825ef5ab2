//! Child processes of the demo, which run this program in another role.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A child process. Dropping this value kills the process.
pub struct Peer {
    child: Child,
}

impl Peer {
    /// Starts this program in the role that `args` name.
    pub fn spawn(args: &[String], capture: bool) -> std::io::Result<Self> {
        command(args, capture).spawn().map(|child| Self { child })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns true if the child has exited, which is unexpected before [`Self::finish`].
    pub fn is_gone(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits for the child's end and returns its output. Returns an error if the child fails or
    /// takes longer than `limit`.
    pub fn finish(mut self, limit: Duration) -> Result<String, String> {
        // A thread reads the pipe. So `limit` holds for a child with much output and for a child
        // with none.
        let output = self.child.stdout.take().map(|mut pipe| {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = pipe.read_to_string(&mut text);
                text
            })
        });
        let start = Instant::now();
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => break,
                Ok(Some(status)) => return Err(format!("process {} ended with {status}", self.id())),
                Ok(None) if start.elapsed() > limit => return Err(format!("process {} did not end", self.id())),
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                Err(e) => return Err(e.to_string()),
            }
        }
        Ok(output.and_then(|thread| thread.join().ok()).unwrap_or_default())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !self.is_gone() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn command(args: &[String], capture: bool) -> Command {
    let mut command = crate::again::command(args);
    if capture {
        command.stdout(Stdio::piped());
    }
    command
}

/// Starts a child, and returns its handle. Dropping the handle does not kill the child.
#[cfg(feature = "baselines")]
pub fn plain(args: &[String]) -> std::io::Result<Child> {
    command(args, false).spawn()
}
