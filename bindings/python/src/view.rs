//! A tensor in memory, and the object that keeps the memory in place.
#![allow(unsafe_code)]

use crate::cuda_stream::CudaStream;
use crate::errors::{ResultExt, argument, closed, named, raise};
use crate::fault::{self, Kind, Noted};
use crate::strided::Layout;
use pyo3::prelude::*;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use tensorlend::{Client, CopyOnWrite, DType, Error, Member, On, Pin, Tensor, TensorSpec, Value, Version};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// A tensor that Python objects, arrays and capsules view. Code that holds a view may read the
/// elements. Code that exports a view as writable is responsible for the writes.
pub struct View {
    layout: Layout,
    start: Start,
    /// The streams whose work reads the tensor. Declared before `owner`, because the owner's lease
    /// must outlast that work.
    reads: Reads,
    owner: Owner,
    /// The fork generation of the process in which the tensor is mapped.
    forks: u64,
    _noted: Option<Noted>,
}

/// The address of the first element.
struct Start(*mut u8);

// SAFETY: the type is only an address. Code that uses the address is responsible for its reads and
// writes, as `View::start` states.
unsafe impl Send for Start {}
// SAFETY: the type is only an address, which never changes.
unsafe impl Sync for Start {}

/// The object that keeps a tensor in place.
enum Owner {
    /// A lease on a tensor or a dataset, and the index of this tensor.
    Lease(Arc<Value>, usize),
    /// A leased value in a private, writable mapping.
    Private(Arc<CopyOnWrite>, usize),
    /// A draft of this process or, once it is published, the pin of its memory.
    Draft(#[expect(dead_code, reason = "it is there to be held")] Arc<Drafted>),
    /// A private copy of the elements.
    Heap(#[expect(dead_code, reason = "it is there to be held")] Box<[u8]>),
}

/// Work of streams that reads a leased value. The drop of this object extends the lease until the
/// streams have done the work queued by then.
#[derive(Default)]
pub struct Reads(Mutex<Vec<Read>>);

struct Read {
    value: Arc<Value>,
    on: On,
    given: CudaStream,
}

impl Reads {
    /// Records a stream on a device, whose work reads the value.
    pub fn add(&self, value: &Arc<Value>, on: On, given: CudaStream) {
        let mut reads = lock(&self.0);
        // Handle 2 means another stream in each thread. Such streams are recorded as the legacy
        // default stream.
        if !reads.iter().any(|read| read.on == on && read.given.recorded.as_raw() == given.recorded.as_raw()) {
            reads.push(Read { value: value.clone(), on, given });
        }
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        for Read { value, on, given } in lock(&self.0).drain(..) {
            // An error means that the device or this process's context is lost. Then the work is lost, too.
            let _ = value.drop_after(on, &given.recorded);
            drop(given.owner);
        }
    }
}

/// The owner of a draft's memory: the draft until it is published, and then a pin, if an array may still view the
/// memory.
pub struct Drafted<D = tensorlend::Draft, P = Pin> {
    /// The draft; `None` once it is published or dropped.
    draft: Mutex<Option<D>>,
    /// The pin of the published memory, if an array may still view it.
    pin: Mutex<Option<P>>,
}

impl<D, P> Drafted<D, P> {
    /// Creates the owner of an open draft.
    pub fn new(draft: D) -> Self {
        Self { draft: Mutex::new(Some(draft)), pin: Mutex::default() }
    }

    /// Calls `change` with the draft, if it is open.
    pub fn with<R>(&self, change: impl FnOnce(&mut D) -> Result<R, Error>) -> Result<R, Error> {
        change(lock(&self.draft).as_mut().ok_or_else(gone)?)
    }

    /// Takes the draft for publication. `pin` pins its memory, if an array may still view it. If `pin` fails, the
    /// remaining views keep the draft, as if this object were dropped.
    pub fn take(&self, pin: impl FnOnce(&mut D) -> Result<Option<P>, Error>) -> PyResult<D> {
        let mut draft = lock(&self.draft).take().ok_or_else(gone).or_raise()?;
        match pin(&mut draft) {
            Ok(pin) => *lock(&self.pin) = pin,
            Err(error) => {
                *lock(&self.draft) = Some(draft);
                return Err(raise(error));
            }
        }
        Ok(draft)
    }
}

/// Returns the error for a draft that is not open.
#[cold]
pub fn gone() -> Error {
    closed("the draft was published or dropped already: create another one")
}

/// Returns the error for a lease that was released.
#[cold]
pub fn released() -> Error {
    closed("the lease was released: get the tensor again")
}

/// Returns the tensor with number `at` of a value, which must be in host memory.
pub fn host_tensor(value: &Value, at: usize) -> &Tensor {
    match value {
        Value::Tensor(lease) => lease,
        Value::Dataset(dataset) => match dataset.member_at(at) {
            Some(Member::Host(tensor)) => tensor,
            _ => unreachable!("members on devices have views of their own"),
        },
        _ => unreachable!("others have views of their own"),
    }
}

/// Returns the number of tensors of a value.
pub fn count(value: &Value) -> usize {
    value.as_dataset().map_or(1, tensorlend::Dataset::len)
}

/// Returns true if all tensors of a value are in host memory.
pub fn is_in_host_memory(value: &Value) -> bool {
    match value {
        Value::Tensor(_) => true,
        Value::Dataset(dataset) => dataset.tensors().len() == dataset.len(),
        _ => false,
    }
}

/// Returns the name of one of a dataset's tensors; `None` if the value is a single tensor.
fn member(value: &Value, at: usize) -> Option<&str> {
    value.as_dataset().and_then(|dataset| dataset.members().nth(at)).map(|(name, _)| name)
}

/// Adds a tensor's address to the table of [`crate::fault`].
fn noted(kind: Kind, tensor: &Tensor, start: *const u8, name: &str, member: Option<&str>) -> Noted {
    fault::note(kind, start, tensor.bytes().len(), name, member)
}

/// Adds the address of a tensor that is leased without a view to the table, as [`noted`] does.
pub fn noted_lent(value: &Value, at: usize, name: &str) -> Noted {
    let tensor = host_tensor(value, at);
    noted(Kind::Leased, tensor, tensor.bytes().as_ptr(), name, member(value, at))
}

impl Deref for View {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.layout
    }
}

impl View {
    fn new(layout: Layout, start: *mut u8, owner: Owner, noted: Option<Noted>) -> Self {
        let (start, reads, forks) = (Start(start), Reads::default(), fork::generation());
        Self { layout, start, reads, owner, forks, _noted: noted }
    }

