//! Mailboxes: names by which a client sends tensors to other processes without requests to the daemon.
//!
//! A mailbox is a name with a time to live. It holds one tensor at a time. The steps of one message, with sender S, receiver
//! R and daemon D:
//!
//! | step | by | effect | if the process is killed after it |
//! |---|---|---|---|
//! | 1 | S | takes a free mailbox | |
//! | 2 | S | publishes the tensor in it: the first time, and each time that the name has lived for `RENEWED`, by a request to D; otherwise by one exchange of its cell | D deletes the name at the end of its time to live |
//! | 3 | S | sends name, version and receipt to R, in a message of the program | as 2; if R receives it, as 4 |
//! | 4 | R | leases the name, and compares the version | as 2 |
//! | 5 | R | sends the receipt to S's socket. If S has ended or its socket is full, deletes the name by a request to D | as 2, if R is killed before S does step 6 |
//! | 6 | S | empties the cell, and the mailbox is free | if S is killed between 5 and 6: as 2 |
//!
//! After step 6, or the deletion in 5, only R's lease holds the tensor. S never publishes in a mailbox without its receipt. So
//! no message replaces another one. Each message has a random token, which only its receipt contains. So only a process that
//! got this message can confirm it. Another process can bind the address of a client that has ended, and receive receipts
//! of its messages. These messages then end at their time to live.

use crate::errors::{ResultExt, argument};
use crate::values::{To, tensor_of};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;
use tensorlend::{Lifetime, ValueDraft, Version};
use tensorlend_os::clock::{boottime_ns, duration_ns};
use tensorlend_os::inbox::{self, Inbox, TOKEN, Token};
use tensorlend_os::mutex::lock;
use tensorlend_os::{fork, thread};

/// Maximum number of mailboxes of a client. Linux queues at least ten receipts for a socket (`net.unix.max_dgram_qlen`).
const BOXES_MAX: usize = 8;
/// Bytes of a receipt: the message's token, and the mailbox's number.
const RECEIPT: usize = TOKEN + 4;
/// Number of datagrams that are no receipts after which a client closes its socket, so that a hostile process cannot occupy
/// its processor.
const FOREIGN_MAX: u32 = 64;
/// Maximum age of a mailbox's name at a publication without a request, and the same as a part of its time to live. A message
/// can wait for its time to live less this age.
const RENEWED: Duration = Duration::from_secs(1);
const RENEWED_PART: u32 = 16;
/// Maximum time to live of a mailbox, in seconds: 30 years.
const TTL_MAX_S: f64 = 1e9;

/// The parts of a message: the name, the version's words, the receipt's address, and the receipt.
pub type Mail<'py> = (String, (u64, u64), (Bound<'py, PyBytes>, Bound<'py, PyBytes>));

/// The mailboxes of one client.
pub struct Mailboxes {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    client: tensorlend::Client,
    inbox: Inbox,
    address: Vec<u8>,
    boxes: Mutex<Vec<Mailbox>>,
    /// Locked while a thread receives receipts.
    receiving: Mutex<Foreign>,
    closed: AtomicBool,
    forks: u64,
}

/// The number of datagrams that were no receipts.
#[derive(Default)]
struct Foreign(u32);

struct Mailbox {
    name: String,
    /// The time of the last request that set the name's lifetime, on the clock of [`boottime_ns`], and this lifetime.
    bound: Option<(u64, Duration)>,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Free,
    /// A thread publishes in it, or empties it.
    Busy,
    /// It holds a message with this token, which is lost at this time on the clock of [`boottime_ns`].
    Sent {
        token: Token,
        until_ns: u64,
    },
}

/// A mailbox that a thread has taken to publish in it.
struct Taken {
    number: usize,
    name: String,
    /// Whether the publication must renew the name's lifetime.
    renew: bool,
}

/// The mailboxes of this process, for receivers in the process itself.
static LOCAL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Mailboxes {
    /// Opens a socket. Its address contains `prefix`.
    pub fn new(client: tensorlend::Client, prefix: &str) -> std::io::Result<Self> {
        static ADDRESSES: AtomicU64 = AtomicU64::new(0);
        let address = format!("tensorlend/{prefix}/{}", ADDRESSES.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Shared {
            client,
            inbox: Inbox::bind(address.as_bytes())?,
            address: address.into_bytes(),
            boxes: Mutex::default(),
            receiving: Mutex::default(),
            closed: AtomicBool::new(false),
            forks: fork::generation(),
        });
        let receiving = shared.clone();
        let thread = thread::spawn("tensorlend-mail", move || {
            while receiving.inbox.wait().is_ok() && !receiving.closed.load(Ordering::Acquire) {
                receiving.receive();
            }
        })?;
        let mut local = lock(&LOCAL);
        local.retain(|one| one.strong_count() > 0);
        local.push(Arc::downgrade(&shared));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Publishes a tensor in a mailbox. Returns `None` if no mailbox is free. The names begin with `prefix`.
    pub fn send<'py>(
        &self,
        py: Python<'py>,
        value: &Bound<'py, PyAny>,
        prefix: &str,
        ttl: f64,
    ) -> PyResult<Option<Mail<'py>>> {
        let shared = &self.shared;
        // A lifetime longer than this has no meaning, and its double must not overflow.
        let ttl = Duration::try_from_secs_f64(ttl.min(TTL_MAX_S)).map_err(|error| argument(error.to_string()))?;
        let Ok(token) = inbox::token() else { return Ok(None) };
        let Some(taken) = shared.take(prefix, ttl) else { return Ok(None) };
        let draft = tensor_of(&shared.client, value, &To::parse(None, None)?, None, 0)
            .inspect_err(|_| lock(&shared.boxes)[taken.number].state = State::Free)?;
        let publish = || shared.publish(&taken, draft, ttl, token);
        let version = if taken.renew { py.detach(publish) } else { publish() }.or_raise()?;
        let [owner_word, cell] = version.words();
        let receipt = PyBytes::new(py, &receipt(token, taken.number));
        Ok(Some((taken.name, (owner_word, cell), (PyBytes::new(py, &shared.address), receipt))))
    }

    /// Handles the receipts that have arrived.
    pub fn settle(&self) {
        self.shared.receive();
    }
}

