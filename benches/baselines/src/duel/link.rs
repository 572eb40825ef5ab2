//! Exchanges over tensorlend's streams whose receivers sleep.

use std::os::fd::OwnedFd;
use std::time::Duration;

use tensorlend::{Draft, Message};

use super::game::Game;
use super::invitation::Invitation;
use super::stream::Lines;
use crate::asleep::Observed;
use crate::end::{PingPong, Side, Wake};
use crate::floors::descriptor;
use crate::{BaselineError, payload};

/// An end whose receiver sleeps, in `recv` or in epoll.
pub(super) struct Sleeper {
    lines: Lines,
    draft: Option<Draft>,
    receiver: Option<Observed>,
    epoll: Option<OwnedFd>,
    bytes: usize,
}

impl Sleeper {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        let bytes = invitation.bytes.max(size_of::<u64>());
        // Only the second party sleeps in epoll. The first party polls for the acknowledgement.
        let polls = invitation.game == Game::StreamEpoll && invitation.side == Side::Second;
        let mut lines = Lines::meet(invitation, polls, true)?;
        let receiver = match invitation.side {
            Side::First => Some(Observed::new(invitation.receiver, invitation.receiver)?),
            Side::Second => None,
        };
        let epoll = if polls { Some(descriptor::watch(&lines.into)?) } else { None };
        // Do the client's first wait now, because it reads the number of usable cores. Later this
        // process is pinned to one core, and a client with one core would not spin.
        let _ = lines.into.recv_timeout(Duration::from_millis(1));
        Ok(Self { draft: Some(lines.draft(bytes)?), lines, receiver, epoll, bytes })
    }

    fn post(&mut self, now: Option<fn() -> u64>) -> Result<(), BaselineError> {
        if let Some(mut draft) = self.draft.take() {
            if let Some(now) = now {
                payload::stamp(draft.bytes_mut(), now());
            }
            self.lines.out.send(draft)?;
        }
        self.draft = Some(self.lines.draft(self.bytes)?);
        Ok(())
    }

    fn sleep(&mut self) -> Result<Message, BaselineError> {
        let Some(epoll) = &self.epoll else { return Ok(self.lines.into.recv()?) };
        loop {
            if let Some(message) = self.lines.into.try_recv()? {
                return Ok(message);
            }
            descriptor::wait(epoll)?;
        }
    }
}

impl Wake for Sleeper {
    fn until_asleep(&mut self) -> Result<(), BaselineError> {
        self.receiver.as_ref().map_or(Ok(()), Observed::until_asleep)
    }

    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError> {
        self.post(Some(now))
    }

    fn receive(&mut self) -> Result<u64, BaselineError> {
        Ok(payload::stamp_of(self.sleep()?.tensor()?.bytes()))
    }

    fn acknowledge(&mut self) -> Result<(), BaselineError> {
        self.post(None)
    }

    fn acknowledged(&mut self) -> Result<(), BaselineError> {
        self.lines.spin().map(drop)
    }
}

/// An end that sends a tensor in the way of an ordinary program. The end receives a small tensor as
/// acknowledgement.
pub(super) struct Lender {
    lines: Lines,
    /// The array that the first party copies into each tensor, if the game copies.
    own: Option<Vec<u8>>,
    bytes: usize,
    sent: u64,
    received: u64,
}

/// Bytes of an acknowledgement.
const ANSWER_BYTES: usize = 16;

impl Lender {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        let copies = invitation.game == Game::Put && invitation.side == Side::First;
        let bytes = if invitation.side == Side::First { invitation.bytes } else { ANSWER_BYTES };
        let mut lines = Lines::meet(invitation, false, true)?;
        // Do the client's first wait before this process is pinned to one core, as in
        // `Sleeper::meet`.
        let _ = lines.into.recv_timeout(Duration::from_millis(1));
        Ok(Self { lines, own: copies.then(|| payload::make(bytes)), bytes, sent: 0, received: 0 })
    }
}

impl PingPong for Lender {
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        if let Some(own) = &mut self.own {
            payload::write_all(own, self.sent);
        }
        let mut draft = self.lines.draft(self.bytes)?;
        match &self.own {
            Some(own) => draft.bytes_mut().copy_from_slice(own),
            None => payload::write_all(draft.bytes_mut(), self.sent),
        }
        self.lines.out.send(draft)?;
        Ok(())
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        payload::read_all(self.lines.into.recv()?.tensor()?.bytes(), self.received)
    }
}
