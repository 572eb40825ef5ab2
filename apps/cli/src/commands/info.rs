//! `tensorlend info`: describes one name.

use serde::Serialize;
use tensorlend::remote::RemoteInfo;
use tensorlend::{Client, Error, Info, Lifetime, RemoteTrouble, Value};
use tensorlend_os::clock::duration_ns;

use crate::failure::Failure;
use crate::options::Json;
use crate::output::{self, Table};
use crate::save::on_device;
use crate::summary::{Summary, timestamp_text};
use crate::text::printable;

/// Maximum bytes of metadata in the table. With --json the command prints all bytes.
const METADATA_SHOWN: usize = 200;

/// Show a name's value, its metadata and its owner.
///
/// A name of another machine (NODE/NAME) that was not fetched yet is described as that machine describes it; the
/// command does not fetch it.
#[derive(clap::Args, Debug)]
pub struct InfoArgs {
    /// The name.
    name: String,
    #[command(flatten)]
    json: Json,
}

/// The description of a name, as JSON.
#[derive(Serialize)]
pub struct Described {
    name: String,
    #[serde(flatten)]
    summary: Summary,
    metadata_nbytes: u64,
    timestamp_ns: u64,
    owner: Owner,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ns: Option<u64>,
    ephemeral: bool,
}

#[derive(Serialize)]
struct Owner {
    pid: u32,
    uid: u32,
    label: String,
    alive: bool,
}

/// Metadata, as text if it is UTF-8, and otherwise as hexadecimal digits.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Metadata {
    Metadata(String),
    MetadataHex(String),
}

#[derive(Serialize)]
struct Detailed {
    #[serde(flatten)]
    described: Described,
    #[serde(flatten)]
    metadata: Metadata,
}

/// The description of another machine's name.
#[derive(Serialize)]
struct OnNode {
    node: String,
    #[serde(flatten)]
    remote: RemoteInfo,
}

impl Described {
    pub fn new(info: &Info) -> Self {
        Self {
            name: info.name.clone(),
            summary: Summary::of_info(info),
            metadata_nbytes: info.metadata_bytes,
            timestamp_ns: info.timestamp_ns,
            owner: Owner { pid: info.pid, uid: info.uid, label: info.label.clone(), alive: info.alive },
            ttl_ns: info.lifetime.ttl.map(duration_ns),
            ephemeral: info.lifetime.ephemeral,
        }
    }
}

impl Metadata {
    fn new(bytes: &[u8]) -> Self {
        if let Ok(text) = std::str::from_utf8(bytes) {
            return Self::Metadata(text.to_owned());
        }
        let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
        Self::MetadataHex(bytes.iter().flat_map(|&byte| [digit(byte >> 4), digit(byte & 15)]).collect())
    }

    fn text(&self) -> String {
        let (text, kind) = match self {
            Self::Metadata(text) => (text, ""),
            Self::MetadataHex(text) => (text, "0x"),
        };
        let shown: String = text.chars().take(METADATA_SHOWN).collect();
        let more = if shown.len() < text.len() { " ..." } else { "" };
        format!("{kind}{}{more}", printable(&shown))
    }
}

/// Returns the text about the lifetime of a name; `None` for a name without a limited lifetime.
fn lifetime_text(lifetime: Lifetime) -> Option<String> {
    let ttl = lifetime.ttl.map(|ttl| format!("{:.1} s left", ttl.as_secs_f64()));
    let ephemeral = lifetime.ephemeral.then(|| "ends with its owner".to_owned());
    let parts: Vec<_> = ttl.into_iter().chain(ephemeral).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

impl InfoArgs {
    pub fn run(&self, client: &Client) -> Result<(), Failure> {
        let (info, metadata) = match self.look(client) {
            Err(Failure::Client(Error::NotFound(_))) => return self.run_remote(client),
            found => found?,
        };
        let described = Described::new(&info);
        if self.json.on {
            return output::json(&Detailed { described, metadata: Metadata::new(&metadata) });
        }
        let mut table = Table::new(&["name", &info.name]);
        let mut row = |what: &str, text: String| table.row([what.to_owned(), text]);
        match &described.summary {
            Summary::Tensor(tensor) => {
                row("dtype", tensor.dtype.to_owned());
                row("shape", format!("{:?}", tensor.shape));
                row("strides", format!("{:?} elements", tensor.strides.as_deref().unwrap_or_default()));
            }
            Summary::Dataset { tensors, .. } => {
                row("dataset", crate::text::count(tensors.len() as u64, "tensor"));
                for tensor in tensors {
                    row("", tensor.to_string());
                }
            }
        }
        row("bytes", format!("{} ({})", info.nbytes, crate::text::bytes_text(info.nbytes)));
        if !metadata.is_empty() {
            row("metadata", format!("{} bytes: {}", metadata.len(), Metadata::new(&metadata).text()));
        }
        if info.timestamp_ns != 0 {
            row("timestamp", format!("{} s", timestamp_text(info.timestamp_ns)));
        }
        row("owner", format!("{}, user {}", crate::text::owner_text(info.pid, &info.label, info.alive), info.uid));
        if let Some(text) = lifetime_text(info.lifetime) {
            row("lifetime", text);
        }
        output::text_block(&table.text())
    }

    /// Prints the description of a name that this machine has not fetched. The name's own machine
    /// reports this description.
    fn run_remote(&self, client: &Client) -> Result<(), Failure> {
        let missing = || Failure::Client(Error::NotFound(self.name.clone()));
        // `placement` sends no request if the name's first part is not a known node.
        let Some(placement) = client.remote().placement(&self.name)? else { return Err(missing()) };
        let exactly: String = self.name.chars().flat_map(|c| ['\\', c]).collect();
        let found = client.remote().names(&exactly)?;
        let unreachable = found.silent.contains(&placement.node) || !placement.alive;
        let Some(remote) = found.names.into_iter().find(|it| it.name == self.name) else {
            let (node, name) = (placement.node, self.name.clone());
            let cause = if unreachable { RemoteTrouble::Unreachable { node } } else { RemoteTrouble::Nothing { node } };
            return Err(Failure::Client(Error::Remote { name, cause }));
        };
        if self.json.on {
            return output::json(&OnNode { node: placement.node, remote });
        }
        let mut table = Table::new(&["name", &remote.name]);
        let mut row = |what: &str, text: String| table.row([what.to_owned(), text]);
        let fetch = match remote.kind.as_str() {
            "stream" => "`tensorlend recv` subscribes to it",
            "list" => "a program fetches it (Remote::fetch_list)",
            _ => "`tensorlend get` fetches it",
        };
        row("node", format!("{}: it was not fetched yet; {fetch}", placement.node));
        row("kind", remote.kind);
        if !remote.dtype.is_empty() {
            row("dtype", remote.dtype);
            row("shape", format!("{:?}", remote.shape));
        }
        row("size", remote.size.to_string());
        output::text_block(&table.text())
    }

    /// Returns the description and the metadata, both of the same value.
    fn look(&self, client: &Client) -> Result<(Info, Vec<u8>), Failure> {
        loop {
            let info = client.info(&self.name)?;
            let value = client.get_value(&self.name)?;
            if info.version == value.version() {
                let metadata = match &value {
                    Value::Tensor(lease) => lease.metadata(),
                    Value::Dataset(dataset) => dataset.metadata(),
                    _ => return Err(on_device(&self.name)),
                };
                return Ok((info, metadata.to_vec()));
            }
        }
    }
}
