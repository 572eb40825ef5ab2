//! A tensor on a device, and the objects that keep its memory in place.

use crate::cuda_stream::CudaStream;
use crate::errors::{ResultExt, named, raise};
use crate::strided::Layout;
use crate::view::{self, Reads, gone};
use pyo3::prelude::*;
use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend::{Device, DevicePin, DeviceTensor, Error, Member, Uuid, Value, Version};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// A tensor on a device that Python objects and capsules view.
pub struct DeviceView {
    layout: Layout,
    /// Offset of the first element from the tensor's start.
    byte_offset: u64,
    /// The device, by its number in this process.
    pub device: Device,
    /// The device's UUID, the same in every process.
    pub uuid: Uuid,
    /// The address of the first element. Unset before the first request for the address.
    start: OnceLock<u64>,
    /// The lease or the draft. It is declared before `streams`, because its drop waits for the
    /// streams that it has recorded.
    owner: Owner,
    streams: Mutex<Vec<Py<PyAny>>>,
    forks: u64,
}

enum Owner {
    Lease(Box<tensorlend::DeviceLease>),
    /// A member of a leased dataset. The streams are recorded here, and not on the dataset, because
    /// this view keeps their Python objects alive.
    Member {
        reads: Reads,
        dataset: Arc<Value>,
        at: usize,
    },
    Draft(Arc<Drafted>),
}

/// The owner of a draft's memory.
pub struct Drafted {
    owner: view::Drafted<tensorlend::DeviceDraft, DevicePin>,
    /// The possible writers of the memory.
    workers: Mutex<Workers>,
}

#[derive(Clone, Copy, Default)]
struct Workers {
    /// A consumer has the memory's address.
    shown: bool,
    /// A consumer that named no stream has the memory's address.
    unnamed: bool,
    /// The caller has named streams.
    named: bool,
}

impl Drafted {
    /// Waits for the work on a draft that was taken. If the caller named streams, this function
    /// waits for those. Otherwise it waits for the streams of all consumers, or for all streams if
    /// a consumer named none.
    pub fn finish(&self, draft: &mut tensorlend::DeviceDraft) -> Result<(), Error> {
        if self.is_anywhere() { draft.finish_all().map(drop) } else { draft.finish().map(drop) }
    }

    /// Returns true if the streams of the pending work are unknown.
    pub fn is_anywhere(&self) -> bool {
        let workers = *lock(&self.workers);
        workers.unnamed && !workers.named
    }
}

impl Deref for Drafted {
    type Target = view::Drafted<tensorlend::DeviceDraft, DevicePin>;

    fn deref(&self) -> &Self::Target {
        &self.owner
    }
}

impl Drop for Drafted {
    fn drop(&mut self) {
        if self.is_anywhere() {
            // Ignore a failed wait. After such a failure the context is broken, and executes no
            // further work. A published draft needs no wait.
            let _ = self.with(|draft| draft.finish_all().map(drop));
        }
    }
}

impl Owner {
    /// Returns the leased tensor.
    fn tensor(&self) -> Result<&DeviceTensor, Error> {
        match self {
            Self::Lease(lease) => Ok(lease),
            Self::Member { dataset, at, .. } => match dataset.as_dataset().and_then(|it| it.member_at(*at)) {
                Some(Member::Device(member)) => member.tensor(),
                _ => Err(Error::Argument(format!("the dataset has no tensor with number {at} on a device"))),
            },
            Self::Draft(_) => Err(Error::Argument("the tensor is a draft, and no process has leased it".into())),
        }
    }
}

impl Deref for DeviceView {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.layout
    }
}

impl DeviceView {
    /// Returns the view of a leased tensor.
    pub fn leased(lease: tensorlend::DeviceLease) -> Self {
        Self::of(Owner::Lease(Box::new(lease))).expect("a lease has its tensor")
    }

    /// Returns the view of a dataset's member, which must be on a device. Maps the member's memory.
    pub fn member(py: Python<'_>, dataset: &Arc<Value>, at: usize) -> PyResult<Self> {
        let owner = Owner::Member { reads: Reads::default(), dataset: dataset.clone(), at };
        py.detach(|| Self::of(owner)).or_raise()
    }

    fn of(owner: Owner) -> Result<Self, Error> {
        let tensor = owner.tensor()?;
        let (device, uuid, byte_offset) = (tensor.device(), tensor.uuid(), tensor.byte_offset() as u64);
        let (layout, start, forks) = (Layout::leased(tensor, false), OnceLock::new(), fork::generation());
        Ok(Self { layout, byte_offset, device, uuid, start, owner, streams: Mutex::default(), forks })
    }

    /// Returns the view of a draft. `stream` is the stream that the caller named for it.
    pub fn drafted(draft: tensorlend::DeviceDraft, stream: Option<CudaStream>) -> (Self, Arc<Drafted>) {
        let (device, uuid, spec) = (draft.device(), draft.uuid(), draft.spec());
        let workers = Workers { named: stream.is_some(), shown: stream.is_some(), unnamed: false };
        let drafted = Arc::new(Drafted { owner: view::Drafted::new(draft), workers: Mutex::new(workers) });
        let view = Self {
            byte_offset: spec.byte_offset as u64,
            layout: Layout::drafted(spec),
            device,
            uuid,
            start: OnceLock::new(),
            owner: Owner::Draft(drafted.clone()),
            streams: Mutex::new(stream.and_then(|stream| stream.owner).into_iter().collect()),
            forks: fork::generation(),
        };
        (view, drafted)
    }

