//! Copies of the running program in another role, which execute orders line by line.

use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Serialize, de::DeserializeOwned};
use std::io::{BufRead, BufReader, Lines, StdinLock, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const ROLE: &str = "TENSORLEND_BENCH_ROLE";

/// A running copy of this program. It ends with the process that started it.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Worker {
    /// Starts a worker. The calling thread must live as long as the worker.
    pub fn start(role: &str, args: &[String]) -> Self {
        Self::spawn(command(role, args))
    }

    /// Starts a worker like [`Worker::start`], with a command that runs this program on another host.
    pub fn start_by(mut command: Command, role: &str, args: &[String]) -> Self {
        command.env(ROLE, role).args(args);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a worker starts");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("it has a pipe"));
        Self { child, orders, answers }
    }

    pub fn tell(&mut self, order: &impl Serialize) {
        let mut line = serde_json::to_vec(order).expect("orders are plain values");
        line.push(b'\n');
        self.orders.as_mut().expect("open").write_all(&line).expect("the worker listens");
    }

    /// Waits for a response.
    pub fn answer<T: DeserializeOwned>(&mut self) -> T {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("the worker's pipe can be read");
        assert!(!line.is_empty(), "a worker has ended early; what it said stands above");
        serde_json::from_str(&line).expect("answers are plain values")
    }

    /// Sends an order, and waits for the response.
    pub fn ask<T: DeserializeOwned>(&mut self, order: &impl Serialize) -> T {
        self.tell(order);
        self.answer()
    }
}

/// Sends all workers the same order, then waits for all responses. The workers work at the same time.
pub fn ask_all<T: DeserializeOwned>(workers: &mut [Worker], order: &impl Serialize) -> Vec<T> {
    for worker in workers.iter_mut() {
        worker.tell(order);
    }
    workers.iter_mut().map(Worker::answer).collect()
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The end of its orders ends the worker; if it does not react in time, it is killed.
        drop(self.orders.take());
        for _ in 0..200 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that starts this program in a role.
pub fn command(role: &str, args: &[String]) -> Command {
    // The link itself, not its target: it refers to this running program even after the file was replaced.
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role).args(args);
    command
}

#[derive(Debug)]
pub struct Role {
    pub name: String,
    pub args: Vec<String>,
    lines: Lines<StdinLock<'static>>,
}

impl Role {
    /// Returns the role of this process; `None` if it is not a worker. A worker dies with its parent.
    pub fn mine() -> Option<Self> {
        let name = std::env::var(ROLE).ok()?;
        set_parent_process_death_signal(Some(Signal::KILL)).expect("a process may choose its end");
        Some(Self { name, args: std::env::args().skip(1).collect(), lines: std::io::stdin().lock().lines() })
    }

    /// Returns the next order. Returns `None` if no order will follow.
    pub fn order<T: DeserializeOwned>(&mut self) -> Option<T> {
        let line = self.lines.next()?.expect("orders can be read");
        Some(serde_json::from_str(&line).expect("orders are plain values"))
    }

    pub fn answer(&self, answer: &impl Serialize) {
        let mut line = serde_json::to_vec(answer).expect("answers are plain values");
        line.push(b'\n');
        // One write for the whole line. Nothing else in this process writes to standard output.
        std::io::stdout().lock().write_all(&line).expect("somebody listens");
        std::io::stdout().lock().flush().expect("somebody listens");
    }
}

/// Waits until `start_ns` (of [`crate::stats::now_ns`]), so that several workers begin at the same time.
pub fn wait_until(start_ns: u64) {
    let now = crate::stats::now_ns();
    std::thread::sleep(std::time::Duration::from_nanos(start_ns.saturating_sub(now)));
}
