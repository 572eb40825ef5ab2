//! A client in its own process. It reads orders from standard input, one line each, and answers each with one line:
//! `ok ...` or `error ...`. The tests kill it, stop it, and run it as other users.

use std::collections::HashMap;
use std::time::Duration;
use tensorlend::{
    Call, Caller, Client, DType, Draft, Lease, Lifetime, Policy, QueueItem, Server, Start, Stream, Subscription,
    TensorView, Version,
};
use tensorlend_tests::filled;
use tensorlend_tests::orders::{self, Answer};
use tensorlend_tests::traffic::{Pair, Traffic};
use xxhash_rust::xxh3::xxh3_64;

/// A little less than the timeout of the test, so that the test prints the agent's error.
const PATIENCE: Option<Duration> = Some(Duration::from_mins(4));

#[derive(Default)]
struct Agent {
    client: Option<Client>,
    leases: HashMap<String, Lease>,
    drafts: Vec<Draft>,
    streams: HashMap<String, Stream>,
    subscriptions: HashMap<String, Subscription>,
    seen: Option<Version>,
    call: Option<Call>,
    claimed: Option<QueueItem>,
    server: Option<Server>,
    caller: Option<Caller>,
    traffic: Option<Traffic>,
}

/// Fills `bytes` with values that depend on the position and on the seed.
fn fill(bytes: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(2) + 1;
    for chunk in bytes.chunks_mut(8) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

impl Agent {
    fn client(&self) -> Result<&Client, &'static str> {
        self.client.as_ref().ok_or("not connected")
    }

    fn answer(&self, call: Call) -> Answer {
        let mut answer = self.client()?.create(DType::U64, &[1])?;
        let number = call.tensor()?.as_slice::<u64>()?[0];
        answer.as_mut_slice::<u64>()?[0] = number + 1;
        call.respond(answer)?;
        Ok(number.to_string())
    }

    fn run(&mut self, line: &str) -> Answer {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            // connect SOCKET [NAMESPACE], or connect-hardened
            [how @ ("connect" | "connect-hardened"), socket, ref rest @ ..] => {
                let mut builder = Client::builder().socket(socket).label("agent").harden(how == "connect-hardened");
                if let [namespace] = rest {
                    builder = builder.namespace(namespace);
                }
                self.client = Some(builder.connect()?);
                Ok(self.client()?.namespace().to_owned())
            }
            // stream NAME CAPACITY: opens the stream as its producer
            ["stream", name, capacity] => {
                let stream =
                    self.client()?.stream(name).capacity(capacity.parse()?).policy(Policy::DropOldest).open()?;
                self.streams.insert(name.to_owned(), stream);
                Ok(String::new())
            }
            // send NAME NUMBER: sends the filled tensor of that number
            ["send", name, number] => {
                let draft = filled::filled(self.client()?, number.parse()?)?;
                Ok(self.streams.get(name).ok_or("no such stream")?.send(draft)?.to_string())
            }
            // traffic ME PEER: begins the use of names, a list and streams
            ["traffic", me, peer] => {
                let pair = Pair { me: me.parse()?, peer: peer.parse()? };
                self.traffic = Some(Traffic::begin(self.client()?, pair));
                Ok(String::new())
            }
            // rounds: returns the number of rounds of that use
            ["rounds"] => Ok(self.traffic.as_mut().ok_or("no traffic")?.rounds()?.to_string()),
            // end-traffic: ends that use, and returns the number of its rounds
            ["end-traffic"] => Ok(self.traffic.as_mut().ok_or("no traffic")?.end()?.to_string()),
            // layout: returns the version of the session's layout
            ["layout"] => Ok(self.client()?.layout_version().to_string()),
            // added-words SOCKET LIST: checks the words that the next layout adds, as a client of that layout reads them
            #[cfg(feature = "next-layout-for-tests")]
            ["added-words", socket, list] => added_words(socket.as_ref(), list),
            ["disconnect"] => {
                self.streams.clear();
                (self.call, self.server, self.caller) = (None, None, None);
                (self.leases, self.drafts, self.subscriptions, self.client) = Default::default();
                Ok(String::new())
            }
            // put NAME BYTES SEED: publishes a tensor; returns the checksum
            ["put", name, bytes, seed] => {
                let mut draft = self.client()?.create(DType::U8, bytes.parse::<usize>()?)?;
                fill(draft.bytes_mut(), seed.parse()?);
                let sum = xxh3_64(draft.bytes_mut());
                draft.publish(name)?;
                Ok(format!("{sum:016x}"))
            }
            // many PREFIX COUNT: publishes small tensors
            ["many", prefix, count] => {
                for i in 0..count.parse::<u32>()? {
                    self.client()?.put(&format!("{prefix}{i}"), &[i])?;
                }
                Ok(String::new())
            }
            // check-many PREFIX COUNT
            ["check-many", prefix, count] => {
                for i in 0..count.parse::<u32>()? {
                    let name = format!("{prefix}{i}");
                    if self.client()?.wait_for(&name, PATIENCE)?.as_slice::<u32>()? != [i] {
                        return Err(format!("{name} is wrong").into());
                    }
                }
                Ok(String::new())
            }
            // odd DTYPE SHAPE(comma list, - for none) SEED: publishes a tensor of any dtype; name and contents follow
            // from the arguments
            ["odd", dtype, shape, seed] => {
                let dtype: DType = dtype.parse()?;
                let dims = if shape == "-" {
                    Vec::new()
                } else {
                    shape.split(',').map(str::parse).collect::<Result<_, _>>()?
                };
                let count: usize = dims.iter().product();
                let mut bytes = vec![0; count * dtype.item_bytes()];
                fill(&mut bytes, seed.parse()?);
                self.client()?.put(&format!("{dtype}/{shape}"), &TensorView { dtype, shape: &dims, bytes: &bytes })?;
                Ok(format!("{:016x}", xxh3_64(&bytes)))
            }
            // sum NAME: returns dtype, shape, checksum
            ["sum", name] => {
                let lease = self.client()?.wait_for(name, PATIENCE)?;
                Ok(format!("{} {:?} {:016x}", lease.dtype(), lease.shape(), xxh3_64(lease.bytes())))
            }
            // serve SERVICE: opens a server
            ["serve", service] => {
                self.server = Some(self.client()?.serve(service).open()?);
                Ok(String::new())
            }
            // take-call: waits for a request and holds it; returns its number
            ["take-call"] => {
                let server = self.server.as_mut().ok_or("no server")?;
                let call = server.recv_timeout(PATIENCE.unwrap_or_default())?;
                let number = call.tensor()?.as_slice::<u64>()?[0].to_string();
                self.call = Some(call);
                Ok(number)
            }
            // answer-call: responds to the held request with its number plus one
            ["answer-call"] => {
                let call = self.call.take().ok_or("no call")?;
                self.answer(call)
            }
            // answer-next MILLISECONDS: responds to the next request, even if one is held; returns its number, or none
            ["answer-next", patience] => {
                let server = self.server.as_mut().ok_or("no server")?;
                match server.recv_timeout(Duration::from_millis(patience.parse()?)) {
                    Ok(call) => self.answer(call),
                    Err(error) if error.is_timeout() => Ok("none".into()),
                    Err(error) => Err(error.into()),
                }
            }
            // serve-until-idle: polls for requests until a second has brought none; returns the number of callers
            ["serve-until-idle"] => {
                let server = self.server.as_mut().ok_or("no server")?;
                while let Ok(call) = server.recv_timeout(Duration::from_secs(1)) {
                    call.fail("idle")?;
                }
                Ok(server.callers().to_string())
            }
            // call SERVICE NUMBER: sends a request, again if its server ends; returns the response
            ["call", service, number] => {
                let mut caller = self.client()?.caller(service).open()?;
                call(&mut caller, number.parse()?)
            }
            // call-again SERVICE NUMBER: the same, with a caller that stays open
            ["call-again", service, number] => {
                if self.caller.is_none() {
                    self.caller = Some(self.client()?.caller(service).open()?);
                }
                call(self.caller.as_mut().ok_or("no caller")?, number.parse()?)
            }
            // claim QUEUE: takes an item of a queue, and holds it
            ["claim", queue] => {
                let claimed = self.client()?.queue(queue)?.get(PATIENCE)?;
                let number = claimed.number();
                self.claimed = Some(claimed);
                Ok(number.to_string())
            }
            ["hold", name] => {
                let lease = self.client()?.get(name)?;
                let text = format!("{:p} {}", lease.bytes().as_ptr(), lease.bytes().len());
                self.leases.insert(name.to_owned(), lease);
                Ok(text)
            }
            // held NAME: returns the checksum of the lease held under that name, whatever the name's present value
            ["held", name] => Ok(format!("{:016x}", xxh3_64(self.leases.get(name).ok_or("not held")?.bytes()))),
            // put-for NAME TTL_MS(- for none) EPHEMERAL
            ["put-for", name, ttl_ms, ephemeral] => {
                let ttl = if ttl_ms == "-" { None } else { Some(Duration::from_millis(ttl_ms.parse()?)) };
                self.client()?.put_for(name, &[7u8], Lifetime { ttl, ephemeral: ephemeral.parse()? })?;
                Ok(String::new())
            }
            // keep NAME OTHER: moves the lease held under one name to another
            ["keep", name, other] => {
                let lease = self.leases.remove(name).ok_or("not held")?;
                self.leases.insert(other.to_owned(), lease);
                Ok(String::new())
            }
            // valid NAME: returns whether the lease held under that name is still valid
            ["valid", name] => Ok(self.leases.get(name).ok_or("not held")?.validate().to_string()),
            ["release", name] => Ok(format!("{}", self.leases.remove(name).is_some())),
            // draft BYTES: creates a draft and never publishes it
            ["draft", bytes] => {
                let mut draft = self.client()?.create(DType::U8, bytes.parse::<usize>()?)?;
                let half = draft.bytes_mut().len() / 2;
                fill(&mut draft.bytes_mut()[..half], 1);
                self.drafts.push(draft);
                Ok(String::new())
            }
            // value NAME: returns the number of the filled tensor held under that name
            ["value", name] => Ok(filled::value(self.leases.get(name).ok_or("not held")?)?.to_string()),
            ["subscribe", name] => {
                let subscription = self.client()?.subscription(name).start_at(Start::Oldest).open()?;
                self.subscriptions.insert(name.to_owned(), subscription);
                Ok(String::new())
            }
            // receive NAME: returns the next message's number, the number of messages lost before it, and the number of
            // its filled tensor
            ["receive", name] => {
                let subscription = self.subscriptions.get_mut(name).ok_or("not subscribed")?;
                let message = subscription.recv_timeout(PATIENCE.unwrap_or_default())?;
                Ok(format!("{} {} {}", message.sequence(), message.lost(), filled::value(message.tensor()?)?))
            }
            ["exists", name] => Ok(self.client()?.exists(name)?.to_string()),
            ["delete", name] => Ok(self.client()?.delete(name)?.to_string()),
            ["list"] => Ok(self.client()?.list("*")?.len().to_string()),
            ["ping"] => Ok(format!("{:?}", self.client()?.ping()?)),
            // spin NAME COUNT: publishes and gets in steady state, between two marks that a tracer sees
            ["spin", name, count] => {
                let client = self.client()?.clone();
                let round = || -> Result<(), tensorlend::Error> {
                    let mut draft = client.create(DType::U8, &[4096])?;
                    draft.bytes_mut()[0] = 1;
                    draft.publish(name)?;
                    let lease = client.get(name)?;
                    assert_eq!(lease.bytes()[0], 1);
                    Ok(())
                };
                // Warms up: slots are reused, and every sheet is mapped.
                for _ in 0..1000 {
                    round()?;
                }
                mark();
                for _ in 0..count.parse()? {
                    round()?;
                }
                mark();
                Ok(String::new())
            }
            // publish-loop NAME COUNT: publishes until a read-loop has seen COUNT values, between two marks
            ["publish-loop", name, count] => publish_loop(self.client()?, name, count.parse()?),
            // read-loop NAME COUNT: reads until it has seen COUNT different values, between two marks
            ["read-loop", name, count] => read_loop(self.client()?, name, count.parse()?),
            // nofile NUMBER: sets the limit of this process's open files
            ["nofile", number] => {
                use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
                let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
                setrlimit(Resource::Nofile, Rlimit { current: Some(number.parse()?), maximum })?;
                Ok(String::new())
            }
            ["newer", name] => {
                let lease = self.client()?.wait_newer(name, self.seen.unwrap_or(Version::NONE), PATIENCE)?;
                let sum = xxh3_64(lease.bytes());
                self.seen = Some(lease.version());
                Ok(format!("{sum:016x}"))
            }
            _ => Err(format!("no such order: {line}").into()),
        }
    }
}

