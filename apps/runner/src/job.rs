//! One request: its inputs, its outputs, and its response.

use crate::engine::{Buffer, Feed, Output, OwnedBytes, Signature};
use crate::prepare;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tensorlend::{Call, Client, DType, Lease, Tensor, Value};
use tensorlend_model::{ModelAnswer, RequestDocument, Step};
use tensorlend_os::clock::monotonic_ns;

/// Maximum bytes of a strided tensor that the worker copies into row-major order.
const ORDERED_BYTES_MAX: u64 = 1 << 30;

/// The location of an input's elements.
enum Source {
    /// The elements are in place in the request: in a member of its dataset, or in its only tensor.
    Brought(Option<String>),
    /// The elements are in place in a value that a client published under a name.
    Leased(Lease),
    /// The elements are in a copy that this process has prepared or reordered.
    Made { dtype: DType, shape: Vec<u64>, data: OwnedBytes },
}

/// A requested output: its number in the signature, and its destination.
struct Wanted {
    output: usize,
    name: String,
    to: Option<String>,
}

/// A request that the worker has read and checked against the model's signature.
pub struct Job {
    call: Call,
    sources: Vec<Source>,
    wanted: Vec<Wanted>,
    /// Time between the send of the request and its receipt.
    before: Duration,
    taken: Instant,
    /// Time between the send of the request and the start of its run.
    queue: Duration,
}

impl Job {
    /// Reads a request. If the request is invalid, sends the reason as the response, and returns
    /// the result of that send as `Err`.
    pub fn read(call: Call, client: &Client, signature: &Signature) -> Result<Self, tensorlend::Result<()>> {
        let (before, taken) = (since(&call), Instant::now());
        let read = sources_of(&call, client, signature);
        let (sources, wanted) = match read {
            Ok(read) => read,
            Err(why) => return Err(call.fail(why)),
        };
        let job = Self { call, sources, wanted, before, taken, queue: Duration::ZERO };
        match signature.check(&job.feeds()) {
            Ok(()) => Ok(job),
            Err(why) => Err(job.fail(&why)),
        }
    }

    /// Returns the inputs, in the signature's order.
    pub fn feeds(&self) -> Vec<Feed<'_>> {
        self.sources.iter().map(|source| self.feed(source)).collect()
    }

    fn feed<'j>(&'j self, source: &'j Source) -> Feed<'j> {
        let tensor = match source {
            Source::Made { dtype, shape, data } => return Feed { dtype: *dtype, shape, bytes: data.bytes() },
            Source::Leased(lease) => lease,
            Source::Brought(member) => brought(&self.call, member.as_deref()).expect("it was there when it was read"),
        };
        let bytes = tensor.row_major_bytes().expect("another one was put in order");
        Feed { dtype: tensor.dtype(), shape: bytemuck::cast_slice(tensor.shape()), bytes }
    }

    /// Returns the requested outputs, by their numbers in the signature.
    pub fn wanted(&self) -> Vec<usize> {
        self.wanted.iter().map(|wanted| wanted.output).collect()
    }

    /// Returns the first dimension of the inputs. Returns `None` if it is not the same for all
    /// inputs.
    pub fn rows(&self) -> Option<u64> {
        let mut rows = self.feeds().into_iter().map(|feed| feed.shape.first().copied());
        let first = rows.next().flatten().filter(|&rows| rows > 0)?;
        rows.all(|rows| rows == Some(first)).then_some(first)
    }

    /// Returns true if the inputs of both jobs have the same element types, and the same shapes except for the first
    /// dimension.
    pub fn is_like(&self, other: &Self) -> bool {
        let rest = |feed: &Feed<'_>| (feed.dtype, feed.shape.get(1..).map(<[u64]>::to_vec));
        self.feeds().iter().map(rest).eq(other.feeds().iter().map(rest))
    }

    /// Records the start of the run, and returns the time since the send of the request.
    pub fn begin(&mut self) -> Duration {
        self.queue = self.before + self.taken.elapsed();
        self.queue
    }

    /// Returns the time of the request's receipt.
    pub fn taken(&self) -> Instant {
        self.taken
    }

    /// Announces to the caller that the response comes soon, so that the caller wakes up.
    pub fn soon(&self) {
        self.call.soon();
    }

    /// Sends the reason for a failure as the response.
    pub fn fail(self, why: &str) -> tensorlend::Result<()> {
        self.call.fail(why)
    }

    /// Publishes the outputs for which the request gives a name, and sends the other outputs as the
    /// response. `outputs` are the requested outputs in shared memory, in the order of
    /// [`Job::wanted`]. `run` is the duration of the run.
    ///
    /// # Errors
    /// The reason why the caller got an error, or got no response.
    pub fn answer(self, client: &Client, outputs: Vec<Output>, run: Duration) -> Result<(), tensorlend::Error> {
        let Self { call, wanted, sources, queue, .. } = self;
        drop(sources);
        let put_together = || -> tensorlend::Result<_> {
            let mut answer = client.dataset();
            let mut told = ModelAnswer { queue, run, versions: BTreeMap::new() };
            for (wanted, output) in wanted.into_iter().zip(outputs) {
                let draft = match output.buffer {
                    Buffer::Lent(draft) => draft,
                    Buffer::Owned(own) => {
                        let mut draft = client.create(output.dtype, &output.shape)?;
                        draft.copy_from(own.bytes())?;
                        draft
                    }
                };
                match wanted.to {
                    Some(name) => drop(told.versions.insert(wanted.name, draft.publish(&name)?)),
                    None => answer = answer.add(&wanted.name, draft)?,
                }
            }
            told.write(client, answer)
        };
        match put_together() {
            Ok(answer) => call.respond(answer),
            Err(error) => {
                call.fail(format!("its outputs could not be written: {error}"))?;
                Err(error)
            }
        }
    }
}

