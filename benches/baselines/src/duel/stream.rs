//! Exchanges over tensorlend's streams whose ends poll.

use tensorlend::{Client, DType, Draft, Message, Sender, Stream, Subscription};

use super::invitation::{Invitation, MEETING};
use crate::end::{PingPong, spin_until};
use crate::{BaselineError, payload};

/// Capacity in messages of a stream whose bytes are touched. The capacity is 1, as in the other
/// contenders, because the bytes of more buffers would not be in the caches. If the bytes are not
/// touched, a larger capacity saves the sender loads of the receiver's cursor.
const CAPACITY_TOUCHED: u32 = 1;

/// A stream to the other party, and a subscription to the other party's stream.
pub(super) struct Lines {
    pub(super) client: Client,
    pub(super) out: Stream,
    pub(super) into: Subscription,
}

/// Opens this party's stream, and waits for the other party's stream.
fn meet(
    invitation: &Invitation,
    pollable: bool,
    touched: bool,
) -> Result<(Client, Stream, Subscription), BaselineError> {
    let client = invitation.client()?;
    let (ours, theirs) = invitation.ends();
    let out = client.stream(&format!("bench/{}/{ours}", invitation.tag));
    let out = if touched { out.capacity(CAPACITY_TOUCHED) } else { out }.open()?;
    let into = client.subscription(&format!("bench/{}/{theirs}", invitation.tag)).wait(MEETING);
    let into = if pollable { into.pollable() } else { into }.open()?;
    // Wait until the other party has subscribed. Then it receives the first message.
    out.wait_subscribers(1, MEETING)?;
    Ok((client, out, into))
}

impl Lines {
    /// Opens this party's stream, and waits for the other party's stream.
    pub(super) fn meet(invitation: &Invitation, pollable: bool, touched: bool) -> Result<Self, BaselineError> {
        let (client, out, into) = meet(invitation, pollable, touched)?;
        Ok(Self { client, out, into })
    }

    pub(super) fn draft(&self, bytes: usize) -> Result<Draft, BaselineError> {
        Ok(self.client.create(DType::U8, &[bytes as u64])?)
    }

    /// Returns the next message, without sleeping.
    #[inline]
    pub(super) fn spin(&mut self) -> Result<Message, BaselineError> {
        let into = &mut self.into;
        spin_until(|| Ok(into.try_recv()?))
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // Delete the stream, because the daemon may outlive the benchmark.
        let _ = self.client.delete_stream(self.out.name());
    }
}

/// Polls with `try_borrow` until the next message is there. If `TOUCHED` is true, reads every byte of this message, the one of `round`.
#[inline]
fn poll<const TOUCHED: bool>(into: &mut Subscription, round: u64) -> Result<(), BaselineError> {
    spin_until(|| {
        let Some(message) = into.try_borrow()? else { return Ok(None) };
        if TOUCHED {
            payload::read_all(message.tensor()?.bytes(), round)?;
        }
        Ok(Some(()))
    })
}

/// An end that sends loans of one shape, and polls inside `borrow`. If `TOUCHED` is true, it writes and reads every byte, and
/// polls with `try_borrow`.
pub(super) struct LoanPoller<const TOUCHED: bool> {
    client: Client,
    out: Sender,
    into: Subscription,
    sent: u64,
    received: u64,
}

impl<const TOUCHED: bool> LoanPoller<TOUCHED> {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        let (client, out, into) = meet(invitation, false, TOUCHED)?;
        let out = out.sender(DType::U8, [invitation.bytes as u64])?;
        Ok(Self { client, out, into, sent: 0, received: 0 })
    }
}

impl<const TOUCHED: bool> PingPong for LoanPoller<TOUCHED> {
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        let mut loan = self.out.loan()?;
        if TOUCHED {
            payload::write_all(loan.bytes_mut(), self.sent);
        }
        loan.send()?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        if !TOUCHED {
            return Ok(self.into.borrow_timeout(MEETING).map(drop)?);
        }
        // `borrow` would sleep while the other end writes.
        poll::<TOUCHED>(&mut self.into, self.received)
    }
}

impl<const TOUCHED: bool> Drop for LoanPoller<TOUCHED> {
    fn drop(&mut self) {
        // Delete the stream, because the daemon may outlive the benchmark.
        let _ = self.client.delete_stream(self.out.stream().name());
    }
}

/// An end that polls. If `TOUCHED` is true, it writes and reads every byte.
pub(super) struct Poller<const TOUCHED: bool> {
    lines: Lines,
    /// The next draft. It is made before the wait for the previous response, so that making it does
    /// not delay the other party.
    draft: Option<Draft>,
    bytes: usize,
    sent: u64,
    received: u64,
}

impl<const TOUCHED: bool> Poller<TOUCHED> {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        let lines = Lines::meet(invitation, false, TOUCHED)?;
        let draft = Some(lines.draft(invitation.bytes)?);
        Ok(Self { lines, draft, bytes: invitation.bytes, sent: 0, received: 0 })
    }
}

impl<const TOUCHED: bool> PingPong for Poller<TOUCHED> {
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        if let Some(mut draft) = self.draft.take() {
            if TOUCHED {
                payload::write_all(draft.bytes_mut(), self.sent);
            }
            self.lines.out.send(draft)?;
        }
        self.draft = Some(self.lines.draft(self.bytes)?);
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        poll::<TOUCHED>(&mut self.lines.into, self.received)
    }
}
