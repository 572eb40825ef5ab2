//! Live updates. Each sample is encoded once for all viewers, with a bounded length.

use crate::json;
use crate::view::{self, Namespace, Snapshot};
use hyper::body::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tensorlend::observe::LeaseSeen;
use tokio::sync::{mpsc, watch};

/// Maximum number of entries of each kind in one update. The page requests the rest.
const CLIENTS: usize = 200;
const SEGMENTS: usize = 64;
const LEASES: usize = 50;
const STREAMS: usize = 100;
const EVENTS: usize = 50;

/// Maximum time that a viewer may take to read an update.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Encodes a sample as a server-sent event.
pub fn piece(snapshot: &Snapshot, previews: bool) -> Bytes {
    let make = || {
        let namespaces: Vec<Value> = snapshot.namespaces.iter().map(|ns| namespace(ns)).collect();
        let events = snapshot.events.iter().rev().take(EVENTS).map(json::event).collect::<Vec<_>>();
        let data = json!({ "status": json::status(snapshot, previews), "namespaces": namespaces, "events": events });
        // The JSON text has no line breaks, so one `data:` line suffices.
        Bytes::from(format!("id: {}\nevent: look\ndata: {data}\n\n", snapshot.number))
    };
    snapshot.live.get_or_init(make).clone()
}

fn namespace(ns: &Namespace) -> Value {
    let seen = &ns.sampled.seen;
    let mut segments: Vec<_> = seen.segments.iter().collect();
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.bytes));
    segments.truncate(SEGMENTS);
    segments.sort_by_key(|segment| (segment.owner, segment.base));
    json!({
        "name": seen.namespace,
        "clients": view::clients(seen).into_iter().take(CLIENTS).map(json::client).collect::<Vec<_>>(),
        "segments": segments.into_iter().map(|segment| json::segment(ns, segment, false)).collect::<Vec<_>>(),
        "streams": seen.streams.iter().take(STREAMS).map(|stream| json::stream(ns, stream)).collect::<Vec<_>>(),
        "leases": notable(&seen.leases).into_iter().map(|lease| json::lease(ns, lease)).collect::<Vec<_>>(),
        "point": ns.history.last().map(json::point),
    })
}

/// Returns the oldest and the largest leases.
fn notable(leases: &[LeaseSeen]) -> Vec<&LeaseSeen> {
    let mut by_bytes: Vec<usize> = (0..leases.len()).collect();
    by_bytes.sort_by_key(|&at| std::cmp::Reverse(leases[at].bytes));
    // The leases are sorted by age, so the first ones are the oldest.
    let mut at: Vec<usize> = by_bytes.into_iter().take(LEASES).chain(0..LEASES.min(leases.len())).collect();
    at.sort_unstable();
    at.dedup();
    at.into_iter().map(|at| &leases[at]).collect()
}

/// Sends each sample to a viewer until the viewer disconnects. A slow viewer skips to the latest
/// sample.
pub async fn follow(mut snapshots: watch::Receiver<Arc<Snapshot>>, viewer: mpsc::Sender<Bytes>, previews: bool) {
    loop {
        let snapshot = snapshots.borrow_and_update().clone();
        if snapshot.number > 0 {
            let sent = tokio::time::timeout(TIMEOUT, viewer.send(piece(&snapshot, previews))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
        drop(snapshot);
        if snapshots.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensorlend::observe::{ClientNo, SlotNo};

    #[test]
    fn the_oldest_and_the_largest_each_once() {
        let lease = |at: usize| LeaseSeen {
            holder: ClientNo::new(0),
            pid: 0,
            owner: ClientNo::new(0),
            slot: SlotNo::new(at as u32),
            is_of_segment: false,
            count: 1,
            bytes: at as u64,
            value: None,
            age: Duration::from_secs(1000 - at as u64),
            is_older: false,
        };
        let few: Vec<_> = (0..60).map(lease).collect();
        assert_eq!(notable(&few).len(), 60);
        let many: Vec<_> = (0..500).map(lease).collect();
        let slots: Vec<u32> = notable(&many).iter().map(|lease| lease.slot.get()).collect();
        assert_eq!(slots, (0..50).chain(450..500).collect::<Vec<_>>());
    }

    #[test]
    fn a_piece_is_one_line_of_data() {
        let piece = piece(&Snapshot { number: 3, ..Snapshot::default() }, false);
        let text = std::str::from_utf8(&piece).unwrap();
        assert!(text.starts_with("id: 3\nevent: look\ndata: {") && text.ends_with("}\n\n"));
        assert_eq!(text.lines().count(), 4);
    }
}
