//! The methods of `Client` for lists.

use crate::arguments;
use crate::client::Client;
use crate::errors::{ResultExt, argument};
use crate::event_loop::{Ticket, Wakeups};
use crate::lease::Mode;
use crate::received::show;
use crate::values::{To, drafted};
use crate::wait::{timeout, wait};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::PyList;
use tensorlend::Length;

/// Returns a condition on a list's length.
fn wanted(length: u64, op: &str) -> PyResult<Length> {
    match op {
        ">=" => Ok(Length::AtLeast(length)),
        "==" => Ok(Length::Exactly(length)),
        "<=" => Ok(Length::AtMost(length)),
        _ => Err(argument(format!("op {op:?}: use \">=\", \"==\" or \"<=\""))),
    }
}

#[pymethods]
impl Client {
    /// Returns the lists whose names match a pattern.
    ///
    /// Parameters
    /// ----------
    /// glob : str, default "*"
    ///     A pattern, in which "*" stands for any text.
    ///
    /// Returns
    /// -------
    /// list of (str, int)
    ///     Name and length of each list.
    #[pyo3(signature = (glob="*"))]
    fn lists(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] glob: &str,
    ) -> PyResult<Vec<(String, u64)>> {
        let client = self.session(py)?;
        let found = py.detach(|| client.lists(glob)).or_raise()?;
        Ok(found.into_iter().map(|one| (one.name, one.count)).collect())
    }

    /// Fetches the missing items of another machine's list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name, "NODE/LIST".
    ///
    /// Returns
    /// -------
    /// int
    ///     The number of the list's items on this machine after the call.
    ///
    /// Raises
    /// ------
    /// RemoteError
    ///     The node cannot be reached or refuses, or this machine's gateway does not respond.
    fn fetch_list(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<u64> {
        let client = self.session(py)?;
        py.detach(|| client.remote().fetch_list(name)).or_raise()
    }

    /// Appends a tensor, or a mapping of several tensors, to a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name. The first item creates the list.
    /// item : array_like, Draft, tensor or mapping of these
    ///     The item. A mapping becomes a dataset.
    /// metadata : mapping or bytes or None, default None
    ///     A dict, stored as JSON, or bytes; 64 KiB at most.
    /// timestamp : int, default 0
    ///     Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
    /// device : str, int or device or None, default None
    ///     The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
    ///     or "cpu". None keeps the memory in which the array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
    ///     or cuda.core. None is the stream of the array's producer.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the item.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name or another argument is invalid.
    /// DTypeError
    ///     The elements cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (name, item, *, metadata=None, timestamp=0, device=None, stream=None))]
    fn append(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        item: &Bound<'_, PyAny>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let to = To::parse(device, stream)?;
        let client = self.session(py)?;
        let draft = drafted(&client, item, &to, metadata, timestamp)?;
        py.detach(|| client.append(name, draft)).or_raise()
    }

    /// Appends copies of the present values of names to a list, as adjacent items. Readers see all
    /// of these items or none.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// names : sequence of str
    ///     The names of the values, at most 1,024.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the first of these items.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     One of the names has no value.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    fn append_names(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::names)] names: Vec<PyBackedStr>,
    ) -> PyResult<u64> {
        let client = self.session(py)?;
        let names: Vec<&str> = names.iter().map(|name| &**name).collect();
        py.detach(|| client.append_names(name, &names)).or_raise()
    }

    /// Returns the length of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    ///
    /// Returns
    /// -------
    /// int
    ///     Number of items; 0 if the list does not exist.
    fn length(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<u64> {
        Ok(self.session(py)?.length(name))
    }

    /// Waits until a list has a certain length.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// length : int
    ///     Number of items to wait for.
    /// op : {">=", "==", "<="}, default ">="
    ///     The comparison of the list's length with `length`.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// int
    ///     The list's length.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The list's length did not satisfy the condition within `timeout`.
    /// ArgumentError
    ///     `op` is none of these three comparisons.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (name, length, op=">=", timeout=None))]
    fn wait_length(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::number)] length: u64,
        op: &str,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let wanted = wanted(length, op)?;
        let (client, limit) = (self.session(py)?, self::timeout(timeout)?);
        wait(py, &self.awaited(&client), limit, |slice| client.wait_length(name, wanted, Some(slice)))
    }

    /// Returns the list's length as `wait_length` does, but without waiting. Returns None if the
    /// list has another length.
    fn _try_length(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        length: u64,
        op: &str,
    ) -> PyResult<Option<u64>> {
        let wanted = wanted(length, op)?;
        Ok(Some(self.session(py)?.length(name)).filter(|&length| wanted.is(length)))
    }

    /// Reports `number` to `wakeups` once `_try_length` may succeed.
    fn _tell_length(
        &self,
        py: Python<'_>,
        wakeups: &Wakeups,
        number: u64,
        name: &str,
        length: u64,
        op: &str,
    ) -> PyResult<Ticket> {
        let wanted = wanted(length, op)?;
        Ok(self.notifications(py)?.length(name, wanted, wakeups.tell(number)).or_raise()?.into())
    }

    /// Leases all items of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// list of Lease, DeviceLease or Dataset
    ///     The items in their order.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    #[pyo3(signature = (name, *, mode="read"))]
    fn get_all<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        mode: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        self.get_range(py, name, 0, u64::MAX, mode)
    }

    /// Leases adjacent items of a list.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    /// start : int
    ///     The index of the first item.
    /// stop : int
    ///     The index after the last item.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// list of Lease, DeviceLease or Dataset
    ///     The items in their order. Indices beyond the list's end are left out.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    #[pyo3(signature = (name, start, stop, *, mode="read"))]
    fn get_range<'py>(
        &self,
        py: Python<'py>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        start: u64,
        stop: u64,
        mode: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let mode = Mode::parse(mode)?;
        let client = self.session(py)?;
        let values = py.detach(|| match stop {
            u64::MAX => client.get_range(name, start..),
            _ => client.get_range(name, start..stop),
        });
        let origin = self.origin(name, false);
        let shown = values.or_raise()?.into_iter().map(|value| show(py, &client, value, mode, origin.clone()));
        PyList::new(py, shown.collect::<PyResult<Vec<_>>>()?)
    }

    /// Empties a list. Leases on its items stay valid.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The list's name.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the list did not exist.
    fn clear(&self, py: Python<'_>, #[pyo3(from_py_with = arguments::name)] name: &str) -> PyResult<bool> {
        let client = self.session(py)?;
        py.detach(|| client.clear(name)).or_raise()
    }

    /// Renames a list.
    ///
    /// Parameters
    /// ----------
    /// source : str
    ///     The present name.
    /// destination : str
    ///     The new name. A previous list of this name is replaced.
    ///
    /// Raises
    /// ------
    /// NotFoundError
    ///     There is no such list.
    fn rename_list(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = arguments::name)] source: &str,
        #[pyo3(from_py_with = arguments::name)] destination: &str,
    ) -> PyResult<()> {
        let client = self.session(py)?;
        py.detach(|| client.rename_list(source, destination)).or_raise()
    }
}
