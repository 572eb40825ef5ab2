//! Names of other machines. The client first searches for a local copy, and then asks the gateway.

use super::{NodeDocument, RemoteAnswer, RemoteRequest, SERVICE, document, known_name, node_name, split};
use crate::call::Caller;
use crate::client::Client;
use crate::error::{Error, RemoteTrouble, Result};
use crate::lease::assemble;
use crate::lease::by_name::{Polled, lease_key};
use crate::lease::take::Leased;
use crate::lease::value::Value;
use crate::lease::wait::wait_entry;
use crate::lease::wait::wait_newer;
use crate::names::version::Version;
use crate::stream::Source;
use crate::tensor::sendable::Sendable;
use crate::wait::{Deadline, NAP_MAX, not_published};
use std::time::Duration;
use tensorlend_layout::DType;
use tensorlend_layout::name::stream_key;
use tensorlend_os::clock::duration_ms;

/// Maximum time for a gateway to accept a connection.
const OPENING: Duration = Duration::from_secs(5);
/// Maximum delay of a gateway's reply to a wait.
const GRACE: Duration = Duration::from_secs(5);
/// Longest single wait that a client requests from the gateway. After this time, the client detects a gateway that
/// hangs.
const WAIT: Duration = Duration::from_secs(10);
/// Interval at which a wait checks whether the node exists.
const NODE_COMES: Duration = Duration::from_secs(1);
/// Maximum number of attempts on a value that the gateway fetched and replaced before this client leased it.
const AGAIN_MAX: u32 = 16;
/// Maximum bytes of a node's document.
const DOCUMENT_BYTES_MAX: usize = 64 * 1024;

