//! A tensor in memory, and what keeps it there.
#![allow(unsafe_code)]

use crate::errors::{OrRaise, named};
use crate::fault::{self, Kind, Noted};
use crate::strided::is_packed;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};
use tensorlend::{Client, CopyOnWrite, DType, Pin, Tensor, Value};
use tensorlend_os::fork;

/// A tensor that Python's objects, arrays and capsules look at. Whoever holds it may read what it shows; whoever shows it for
/// writing answers for that.
pub struct View {
    /// Element type.
    pub dtype: DType,
    /// Sizes, in elements.
    pub shape: Box<[i64]>,
    /// Strides, in elements.
    pub strides: Box<[i64]>,
    /// Whether those who look may write.
    pub writable: bool,
    start: Start,
    keeper: Keeper,
    /// Which process has it mapped.
    forks: u64,
    _noted: Option<Noted>,
}

/// The address of the first element.
struct Start(*mut u8);

// SAFETY: an address. Who reads or writes there answers for it: see `View::start`.
unsafe impl Send for Start {}
// SAFETY: as above.
unsafe impl Sync for Start {}

/// What keeps a tensor where it is.
enum Keeper {
    /// A lease, on one tensor or on a dataset, and which of its tensors this is.
    Lease(Arc<Value>, usize),
    /// The same, privately writable.
    Private(Arc<CopyOnWrite>, usize),
    /// A draft: this process's own, until it is published and, by a pin, after it.
    Draft(#[expect(dead_code, reason = "it is there to be held")] Arc<Drafted>),
    /// A copy.
    Heap(#[expect(dead_code, reason = "it is there to be held")] Box<[u8]>),
}

/// The memory of a draft: in the draft until it is published, then kept by a pin if somebody may still look.
#[derive(Default)]
pub struct Drafted {
    /// Until it is published.
    pub draft: Mutex<Option<tensorlend::Draft>>,
    /// From then on.
    pub pin: Mutex<Option<Pin>>,
}

/// The tensors of a value in host memory, in their order.
pub fn members(value: &Value) -> &[Tensor] {
    match value {
        Value::Tensor(lease) => std::slice::from_ref(&**lease),
        Value::Dataset(dataset) => dataset.tensors(),
        _ => unreachable!("others have views of their own"),
    }
}

/// The name of one of a dataset's tensors; `None` for what is one tensor.
fn member(value: &Value, at: usize) -> Option<&str> {
    value.as_dataset().and_then(|dataset| dataset.iter().nth(at)).map(|(name, _)| name)
}

/// Notes where a tensor lies, for the message of a fault there.
fn noted(kind: Kind, tensor: &Tensor, start: *const u8, name: &str, member: Option<&str>) -> Noted {
    fault::note(kind, start, tensor.bytes().len(), name, member)
}

/// As [`noted`], of one that is leased without a view.
pub fn noted_lent(value: &Value, at: usize, name: &str) -> Noted {
    let tensor = &members(value)[at];
    noted(Kind::leased(name), tensor, tensor.bytes().as_ptr(), name, member(value, at))
}

impl View {
    /// A tensor under a lease, found by `name`.
    pub fn leased(value: Arc<Value>, at: usize, name: &str) -> Self {
        let tensor = &members(&value)[at];
        let start = tensor.bytes().as_ptr().cast_mut().wrapping_add(tensor.byte_offset() as usize);
        let noted = noted(Kind::leased(name), tensor, tensor.bytes().as_ptr(), name, member(&value, at));
        Self { _noted: Some(noted), ..Self::of(tensor, start, false, Keeper::Lease(value.clone(), at)) }
    }

    /// The tensors of a value that was found by `name`, privately writable.
    pub fn private(py: Python<'_>, value: Value, client: &Client, name: &str) -> PyResult<Vec<Self>> {
        let mut copy = py.detach(|| value.copy_on_write(client)).or_raise()?;
        let count = members(copy.value()).len();
        let starts: Vec<Start> = (0..count).map(|at| Start(copy.bytes_mut(at).as_mut_ptr())).collect();
        let copy = Arc::new(copy);
        let views = starts.into_iter().enumerate().map(|(at, Start(bytes))| {
            let tensor = &members(copy.value())[at];
            let start = bytes.wrapping_add(tensor.byte_offset() as usize);
            let noted = noted(Kind::Private, tensor, bytes, name, member(copy.value(), at));
            Self { _noted: Some(noted), ..Self::of(tensor, start, true, Keeper::Private(copy.clone(), at)) }
        });
        Ok(views.collect())
    }

    fn of(tensor: &Tensor, start: *mut u8, writable: bool, keeper: Keeper) -> Self {
        Self {
            dtype: tensor.dtype(),
            shape: tensor.shape().iter().map(|&d| d as i64).collect(),
            strides: tensor.strides().into(),
            writable,
            start: Start(start),
            keeper,
            forks: fork::generation(),
            _noted: None,
        }
    }

    /// Whether it is this process's: a forked child has nothing mapped there.
    pub fn check(&self) -> PyResult<()> {
        if self.forks == fork::generation() || matches!(self.keeper, Keeper::Heap(_)) {
            return Ok(());
        }
        Err(named("Error", "this tensor was leased or drafted by the parent process: get it in the child".into()))
    }

    /// A draft, to be published as `name`.
    pub fn drafted(mut draft: tensorlend::Draft, name: Option<&str>) -> (Self, Arc<Drafted>) {
        let spec = draft.spec();
        let shape: Box<[i64]> = spec.shape.iter().map(|&d| d as i64).collect();
        let strides = spec.strides.map_or_else(|| row_major(&shape), Into::into);
        let bytes = draft.bytes_mut();
        let noted = fault::note(Kind::Draft, bytes.as_ptr(), bytes.len(), name.unwrap_or_default(), None);
        let start = bytes.as_mut_ptr().wrapping_add(spec.byte_offset as usize);
        let drafted = Arc::new(Drafted { draft: Mutex::new(Some(draft)), pin: Mutex::default() });
        let keeper = Keeper::Draft(drafted.clone());
        (
            Self {
                dtype: spec.dtype,
                shape,
                strides,
                writable: true,
                start: Start(start),
                keeper,
                forks: fork::generation(),
                _noted: Some(noted),
            },
            drafted,
        )
    }

    /// A byte of its own, as what is lent looks: to try with whom it can be shared.
    pub fn sample() -> Self {
        let mut bytes = Box::new([0u8]);
        Self {
            dtype: DType::U8,
            shape: [1].into(),
            strides: [1].into(),
            writable: false,
            start: Start(bytes.as_mut_ptr()),
            keeper: Keeper::Heap(bytes),
            forks: fork::generation(),
            _noted: None,
        }
    }

    /// A copy of its own, in C order.
    pub fn copied(&self) -> Self {
        let mut bytes = vec![0; self.nbytes()].into_boxed_slice();
        let shape: Vec<u64> = self.shape.iter().map(|&d| d as u64).collect();
        // SAFETY: all elements of a view can be read as long as it lives.
        unsafe { crate::strided::gather(self.start(), &shape, &self.byte_strides(), self.item(), &mut bytes) };
        let start = Start(bytes.as_mut_ptr());
        let strides = row_major(&self.shape);
        Self {
            dtype: self.dtype,
            shape: self.shape.clone(),
            strides,
            writable: true,
            start,
            keeper: Keeper::Heap(bytes),
            forks: self.forks,
            _noted: None,
        }
    }

    /// The address of the first element. It and all elements can be read as long as this lives, and written if it says so: by
    /// Python's rules, which leave races between threads to those who make them.
    pub fn start(&self) -> *mut u8 {
        self.start.0
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

    /// Whether the elements lie in C order, one behind the other.
    pub fn is_row_major(&self) -> bool {
        let axes = self.shape.iter().copied().zip(self.strides.iter().copied());
        self.shape.contains(&0) || is_packed(axes.rev(), 1)
    }

    /// What was leased: the value, and which of its tensors this is; `None` for a draft or a copy.
    pub fn value(&self) -> Option<&Value> {
        match &self.keeper {
            Keeper::Lease(value, _) => Some(value),
            Keeper::Private(copy, _) => Some(copy.value()),
            Keeper::Draft(_) | Keeper::Heap(_) => None,
        }
    }

    /// The tensor that was leased.
    pub fn tensor(&self) -> Option<&Tensor> {
        let (Keeper::Lease(_, at) | Keeper::Private(_, at)) = &self.keeper else { return None };
        self.value().map(|value| &members(value)[*at])
    }
}

/// Strides in elements, C order.
pub fn row_major(shape: &[i64]) -> Box<[i64]> {
    let mut strides = vec![0; shape.len()];
    let mut next = 1;
    for (stride, dim) in strides.iter_mut().zip(shape).rev() {
        *stride = next;
        next *= dim.max(&1);
    }
    strides.into()
}
