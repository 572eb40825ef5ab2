//! A client in its own process whose tensors are in a selectable kind of memory. It takes orders as an agent does, one
//! line each, and dies with its parent.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tensorlend::{Client, DType, Dataset, TensorSpec};
use tensorlend_cuda::{Context, Driver, Stream, copy};
use tensorlend_tests::location::{Draft, Lease, Location, pattern, value_of};
use tensorlend_tests::orders::{self, Answer};
use xxhash_rust::xxh3::xxh3_64;

#[derive(Default)]
struct Placed {
    client: Option<(Client, Location)>,
    leases: HashMap<String, Lease>,
    sets: HashMap<String, Dataset>,
    drafts: Vec<Draft>,
    stream: Option<Arc<Stream>>,
}

fn sum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

impl Placed {
    fn client(&self) -> Answer<(&Client, Location)> {
        self.client.as_ref().map(|(client, location)| (client, *location)).ok_or_else(|| "not connected".into())
    }

    fn held(&self, name: &str) -> Answer<&Lease> {
        self.leases.get(name).ok_or_else(|| "not held".into())
    }

    /// Returns a CUDA stream of this process.
    fn stream(&mut self) -> Answer<Arc<Stream>> {
        if self.stream.is_none() {
            let devices = Driver::get().map_err(ToString::to_string)?.devices()?;
            let context = Context::primary(devices.first().ok_or("no device")?)?;
            self.stream = Some(Arc::new(Stream::new(&context)?));
        }
        self.stream.clone().ok_or_else(|| "no stream".into())
    }