impl Drop for Mailboxes {
    fn drop(&mut self) {
        // A forked child has neither the socket nor the thread. If the thread had ended before the fork, this is the last
        // reference to the state. The child must not close the socket's number, which may belong to another file now.
        if self.shared.forks != fork::generation() {
            std::mem::forget(self.thread.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        self.shared.close();
        self.shared.receive();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic. If it did, there would be nothing left to do.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.inbox.close();
    }

    /// Handles all receipts that have arrived.
    fn receive(&self) {
        let mut foreign = lock(&self.receiving);
        let mut bytes = [0; RECEIPT + 1];
        while let Ok(length) = self.inbox.take(&mut bytes) {
            match parse(&bytes[..length]) {
                Some((token, number)) if self.received(number, token) => {}
                _ => foreign.0 += 1,
            }
            if foreign.0 > FOREIGN_MAX {
                self.close();
            }
        }
    }

    /// Empties the mailbox with this number, if it holds the message with this token. Returns whether it does.
    fn received(&self, number: u32, token: Token) -> bool {
        let name = {
            let mut boxes = lock(&self.boxes);
            let Some(mailbox) = boxes.get_mut(number as usize) else { return false };
            if !matches!(mailbox.state, State::Sent { token: sent, .. } if sent == token) {
                return false;
            }
            mailbox.state = State::Busy;
            mailbox.name.clone()
        };
        // After an error, the session has ended. The name then ends at its time to live.
        if self.client.empty(&name).is_ok() {
            lock(&self.boxes)[number as usize].state = State::Free;
        }
        true
    }

    /// Takes a free mailbox. Returns `None` if all mailboxes hold messages.
    fn take(&self, prefix: &str, ttl: Duration) -> Option<Taken> {
        static NAMES: AtomicU64 = AtomicU64::new(0);
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        let (mut boxes, now_ns) = (lock(&self.boxes), boottime_ns());
        let fresh = || {
            let name = format!("{prefix}/box/{}", NAMES.fetch_add(1, Ordering::Relaxed));
            Mailbox { name, bound: None, state: State::Busy }
        };
        // The mailbox that was used last: its memory may still be in the processor's cache.
        let free = boxes.iter().rposition(|mailbox| matches!(mailbox.state, State::Free));
        let lost = |mailbox: &Mailbox| matches!(mailbox.state, State::Sent { until_ns, .. } if until_ns <= now_ns);
        let at = if let Some(at) = free {
            boxes[at].state = State::Busy;
            at
        } else if boxes.len() < BOXES_MAX {
            boxes.push(fresh());
            boxes.len() - 1
        } else {
            let at = boxes.iter().position(lost)?;
            boxes[at] = fresh();
            at
        };
        let mailbox = &boxes[at];
        let age_max = RENEWED.min(ttl / RENEWED_PART);
        let is_young = |since_ns: u64| u128::from(now_ns.saturating_sub(since_ns)) <= age_max.as_nanos();
        let renew = mailbox.bound.is_none_or(|(since_ns, bound)| bound != ttl || !is_young(since_ns));
        Some(Taken { number: at, name: mailbox.name.clone(), renew })
    }

    /// Publishes a tensor in a mailbox that `take` returned.
    fn publish(
        &self,
        taken: &Taken,
        draft: ValueDraft,
        ttl: Duration,
        token: Token,
    ) -> Result<Version, tensorlend::Error> {
        let &Taken { number, ref name, renew } = taken;
        let (lifetime, now_ns) = (Lifetime::ttl(ttl), boottime_ns());
        let version = if renew { draft.publish_for(name, lifetime) } else { draft.publish_within(name, lifetime) };
        let mut boxes = lock(&self.boxes);
        let mailbox = &mut boxes[number];
        if version.is_ok() {
            if renew {
                mailbox.bound = Some((now_ns, ttl));
            }
            let until_ns = now_ns.saturating_add(duration_ns(ttl).saturating_mul(2));
            mailbox.state = State::Sent { token, until_ns };
        } else {
            mailbox.bound = None;
            mailbox.state = State::Free;
        }
        version
    }
}

/// Returns the receipt of a message.
fn receipt(token: Token, number: usize) -> [u8; RECEIPT] {
    let mut receipt = [0; RECEIPT];
    receipt[..TOKEN].copy_from_slice(&token);
    receipt[TOKEN..].copy_from_slice(&(number as u32).to_le_bytes());
    receipt
}

fn parse(receipt: &[u8]) -> Option<(Token, u32)> {
    let (token, number) = receipt.split_first_chunk::<TOKEN>()?;
    Some((*token, u32::from_le_bytes(number.try_into().ok()?)))
}

/// Sends a receipt. Returns whether the sender of the message got it.
#[pyfunction]
pub fn _send_receipt(address: &[u8], receipt: &[u8]) -> bool {
    let here = |shared: &Arc<Shared>| shared.forks == fork::generation() && shared.address == address;
    let here = lock(&LOCAL).iter().filter_map(Weak::upgrade).find(here);
    match (here, parse(receipt)) {
        (Some(shared), Some((token, number))) => {
            shared.received(number, token);
            true
        }
        _ => inbox::send(address, receipt).is_ok(),
    }
}
