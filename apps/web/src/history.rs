//! A bounded history with one point per sample.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use tensorlend::observe::{ClientNo, Sampled, States};

/// Maximum number of stored points. The oldest points are dropped.
const POINTS: usize = 600;
/// Maximum number of clients in a point. Only the clients with the most bytes are included.
const CLIENTS: usize = 8;

/// Bytes and counts at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub lent: u64,
    pub states: States,
    pub names: u64,
    /// Bytes of segments by user.
    pub uids: BTreeMap<u32, u64>,
    /// Bytes of segments of the largest clients, by member number and epoch.
    pub clients: BTreeMap<(ClientNo, u32), u64>,
}

impl Point {
    pub fn of(at_ms: u64, sampled: &Sampled) -> Self {
        let Sampled { seen, states, .. } = sampled;
        let mut uids = BTreeMap::new();
        for client in &seen.clients {
            *uids.entry(client.uid).or_default() += client.bytes;
        }
        let mut clients: Vec<_> = seen.clients.iter().filter(|c| c.bytes > 0).collect();
        clients.sort_by_key(|client| std::cmp::Reverse(client.bytes));
        clients.truncate(CLIENTS);
        let clients = clients.into_iter().map(|client| ((client.number, client.epoch), client.bytes)).collect();
        Self { at_ms, lent: seen.bytes_lent, states: *states, names: seen.names_live, uids, clients }
    }
}

/// The latest points, the oldest first.
#[derive(Default)]
pub struct History(VecDeque<Point>);

impl History {
    /// Adds a point, and returns all points.
    pub fn add(&mut self, point: Point) -> Arc<Vec<Point>> {
        if self.0.len() == POINTS {
            self.0.pop_front();
        }
        self.0.push_back(point);
        Arc::new(self.0.iter().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_points_go() {
        let mut history = History::default();
        for at_ms in 0..=POINTS as u64 {
            history.add(Point { at_ms, ..Point::default() });
        }
        let points = history.add(Point { at_ms: 9999, ..Point::default() });
        assert_eq!((points.len(), points[0].at_ms, points[POINTS - 1].at_ms), (POINTS, 2, 9999));
    }
}
