//! Methods that send requests to this machine's gateway.

use super::far::{Far, trouble};
use super::{
    NodeDocument, Placement, RemoteAnswer, RemoteNames, RemoteRequest, SERVICE, VALUE, VALUE_METADATA, VALUE_PREFIX,
};
use crate::client::Client;
use crate::error::{Error, RemoteTrouble, Result, check_name};
use crate::glob::Glob;
use crate::listing::list;
use crate::tensor::element::AsTensor;
#[cfg(feature = "cuda")]
use crate::tensor::member_draft::MemberDraft;
use crate::tensor::value_draft::ValueDraft;
use tensorlend_layout::DType;

/// Maximum bytes of a listing.
const NAMES_BYTES_MAX: usize = 256 << 20;

/// A client's calls for names of other machines: see [`Client::remote`].
#[derive(Clone, Copy, Debug)]
pub struct Remote<'c> {
    client: &'c Client,
}

impl Client {
    /// Returns the calls that ask this machine's gateway about other machines. Reads need none of them: [`Client::get`] and
    /// [`Client::subscribe`] also take names of other machines.
    ///
    /// ```no_run
    /// let client = tensorlend::Client::connect()?;
    /// client.remote().put("node7/control/gain", &[0.5f32])?;
    /// # Ok::<(), tensorlend::Error>(())
    /// ```
    pub fn remote(&self) -> Remote<'_> {
        Remote { client: self }
    }

    /// Returns the draft of the value, with the request as its metadata.
    fn put_request(&self, name: &str, draft: ValueDraft) -> Result<ValueDraft> {
        let mut request = self.dataset();
        let dataset = match draft {
            ValueDraft::Tensor(draft) => {
                request = request.add(VALUE, draft)?;
                false
            }
            ValueDraft::Dataset(draft) => {
                let (members, metadata, timestamp) = draft.into_parts();
                for (member, draft) in members {
                    #[cfg(feature = "cuda")]
                    if matches!(draft, MemberDraft::Device(_)) {
                        return Err(is_on_device(&format!("{name}, {member}")));
                    }
                    request = request.add(&format!("{VALUE_PREFIX}{member}"), draft)?;
                }
                if !metadata.is_empty() {
                    let mut words = self.create(DType::U8, metadata.len())?;
                    words.bytes_mut().copy_from_slice(&metadata);
                    request = request.add(VALUE_METADATA, words)?;
                }
                request = request.timestamp(timestamp);
                true
            }
            #[cfg(feature = "cuda")]
            ValueDraft::Device(_) => return Err(is_on_device(name)),
        };
        let asked = RemoteRequest::Put { name: name.to_owned(), dataset };
        Ok(request.metadata(&asked.encode())?.into())
    }
}