/// Number of values until a loop is in its steady state: slots are reused, and every sheet is mapped.
const WARM_UP: u64 = 500;
/// Maximum number of turns of a loop, so that it ends after a test that failed.
const TURNS_MAX: u64 = 1 << 28;

/// Publishes one page that contains a number.
fn publish_number(client: &Client, name: &str, number: u64) -> Result<(), tensorlend::Error> {
    let mut draft = client.create(DType::U64, &[512])?;
    draft.as_mut_slice::<u64>()?.fill(number);
    draft.publish(name)?;
    Ok(())
}

/// Returns the number under a name; 0 if the name does not exist.
fn read_number(client: &Client, name: &str) -> Result<u64, tensorlend::Error> {
    match client.get(name) {
        Ok(lease) => {
            let numbers = lease.as_slice::<u64>()?;
            assert!(numbers.iter().all(|&number| number == numbers[0]), "{name} was written while it was read");
            Ok(numbers[0])
        }
        Err(e) if e.is_not_found() => Ok(0),
        Err(e) => Err(e),
    }
}

/// Returns the name under which a read-loop reports its progress.
fn progress(name: &str) -> String {
    format!("{name}/seen")
}

fn publish_loop(client: &Client, name: &str, count: u64) -> Answer {
    let seen = progress(name);
    let mut published = 0;
    let mut until_seen = |count| -> Result<(), Box<dyn std::error::Error>> {
        while read_number(client, &seen)? < count {
            published += 1;
            if published == TURNS_MAX {
                return Err("nobody reads".into());
            }
            publish_number(client, name, published)?;
        }
        Ok(())
    };
    until_seen(WARM_UP)?;
    mark();
    until_seen(WARM_UP + count)?;
    mark();
    Ok(published.to_string())
}

