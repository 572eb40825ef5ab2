//! A meter that runs two threads on two cores.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use crate::cores::{Cores, pin};
use crate::end::{Player, Side};
use crate::{BaselineError, Meter};

/// A thread's report about a batch, which is its samples or an error.
type Report = Result<Vec<f64>, BaselineError>;

/// A started thread, as the channels for its orders and its reports, and its handle.
type Started = (Sender<u64>, Receiver<Report>, JoinHandle<()>);

/// Two threads that exchange messages. Between two batches they sleep.
pub struct Duo {
    // Drop the orders before joining the threads, because a thread ends when its channel of orders
    // is closed.
    orders: Option<[Sender<u64>; 2]>,
    reports: [Receiver<Report>; 2],
    threads: Vec<JoinHandle<()>>,
}

impl Duo {
    /// Starts both threads. Each thread makes its end by calling its function on its own core.
    pub fn start<P: Player + 'static>(
        cores: Cores,
        first: impl FnOnce() -> Result<P, BaselineError> + Send + 'static,
        second: impl FnOnce() -> Result<P, BaselineError> + Send + 'static,
    ) -> Result<Self, BaselineError> {
        let (second_orders, second_report, second) = thread(cores.second, Side::Second, second)?;
        let (first_orders, first_report, first) = thread(cores.first, Side::First, first)?;
        Ok(Self {
            orders: Some([first_orders, second_orders]),
            reports: [first_report, second_report],
            threads: vec![first, second],
        })
    }
}

impl Meter for Duo {
    fn measure(&mut self, operations: u64, samples_ns: &mut Vec<f64>) -> Result<(), BaselineError> {
        for orders in self.orders.iter().flatten() {
            // Ignore an error. A thread that no longer listens has sent the reason as a report.
            let _ = orders.send(operations);
        }
        for report in &self.reports {
            samples_ns.extend(report.recv().map_err(|_| BaselineError::Panicked)??);
        }
        Ok(())
    }
}

impl Drop for Duo {
    fn drop(&mut self) {
        self.orders = None;
        for thread in self.threads.drain(..) {
            // Ignore a panic of the thread, because `measure` has reported it.
            let _ = thread.join();
        }
    }
}

fn thread<P: Player>(
    core: usize,
    side: Side,
    make: impl FnOnce() -> Result<P, BaselineError> + Send + 'static,
) -> Result<Started, BaselineError> {
    let (orders, taken) = channel::<u64>();
    let (reports, report) = channel();
    let work = move || {
        let mut player = match pin(core).and_then(|()| make()) {
            Ok(player) => player,
            Err(error) => return drop(reports.send(Err(error))),
        };
        for rounds in taken {
            let mut samples_ns = Vec::new();
            let played = player.play(side, rounds, &mut samples_ns);
            let failed = played.is_err();
            let _ = reports.send(played.map(|()| samples_ns));
            if failed {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("floor".to_owned()).spawn(work);
    Ok((orders, report, thread.map_err(BaselineError::Spawn)?))
}