    /// Returns the view of the tensor with index `at` in a value. `name` is the name by which the
    /// value was found.
    pub fn leased(value: Arc<Value>, at: usize, name: &str) -> Self {
        let tensor = host_tensor(&value, at);
        let start = tensor.bytes().as_ptr().cast_mut().wrapping_add(tensor.byte_offset());
        let noted = noted(Kind::Leased, tensor, tensor.bytes().as_ptr(), name, member(&value, at));
        Self::new(Layout::leased(tensor, false), start, Owner::Lease(value.clone(), at), Some(noted))
    }

    /// Returns private, writable views of a value's tensors. `name` is the name by which the value
    /// was found.
    pub fn private(py: Python<'_>, value: Value, client: &Client, name: &str) -> PyResult<Vec<Self>> {
        let mut copy = py.detach(|| value.copy_on_write(client)).or_raise()?;
        let count = count(copy.value());
        let starts: Vec<Start> = (0..count).map(|at| Start(copy.bytes_mut(at).as_mut_ptr())).collect();
        let copy = Arc::new(copy);
        let views = starts.into_iter().enumerate().map(|(at, Start(bytes))| {
            let tensor = host_tensor(copy.value(), at);
            let start = bytes.wrapping_add(tensor.byte_offset());
            let noted = noted(Kind::Private, tensor, bytes, name, member(copy.value(), at));
            Self::new(Layout::leased(tensor, true), start, Owner::Private(copy.clone(), at), Some(noted))
        });
        Ok(views.collect())
    }