fn read_loop(client: &Client, name: &str, count: u64) -> Answer {
    let progress = progress(name);
    let (mut seen, mut last, mut turns) = (0, 0, 0);
    let mut see = |count| -> Result<(), Box<dyn std::error::Error>> {
        while seen < count {
            let number = read_number(client, name)?;
            if number > last {
                (seen, last) = (seen + 1, number);
                publish_number(client, &progress, seen)?;
            }
            turns += 1;
            if number < last || turns == TURNS_MAX {
                return Err(format!("{number} after {last} in turn {turns}").into());
            }
        }
        Ok(())
    };
    see(WARM_UP)?;
    mark();
    see(WARM_UP + count)?;
    mark();
    Ok(turns.to_string())
}

/// Sends a number, again if its server ends; returns the response.
fn call(caller: &mut Caller, number: u64) -> Answer {
    let answer = caller.call_again(PATIENCE, |client| {
        let mut request = client.create(DType::U64, &[1])?;
        request.as_mut_slice::<u64>()?[0] = number;
        Ok(request)
    })?;
    let answer = answer.as_tensor().ok_or("not a tensor")?;
    Ok(answer.as_slice::<u64>()?[0].to_string())
}

/// Returns the number of items of a list, and the numbers of cursors that follow a stream with and without the added
/// word of the next layout. The added word of the list must be correct.
#[cfg(feature = "next-layout-for-tests")]
fn added_words(socket: &std::path::Path, list: &str) -> Answer {
    use tensorlend_layout::{leases::LeaseTable, raw::Sheet};
    use tensorlend_tests::hand::{Hand, map};
    let hand = Hand::join(socket, None)?;
    let key = tensorlend_layout::name::list_key(list);
    let found = hand.directory.find(hand.directory.hash(&key), &key).map_err(|_| "the table was replaced")?;
    let line = &hand.directory.lists[found.ok_or("no such list")?.owner_word.list().index()];
    let (end, complement) = (line.end.read(), line.not_end.read());
    if complement != !end {
        return Err(format!("{complement:x} is not the complement of {end:x}").into());
    }
    let (mut with, mut without) = (0, 0);
    for member in hand.directory.present().filter(|&member| member != hand.welcome.client) {
        // Members that have ended have no lease table.
        let Ok((_, leases)) = hand.sheets_of(member) else { continue };
        let table: Sheet<LeaseTable> =
            Sheet::new(map(&leases, tensorlend_os::memfd::Access::Read)?).ok_or("too short")?;
        for cursor in table.cursors.iter().filter(|cursor| cursor.stream.read() != 0) {
            *if cursor.follows.read() == 1 { &mut with } else { &mut without } += 1;
        }
    }
    Ok(format!("{end} {with} {without}"))
}

/// Makes a system call that nothing else here makes.
fn mark() {
    let _ = rustix::process::getpgid(None);
}

fn main() {
    #[cfg(feature = "crash-points")]
    tensorlend_os::crash::arm();
    let mut agent = Agent::default();
    orders::obey(|line| agent.run(line));
}
