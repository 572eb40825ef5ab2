//! The transport over zenoh.
//!
//! Zenoh's own configuration file determines which nodes exist, how they find and authenticate each other, and which
//! links they use.

use super::tls::{self, Refused};
use super::{Body, Declared, Frame, OnAnswer, OnFrame, OnNode, OnQuestion, Question, Transport, Trouble};
use crate::key::Key;
use crate::wire::{Epoch, NodeName};
use bytes::Bytes;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zenoh::Wait;
use zenoh::bytes::ZBytes;
use zenoh::qos::CongestionControl;
use zenoh::query::{ConsolidationMode, Query, QueryTarget, Reply};
use zenoh::sample::SampleKind;

/// The transport, as a zenoh session.
pub struct Zenoh {
    session: zenoh::Session,
}

#[derive(Clone, Debug)]
pub struct ZenohOptions {
    config: zenoh::Config,
    /// The configuration has been checked and confined since its last change.
    is_confined: bool,
}

/// Replacements of zenoh's defaults that do not suit large tensors. Each entry has the key, zenoh's
/// default, and the replacement. In order:
///
/// * Time in microseconds without progress after which zenoh closes a link on which a sender waits. On a slow shared
///   link, one chunk takes longer than zenoh's default of 5 s.
/// * Maximum bytes of a message. A peer can make this node allocate this many bytes for each
///   incomplete message. A chunk with its head needs fewer.
/// * Total bytes of the receive buffers that zenoh reuses. Each buffer holds one batch (64 KiB).
///   The fragments of a large message occupy their buffers until the message is copied, and zenoh
///   allocates, clears and frees every buffer above the total.
/// * Number of batches of one priority that zenoh queues for a link. With two, the thread that fills them and the
///   thread that sends them would wait for each other at each batch.
const DEFAULTS: [(&str, &str, &str); 4] = [
    ("transport/link/tx/queue/congestion_control/block/wait_before_close", "5000000", "60000000"),
    ("transport/link/tx/queue/size/data", "2", "16"),
    ("transport/link/rx/buffer_size", "65535", "16777216"),
    ("transport/link/rx/max_message_size", "1073741824", "100663296"),
];

impl ZenohOptions {
    /// Replaces zenoh's defaults that do not suit large tensors. Keeps a value that differs from
    /// zenoh's default, because the user has configured it.
    fn new(mut config: zenoh::Config) -> Result<Self, Trouble> {
        for (key, default, ours) in DEFAULTS {
            if config.get_json(key).is_ok_and(|value| value == default) {
                config.insert_json5(key, ours).map_err(engine)?;
            }
        }
        Ok(Self { config, is_confined: false })
    }

    /// Makes the options without a configuration file. The node is then a peer that finds others by
    /// multicast.
    pub fn defaults() -> Result<Self, Trouble> {
        Self::new(zenoh::Config::default())
    }

    /// Reads zenoh's own configuration file (JSON5, YAML or TOML, by its ending).
    ///
    /// # Errors
    /// [`Trouble::Engine`].
    pub fn file(path: &Path) -> Result<Self, Trouble> {
        Self::new(zenoh::Config::from_file(path).map_err(engine)?)
    }

    /// Parses a configuration in JSON5.
    ///
    /// # Errors
    /// [`Trouble::Engine`].
    pub fn json5(text: &str) -> Result<Self, Trouble> {
        Self::new(zenoh::Config::from_json5(text).map_err(engine)?)
    }

    /// Sets one key of zenoh's configuration, such as `transport/link/tls/...`, to a value in JSON5.
    ///
    /// # Errors
    /// [`Trouble::Engine`] for a key or value that zenoh rejects.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Trouble> {
        self.is_confined = false;
        self.config.insert_json5(key, value).map_err(engine)
    }

    /// Sets a key of zenoh's configuration to a list of strings.
    ///
    /// # Errors
    /// The errors of [`ZenohOptions::set`].
    pub fn set_strings(&mut self, key: &str, values: &[String]) -> Result<(), Trouble> {
        self.set(key, &serde_json::Value::from(values).to_string())
    }

    /// Confines the session to TLS if the configuration uses TLS anywhere. The session then neither listens on plain
    /// endpoints nor connects to any, and finds no peers by multicast. Logs a warning if the user has chosen to let peers
    /// connect without a certificate. [`Zenoh::open`] does the same.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn confined(mut self) -> Result<Self, Refused> {
        if !self.is_confined {
            if let Some(warning) = tls::confine(&mut self.config)? {
                tracing::warn!("{warning}");
            }
            self.is_confined = true;
        }
        Ok(self)
    }
}

impl Zenoh {
    /// Opens a session with the mode, endpoints and credentials of its configuration. Returns once the listeners
    /// listen. The configuration determines whether zenoh has connected to its peers by then.
    ///
    /// # Errors
    /// [`Trouble::Engine`], also for a configuration that [`ZenohOptions::confined`] refuses.
    pub fn open(options: ZenohOptions) -> Result<Self, Trouble> {
        let options = options.confined().map_err(engine)?;
        zenoh::open(options.config).wait().map(|session| Self { session }).map_err(engine)
    }

    /// Returns the number of zenoh's routers and peers that have a link to this node.
    pub fn links(&self) -> usize {
        let info = self.session.info();
        info.routers_zid().wait().count() + info.peers_zid().wait().count()
    }
}

fn engine(error: impl std::fmt::Display) -> Trouble {
    Trouble::Engine(error.to_string())
}

