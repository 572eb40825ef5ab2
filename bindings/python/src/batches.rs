//! An iterator over the values of many names. The iterator leases some values ahead.

use crate::context::context_manager;
use crate::display::type_name;
use crate::end::ours;
use crate::errors::{ResultExt, argument, not_leased};
use crate::lease::Origin;
use crate::library::Form;
use crate::options::Options;
use pyo3::exceptions::{PyException, PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyIterator, PyList, PyString, PyTuple, PyType};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tensorlend::Client;
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

/// An iterator over the values of many names, in their order. `Client.batches` returns it.
///
/// The iterator leases several values at once, ahead of their turn. Between two training steps, the
/// code and data of a lease leave the processor's caches. If several leases are taken together,
/// only the first one pays for the cache misses. The iterator's length is the number of values that
/// it has not returned yet, if the names have a length.
///
/// Notes
/// -----
/// One thread at a time may use the iterator. Only the process that opened the iterator may use it.
/// Close the iterator, or use it as a context manager. Closing releases the values that were leased
/// ahead.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Batches {
    client: Client,
    options: Arc<Options>,
    form: Form,
    ahead: usize,
    forks: u64,
    /// Number of values that the iterator has not returned yet; `None` if the names have no length.
    left: Mutex<Option<usize>>,
    /// The state; `None` while a call uses the state. A call takes the state out and releases the
    /// lock, because drawing names runs arbitrary code.
    state: Mutex<Option<State>>,
}

/// The state of the iteration.
struct State {
    /// The iterator of names; `None` after its end.
    names: Option<Py<PyIterator>>,
    /// A drawn name whose value could not be leased ahead. The iterator tries this name again when
    /// its turn comes.
    again: Option<Py<PyAny>>,
    /// The exception that ended the names. The iterator raises it when its turn comes.
    failed: Option<PyErr>,
    /// Values that were leased ahead.
    ready: VecDeque<Py<PyAny>>,
}

impl State {
    /// Draws the next name, or the next batch of several names.
    fn draw<'py>(&mut self, py: Python<'py>) -> Option<PyResult<Bound<'py, PyAny>>> {
        if let Some(again) = self.again.take() {
            return Some(Ok(again.into_bound(py)));
        }
        if let Some(error) = self.failed.take() {
            return Some(Err(error));
        }
        let drawn = self.names.as_ref()?.bind(py).clone().next();
        if !matches!(drawn, Some(Ok(_))) {
            self.names = None;
        }
        drawn
    }
}