impl Remote<'_> {
    /// Returns the nodes that this machine's gateway has seen, including this one, sorted by name. Empty without a gateway.
    /// Reads shared memory, and does not ask the gateway.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// for node in client.remote().nodes()? {
    ///     println!("{}: {}", node.node, if node.alive { "there" } else { "gone" });
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Leases`] if this client already holds 4096 leases.
    pub fn nodes(&self) -> Result<Vec<NodeDocument>> {
        let prefix = super::node_name("");
        let mut nodes = Vec::new();
        for info in list(self.client.session(), |name| name.starts_with(&prefix))? {
            // Ignore a document whose content names another node.
            nodes.extend(self.client.node(&info.name)?.filter(|node| super::node_name(&node.node) == info.name));
        }
        Ok(nodes)
    }

    /// Returns the location of a name of another machine, and the age of this machine's copy. Returns `None` for a name
    /// of this machine, or of an unknown node. Asks this machine's gateway.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// client.put("numbers", &[1u8])?;
    /// assert!(client.remote().placement("numbers")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Remote`] if the gateway does not respond; [`Error::Timeout`].
    pub fn placement(&self, name: &str) -> Result<Option<Placement>> {
        check_name(name)?;
        self.client.session().check()?;
        let node = match self.client.far(name)? {
            Some(Far::There(node)) => node,
            Some(Far::Here(_)) => return Ok(None),
            None => return self.client.killed_gateway(name)?.map_or(Ok(None), |cause| Err(trouble(name, cause))),
        };
        let request = RemoteRequest::Where { name: name.to_owned() };
        match self.client.ask_gateway(name, &request, self.client.far_deadline())? {
            (RemoteAnswer::Where(placement), _) => Ok(Some(placement)),
            (answer, _) => self.client.is_here(node, name, answer).and_then(|_| Err(something_else(name))),
        }
    }

    /// Returns the names, lists and streams of other nodes that match a glob ([`Client::list`]), each with its node. The
    /// gateway asks the nodes that it can reach. [`RemoteNames::silent`] lists the nodes that did not respond.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let missing = client.remote().names("*/sim/*");
    /// assert!(missing.unwrap_err().is_remote()); // no gateway here
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Argument`] for an invalid glob; [`Error::Remote`] if the gateway does not respond;
    /// [`Error::Timeout`].
    pub fn names(&self, glob: &str) -> Result<RemoteNames> {
        Glob::new(glob)?;
        self.client.session().check()?;
        if self.nodes()?.is_empty() {
            return Err(trouble(glob, RemoteTrouble::Gateway { why: "it has listed no node".into() }));
        }
        let (answer, value) = self.client.ask_gateway(
            glob,
            &RemoteRequest::Names { glob: glob.to_owned() },
            self.client.far_deadline(),
        )?;
        match answer {
            RemoteAnswer::Names => {
                let listing = value.as_tensor().and_then(|tensor| tensor.as_slice::<u8>().ok());
                let listing = listing.filter(|listing| listing.len() <= NAMES_BYTES_MAX);
                let names = listing.ok_or_else(|| "it is no listing".to_owned()).and_then(RemoteNames::decode);
                names.map_err(|why| {
                    trouble(glob, RemoteTrouble::Gateway { why: format!("its response is invalid: {why}") })
                })
            }
            RemoteAnswer::Refused { why } => Err(trouble(glob, RemoteTrouble::Gateway { why })),
            RemoteAnswer::Timeout => {
                Err(Error::Timeout { what: "a listing of other nodes".into(), waited: self.client.callers().timeout })
            }
            _ => Err(something_else(glob)),
        }
    }

    /// Publishes an array under a name of another machine, `NODE/NAME`. Blocks until the other machine has published
    /// the value. The node's configuration must allow this.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// let nowhere = client.remote().put("node7/control/gain", &[0.5f32]);
    /// assert!(nowhere.unwrap_err().is_remote());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// * [`Error::Remote`] if the node is unknown or unreachable, or refuses.
    /// * [`Error::Timeout`] if no reply arrived in time. The value may have been published.
    /// * Otherwise the errors of [`Client::put`].
    pub fn put(&self, name: &str, array: &(impl AsTensor + ?Sized)) -> Result<()> {
        self.put_draft(name, self.client.filled(name, array)?)
    }

    /// Publishes like [`Remote::put`], for the draft of a tensor or of a dataset.
    ///
    /// # Errors
    /// The errors of [`Remote::put`]; [`Error::Argument`] for a draft of another client; [`Error::Device`] for a
    /// tensor on a device. Also [`Error::Argument`] for a dataset with a member name of more than 249 bytes, because the
    /// request adds a prefix of 6 bytes to each name.
    pub fn put_draft(&self, name: &str, draft: impl Into<ValueDraft>) -> Result<()> {
        check_name(name)?;
        self.client.session().check()?;
        let node = match self.client.far(name)? {
            Some(Far::Here(rest)) => return draft.into().publish(rest).map(drop),
            Some(Far::There(node)) => node,
            None => return Err(self.client.unknown_node(name)?),
        };
        let mut request = Some(self.client.put_request(name, draft.into())?);
        let asked = self.client.ask_gateway_with(name, self.client.far_deadline(), |_| {
            // The client sends the value only once: a gateway that ended in the meantime may have forwarded it.
            request.take().ok_or_else(|| {
                let why = "it ended before it responded, and may have published the value".into();
                trouble(name, RemoteTrouble::Gateway { why })
            })
        });
        self.client.is_here(node, name, asked?.0).map(drop)
    }

    /// Fetches the items of a list of another machine, `NODE/LIST`, that are not on this machine yet. Returns the
    /// number of items. Blocks until all items are on this machine. Afterwards [`Client::get_all`],
    /// [`Client::get_range`] and [`Client::length`] find them under that name.
    ///
    /// ```
    /// # let daemon = tensorlend_daemon::embedded()?;
    /// # let client = tensorlend::Client::builder().socket(daemon.socket()).connect()?;
    /// assert!(client.remote().fetch_list("node7/episodes").unwrap_err().is_remote()); // no such node
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Remote`]; [`Error::Timeout`], after which you can call the method again: fetched items remain.
    pub fn fetch_list(&self, list: &str) -> Result<u64> {
        check_name(list)?;
        self.client.session().check()?;
        match self.client.far(list)? {
            Some(Far::Here(rest)) => Ok(self.client.length(rest)),
            Some(Far::There(node)) => {
                let request = RemoteRequest::List { name: list.to_owned() };
                let (answer, _) = self.client.ask_gateway(list, &request, self.client.far_deadline())?;
                self.client.is_here(node, list, answer)?;
                Ok(self.client.length(list))
            }
            None => Err(self.client.unknown_node(list)?),
        }
    }
}

#[cfg(feature = "cuda")]
#[cold]
fn is_on_device(name: &str) -> Error {
    Error::Argument(format!("{name:?}: a tensor on a device cannot be put there: copy it to the host first"))
}

fn something_else(name: &str) -> Error {
    trouble(
        name,
        RemoteTrouble::Gateway {
            why: format!(
                "this version does not understand the reply of {SERVICE}: install the same version on all machines"
            ),
        },
    )
}