    /// Checks that the memory is mapped in this process. A forked child has its parent's leases, and none of its drafts.
    pub fn check(&self) -> PyResult<()> {
        let is_here = match self.owner {
            Owner::Heap(_) => true,
            Owner::Lease(..) | Owner::Private(..) => fork::is_readable(self.forks),
            Owner::Draft(_) => self.forks == fork::generation(),
        };
        if is_here {
            return Ok(());
        }
        Err(named("ForkedError", "this tensor was leased or drafted by the parent process: get it in the child".into()))
    }

    /// Returns the view of a draft. `name` is the name under which the draft will be published.
    pub fn drafted(mut draft: tensorlend::Draft, name: Option<&str>) -> (Self, Arc<Drafted>) {
        let spec = draft.spec();
        let bytes = draft.bytes_mut();
        let noted = fault::note(Kind::Draft, bytes.as_ptr(), bytes.len(), name.unwrap_or_default(), None);
        let start = bytes.as_mut_ptr().wrapping_add(spec.byte_offset);
        let drafted = Arc::new(Drafted::new(draft));
        (Self::new(Layout::drafted(spec), start, Owner::Draft(drafted.clone()), Some(noted)), drafted)
    }

    /// Returns a read-only view of one private byte. It is used to test consumers.
    pub fn sample() -> Self {
        let mut bytes = Box::new([0u8]);
        let layout = Layout { writable: false, ..Layout::drafted(TensorSpec::new(DType::U8, &[1u64])) };
        Self::new(layout, bytes.as_mut_ptr(), Owner::Heap(bytes), None)
    }

    /// Returns a view of a private copy, in C order.
    pub fn copied(&self) -> Self {
        let mut bytes = vec![0; self.nbytes()].into_boxed_slice();
        // SAFETY: all elements of a view are readable as long as the view lives.
        unsafe { crate::strided::gather(self.start(), &self.sizes(), &self.byte_strides(), self.item(), &mut bytes) };
        let start = bytes.as_mut_ptr();
        Self { forks: self.forks, ..Self::new(self.layout.copied(), start, Owner::Heap(bytes), None) }
    }

    /// Returns the address of the first element. As long as this view lives, all elements are
    /// readable. They are writable if `writable` is true. Python's rules apply to races between
    /// threads, so callers are responsible for them.
    pub fn start(&self) -> *mut u8 {
        self.start.0
    }

    /// Returns the leased value; `None` for a draft or a copy.
    pub fn value(&self) -> Option<&Value> {
        match &self.owner {
            Owner::Lease(value, _) => Some(value),
            Owner::Private(copy, _) => Some(copy.value()),
            Owner::Draft(_) | Owner::Heap(_) => None,
        }
    }

    /// Returns the leased value and the tensor's index in it. Returns an error if the memory
    /// belongs to this process alone.
    pub fn leased_value(&self) -> PyResult<(&Arc<Value>, usize)> {
        let Owner::Lease(value, at) = &self.owner else {
            return Err(argument(
                "the tensor is a private copy: get it with mode=\"read\", or put its array with device=",
            ));
        };
        Ok((value, *at))
    }

    /// Extends the lease beyond the drop of this view, until the work of a stream on a device is
    /// done.
    pub fn record(&self, on: On, given: CudaStream) -> PyResult<()> {
        let (value, _) = self.leased_value()?;
        self.reads.add(value, on, given);
        Ok(())
    }

    /// Returns the version of the leased value, and whether the session of the lease still exists;
    /// `None` for a draft or a copy.
    pub fn held(&self) -> Option<(Version, bool)> {
        self.value().map(|value| (value.version(), value.validate()))
    }

    /// Returns the leased tensor; `None` for a draft or a copy.
    pub fn tensor(&self) -> Option<&Tensor> {
        let (Owner::Lease(_, at) | Owner::Private(_, at)) = &self.owner else { return None };
        self.value().map(|value| host_tensor(value, *at))
    }
}