/// Returns a message's head as contiguous bytes. Zenoh may have the head in several pieces. A head
/// is short, so the copy is cheap.
fn head(attachment: Option<&ZBytes>) -> Bytes {
    attachment.map_or_else(Bytes::new, |bytes| Bytes::from(bytes.to_bytes().into_owned()))
}

impl Transport for Zenoh {
    fn ask(&self, key: &Key, frame: Frame, timeout: Duration, done: OnAnswer) {
        // Zenoh may deliver several replies, and drops the callback at the end of the query. The
        // first of these events takes the handler.
        let once = Arc::new(Once(Mutex::new(Some(done))));
        let on_reply = {
            let once = once.clone();
            move |reply: Reply| match reply.into_result() {
                Ok(sample) => {
                    let frame = Frame { head: head(sample.attachment()), body: Body::from(sample.payload().clone()) };
                    once.call(Ok(frame));
                }
                Err(error) => {
                    let words =
                        error.payload().try_to_string().map_or_else(|_| "an error".into(), |words| words.to_string());
                    // Zenoh has no error code for a timeout, only this text.
                    once.call(Err(if words == "Timeout" { Trouble::Timeout } else { Trouble::Engine(words) }));
                }
            }
        };
        let asked = self
            .session
            .get(key.expression())
            .target(QueryTarget::BestMatching)
            .consolidation(ConsolidationMode::None)
            .congestion_control(CongestionControl::Block)
            .allowed_destination(zenoh::sample::Locality::Remote)
            .attachment(ZBytes::from(frame.head))
            .payload(frame.body.into_zenoh())
            .timeout(timeout)
            // Zenoh sends an express message at once, without waiting to fill a batch. The
            // requester waits for the response, so use one.
            .express(true)
            .callback(on_reply)
            .wait();
        if let Err(error) = asked {
            once.call(Err(engine(error)));
        }
    }

    fn answer(&self, key: &Key, on_question: OnQuestion) -> Result<Declared, Trouble> {
        let queryable = self
            .session
            .declare_queryable(key.expression())
            .complete(true)
            .callback(move |query: Query| {
                let Ok(key) = Key::parse(query.key_expr().as_str()) else { return };
                let body = query.payload().cloned().map(Body::from).unwrap_or_default();
                let frame = Frame { head: head(query.attachment()), body };
                on_question(Question {
                    key,
                    frame,
                    answer: Box::new(move |frame: Frame| {
                        let reply = query
                            .reply(query.key_expr().clone(), frame.body.into_zenoh())
                            .attachment(ZBytes::from(frame.head))
                            // The requester waits, so send the response without waiting for a batch.
                            .express(true);
                        if let Err(error) = reply.wait() {
                            tracing::debug!(%error, "a response could not be sent");
                        }
                    }),
                });
            })
            .wait();
        Ok(Box::new(queryable.map_err(engine)?))
    }

    fn send(&self, key: &Key, frame: Frame) -> Result<(), Trouble> {
        self.session
            .put(key.expression(), frame.body.into_zenoh())
            .attachment(ZBytes::from(frame.head))
            .congestion_control(CongestionControl::Block)
            .allowed_destination(zenoh::sample::Locality::Remote)
            .wait()
            .map_err(engine)
    }

    fn listen(&self, key: &Key, on_frame: OnFrame) -> Result<Declared, Trouble> {
        let subscriber = self
            .session
            .declare_subscriber(key.expression())
            .callback(move |sample| {
                let Ok(key) = Key::parse(sample.key_expr().as_str()) else { return };
                let frame = Frame { head: head(sample.attachment()), body: Body::from(sample.payload().clone()) };
                on_frame(key, frame);
            })
            .wait();
        Ok(Box::new(subscriber.map_err(engine)?))
    }

    fn declare_alive(&self, node: &NodeName, epoch: Epoch) -> Result<Declared, Trouble> {
        let key = Key::Alive(Some(node.clone()), Some(epoch));
        let token = self.session.liveliness().declare_token(key.expression()).wait();
        Ok(Box::new(token.map_err(engine)?))
    }

    fn watch_alive(&self, on_node: OnNode) -> Result<Declared, Trouble> {
        let subscriber = self
            .session
            .liveliness()
            .declare_subscriber(Key::Alive(None, None).expression())
            .history(true)
            .callback(move |sample| {
                if let Ok(Key::Alive(Some(node), Some(epoch))) = Key::parse(sample.key_expr().as_str()) {
                    on_node(node, epoch, sample.kind() == SampleKind::Put);
                }
            })
            .wait();
        Ok(Box::new(subscriber.map_err(engine)?))
    }
}

/// The handler of one response. Zenoh drops a query's callback, and with it this handler, when no more replies can
/// come. A handler that is dropped unused reports [`Trouble::Nobody`].
struct Once(Mutex<Option<OnAnswer>>);

impl Once {
    fn call(&self, answer: Result<Frame, Trouble>) {
        let done = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(done) = done {
            done(answer);
        }
    }
}

impl Drop for Once {
    fn drop(&mut self) {
        self.call(Err(Trouble::Nobody));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_suit_large_tensors_and_what_is_configured_stands() {
        let options = ZenohOptions::defaults().unwrap();
        for (key, _, ours) in DEFAULTS {
            assert_eq!(options.config.get_json(key).unwrap(), ours, "{key}: zenoh has another default now");
        }
        let text = "{ transport: { link: { rx: { max_message_size: 1000000 } } } }";
        let options = ZenohOptions::json5(text).unwrap();
        assert_eq!(options.config.get_json("transport/link/rx/max_message_size").unwrap(), "1000000");
        assert!(ZenohOptions::json5("{ mode: 'server' }").is_err());
    }
}