    fn run(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // connect SOCKET PLACE [NAMESPACE]
            ["connect", socket, location, ref rest @ ..] => {
                let mut builder = Client::builder().socket(socket).label("placed");
                if let [namespace] = rest {
                    builder = builder.namespace(namespace);
                }
                let client = builder.connect()?;
                let location = Location::named(location, &client);
                self.client = Some((client, location));
                Ok(String::new())
            }
            ["disconnect"] => {
                (self.leases, self.sets, self.drafts, self.client) = Default::default();
                Ok(String::new())
            }
            // put NAME BYTES VALUE
            ["put", name, bytes, value] => {
                let (client, location) = self.client()?;
                let bytes: u64 = bytes.parse()?;
                location.put(client, name, value.parse()?, bytes)?;
                Ok(sum(&pattern(value.parse()?, bytes as usize)))
            }
            // round NAME BYTES FIRST LAST: publishes these values, one after the other
            ["round", name, bytes, first, last] => {
                let (client, location) = self.client()?;
                for value in first.parse()?..=last.parse::<u64>()? {
                    location.put(client, name, value, bytes.parse()?)?;
                }
                Ok(String::new())
            }
            ["sum", name] => {
                let (client, location) = self.client()?;
                Ok(sum(&location.get(client, name)?.read()?))
            }
            // sum-in-stream NAME: copies the tensor in a stream that waits for the producer
            ["sum-in-stream", name] => {
                let stream = self.stream()?;
                let (client, _) = self.client()?;
                let lease = client.get_device_early(name)?;
                lease.wait(&stream)?;
                let mut bytes = vec![0; lease.nbytes()];
                // SAFETY: the lease's bytes; `bytes` has their length and lives until the work is done.
                unsafe { copy::dtoh_async(bytes.as_mut_ptr(), lease.ptr(), bytes.len(), &*stream)? };
                stream.synchronize()?;
                if lease.is_finished()? { Ok(sum(&bytes)) } else { Err("its work is not done".into()) }
            }
            ["hold", name] => {
                let (client, location) = self.client()?;
                let lease = location.get(client, name)?;
                self.leases.insert(name.to_owned(), lease);
                Ok(String::new())
            }
            ["held", name] => Ok(sum(&self.held(name)?.read()?)),
            ["value", name] => {
                let (client, location) = self.client()?;
                Ok(location.get(client, name)?.value()?.to_string())
            }
            ["release", name] => Ok(self.leases.remove(name).is_some().to_string()),
            // put-set NAME BYTES VALUE
            ["put-set", name, bytes, value] => {
                let (client, location) = self.client()?;
                location.dataset(client, value.parse()?, bytes.parse()?)?.publish(name)?;
                Ok(String::new())
            }
            ["hold-set", name] => {
                let set = self.client()?.0.get_dataset(name)?;
                let value = value_of(&set)?;
                self.sets.insert(name.to_owned(), set);
                Ok(value.to_string())
            }
            ["held-set", name] => Ok(value_of(self.sets.get(name).ok_or("not held")?)?.to_string()),
            // draft BYTES: creates a draft and never publishes it
            ["draft", bytes] => {
                let (client, location) = self.client()?;
                let draft = location.filled(client, 1, bytes.parse()?)?;
                self.drafts.push(draft);
                Ok(String::new())
            }
            ["drop-drafts"] => {
                self.drafts.clear();
                Ok(String::new())
            }
            // draft-at-work BYTES: creates a draft, and leaves work on it in progress
            ["draft-at-work", bytes] => {
                let stream = self.stream()?;
                let (client, location) = self.client()?;
                let mut draft = location.create(client, TensorSpec::new(DType::U8, bytes.parse::<usize>()?))?;
                let Draft::Device(on_device) = &mut draft else { return Err("only on a device".into()) };
                on_device.record_stream(&stream)?;
                // SAFETY: the draft's bytes; the process keeps the draft until the work is done, or dies with it.
                unsafe { copy::memset_d8_async(on_device.ptr(), 0x5A, on_device.nbytes(), &*stream)? };
                self.drafts.push(draft);
                Ok(String::new())
            }
            // publish-early NAME BYTES: publishes a tensor while the work on it is still in progress
            ["publish-early", name, bytes] => {
                let stream = self.stream()?;
                let (client, location) = self.client()?;
                let draft = location.create(client, TensorSpec::new(DType::U8, bytes.parse::<usize>()?))?;
                let Draft::Device(draft) = draft else { return Err("only on a device".into()) };
                // SAFETY: the draft's bytes; nobody else accesses them before the readers' wait is over.
                unsafe { copy::memset_d8_async(draft.ptr(), 0x5A, draft.nbytes(), &*stream)? };
                draft.publish_early(name, &stream)?;
                Ok(sum(&vec![0x5A; bytes.parse()?]))
            }
            // copy-later NAME OUT: queues a copy of the held tensor to this process's own tensor OUT, which it has
            // leased too
            ["copy-later", name, out] => {
                let stream = self.stream()?;
                let (client, location) = self.client()?;
                let to = location.get(client, out)?;
                let (Lease::Device(from), Lease::Device(to)) = (self.held(name)?, &to) else {
                    return Err("only on a device".into());
                };
                from.record_stream(&stream)?;
                to.record_stream(&stream)?;
                // SAFETY: both are leased until the copy is done, or until the process dies, which is tested here; its
                // own segment is mapped writable.
                unsafe { copy::dtod_async(to.ptr(), from.ptr(), from.nbytes(), &*stream)? };
                Ok(String::new())
            }
            // watch NAME LAST: reads until it has seen the last value; returns the number of values seen
            ["watch", name, last] => {
                let (client, location) = self.client()?;
                let (last, mut now, mut seen) = (last.parse()?, 0, 0u64);
                while now < last {
                    let value = location.get(client, name)?.value()?;
                    if value < now {
                        return Err(format!("{value} after {now}").into());
                    }
                    seen += u64::from(value > now);
                    now = value;
                }
                Ok(seen.to_string())
            }
            ["ping"] => {
                self.client()?.0.ping()?;
                Ok(String::new())
            }
            // chaos SEED: works for ever
            ["chaos", seed] => {
                let (client, location) = self.client()?;
                let (client, seed) = (client.clone(), seed.parse()?);
                println!("ok");
                std::io::stdout().flush()?;
                tensorlend_tests::everywhere::work(&client, location, seed, None);
                Ok(String::new())
            }
            // hang-up SOCKET: shuts down this process's connections to that socket; the process continues
            ["hang-up", socket] => Ok(hang_up(Path::new(socket))?.to_string()),
            _ => Err(format!("no such order: {line}").into()),
        }
    }
}

/// Shuts the connections down, and returns their number.
fn hang_up(path: &Path) -> Answer<usize> {
    use rustix::net::{Shutdown, SocketAddrUnix, getpeername, shutdown};
    use std::os::fd::BorrowedFd;
    let mut ended = 0;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Ok(number) = entry?.file_name().to_string_lossy().parse::<i32>() else { continue };
        // SAFETY: the descriptor is open, or the calls fail: this process does nothing else while it executes an order.
        let fd = unsafe { BorrowedFd::borrow_raw(number) };
        let Ok(Some(peer)) = getpeername(fd) else { continue };
        let Ok(peer) = SocketAddrUnix::try_from(peer) else { continue };
        if peer.path_bytes() == Some(path.as_os_str().as_encoded_bytes()) {
            shutdown(fd, Shutdown::Both)?;
            ended += 1;
        }
    }
    Ok(ended)
}

fn main() {
    orders::end_with_parent();
    let mut placed = Placed::default();
    orders::obey(|line| placed.run(line));
}
