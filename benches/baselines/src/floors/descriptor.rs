//! The wake-up of a thread that sleeps in epoll.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use super::futex::Shared;
use crate::asleep::Observed;
use crate::duo::Duo;
use crate::end::{Alarm, Wake};
use crate::{BaselineError, Cores, Meter};

struct End {
    shared: Arc<Shared>,
    event: Arc<OwnedFd>,
    epoll: Arc<OwnedFd>,
    /// The receiving thread; `None` at the receiving end.
    receiver: Option<Observed>,
    count: u64,
}

impl Wake for End {
    fn until_asleep(&mut self) -> Result<(), BaselineError> {
        self.receiver.as_ref().map_or(Ok(()), Observed::until_asleep)
    }

    fn send(&mut self, now: fn() -> u64) -> Result<(), BaselineError> {
        self.count += 1;
        self.shared.stamp_ns.0.store(now(), Ordering::Release);
        rustix::io::write(&*self.event, &1_u64.to_ne_bytes()).map_err(BaselineError::system("write to an eventfd"))?;
        Ok(())
    }

    fn receive(&mut self) -> Result<u64, BaselineError> {
        wait(&self.epoll)?;
        let mut word = [0; 8];
        rustix::io::read(&*self.event, &mut word).map_err(BaselineError::system("read an eventfd"))?;
        self.count += 1;
        Ok(self.shared.stamp_ns.0.load(Ordering::Acquire))
    }

    fn acknowledge(&mut self) -> Result<(), BaselineError> {
        self.shared.acknowledged.0.store(self.count, Ordering::Release);
        Ok(())
    }

    fn acknowledged(&mut self) -> Result<(), BaselineError> {
        self.shared.acknowledged(self.count)
    }
}

/// Makes an epoll that watches one descriptor.
pub(crate) fn watch(source: impl std::os::fd::AsFd) -> Result<OwnedFd, BaselineError> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(BaselineError::system("make an epoll"))?;
    let added = epoll::add(&epoll, source, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    added.map_err(BaselineError::system("watch a descriptor"))?;
    Ok(epoll)
}

/// Sleeps until the watched descriptor is ready.
pub(crate) fn wait(epoll: &OwnedFd) -> Result<(), BaselineError> {
    let mut events = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    loop {
        match epoll::wait(epoll, &mut events, None) {
            Ok(1..) => return Ok(()),
            Ok(0) | Err(Errno::INTR) => {}
            Err(error) => return Err(BaselineError::system("wait for a descriptor")(error)),
        }
    }
}

/// Measures one way, from just before a write to an eventfd until a receiver that slept in epoll
/// has read the eventfd.
///
/// # Errors
///
/// [`BaselineError`] if the threads cannot be started on these cores.
pub fn eventfd_epoll(cores: Cores) -> Result<Box<dyn Meter>, BaselineError> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    let event = Arc::new(event.map_err(BaselineError::system("make an eventfd"))?);
    let epoll = Arc::new(watch(&*event)?);
    let shared = Arc::new(Shared::default());
    let end = |receiver| End { shared: shared.clone(), event: event.clone(), epoll: epoll.clone(), receiver, count: 0 };
    let (mut here, there) = (end(None), end(None));
    let first = move || {
        here.receiver = Some(here.shared.observed()?);
        Ok(Alarm(here))
    };
    let second = move || {
        there.shared.introduce();
        Ok(Alarm(there))
    };
    Ok(Box::new(Duo::start(cores, first, second)?))
}