fn sources_of(call: &Call, client: &Client, signature: &Signature) -> Result<(Vec<Source>, Vec<Wanted>), String> {
    let document = match call.value() {
        Value::Dataset(dataset) => RequestDocument::parse(dataset.metadata())?,
        Value::Tensor(_) if signature.inputs.len() == 1 => RequestDocument::parse(b"")?,
        _ => return Err("a request is a dataset whose members are the model's inputs by name".into()),
    };
    let mut named: Vec<Option<&str>> = vec![None; signature.inputs.len()];
    for (input, tensor) in &document.inputs {
        let at = signature.input(input)?;
        if named[at].replace(tensor).is_some() {
            return Err(format!("input {input:?} is named by its name and by its place"));
        }
    }
    let mut prepare: Vec<&[Step]> = vec![&[]; signature.inputs.len()];
    for (input, steps) in &document.prepare {
        prepare[signature.input(input)?] = steps;
    }
    let members = members(call.value(), signature, &named)?;
    let mut sources = Vec::with_capacity(signature.inputs.len());
    for (((port, name), member), steps) in signature.inputs.iter().zip(named).zip(members).zip(prepare) {
        let context = |why: String| format!("input {:?}: {why}", port.name);
        let source = if let Some(name) = name {
            let lease = client.get(name).map_err(|error| context(error.to_string()))?;
            made(&lease, steps).map_err(context)?.unwrap_or(Source::Leased(lease))
        } else {
            let tensor = brought(call, member.as_deref())
                .ok_or_else(|| format!("input {:?} is missing: the model takes {port}", port.name))?;
            made(tensor, steps).map_err(context)?.unwrap_or(Source::Brought(member))
        };
        sources.push(source);
    }
    let wanted = if document.outputs.is_empty() {
        let all = signature.outputs.iter().enumerate();
        all.map(|(output, port)| Wanted { output, name: port.name.clone(), to: None }).collect()
    } else {
        let some = document.outputs.into_iter();
        some.map(|(name, to)| Ok(Wanted { output: signature.output(&name)?, name, to }))
            .collect::<Result<_, String>>()?
    };
    Ok((sources, wanted))
}

/// Finds the request's member for each input, by the input's name or position. Fails if an input is
/// both a member and a published value.
fn members(request: &Value, signature: &Signature, named: &[Option<&str>]) -> Result<Vec<Option<String>>, String> {
    let mut members: Vec<Option<String>> = vec![None; signature.inputs.len()];
    if let Value::Dataset(dataset) = request {
        for (member, tensor) in dataset.members() {
            if tensor.uuid().is_some() {
                return Err(format!(
                    "input {member:?} is on a device, and the runner reads host memory: send a copy in host memory"
                ));
            }
            let at = signature.input(member)?;
            if named[at].is_some() {
                return Err(format!("input {member:?} is brought along, and named as a tensor of the namespace too"));
            }
            if let Some(other) = members[at].replace(member.to_owned()) {
                return Err(format!("{other:?} and {member:?} are one input, and both are brought along"));
            }
        }
    }
    Ok(members)
}

fn brought<'c>(call: &'c Call, member: Option<&str>) -> Option<&'c Tensor> {
    match (call.value(), member) {
        (Value::Dataset(dataset), Some(member)) => dataset.get(member),
        (Value::Tensor(lease), None) => Some(lease),
        _ => None,
    }
}

/// Copies a tensor that the engine cannot use in place, because the tensor has strides or must be
/// prepared.
fn made(tensor: &Tensor, steps: &[Step]) -> Result<Option<Source>, String> {
    let dtype = tensor.dtype();
    let ordered = if tensor.row_major_bytes().is_some() {
        None
    } else {
        // The length of the copy is limited, because a small tensor with strides of 0 can describe
        // arbitrarily many elements.
        if tensor.nbytes() as u64 > ORDERED_BYTES_MAX {
            return Err(format!(
                "{} bytes with strides, and {ORDERED_BYTES_MAX} are the most that is put in order here: publish it row-major",
                tensor.nbytes()
            ));
        }
        let mut data = OwnedBytes::new(tensor.nbytes());
        tensor.copy_to(data.bytes_mut()).map_err(|error| error.to_string())?;
        Some(data)
    };
    let shape: &[u64] = bytemuck::cast_slice(tensor.shape());
    if steps.is_empty() {
        return Ok(ordered.map(|data| Source::Made { dtype, shape: shape.to_vec(), data }));
    }
    let bytes = match &ordered {
        Some(data) => data.bytes(),
        None => tensor.row_major_bytes().unwrap_or_default(),
    };
    let image = prepare::apply(steps, Feed { dtype, shape, bytes })?;
    Ok(Some(Source::Made { dtype: image.dtype, shape: image.shape, data: image.data }))
}

/// Returns the time since the send of a request. The request's timestamp is from a clock that all
/// processes of the machine share.
fn since(call: &Call) -> Duration {
    let Value::Dataset(dataset) = call.value() else { return Duration::ZERO };
    match dataset.timestamp() {
        0 => Duration::ZERO,
        sent_ns => Duration::from_nanos(monotonic_ns().saturating_sub(sent_ns)),
    }
}