/// The location of a name whose first part is a node.
#[derive(Debug, PartialEq, Eq)]
pub enum Far<'n> {
    /// The name is on this node. The value is the name without its first part.
    Here(&'n str),
    /// The name is on another node. The value is that node.
    There(&'n str),
}

/// Returns whether a name may begin with a node.
pub fn may_be_far(name: &str) -> bool {
    split(name).is_some_and(|(node, _)| {
        node != SERVICE
            && node.len() <= 63
            && node.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
    })
}

impl Client {
    /// Returns the location of a name, if its first part is a known node.
    pub(crate) fn far<'n>(&self, name: &'n str) -> Result<Option<Far<'n>>> {
        let Some((node, rest)) = split(name).filter(|_| may_be_far(name)) else { return Ok(None) };
        match self.node(&node_name(node))? {
            Some(document) if document.node == node => {
                Ok(Some(if document.here { Far::Here(rest) } else { Far::There(node) }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the cause if a name's first part is a node that the last gateway of this machine has seen, and this gateway
    /// was killed. Its documents about nodes have ended with it, so [`Client::far`] finds no node.
    pub(crate) fn killed_gateway(&self, name: &str) -> Result<Option<RemoteTrouble>> {
        let Some((node, _)) = split(name).filter(|_| may_be_far(name)) else { return Ok(None) };
        let Some(last) = self.node(&known_name(node))? else { return Ok(None) };
        // A gateway that runs has a document about its own node. It has not seen the name's node yet.
        let runs = self.node(&node_name(&last.node))?.is_some();
        Ok((!runs).then(|| RemoteTrouble::Gateway { why: "it was killed".into() }))
    }

    /// Returns the error of a request about a name of an unknown node.
    pub(crate) fn unknown_node(&self, name: &str) -> Result<Error> {
        let cause = self.killed_gateway(name)?.unwrap_or_else(|| {
            let node = split(name).map_or(name, |(node, _)| node).to_owned();
            RemoteTrouble::Unknown { node }
        });
        Ok(trouble(name, cause))
    }

    /// Returns whether a name's first part is a known node other than this one.
    pub(crate) fn is_elsewhere(&self, name: &str) -> Result<bool> {
        Ok(matches!(self.far(name)?, Some(Far::There(_))))
    }

    /// Returns a node's document. Returns `None` if there is none, or if it is unreadable.
    pub(crate) fn node(&self, name: &str) -> Result<Option<NodeDocument>> {
        let Some(leased) = lease_key(self.session(), name.as_bytes(), name)? else { return Ok(None) };
        let value = match assemble::value(self.session(), leased, name) {
            // Any member may write a node's document. Treat a damaged document as missing.
            Err(Error::Damaged { .. }) => return Ok(None),
            other => other?,
        };
        let bytes = value.as_tensor().filter(|tensor| tensor.nbytes() <= DOCUMENT_BYTES_MAX);
        let bytes = bytes.and_then(|tensor| tensor.as_slice::<u8>().ok());
        Ok(bytes.and_then(|bytes| NodeDocument::decode(bytes).ok()))
    }

    /// Leases a value of another node, after the gateway has fetched it.
    #[cold]
    pub(crate) fn lease_far(&self, name: &str) -> Result<Leased> {
        let not_found = || Error::NotFound(name.to_owned());
        let node = match self.far(name)? {
            Some(Far::Here(rest)) => {
                return lease_key(self.session(), rest.as_bytes(), name)?.ok_or_else(not_found);
            }
            Some(Far::There(node)) => node,
            None => return Err(self.killed_gateway(name)?.map_or_else(not_found, |cause| trouble(name, cause))),
        };
        let deadline = self.far_deadline();
        for again in 0..AGAIN_MAX {
            let asked = RemoteRequest::Get { name: name.to_owned() };
            let (answer, _) = self.ask_gateway(name, &asked, deadline)?;
            self.is_here(node, name, answer)?;
            if let Some(leased) = lease_key(self.session(), name.as_bytes(), name)? {
                return Ok(leased);
            }
            // The copy was replaced again, because its owner writes faster than this client leases.
            std::thread::sleep(Duration::from_millis(u64::from(again)));
        }
        let why = "it reported a copy on this machine, but there is none".into();
        Err(trouble(name, RemoteTrouble::Gateway { why }))
    }

    /// Waits until a name of this machine or another one has a value other than `seen`. Returns the local name, to lease
    /// that value.
    pub(crate) fn wait_anywhere<'a>(&'a self, name: &'a str, seen: Version, deadline: Deadline) -> Result<Polled<'a>> {
        if !may_be_far(name) {
            return wait_newer(self.session(), name, seen, deadline);
        }
        let mut known = None;
        // Do not pause before the first poll: this machine may already have the value.
        let mut nap = Duration::ZERO;
        loop {
            match wait_newer(self.session(), name, seen, deadline.at_most(nap)) {
                Err(Error::Timeout { .. }) => {}
                waited => return waited,
            }
            if !nap.is_zero() && deadline.nap().is_none() {
                let known = known.map_or_else(|| self.killed_gateway(name), |known| Ok(Some(known)))?;
                let of = known.map(|known: RemoteTrouble| format!(" ({known})")).unwrap_or_default();
                return Err(deadline.error(format!("a new value of {name:?}{of}: no process has published one")));
            }
            nap = match self.far(name)? {
                None => NODE_COMES,
                Some(Far::Here(rest)) => return wait_newer(self.session(), rest, seen, deadline),
                Some(Far::There(node)) => {
                    known = self.wait_there(node, name, seen, deadline)?;
                    // If a node has no such name yet, or is unreachable, ask again after this time.
                    if known.is_some() { NAP_MAX } else { Duration::from_millis(1) }
                }
            };
        }
    }

    /// Asks the gateway to wait for a part of the time. Returns the reason why the value is missing, if the gateway reports one.
    fn wait_there(&self, node: &str, name: &str, seen: Version, deadline: Deadline) -> Result<Option<RemoteTrouble>> {
        let timeout = deadline.left().map_or(WAIT, |left| left.min(WAIT));
        let [owner_word, cell] = seen.words();
        let request =
            RemoteRequest::Wait { name: name.to_owned(), seen: (owner_word, cell), timeout_ms: duration_ms(timeout) };
        match self.ask_gateway(name, &request, Deadline::new(Some(timeout + GRACE))) {
            Ok((RemoteAnswer::Timeout, _)) => Ok(None),
            Ok((answer, _)) => match self.is_here(node, name, answer) {
                Ok(_) => Ok(None),
                Err(Error::Remote { cause: RemoteTrouble::Refused { node, why }, name }) => {
                    Err(Error::Remote { cause: RemoteTrouble::Refused { node, why }, name })
                }
                Err(Error::Remote { cause, .. }) => Ok(Some(cause)),
                Err(error) => Err(error),
            },
            // The gateway may be restarting, so the wait continues.
            Err(Error::Remote { cause: cause @ RemoteTrouble::Gateway { .. }, .. }) => Ok(Some(cause)),
            Err(Error::Timeout { .. }) => Ok(Some(RemoteTrouble::Gateway { why: "no response in time".into() })),
            Err(error) => Err(error),
        }
    }

    /// Makes the gateway receive a stream of another machine. Returns the local name, and the process that fills
    /// the local stream. With a deadline, waits for the stream.
    pub(crate) fn stream_anywhere<'n>(&self, name: &'n str, deadline: Option<Deadline>) -> Result<(&'n str, Source)> {
        let key = stream_key(name);
        let here = |name| Ok((name, Source::Unknown));
        loop {
            let met = match self.far(name)? {
                Some(Far::Here(rest)) => return here(rest),
                Some(Far::There(node)) => {
                    let request = RemoteRequest::Subscribe { name: name.to_owned() };
                    let asked = self.ask_gateway(name, &request, deadline.unwrap_or_else(|| self.far_deadline()));
                    let asked = asked.and_then(|(answer, _)| match answer {
                        RemoteAnswer::Here { position, .. } => Ok(position),
                        answer => self.is_here(node, name, answer).map(|_| None),
                    });
                    match asked {
                        Ok(position) => return Ok((name, Source::Gateway(position))),
                        // Messages that the gateway received before are still on this machine.
                        Err(error) if self.session().find(&key).is_some_and(|found| found.owner_word.is_live()) => {
                            return if error.is_remote() { Ok((name, Source::Gateway(None))) } else { Err(error) };
                        }
                        Err(error) => Some(error),
                    }
                }
                None => None,
            };
            match (met, deadline) {
                (None, None) => match self.killed_gateway(name)? {
                    Some(cause) if self.session().find(&key).is_none_or(|found| !found.owner_word.is_live()) => {
                        return Err(trouble(name, cause));
                    }
                    Some(_) => return Ok((name, Source::Gateway(None))),
                    None => return here(name),
                },
                (Some(error), None) => return Err(error),
                (Some(Error::Remote { cause: RemoteTrouble::Refused { node, why }, name }), _) => {
                    return Err(Error::Remote { name, cause: RemoteTrouble::Refused { node, why } });
                }
                (Some(Error::Remote { .. } | Error::Timeout { .. }), Some(deadline)) => {
                    let nap = deadline.nap().ok_or_else(|| deadline.error(not_published(name)))?;
                    std::thread::sleep(nap);
                }
                (Some(error), Some(_)) => return Err(error),
                // The name is that of a stream of this machine, or of a node that does not exist yet.
                (None, Some(_)) if !may_be_far(name) => return here(name),
                (None, Some(deadline)) => {
                    match wait_entry(self.session(), &key, deadline.at_most(NODE_COMES), || not_published(name)) {
                        Ok(()) => return here(name),
                        Err(Error::Timeout { .. }) if deadline.nap().is_some() => {}
                        Err(Error::Timeout { .. }) => {
                            let cause = self.killed_gateway(name)?.map(|cause| format!(" ({cause})"));
                            return Err(deadline.error(not_published(name) + &cause.unwrap_or_default()));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
    }

    /// Returns the deadline of a request without a timeout.
    pub(crate) fn far_deadline(&self) -> Deadline {
        Deadline::new(Some(self.callers().timeout))
    }

    /// Sends the gateway a request that has no value.
    pub(crate) fn ask_gateway(
        &self,
        name: &str,
        request: &RemoteRequest,
        deadline: Deadline,
    ) -> Result<(RemoteAnswer, Value)> {
        self.ask_gateway_with(name, deadline, |client| {
            let mut empty = client.create(DType::U8, &[0])?;
            empty.set_metadata(&request.encode())?;
            Ok(empty)
        })
    }

    /// Sends the gateway the request that `make` creates. The client may create and send it twice.
    pub(crate) fn ask_gateway_with<R: Sendable>(
        &self,
        name: &str,
        deadline: Deadline,
        make: impl FnMut(&Self) -> Result<R>,
    ) -> Result<(RemoteAnswer, Value)> {
        self.session().check()?;
        let gateway = |why: String| trouble(name, RemoteTrouble::Gateway { why });
        // Give each caller a client without callers. Otherwise the callers would keep themselves alive.
        let open = || self.without_callers().caller(SERVICE).capacity(1).open();
        let mut taken = self.callers().take(deadline, open)?;
        let caller: &mut Caller = taken.caller().ok_or(Error::Protocol { doing: "ask the gateway" })?;
        match caller.ready(deadline.at_most(OPENING)) {
            Err(Error::Timeout { .. }) => return Err(gateway("no process serves it".into())),
            Err(error @ Error::Refused { .. }) => return Err(gateway(error.to_string())),
            other => other?,
        }
        let value = match caller.call_again(deadline.left(), make) {
            Err(Error::Answer { why, .. }) => return Err(gateway(why)),
            Err(Error::ServerGone(_)) => return Err(gateway("it ended before it responded".into())),
            Err(Error::Timeout { waited, .. }) => {
                return Err(Error::Timeout {
                    what: format!(
                        "the gateway's response about {name:?}: the gateway or its network is busy (see `tensorlend nodes`)"
                    ),
                    waited,
                });
            }
            other => other?,
        };
        let said = match &value {
            Value::Tensor(tensor) => tensor.metadata(),
            Value::Dataset(dataset) => dataset.metadata(),
            #[cfg(feature = "cuda")]
            Value::Device(_) => return Err(gateway("its response is on a device".into())),
        };
        match RemoteAnswer::decode(said) {
            Ok(answer) => Ok((answer, value)),
            Err(why) => Err(gateway(format!("its response is invalid: {why}"))),
        }
    }

    /// Checks that a reply reports a local copy. Returns whether this copy may be old.
    pub(crate) fn is_here(&self, node: &str, name: &str, answer: RemoteAnswer) -> Result<bool> {
        let node = node.to_owned();
        Err(match answer {
            RemoteAnswer::Here { stale, .. } => return Ok(stale),
            RemoteAnswer::Nothing => trouble(name, RemoteTrouble::Nothing { node }),
            RemoteAnswer::Unreachable => trouble(name, RemoteTrouble::Unreachable { node }),
            RemoteAnswer::Timeout => Error::Timeout {
                what: format!("{name:?} from node {node:?}: the node or the network is busy (see `tensorlend nodes`)"),
                waited: self.callers().timeout,
            },
            RemoteAnswer::Refused { why } => trouble(name, RemoteTrouble::Refused { node, why: shortened(why) }),
            RemoteAnswer::Names | RemoteAnswer::Where(_) => trouble(
                name,
                RemoteTrouble::Gateway {
                    why: "this version does not understand its reply: install the same version on all machines".into(),
                },
            ),
        })
    }
}

/// Returns the error for an unavailable name of another machine.
pub fn trouble(name: &str, cause: RemoteTrouble) -> Error {
    Error::Remote { name: name.to_owned(), cause }
}

/// Returns a text of another process, cut to a reasonable length.
fn shortened(mut why: String) -> String {
    why.truncate(why.floor_char_boundary(document::WORDS_BYTES_MAX));
    why
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_behind_a_host_name_may_be_far() {
        for name in ["node7/x", "a.b-c_d/x/y"] {
            assert!(may_be_far(name), "{name}");
        }
        let long = format!("{}/x", "n".repeat(64));
        for name in ["x", "/x", "node7/", ".gateway/node/x", "a b/x", "ü/x", &long] {
            assert!(!may_be_far(name), "{name}");
        }
    }
}
