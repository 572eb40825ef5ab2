//! The demo's first part. One producer process passes real data sets to two consumer processes,
//! through names and through a stream. The consumers verify every byte.

use super::children::Peer;
use super::{TIMEOUT, connect, socket_argument};
use crate::files::{self, Entry, TensorView};
use crate::interrupt::Temporary;
use std::collections::BTreeMap;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tensorlend::{Client, DType, Draft, Policy, Start, Tensor, Value};
use xxhash_rust::xxh3::xxh3_64;

/// Returns the stream's name. `tag` distinguishes demos that share a daemon.
fn stream_name(tag: &str) -> String {
    format!("demo/{tag}/stream")
}

const CONSUMERS: usize = 2;
/// Number of times that the producer sends each tensor through the stream.
const LAPS: usize = 4;

/// The built-in files with a small data set, which examples/data/README.md describes.
const OWN: [(&str, &[u8]); 2] =
    [("iris.npy", include_bytes!("data/iris.npy")), ("iris_labels.npy", include_bytes!("data/iris_labels.npy"))];

/// The files that the demo passes if the user names none.
struct Shipped {
    paths: Vec<PathBuf>,
    /// The temporary directory of generated files, which is removed with this value.
    _made: Option<Temporary<TempDir>>,
}

impl Shipped {
    /// Returns the data sets of the project if the program runs in a clone of the project.
    /// Otherwise returns the built-in data sets and a generated picture.
    fn find() -> Result<Self, Box<dyn Error>> {
        const FILES: [&str; 5] = ["iris.npy", "iris_labels.npy", "digits.npy", "digits_labels.npy", "china.jpg"];
        // Cargo sets this variable for programs that it runs. The binary itself contains no path of
        // its build machine.
        let sources =
            std::env::var_os("CARGO_MANIFEST_DIR").map(|folder| Path::new(&folder).join("../../examples/data"));
        let folders: Vec<PathBuf> = [PathBuf::from("examples/data")].into_iter().chain(sources).collect();
        let folder = folders.iter().find(|folder| FILES.iter().all(|file| folder.join(file).exists()));
        match folder {
            Some(folder) => Ok(Self { paths: FILES.iter().map(|file| folder.join(file)).collect(), _made: None }),
            None => Self::make(),
        }
    }

    fn make() -> Result<Self, Box<dyn Error>> {
        let create = || tempfile::Builder::new().prefix("tensorlend-demo-").tempdir();
        let mut folder = Temporary::create(create, |folder| folder.path())?;
        let at = folder.get_mut().path().to_owned();
        let mut paths = Vec::new();
        for (name, bytes) in OWN {
            let path = at.join(name);
            std::fs::write(&path, bytes)?;
            paths.push(path);
        }
        let path = at.join("rings.npy");
        let (shape, data) = rings();
        files::write(&path, &[TensorView { name: "rings", dtype: DType::U8, shape: &shape, data: &data }])?;
        paths.push(path);
        Ok(Self { paths, _made: Some(folder) })
    }
}

/// Draws a picture of rings around three points, one for each color.
fn rings() -> ([u64; 3], Vec<u8>) {
    const SHAPE: [u64; 3] = [480, 640, 3];
    const CENTRES: [(i64, i64); 3] = [(120, 160), (240, 480), (400, 240)];
    let [height, width, _] = SHAPE.map(|size| i64::try_from(size).unwrap_or(0));
    let mut data = Vec::new();
    for y in 0..height {
        for x in 0..width {
            data.extend(CENTRES.map(|(cy, cx)| (((y - cy).pow(2) + (x - cx).pow(2)) / 64).to_le_bytes()[0]));
        }
    }
    (SHAPE, data)
}

/// Returns the tensors of all files, each with its name.
fn entries(paths: &[PathBuf], tag: &str) -> Result<Vec<(String, Entry)>, Box<dyn Error>> {
    let mut all = Vec::new();
    for path in paths {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for entry in files::open(path, None)? {
            let name = match &entry.name {
                Some(member) => format!("demo/{tag}/{stem}/{member}"),
                None => format!("demo/{tag}/{stem}"),
            };
            all.push((name, entry));
        }
    }
    Ok(all)
}

/// Deletes everything that one run has published when this value is dropped, because tensors
/// outlive their producer.
struct Cleaner {
    client: Client,
    names: Vec<String>,
    stream: String,
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = self.client.delete(name);
        }
        let _ = self.client.delete_stream(&self.stream);
    }
}

