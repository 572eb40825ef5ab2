//! The session's claims on items of queues.

use std::collections::BTreeMap;
use std::sync::Mutex;
use tensorlend_layout::wire::{ASSERTED_MAX, QueueClaim, QueueItem, QueueReply, Reply};
use tensorlend_os::mutex::lock;

/// The claims of a session on items of queues. The session asserts them when the daemon is replaced. The map has the latest
/// claim on each item, by the claim's number. An earlier claim on the same item has ended, although its handle may still
/// exist.
#[derive(Default)]
pub struct Claims(Mutex<BTreeMap<QueueItem, u64>>);

impl Claims {
    /// Adds the claims that a reply grants. The calling thread holds the connection on which it received the reply. If the
    /// daemon ends after it, any other thread that reconnects asserts these claims.
    pub(super) fn record(&self, reply: &Reply) {
        if let Reply::Queue(QueueReply::Claimed(claims)) = reply {
            lock(&self.0).extend(claims.iter().map(|claim| (claim.item, claim.grant)));
        }
    }

    pub fn remove(&self, QueueClaim { item, grant }: QueueClaim) {
        let mut grants = lock(&self.0);
        if grants.get(&item) == Some(&grant) {
            grants.remove(&item);
        }
    }

    /// Returns the claims to assert: those in `unconfirmed`, then those of this map.
    pub fn asserted(&self, mut unconfirmed: Vec<QueueClaim>) -> Vec<QueueClaim> {
        unconfirmed.extend(lock(&self.0).iter().map(|(&item, &grant)| QueueClaim { item, grant }));
        unconfirmed.truncate(ASSERTED_MAX);
        unconfirmed
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Control, Sockets, Waited};
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind, listen, socket_with,
    };
    use std::time::Duration;
    use tensorlend_layout::wire::{QueueClaim, QueueItem, QueueReply, QueueRequest, Reply, Request, encode};
    use tensorlend_os::packet;

    fn granted(number: u64) -> QueueClaim {
        QueueClaim { item: QueueItem { list: 1, number }, grant: 7 + number }
    }

    /// A daemon that grants item 0, then item 1, and so on.
    fn daemon(path: &std::path::Path, items: u64) -> std::thread::JoinHandle<()> {
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        std::thread::spawn(move || {
            let client = accept(&listener).unwrap();
            for number in 0..items {
                packet::receive(&client, RecvFlags::empty()).unwrap();
                let reply = Reply::Queue(QueueReply::Claimed(vec![granted(number)]));
                packet::send(&client, &encode(&reply), &[], SendFlags::empty()).unwrap();
            }
        })
    }

    #[test]
    fn a_claim_is_asserted_as_soon_as_its_reply_is_received() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let daemon = daemon(&path, 2);
        let control = Control::connect(&Sockets::named(vec![path]), Duration::from_mins(1)).unwrap();
        let claim = QueueRequest::Claim { list: "jobs".to_owned(), done: Vec::new(), max: 1, wait: true };
        // While the answer exists, no other thread can use the connection, or replace it.
        let answer = control.ask(&Request::Queue(claim.clone()), "test", "jobs").unwrap();
        assert_eq!(control.asserted(), [granted(0)]);
        drop(answer);
        let waited = control.call_waiting(claim, Duration::from_mins(1), "test", "jobs").unwrap();
        assert!(matches!(waited, Waited::Reply(Reply::Queue(QueueReply::Claimed(_)))));
        assert_eq!(control.asserted(), [granted(0), granted(1)]);
        control.claims().remove(granted(0));
        assert_eq!(control.asserted(), [granted(1)]);
        daemon.join().unwrap();
    }
}
