//! iceoryx2's publish-subscribe. Both ends poll. As in iceoryx2's own benchmark, an end loans the next sample before it
//! waits for the response.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::time::{Duration, Instant};

use iceoryx2::config::Config;
use iceoryx2::node::{Node, NodeBuilder};
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{FileName, LogLevel, Path, SemanticString, set_log_level};
use iceoryx2::sample_mut::SampleMut;
use iceoryx2::service::ipc::Service;
use iceoryx2::service::port_factory::PortFactory;

use super::invitation::{Invitation, MEETING};
use super::leftovers::prefix;
use crate::end::{PingPong, spin_until};
use crate::{BaselineError, payload};

/// An end that polls. If `TOUCHED` is true, it writes and reads every byte.
///
/// The fields' order makes all objects of the node drop before the node itself.
pub(super) struct Poller<const TOUCHED: bool> {
    sample: Option<SampleMut<Service, [u8], ()>>,
    publisher: Publisher<Service, [u8], ()>,
    subscriber: Subscriber<Service, [u8], ()>,
    _node: Node<Service>,
    bytes: usize,
    sent: u64,
    received: u64,
}

fn failed(error: impl Display) -> BaselineError {
    BaselineError::Party(format!("iceoryx2: {error}"))
}

impl<const TOUCHED: bool> Poller<TOUCHED> {
    pub(super) fn meet(invitation: &Invitation) -> Result<Self, BaselineError> {
        set_log_level(LogLevel::Error);
        let mut config = Config::default();
        config.global.prefix = FileName::new(prefix(&invitation.tag).as_bytes()).map_err(failed)?;
        let folder = invitation.folder.to_string_lossy();
        config.global.set_root_path(&Path::new(folder.as_bytes()).map_err(failed)?);
        let node = NodeBuilder::new().config(&config).create::<Service>().map_err(failed)?;
        let service = |name: &str| {
            let name = name.try_into().map_err(failed)?;
            node.service_builder(&name)
                .publish_subscribe::<[u8]>()
                .max_publishers(1)
                .max_subscribers(1)
                .history_size(0)
                .subscriber_max_buffer_size(1)
                .enable_safe_overflow(true)
                .open_or_create()
                .map_err(failed)
        };
        let (ours, theirs) = invitation.ends();
        let (out, into) = (service(ours)?, service(theirs)?);
        let publisher = out.publisher_builder().initial_max_slice_len(invitation.bytes).create().map_err(failed)?;
        let subscriber = into.subscriber_builder().create().map_err(failed)?;
        let start = Instant::now();
        while out.dynamic_config().number_of_subscribers() == 0 || into.dynamic_config().number_of_publishers() == 0 {
            if start.elapsed() > MEETING {
                return Err(BaselineError::Stalled { doing: "waiting for the other party", timeout: MEETING });
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut it =
            Self { sample: None, publisher, subscriber, _node: node, bytes: invitation.bytes, sent: 0, received: 0 };
        it.loan()?;
        Ok(it)
    }

    fn loan(&mut self) -> Result<(), BaselineError> {
        let sample = self.publisher.loan_slice_uninit(self.bytes).map_err(failed)?;
        // SAFETY: any eight bits are a valid `u8`. The memory is a shared mapping, which the kernel
        // has zeroed. So even bytes that no process has written have a value. iceoryx2's own
        // benchmark does the same.
        self.sample = Some(unsafe { sample.assume_init() });
        Ok(())
    }
}

impl<const TOUCHED: bool> PingPong for Poller<TOUCHED> {
    fn send(&mut self) -> Result<(), BaselineError> {
        self.sent += 1;
        if let Some(mut sample) = self.sample.take() {
            if TOUCHED {
                payload::write_all(sample.payload_mut(), self.sent);
            }
            sample.send().map_err(failed)?;
        }
        self.loan()
    }

    fn receive(&mut self) -> Result<(), BaselineError> {
        self.received += 1;
        let subscriber = &self.subscriber;
        let sample = spin_until(|| subscriber.receive().map_err(failed))?;
        if TOUCHED {
            payload::read_all(sample.payload(), self.received)?;
        }
        Ok(())
    }
}
