//! A tensor on a device, and what keeps it there.

use super::stream::Given;
use crate::draft::lock;
use crate::errors::{OrRaise, argument, named, raise};
use crate::strided::is_packed;
use crate::view::row_major;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, OnceLock};
use tensorlend::{DType, Device, DevicePin, Error, Uuid};
use tensorlend_os::fork;

/// A tensor on a device that Python's objects and capsules look at.
pub struct DeviceView {
    /// Element type.
    pub dtype: DType,
    /// Sizes, in elements.
    pub shape: Box<[i64]>,
    /// Strides, in elements.
    pub strides: Box<[i64]>,
    /// Where the first element is, from where the tensor begins.
    byte_offset: u64,
    /// The device's number here.
    pub device: Device,
    /// Its name everywhere.
    pub uuid: Uuid,
    /// Where the first element is, since somebody asked.
    start: OnceLock<u64>,
    /// Objects whose streams are recorded: after what they are recorded on.
    keeper: Keeper,
    streams: Mutex<Vec<Py<PyAny>>>,
    forks: u64,
}

enum Keeper {
    Lease(Box<tensorlend::DeviceLease>),
    Draft(Arc<Drafted>),
}

/// The memory of a draft: in the draft until it is published, then kept by a pin if somebody may still look.
pub struct Drafted {
    /// Until it is published.
    pub draft: Mutex<Option<tensorlend::DeviceDraft>>,
    /// From then on.
    pub pin: Mutex<Option<DevicePin>>,
    /// Who may be at work on it.
    workers: Mutex<Workers>,
}

#[derive(Clone, Copy, Default)]
struct Workers {
    /// It was shown to somebody.
    shown: bool,
    /// It was shown to somebody who named no stream.
    unnamed: bool,
    /// The caller has named streams.
    named: bool,
}

impl Drafted {
    /// Waits for the work on a draft that was taken out: in the streams that the caller named; else, in those of all who look,
    /// or in all if one of them did not say.
    pub fn finish(&self, draft: &mut tensorlend::DeviceDraft) -> Result<(), Error> {
        if self.is_anywhere() { draft.finish_all().map(drop) } else { draft.finish().map(drop) }
    }

    /// Whether nobody knows which streams its work is in.
    pub fn is_anywhere(&self) -> bool {
        let workers = *lock(&self.workers);
        workers.unnamed && !workers.named
    }
}

impl Drop for Drafted {
    fn drop(&mut self) {
        let anywhere = self.is_anywhere();
        if let Some(draft) = lock(&self.draft).as_mut().filter(|_| anywhere) {
            // A context that cannot be waited for is lost, and nothing runs there.
            let _ = draft.finish_all();
        }
    }
}

const GONE: &str = "the draft was published or dropped already: create another one";

#[cold]
pub fn gone() -> PyErr {
    argument(GONE)
}

impl DeviceView {
    /// A tensor under a lease.
    pub fn leased(lease: tensorlend::DeviceLease) -> Self {
        Self {
            dtype: lease.dtype(),
            shape: lease.shape().iter().map(|&d| d as i64).collect(),
            strides: lease.strides().into(),
            byte_offset: lease.byte_offset(),
            device: lease.device(),
            uuid: lease.uuid(),
            start: OnceLock::new(),
            keeper: Keeper::Lease(Box::new(lease)),
            streams: Mutex::default(),
            forks: fork::generation(),
        }
    }

    /// A draft, and streams that were named for it.
    pub fn drafted(draft: tensorlend::DeviceDraft, stream: Option<Given>) -> (Self, Arc<Drafted>) {
        let spec = draft.spec();
        let shape: Box<[i64]> = spec.shape.iter().map(|&d| d as i64).collect();
        let strides = spec.strides.map_or_else(|| row_major(&shape), Into::into);
        let (device, uuid) = (draft.device(), draft.uuid());
        let workers = Workers { named: stream.is_some(), shown: stream.is_some(), unnamed: false };
        let drafted = Drafted { draft: Mutex::new(Some(draft)), pin: Mutex::default(), workers: Mutex::new(workers) };
        let drafted = Arc::new(drafted);
        let view = Self {
            dtype: spec.dtype,
            shape,
            strides,
            byte_offset: spec.byte_offset,
            device,
            uuid,
            start: OnceLock::new(),
            keeper: Keeper::Draft(drafted.clone()),
            streams: Mutex::new(stream.and_then(|stream| stream.keeper).into_iter().collect()),
            forks: fork::generation(),
        };
        (view, drafted)
    }

    /// Whether it is this process's: CUDA does not go on in a forked child.
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

    /// The lease, if it is one.
    pub fn lease(&self) -> Option<&tensorlend::DeviceLease> {
        match &self.keeper {
            Keeper::Lease(lease) => Some(lease),
            Keeper::Draft(_) => None,
        }
    }