impl Batches {
    /// Creates an iterator over the names that `names` yields.
    pub fn new(
        client: Client,
        options: Arc<Options>,
        names: &Bound<'_, PyAny>,
        form: Form,
        ahead: usize,
    ) -> PyResult<Self> {
        if ahead == 0 {
            return Err(argument("ahead is how many batches are leased at once: 1 or more"));
        }
        if names.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("names are an iterable of names: give a list, also of one"));
        }
        let left = Mutex::new(names.len().ok());
        let names = Some(names.try_iter()?.unbind());
        let state = State { names, again: None, failed: None, ready: VecDeque::new() };
        Ok(Self { client, options, form, ahead, forks: fork::generation(), left, state: Mutex::new(Some(state)) })
    }

    fn take(&self) -> PyResult<State> {
        lock(&self.state)
            .take()
            .ok_or_else(|| PyValueError::new_err("another call takes from these batches already: wait for it"))
    }

    /// Leases the next value and as many following values as exist. Returns the first value.
    fn fill(&self, py: Python<'_>, state: &mut State) -> PyResult<Option<Py<PyAny>>> {
        let mut first = None;
        for _ in 0..self.ahead {
            let names = match state.draw(py) {
                None => break,
                Some(Ok(names)) => names,
                Some(Err(error)) if first.is_none() => return Err(error),
                // Raise Ctrl-C at once, and keep the leased values for the next call.
                Some(Err(error)) if !error.is_instance_of::<PyException>(py) => {
                    state.ready.extend(first);
                    state.ready.rotate_right(1);
                    return Err(error);
                }
                Some(Err(error)) => {
                    state.failed = Some(error);
                    break;
                }
            };
            match self.batch(py, &names, first.is_none()) {
                Ok(Some(batch)) if first.is_none() => first = Some(batch),
                Ok(Some(batch)) => state.ready.push_back(batch),
                Err(error) if first.is_none() => return Err(error),
                Ok(None) | Err(_) => {
                    state.again = Some(names.unbind());
                    break;
                }
            }
        }
        Ok(first)
    }

    /// Leases the value of a name, or the values of several names. Returns `None` if a value does
    /// not exist on this machine and its turn has not come.
    fn batch(&self, py: Python<'_>, names: &Bound<'_, PyAny>, its_turn: bool) -> PyResult<Option<Py<PyAny>>> {
        if let Ok(name) = names.cast::<PyString>() {
            return self.one(py, name.to_str()?, its_turn);
        }
        if !names.is_instance_of::<PyTuple>() && !names.is_instance_of::<PyList>() {
            return Err(PyTypeError::new_err(format!(
                "a batch must be a name (str) or a tuple of names, not {}",
                type_name(names)
            )));
        }
        let several: Vec<Bound<'_, PyString>> = names.extract()?;
        let all =
            several.iter().map(|name| self.one(py, name.to_str()?, its_turn)).collect::<PyResult<Option<Vec<_>>>>();
        all?.map(|all| Ok(PyTuple::new(py, all)?.into_any().unbind())).transpose()
    }

    fn one(&self, py: Python<'_>, name: &str, its_turn: bool) -> PyResult<Option<Py<PyAny>>> {
        let here = || self.client.get_here(name);
        // Release the interpreter's lock, because the driver of a device may be slow.
        let found = if self.client.lends_devices() { py.detach(here) } else { here() };
        let value = match found.or_raise()? {
            Some(value) => value,
            None if its_turn => {
                let found = py.detach(|| self.client.get_value(name));
                found.map_err(|error| not_leased(&self.client, name, error))?
            }
            None => return Ok(None),
        };
        let origin = || Origin { options: self.options.clone(), name: name.into(), named: true, member: None };
        self.form.show(py, &self.client, value, name, origin).map(Some)
    }
}

context_manager!(Batches, |batches, _py| batches.close()?);

#[pymethods]
impl Batches {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        ours(self.forks)?;
        let mut state = self.take()?;
        let next = match state.ready.pop_front() {
            Some(batch) => Ok(Some(batch)),
            None => self.fill(py, &mut state),
        };
        *lock(&self.state) = Some(state);
        if let (Ok(Some(_)), Some(left)) = (&next, &mut *lock(&self.left)) {
            *left = left.saturating_sub(1);
        }
        next
    }

    fn __len__(&self) -> PyResult<usize> {
        let left = *lock(&self.left);
        left.ok_or_else(|| {
            PyTypeError::new_err("these batches have no length, because their names have none: pass a list")
        })
    }

    // Without this method, an iterator that has returned its last value would be false.
    #[allow(clippy::unused_self, reason = "Python calls it as a method")]
    fn __bool__(&self) -> bool {
        true
    }

    /// Ends the iteration, and releases the values that were leased ahead.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     Another thread is taking a value.
    fn close(&self) -> PyResult<()> {
        let before = self.take()?;
        *lock(&self.state) = Some(State { names: None, again: None, failed: None, ready: VecDeque::new() });
        // Drop the values without holding the lock, because a tensor's destructor may run code that
        // uses this iterator.
        drop(before);
        Ok(())
    }

    #[classmethod]
    fn __class_getitem__<'py>(class: &Bound<'py, PyType>, item: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        crate::display::generic(class, item)
    }

    fn __repr__(&self) -> String {
        let state = match &*lock(&self.state) {
            Some(state) if state.names.is_none() && state.again.is_none() && state.ready.is_empty() => "ended".into(),
            Some(state) => format!("{} leased ahead", state.ready.len()),
            None => "in use".into(),
        };
        format!("<Batches, up to {} ahead, {state}>", self.ahead)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // If a call has taken the state, that call keeps the objects alive. Then there is nothing
        // to visit.
        if let Ok(held) = self.state.try_lock()
            && let Some(state) = &*held
        {
            visit.call(&state.names)?;
            visit.call(&state.again)?;
            state.ready.iter().try_for_each(|batch| visit.call(batch))?;
        }
        Ok(())
    }

    fn __clear__(&self) {
        let before = lock(&self.state).take();
        drop(before);
    }
}