    /// Checks that the view belongs to this process, because CUDA does not work in a forked child.
    pub fn check(&self) -> PyResult<()> {
        if self.forks == fork::generation() {
            return Ok(());
        }
        Err(named(
            "Error",
            "this tensor was leased or drafted by the parent process, and CUDA works in no child that was forked after it was \
             used: start processes with \"spawn\", and get it there"
                .into(),
        ))
    }

    /// Returns the leased tensor; `None` for a draft.
    pub fn tensor(&self) -> Option<&DeviceTensor> {
        self.owner.tensor().ok()
    }

    /// Returns the version of the leased value, and whether the session of the lease still exists;
    /// `None` for a draft.
    pub fn held(&self) -> Option<(Version, bool)> {
        match &self.owner {
            Owner::Lease(lease) => Some((lease.version(), lease.validate())),
            Owner::Member { dataset, .. } => Some((dataset.version(), dataset.validate())),
            Owner::Draft(_) => None,
        }
    }

    /// Returns the address of the first element.
    pub fn start(&self) -> PyResult<u64> {
        if let Some(start) = self.start.get() {
            return Ok(*start);
        }
        let begin = match &self.owner {
            Owner::Draft(drafted) => drafted.with(|draft| Ok(draft.ptr())).or_raise()?,
            owner => owner.tensor().or_raise()?.ptr(),
        };
        Ok(*self.start.get_or_init(|| begin + self.byte_offset))
    }

    /// Returns the layout and the device, as `repr` shows them.
    pub fn text(&self) -> String {
        format!("{} on {}", self.layout.text(), self.device)
    }

    /// Calls `change` with the draft, if the view is of an open draft.
    pub fn with_draft<R>(&self, change: impl FnOnce(&mut tensorlend::DeviceDraft) -> Result<R, Error>) -> PyResult<R> {
        let Owner::Draft(drafted) = &self.owner else { return Err(raise(gone())) };
        drafted.with(change).or_raise()
    }

    /// Copies elements into the draft. The elements are in C order, or have the given strides,
    /// which must be the draft's.
    pub fn fill(&self, strides: Option<&[i64]>, bytes: &[u8]) -> Result<(), Error> {
        let Owner::Draft(drafted) = &self.owner else { return Err(gone()) };
        if !self.is_row_major() && strides != Some(&*self.strides) {
            let text = "the array's axes lie in another order than the draft's: give the array the draft's strides";
            return Err(Error::Argument(text.into()));
        }
        drafted.with(|draft| draft.copy_from_bytes(bytes))
    }

    fn keep(&self, owner: Option<Py<PyAny>>) {
        lock(&self.streams).extend(owner);
    }

    /// Records a stream that the caller named. The stream's work uses the memory.
    pub fn record(&self, given: CudaStream) -> PyResult<()> {
        match &self.owner {
            Owner::Lease(lease) => lease.record_stream(&given.recorded).or_raise()?,
            Owner::Member { reads, dataset, .. } => {
                self.owner.tensor().and_then(|tensor| tensor.check_stream(&given.recorded)).or_raise()?;
                reads.add(dataset, self.uuid.into(), given);
                return Ok(());
            }
            Owner::Draft(drafted) => {
                self.with_draft(|draft| draft.record_stream(&given.recorded).map(drop))?;
                let mut workers = lock(&drafted.workers);
                (workers.named, workers.shown) = (true, true);
            }
        }
        self.keep(given.owner);
        Ok(())
    }

    /// Prepares the use of the memory on this stream. Orders later work on the stream after the
    /// recorded streams and after the producer's work, and records the stream.
    pub fn order(&self, py: Python<'_>, given: CudaStream) -> PyResult<()> {
        match &self.owner {
            Owner::Lease(lease) => {
                // Release the interpreter's lock, because it takes time to detect a dead producer.
                if lease.is_early() {
                    py.detach(|| lease.wait(&given.stream)).or_raise()?;
                }
                lease.record_stream(&given.recorded).or_raise()?;
            }
            // The producer's work is done: a dataset is published after it.
            Owner::Member { .. } => return self.record(given),
            Owner::Draft(drafted) => {
                self.with_draft(|draft| {
                    draft.wait(&given.stream)?;
                    draft.record_stream(&given.recorded).map(drop)
                })?;
                lock(&drafted.workers).shown = true;
            }
        }
        self.keep(given.owner);
        Ok(())
    }

    /// Prepares the use of the memory by a consumer that names no stream. The draft then waits for all streams. A lease
    /// waits for all streams that are ordered with the legacy default stream.
    pub fn show_unnamed(&self) -> PyResult<()> {
        match &self.owner {
            Owner::Lease(lease) => lease.record_stream(&tensorlend::OnStream::LEGACY).map_err(raise),
            Owner::Member { .. } => self.record(CudaStream::new(1)),
            Owner::Draft(drafted) => {
                let mut workers = lock(&drafted.workers);
                (workers.unnamed, workers.shown) = (true, true);
                Ok(())
            }
        }
    }

    /// Returns true if work on the memory may be pending. For a lease, this is the producer's work;
    /// for a draft, the work of its consumers.
    pub fn is_pending(&self) -> bool {
        match &self.owner {
            Owner::Lease(lease) => lease.is_early(),
            Owner::Member { .. } => false,
            Owner::Draft(drafted) => lock(&drafted.workers).shown,
        }
    }
}