    /// Where the first element is.
    pub fn start(&self) -> PyResult<u64> {
        if let Some(start) = self.start.get() {
            return Ok(*start);
        }
        let begin = match &self.keeper {
            Keeper::Lease(lease) => lease.ptr(),
            Keeper::Draft(drafted) => lock(&drafted.draft).as_ref().ok_or_else(gone)?.ptr(),
        };
        Ok(*self.start.get_or_init(|| begin + self.byte_offset))
    }

    /// Whether those who look may write.
    pub fn is_writable(&self) -> bool {
        matches!(self.keeper, Keeper::Draft(_))
    }

    /// Bytes of one element.
    pub fn item(&self) -> usize {
        self.dtype.item_bytes()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Bytes of all elements.
    pub fn nbytes(&self) -> usize {
        self.elements() * self.item()
    }

    /// Strides, in bytes.
    pub fn byte_strides(&self) -> Vec<i64> {
        self.strides.iter().map(|s| s * self.item() as i64).collect()
    }

    /// Changes the draft.
    pub fn with_draft<R>(&self, change: impl FnOnce(&mut tensorlend::DeviceDraft) -> Result<R, Error>) -> PyResult<R> {
        let Keeper::Draft(drafted) = &self.keeper else { return Err(gone()) };
        let mut draft = lock(&drafted.draft);
        change(draft.as_mut().ok_or_else(gone)?).or_raise()
    }

    /// Whether the elements lie in C order.
    pub fn is_row_major(&self) -> bool {
        let axes = self.shape.iter().copied().zip(self.strides.iter().copied());
        self.shape.contains(&0) || is_packed(axes.rev(), 1)
    }

    /// Copies elements into the draft that lie in its own order: in C order, or with these strides.
    pub fn fill(&self, strides: Option<&[i64]>, bytes: &[u8]) -> Result<(), Error> {
        let closed = || Error::Argument(GONE.into());
        let Keeper::Draft(drafted) = &self.keeper else { return Err(closed()) };
        if !self.is_row_major() && strides != Some(&*self.strides) {
            let text = "the array's axes lie in another order than the draft's: give the array the draft's strides";
            return Err(Error::Argument(text.into()));
        }
        lock(&drafted.draft).as_mut().ok_or_else(closed)?.copy_from_bytes(bytes)
    }

    fn keep(&self, keeper: Option<Py<PyAny>>) {
        lock(&self.streams).extend(keeper);
    }

    /// The caller says that work in this stream uses it.
    pub fn record(&self, given: Given) -> PyResult<()> {
        match &self.keeper {
            Keeper::Lease(lease) => lease.record_stream(&given.recorded).or_raise()?,
            Keeper::Draft(drafted) => {
                self.with_draft(|draft| draft.record_stream(&given.recorded).map(drop))?;
                let mut workers = lock(&drafted.workers);
                (workers.named, workers.shown) = (true, true);
            }
        }
        self.keep(given.keeper);
        Ok(())
    }

    /// Somebody is about to use it in this stream: what is put there from now on begins after what was recorded, and after the
    /// producer's work. It is recorded.
    pub fn order(&self, py: Python<'_>, given: Given) -> PyResult<()> {
        match &self.keeper {
            Keeper::Lease(lease) => {
                // It may take a while to learn that a producer is gone.
                if lease.is_early() {
                    py.detach(|| lease.wait(&given.stream)).or_raise()?;
                }
                lease.record_stream(&given.recorded).or_raise()?;
            }
            Keeper::Draft(drafted) => {
                self.with_draft(|draft| {
                    draft.wait(&given.stream)?;
                    draft.record_stream(&given.recorded).map(drop)
                })?;
                lock(&drafted.workers).shown = true;
            }
        }
        self.keep(given.keeper);
        Ok(())
    }

    /// Somebody is about to use it who names no stream. A draft then waits for all of them; a lease for all that wait for the legacy
    /// default stream.
    pub fn show_unnamed(&self) -> PyResult<()> {
        match &self.keeper {
            Keeper::Lease(lease) => lease.record_stream(&tensorlend::OnStream::LEGACY).map_err(raise),
            Keeper::Draft(drafted) => {
                let mut workers = lock(&drafted.workers);
                (workers.unnamed, workers.shown) = (true, true);
                Ok(())
            }
        }
    }

    /// Whether work on it may be under way: the producer's, or of those that a draft was shown to.
    pub fn is_pending(&self) -> bool {
        match &self.keeper {
            Keeper::Lease(lease) => lease.is_early(),
            Keeper::Draft(drafted) => lock(&drafted.workers).shown,
        }
    }
}
