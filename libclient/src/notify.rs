//! Waits for an event loop of another language. Instead of a future, each wait has a function that the waiting thread
//! calls.

use crate::client::Client;
use crate::error::{Result, check_name};
use crate::lease::by_name::peek;
use crate::lease::wait::newer;
use crate::lease::waiter::{EventState, Ticket, Waiter};
use crate::list::{Length, list_state};
use crate::names::version::Version;
use crate::remote::{may_be_far, node_name, split};

/// The waits of one client. One thread serves all of them. The first wait starts this thread, and the drop of this value
/// ends it.
///
/// Each method returns a ticket, whose drop ends the wait. The thread calls `tell` once, when the event has
/// happened or the poll has failed. `tell` must not block the thread.
#[derive(Debug)]
pub struct Notifications {
    client: Client,
    waiter: Waiter,
}

impl Notifications {
    /// Returns an object without a thread.
    pub fn new(client: &Client) -> Self {
        Self { client: client.clone(), waiter: Waiter::new(client.session().clone()) }
    }

    /// Waits for a value of `name` other than `seen`. Returns `None` for a name that begins with a node, because only a
    /// thread can wait for such a name. The wait also ends if the name's first part becomes a node. Then call this
    /// method again.
    ///
    /// # Errors
    /// [`crate::Error::Name`]; [`crate::Error::System`] if no thread can be started.
    pub fn newer(
        &self,
        name: &str,
        seen: Version,
        tell: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Option<Ticket>> {
        check_name(name)?;
        let node = split(name).filter(|_| may_be_far(name)).map(|(node, _)| node_name(node).into_bytes());
        // Read the document's version before the deciding check, so that a document that is published later ends the
        // wait.
        let session = self.client.session();
        let known = node.as_ref().map(|node| peek(session, node)).transpose()?;
        if self.client.far(name)?.is_some() {
            return Ok(None);
        }
        let key = name.as_bytes().to_vec();
        let poll = move |session: &_| {
            let mut state = newer(session, &key, seen)?;
            if let Some(node) = &node {
                let now = peek(session, node)?;
                state.is_over |= Some(now.seen) != known.map(|known| known.seen);
                state.owners[1] = now.owner;
            }
            Ok(state)
        };
        self.waiter.wait(Box::new(poll), Box::new(tell)).map(Some)
    }

    /// Waits until a list has the length `wanted`.
    ///
    /// # Errors
    /// [`crate::Error::Name`]; [`crate::Error::System`] if no thread can be started.
    pub fn length(&self, list: &str, wanted: Length, tell: impl FnOnce(Result<()>) + Send + 'static) -> Result<Ticket> {
        check_name(list)?;
        let list = list.to_owned();
        let poll = move |session: &_| {
            let is_over = wanted.is(list_state(session, &list).1);
            Ok(EventState { is_over, owners: [None, None] })
        };
        self.waiter.wait(Box::new(poll), Box::new(tell))
    }

    /// Waits until a list has more than `read` items, or until it has an item and an id other than `id`.
    ///
    /// # Errors
    /// [`crate::Error::System`] if no thread can be started.
    pub fn unread(
        &self,
        list: &str,
        (id, read): (u64, u64),
        tell: impl FnOnce(Result<()>) + Send + 'static,
    ) -> Result<Ticket> {
        let list = list.to_owned();
        let poll = move |session: &_| {
            let (now, end) = list_state(session, &list);
            Ok(EventState { is_over: (if now == id { read } else { 0 }) < end, owners: [None, None] })
        };
        self.waiter.wait(Box::new(poll), Box::new(tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::os::fd::BorrowedFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;
    use tensorlend_layout::DType;

    const LONG: Duration = Duration::from_mins(10);

    #[test]
    fn each_wait_is_reported_once_when_its_event_has_happened() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
        let (client, other) = (connect(), connect());
        let notifications = Notifications::new(&client);
        let (tell, told) = channel();
        let teller = |number: usize| {
            let tell = tell.clone();
            move |outcome: Result<()>| tell.send((number, outcome.is_ok())).unwrap()
        };
        let seen = other.put("name/1", &[0u8]).unwrap();
        let mut tickets = Vec::new();
        for number in 0..100 {
            let seen = if number == 1 { seen } else { Version::NONE };
            tickets.extend(notifications.newer(&format!("name/{number}"), seen, teller(number)).unwrap());
        }
        tickets.push(notifications.length("list", Length::AtLeast(2), teller(100)).unwrap());
        tickets.push(notifications.unread("list", (0, 0), teller(101)).unwrap());
        assert_eq!(tickets.len(), 102);
        // A ticket that is dropped ends its wait.
        drop(tickets.remove(7));
        let item = || other.create(DType::U8, &[1]).unwrap();
        other.append("list", item()).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), (101, true));
        other.append("list", item()).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), (100, true));
        for number in (0..100).rev() {
            other.put(&format!("name/{number}"), &[1u8]).unwrap();
        }
        let mut numbers: Vec<usize> = (0..99).map(|_| told.recv_timeout(LONG).unwrap().0).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).filter(|&number| number != 7).collect::<Vec<_>>());
        // An event that precedes the wait is reported, too.
        let ticket = notifications.newer("name/1", seen, teller(1)).unwrap();
        assert_eq!(told.recv_timeout(LONG).unwrap(), (1, true));
        drop((ticket, tell, notifications));
        assert!(told.recv_timeout(LONG).is_err(), "reported twice");
    }

    /// Waits until the descriptor is readable.
    fn readable(fd: BorrowedFd<'_>) -> usize {
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None).unwrap()
    }

    #[test]
    fn pollable_ends_of_a_service_become_readable() {
        let broker = tensorlend_daemon::embedded().unwrap();
        let connect = || Client::builder().socket(broker.socket()).connect().unwrap();
        let (client, other) = (connect(), connect());
        let mut server = client.serve("service").pollable().open().unwrap();
        let mut caller = other.caller("service").pollable().open().unwrap();
        let notifications = Notifications::new(&client);
        let (tell, told) = channel();
        assert!(server.try_recv_armed().unwrap().is_none() && !server.has_news().unwrap());
        let (list, read) = server.connects();
        let _ticket = notifications.unread(list, read, move |_| tell.send(()).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let connecting = scope.spawn(|| caller.wait_server(LONG));
            told.recv_timeout(LONG).unwrap();
            assert!(server.has_news().unwrap());
            while !connecting.is_finished() {
                assert!(server.try_recv_armed().unwrap().is_none());
            }
            connecting.join().unwrap().unwrap();
        });
        for _ in 0..3 {
            assert!(server.try_recv_armed().unwrap().is_none());
            assert!(caller.is_connected().unwrap());
            caller.send(other.create(DType::U8, &[1]).unwrap(), Duration::ZERO).unwrap();
            assert!(matches!(caller.try_recv(), (_, Ok(None))) && !caller.has_news().unwrap());
            assert_eq!(readable(server.descriptor().unwrap()), 1);
            let call = server.try_recv_armed().unwrap().unwrap();
            call.respond(client.create(DType::U8, &[1]).unwrap()).unwrap();
            assert_eq!(readable(caller.descriptor().unwrap()), 1);
            assert!(caller.has_news().unwrap());
            assert!(matches!(caller.try_recv(), (_, Ok(Some(_)))));
        }
        // The end of the server is news for its caller.
        drop(server);
        assert!(caller.has_news().unwrap() && !caller.is_connected().unwrap());
    }
}