/// Starts the processes, collects the consumers' checksums and compares them with the files.
pub fn pass(given: &[PathBuf], socket: Option<&Path>, out: &mut impl Write) -> Result<(), Box<dyn Error>> {
    // The files must exist until the producer, which reads them, has ended.
    let shipped = if given.is_empty() { Shipped::find()? } else { Shipped { paths: given.to_vec(), _made: None } };
    let paths = &shipped.paths;
    let tag = std::process::id().to_string();
    let mut expected = BTreeMap::new();
    for (name, entry) in entries(paths, &tag)? {
        let mut bytes = vec![0; usize::try_from(entry.bytes)?];
        entry.read_into(&mut bytes)?;
        expected.insert(name, (entry.dtype, entry.shape.clone(), entry.bytes, xxh3_64(&bytes)));
    }

    let socket = socket_argument(socket);
    let names: Vec<String> = expected.keys().cloned().collect();
    let _cleaner = Cleaner { client: connect(&socket, "demo")?, names: names.clone(), stream: stream_name(&tag) };
    let consumers = (1..=CONSUMERS)
        .map(|_| {
            let mut args = vec!["consume".to_owned(), socket.clone(), tag.clone()];
            args.extend(names.iter().cloned());
            Peer::spawn(&args, true)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let mut args = vec!["produce".to_owned(), socket.clone(), tag.clone()];
    args.extend(paths.iter().map(|path| path.display().to_string()));
    let producer = Peer::spawn(&args, true)?;
    let ids: Vec<String> = consumers.iter().map(|c| c.id().to_string()).collect();
    writeln!(out, "producer: process {}; consumers: processes {}", producer.id(), ids.join(" and "))?;
    producer.finish(TIMEOUT).map_err(|e| format!("the producer: {e}"))?;
    let reports = consumers
        .into_iter()
        .map(|c| c.finish(TIMEOUT).map_err(|e| format!("a consumer: {e}")))
        .collect::<Result<Vec<_>, _>>()?;

    let short = |name: &str| name.splitn(3, '/').last().unwrap_or(name).to_owned();
    let wide = expected.keys().map(|name| short(name).len()).max().unwrap_or(0).max(4);
    writeln!(out, "\n{:wide$}  dtype  {:18} {:>10}  by name   by stream", "name", "shape", "bytes")?;
    for (name, (dtype, shape, bytes, sum)) in &expected {
        let by_name = count(&reports, &format!("name {name} {sum:016x}"));
        let by_stream = count(&reports, &format!("stream {name} {sum:016x}"));
        if by_name != CONSUMERS || by_stream != CONSUMERS * LAPS {
            return Err(format!(
                "{name}: {by_name} of {CONSUMERS} consumers and {by_stream} of {} messages had its bytes",
                CONSUMERS * LAPS
            )
            .into());
        }
        writeln!(
            out,
            "{:wide$}  {dtype:5}  {:18} {bytes:>10}  {by_name} of {CONSUMERS}    {by_stream} of {}",
            short(name),
            format!("{shape:?}"),
            CONSUMERS * LAPS
        )?;
    }
    writeln!(out, "Every byte was verified by checksum in the consumers, where the producer had written it.")?;
    Ok(())
}

fn count(reports: &[String], line: &str) -> usize {
    reports.iter().flat_map(|report| report.lines()).filter(|l| *l == line).count()
}

/// Returns a draft with an entry's bytes, which are decoded in place. The draft's metadata is the
/// entry's name.
fn draft(client: &Client, name: &str, entry: &Entry) -> Result<Draft, Box<dyn Error>> {
    let mut draft = client.create(entry.dtype, &entry.shape)?;
    entry.read_into(draft.bytes_mut())?;
    draft.set_metadata(name.as_bytes())?;
    Ok(draft)
}

/// Runs the producer, which publishes all tensors under names and then sends them through the
/// stream.
pub fn produce(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [socket, tag, paths @ ..] = args else { return Err("produce needs a socket and a tag".into()) };
    let client = connect(socket, "demo producer")?;
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let entries = entries(&paths, tag)?;
    let stream = client.stream(&stream_name(tag)).capacity(4).policy(Policy::Block).open()?;
    for (name, entry) in &entries {
        draft(&client, name, entry)?.publish(name)?;
    }
    stream.wait_subscribers(CONSUMERS, TIMEOUT)?;
    for _ in 0..LAPS {
        for (name, entry) in &entries {
            stream.send_timeout(draft(&client, name, entry)?, TIMEOUT)?;
        }
    }
    // The producer does not wait for the consumers, because published and sent tensors outlive this
    // process.
    Ok(())
}

/// Runs a consumer, which prints one line with the checksum of each tensor that it reads.
pub fn consume(args: &[String]) -> Result<(), Box<dyn Error>> {
    let [socket, tag, names @ ..] = args else { return Err("consume needs a socket and a tag".into()) };
    let client = connect(socket, "demo consumer")?;
    let mut out = std::io::stdout().lock();
    let sum = |tensor: &Tensor| xxh3_64(tensor.row_major_bytes().unwrap_or_default());
    let messages = client.subscription(&stream_name(tag)).start_at(Start::Oldest).wait(TIMEOUT).open()?;
    for name in names {
        let lease = client.wait_for(name, Some(TIMEOUT))?;
        writeln!(out, "name {name} {:016x}", sum(&lease))?;
    }
    for message in messages {
        if let Value::Tensor(tensor) = message?.value() {
            let name = String::from_utf8_lossy(tensor.metadata());
            writeln!(out, "stream {name} {:016x}", sum(tensor))?;
        }
    }
    Ok(())
}
