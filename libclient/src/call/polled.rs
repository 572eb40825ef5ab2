//! Servers and callers for event loops. Each has a descriptor, and methods that never wait.

use super::caller::Caller;
use super::server::{Call, Server};
use crate::error::{Error, Result};
use crate::lease::value::Value;
use crate::stream::subscribe::SubscriptionBuilder;
use crate::stream::subscriber::Subscription;
use crate::wait::Deadline;
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Returns an epoll instance for a server's channels.
pub fn new_epoll() -> Result<OwnedFd> {
    epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::system("make an epoll instance")(e.into()))
}

impl Server {
    /// Opens a channel's subscription, and adds its descriptor to the server's epoll instance. Closing it removes the
    /// descriptor.
    pub(super) fn open(&self, requests: SubscriptionBuilder) -> Result<Subscription> {
        let Some(watching) = &self.epoll else { return requests.open() };
        let requests = requests.pollable().open()?;
        epoll::add(watching, &requests, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .map_err(|e| Error::system("watch a wake descriptor")(e.into()))?;
        Ok(requests)
    }

    /// Receives a request like [`Server::try_recv`]. If there is none, the next request from a connected caller makes
    /// [`Server::descriptor`] readable. A request from a new caller extends the list of [`Server::connects`].
    #[doc(hidden)]
    pub fn try_recv_armed(&mut self) -> Result<Option<Call>> {
        if let Some(call) = self.try_recv()? {
            return Ok(Some(call));
        }
        for channel in &self.channels {
            channel.requests.arm();
        }
        // The descriptors were armed before this poll, so the poll finds a request that arrived in between.
        self.poll()
    }

    /// Returns the server's descriptor, if the program opened the server as pollable.
    #[doc(hidden)]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.as_ref().map(AsFd::as_fd)
    }

    /// Returns whether [`Server::try_recv`] would find something: a request, a new caller, or the end of a caller. Costs a
    /// few loads for each caller.
    #[doc(hidden)]
    pub fn has_news(&self) -> Result<bool> {
        self.check()?;
        let mut news = self.unheard().is_some();
        for channel in &self.channels {
            news |= channel.requests.has_news()?;
        }
        Ok(news)
    }

    /// Returns the list to which connecting callers append, and the list's id and length when the server last read
    /// it.
    #[doc(hidden)]
    pub fn connects(&self) -> (&str, (u64, u64)) {
        (&self.connect_list, (self.connect_list_id, self.connects))
    }
}

impl Caller {
    /// Returns whether the caller can send without waiting for a server. With no request outstanding, chooses the best
    /// connected server.
    #[doc(hidden)]
    pub fn is_connected(&mut self) -> Result<bool> {
        if self.outstanding() > 0 {
            return self.has_server();
        }
        if !self.has_server()? {
            return Ok(false);
        }
        self.drop_ended()?;
        if !self.channels.is_empty() {
            self.choose(Deadline::new(Duration::ZERO));
        }
        Ok(!self.channels.is_empty())
    }

    /// Receives the response to the oldest outstanding request, if it has arrived. If not, its arrival makes
    /// [`Caller::descriptor`] readable.
    #[doc(hidden)]
    pub fn try_recv(&mut self) -> (u64, Result<Option<Value>>) {
        self.recv_with(Subscription::try_recv)
    }

    /// Returns the descriptor of the channel in use, if the program opened the caller as pollable.
    #[doc(hidden)]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.channels.first().map(|channel| channel.answers.as_fd())
    }

    /// Returns whether [`Caller::try_recv`] would find something. Costs a few loads.
    #[doc(hidden)]
    pub fn has_news(&self) -> Result<bool> {
        self.channels.first().map_or(Ok(true), |channel| channel.answers.has_news())
    }
}
