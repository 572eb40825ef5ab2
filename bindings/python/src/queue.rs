//! Queues: each item goes to one of several consumers.

use crate::arguments;
use crate::client::Client;
use crate::display;
use crate::end::ours;
use crate::errors::{ResultExt, argument};
use crate::lease::{Mode, Origin};
use crate::received::Received;
use crate::values::{To, drafted};
use crate::wait::{Awaited, timeout, wait};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::{PyRange, PyTuple};
use std::sync::Mutex;
use std::time::Duration;
use tensorlend::{Claim, Deadline, Feed, ValueDraft};
use tensorlend_os::fork;
use tensorlend_os::mutex::lock;

#[pymethods]
impl Client {
    /// Returns a queue. Each item of a queue goes to one of several consumers.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     The queue's name, which is the name of a list. The first item creates the list.
    /// maxsize : int, default 0
    ///     Maximum number of waiting items, at which `put` waits. All producers share one maximum: while the queue has items,
    ///     `put` with a different maximum raises ArgumentError. 0 is the maximum that another producer gave, or none.
    ///
    /// Returns
    /// -------
    /// Queue
    ///     The queue.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The name is invalid, or of another machine.
    #[pyo3(signature = (name, *, maxsize=0))]
    fn queue(
        slf: &Bound<'_, Self>,
        #[pyo3(from_py_with = arguments::name)] name: &str,
        #[pyo3(from_py_with = arguments::number)] maxsize: u64,
    ) -> PyResult<Queue> {
        let py = slf.py();
        let client = slf.get().session(py)?;
        let queue = py.detach(|| client.queue(name)).or_raise()?.max_waiting(maxsize);
        let (awaited, origin) = (slf.get().awaited(&client), slf.get().origin(name, false));
        let forks = fork::generation();
        Ok(Queue { inner: queue, owner: slf.clone().unbind(), client, awaited, origin, maxsize, forks })
    }
}

/// A queue with many producers and consumers, in which each item goes to one consumer.
/// `Client.queue` returns it.
///
/// A consumer confirms its item, by `QueueItem.done` or at the end of a `with` block. If the
/// consumer's process ends before that, another consumer gets the item. So an item is delivered
/// twice if a consumer did its work but was killed before it confirmed the item.
///
/// Notes
/// -----
/// Thread-safe. Only the process that created the object may use it.
///
/// Examples
/// --------
/// >>> jobs = client.queue("docs/jobs", maxsize=100)
/// >>> jobs.put([1.0, 2.0])
/// 0
/// >>> with jobs.get() as job:
/// ...     job.numpy()
/// array([1., 2.])
/// >>> jobs.empty()
/// True
#[pyclass(frozen, module = "tensorlend._native")]
pub struct Queue {
    inner: tensorlend::Queue,
    owner: Py<Client>,
    client: tensorlend::Client,
    awaited: Awaited,
    origin: Origin,
    maxsize: u64,
    forks: u64,
}

impl Queue {
    fn offer(&self, py: Python<'_>, draft: ValueDraft, limit: Option<f64>) -> PyResult<u64> {
        let limit = self::timeout(limit)?;
        let mut offer = py.detach(|| self.inner.offer(draft)).or_raise()?;
        wait(py, &self.awaited, limit, |slice| offer.wait(Some(slice)))
    }

    /// Confirms an item and returns the next one.
    fn receive(
        &self,
        py: Python<'_>,
        feed: &mut Feed,
        mut done: Option<Claim>,
        limit: Option<Duration>,
        mode: Mode,
    ) -> PyResult<QueueItem> {
        let next = |slice| feed.next(done.take(), Deadline::new(Some(slice)));
        let item = wait(py, &self.awaited, limit, next)?;
        let number = item.number();
        let (value, claim) = item.split();
        let received = Received::new(py, "item", &self.client, value, mode, self.origin.clone())?;
        Ok(QueueItem { received, claim: Mutex::new(Some(claim)), number, forks: self.forks })
    }
}

/// The items of a queue, one after the other. `Queue.items` returns it.
///
/// Each step confirms the previous item with the request that claims the next one. The end of the iterator gives back the last
/// item, unless the program has confirmed it.
///
/// Notes
/// -----
/// One thread at a time uses an iterator.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct QueueItems {
    queue: Py<Queue>,
    /// The claimed items, and the item of the last step. `None` while a thread waits for the next item.
    feed: Mutex<Option<(Feed, Option<Py<QueueItem>>)>>,
    limit: Option<Duration>,
    mode: Mode,
}

#[pymethods]
impl QueueItems {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Confirms the previous item, and returns the next one.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<QueueItem>>> {
        let queue = self.queue.get();
        ours(queue.forks)?;
        let taken = lock(&self.feed).take();
        let (mut feed, last) = taken.ok_or_else(|| {
            argument("another thread waits for the iterator's next item: give each thread an iterator of its own")
        })?;
        let done = last.and_then(|item| lock(&item.get().claim).take());
        let next = queue.receive(py, &mut feed, done, self.limit, self.mode).and_then(|item| Py::new(py, item));
        *lock(&self.feed) = Some((feed, next.as_ref().ok().map(|item| item.clone_ref(py))));
        match next {
            Ok(item) => Ok(Some(item)),
            Err(e) if e.is_instance_of::<PyTimeoutError>(py) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

#[pymethods]
impl Queue {
    /// Appends a tensor, or a mapping of several tensors. Waits while the queue is full.
    ///
    /// Parameters
    /// ----------
    /// item : array_like, Draft, tensor or mapping of these
    ///     The item. A mapping becomes a dataset.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
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
    ///     The item's number, counted from 0.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The queue was full during the whole timeout. If `item` was a Draft, it is closed.
    /// DTypeError
    ///     The elements cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (item, timeout=None, *, metadata=None, timestamp=0, device=None, stream=None))]
    fn put(
        &self,
        py: Python<'_>,
        item: &Bound<'_, PyAny>,
        timeout: Option<f64>,
        metadata: Option<&Bound<'_, PyAny>>,
        timestamp: u64,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        ours(self.forks)?;
        let to = To::parse(device, stream)?;
        let draft = drafted(&self.client, item, &to, metadata, timestamp)?;
        self.offer(py, draft, timeout)
    }

    /// Appends several items in one request, as adjacent items: all of them or none. Waits until the queue has room for all of
    /// them.
    ///
    /// For small items this takes less time than a `put` for each.
    ///
    /// Parameters
    /// ----------
    /// items : iterable of items
    ///     The items, each as `put` takes it: at most 1,024, and at most the queue's maximum, which another producer may have
    ///     given. An item with metadata is a Draft.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// device : str, int or device or None, default None
    ///     The memory of all items: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
    ///     or "cpu". None keeps the memory in which each array is.
    /// stream : int or stream or None, default None
    ///     The CUDA stream whose pending work writes arrays on a device: a handle, or a stream of torch, cupy, numba
    ///     or cuda.core. None is the stream of each array's producer.
    ///
    /// Returns
    /// -------
    /// range
    ///     The items' numbers, counted from 0; empty without items.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The queue had no room for all items during the whole timeout. Drafts among the items are closed.
    /// ArgumentError
    ///     There are more than 1,024 items, or more than the queue's maximum.
    /// DTypeError
    ///     The elements of an item cannot be lent.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (items, timeout=None, *, device=None, stream=None))]
    fn put_many<'py>(
        &self,
        py: Python<'py>,
        items: &Bound<'py, PyAny>,
        timeout: Option<f64>,
        device: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyRange>> {
        ours(self.forks)?;
        let (to, limit) = (To::parse(device, stream)?, self::timeout(timeout)?);
        let drafts = items.try_iter()?.map(|item| drafted(&self.client, &item?, &to, None, 0));
        let drafts: Vec<ValueDraft> = drafts.collect::<PyResult<_>>()?;
        let count = drafts.len() as isize;
        if count == 0 {
            return PyRange::new(py, 0, 0);
        }
        let mut offer = py.detach(|| self.inner.offer_many(drafts)).or_raise()?;
        let first = wait(py, &self.awaited, limit, |slice| offer.wait(Some(slice)))? as isize;
        PyRange::new(py, first, first + count)
    }

    /// Appends an object, as `Client.put_object` publishes one. `QueueItem.get_object` returns the
    /// object.
    ///
    /// Parameters
    /// ----------
    /// obj : object
    ///     Dicts, lists, text, numbers, arrays, Arrow data, frames, and anything that can be pickled.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    ///
    /// Returns
    /// -------
    /// int
    ///     The item's number, counted from 0.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The queue was full during the whole timeout.
    /// LimitError
    ///     A limit of the daemon's configuration, of this client or of the machine is reached.
    #[pyo3(signature = (obj, timeout=None))]
    fn put_object(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<u64> {
        ours(self.forks)?;
        let draft = py.import("tensorlend.objects")?.call_method1("_draft", (&self.owner, obj))?;
        let draft = drafted(&self.client, &draft, &To::default(), None, 0)?;
        self.offer(py, draft, timeout)
    }

    /// Claims the first item that waits. Waits while the queue is empty.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// QueueItem
    ///     The item. Use it as a context manager, or call `done`.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The queue was empty during the whole timeout.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended.
    #[pyo3(signature = (timeout=None, *, mode="read"))]
    fn get(&self, py: Python<'_>, timeout: Option<f64>, mode: &str) -> PyResult<QueueItem> {
        ours(self.forks)?;
        let (mode, limit) = (Mode::parse(mode)?, self::timeout(timeout)?);
        self.receive(py, &mut self.inner.feed(1), None, limit, mode)
    }

    /// Confirms an item, and claims the first item that waits, in one request. Waits while the queue is empty.
    ///
    /// The confirmation counts before the wait, and whatever happens then.
    ///
    /// Parameters
    /// ----------
    /// done : QueueItem
    ///     The item to confirm. If it was confirmed or given back already, this only claims.
    /// timeout : float or None, default None
    ///     Maximum wait in seconds; None waits without limit.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// QueueItem
    ///     The next item. Use it as a context manager, or call `done` or `Queue.next`.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     The queue was empty the whole time.
    /// DisconnectedError
    ///     The client was closed, or the daemon has ended. The client confirms the item with its next request.
    #[pyo3(signature = (done, timeout=None, *, mode="read"))]
    fn next(&self, py: Python<'_>, done: &QueueItem, timeout: Option<f64>, mode: &str) -> PyResult<QueueItem> {
        ours(self.forks)?;
        let (mode, limit) = (Mode::parse(mode)?, self::timeout(timeout)?);
        let claim = lock(&done.claim).take();
        self.receive(py, &mut self.inner.feed(1), claim, limit, mode)
    }

    /// Returns an iterator over the queue's items. Each step confirms the previous item with the request that claims the next
    /// one.
    ///
    /// An exception in the loop and `break` give the last item back; call `QueueItem.done` before `break` to confirm it.
    ///
    /// Parameters
    /// ----------
    /// timeout : float or None, default None
    ///     The iteration ends, without a TimeoutError, when the queue has been empty for this many seconds; None waits
    ///     without limit.
    /// prefetch : int, default 1
    ///     Maximum number of items that one request claims, from 1 to 64. With more than 1, up to that many finished items are
    ///     delivered again if this process ends, and no other consumer gets the items that wait here.
    /// mode : {"read", "cow"}, default "read"
    ///     "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
    ///     a page copies it.
    ///
    /// Returns
    /// -------
    /// QueueItems
    ///     The iterator.
    #[pyo3(signature = (timeout=None, *, prefetch=1, mode="read"))]
    fn items(
        slf: &Bound<'_, Self>,
        timeout: Option<f64>,
        #[pyo3(from_py_with = arguments::number)] prefetch: u8,
        mode: &str,
    ) -> PyResult<QueueItems> {
        let queue = slf.get();
        ours(queue.forks)?;
        if !(1..=64).contains(&prefetch) {
            return Err(argument(format!("prefetch is from 1 to 64, not {prefetch}")));
        }
        let (mode, limit) = (Mode::parse(mode)?, self::timeout(timeout)?);
        let feed = Mutex::new(Some((queue.inner.feed(prefetch), None)));
        Ok(QueueItems { queue: slf.clone().unbind(), feed, limit, mode })
    }

    /// Returns the number of items that wait for a consumer. Sends a request to the daemon.
    ///
    /// Returns
    /// -------
    /// int
    ///     Number of items, without those that a consumer has claimed.
    fn qsize(&self, py: Python<'_>) -> PyResult<u64> {
        ours(self.forks)?;
        py.detach(|| self.inner.waiting()).or_raise()
    }

    /// Returns the number of items that consumers have claimed and not confirmed. Sends a request
    /// to the daemon.
    ///
    /// Returns
    /// -------
    /// int
    ///     Number of items.
    fn claimed(&self, py: Python<'_>) -> PyResult<u64> {
        ours(self.forks)?;
        py.detach(|| self.inner.claimed()).or_raise()
    }

    /// Returns whether no item waits for a consumer. Sends a request to the daemon.
    ///
    /// Returns
    /// -------
    /// bool
    ///     True if no item waits. Consumers may still give claimed items back.
    fn empty(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.qsize(py)? == 0)
    }

    /// The queue's name.
    #[getter]
    fn name(&self) -> &str {
        self.inner.name()
    }

    /// The number of waiting items from which `put` waits; 0 for no maximum.
    #[getter]
    fn maxsize(&self) -> u64 {
        self.maxsize
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.qsize(py)? as usize)
    }

    // Without this method, Python would use the queue's length as its truth value, which needs a
    // request to the daemon.
    #[allow(clippy::unused_self, reason = "Python calls it as a method")]
    fn __bool__(&self) -> bool {
        true
    }

    fn __repr__(&self) -> String {
        format!("<Queue {}>", display::quoted(self.inner.name()))
    }
}

/// An item that this consumer has claimed. No other consumer gets the item unless this one gives it
/// back.
///
/// As a context manager, the object confirms the item at the end of the block, and gives the item
/// back after an exception. Deleting the object also gives back an item that is not confirmed.
///
/// Notes
/// -----
/// Thread-safe.
#[pyclass(frozen, module = "tensorlend._native")]
pub struct QueueItem {
    received: Received,
    claim: Mutex<Option<Claim>>,
    number: u64,
    forks: u64,
}

impl QueueItem {
    fn take(&self) -> PyResult<Claim> {
        ours(self.forks)?;
        lock(&self.claim).take().ok_or_else(|| argument("the item was confirmed or given back already"))
    }
}

#[pymethods]
impl QueueItem {
    /// The item: a Lease, a DeviceLease or a Dataset.
    #[getter]
    fn value(&self, py: Python<'_>) -> Py<PyAny> {
        self.received.value(py)
    }

    /// The item's number, counted from 0.
    #[getter]
    fn number(&self) -> u64 {
        self.number
    }

    /// Returns a numpy array that views the tensor in place, and keeps it alive.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     The array; read-only unless the mode is "cow".
    ///
    /// Raises
    /// ------
    /// TypeError
    ///     The item is a dataset.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.received.numpy(py)
    }

    /// Returns an object that `Queue.put_object` appended. Arrays in the object view shared memory
    /// and keep it alive.
    ///
    /// Parameters
    /// ----------
    /// trust_pickle : bool, default False
    ///     Whether to load pickles in the object, which lets its producer run any code here.
    ///
    /// Returns
    /// -------
    /// object
    ///     The object.
    ///
    /// Raises
    /// ------
    /// UntrustedPickleError
    ///     The object contains a pickle, and `trust_pickle` is False.
    #[pyo3(signature = (*, trust_pickle=false))]
    fn get_object<'py>(&self, py: Python<'py>, trust_pickle: bool) -> PyResult<Bound<'py, PyAny>> {
        let value = self.received.tensor(py)?;
        py.import("tensorlend.objects")?.call_method1("_value", (value, trust_pickle))
    }

    /// Confirms the item. The daemon then deletes the item.
    ///
    /// Returns
    /// -------
    /// bool
    ///     False if the claim had ended, because the queue was cleared, or the daemon was replaced
    ///     and another consumer has the item.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The item is already confirmed or given back.
    /// DisconnectedError
    ///     No daemon responded. The client confirms the item with its next request. If the client's
    ///     session ends before that, the item is delivered again.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        let claim = self.take()?;
        py.detach(|| claim.done()).or_raise()
    }

    /// Gives the item back. The next consumer that asks for an item gets this one.
    ///
    /// Raises
    /// ------
    /// ArgumentError
    ///     The item is already confirmed or given back.
    fn give_back(&self, py: Python<'_>) -> PyResult<()> {
        let claim = self.take()?;
        py.detach(|| claim.give_back()).or_raise()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*exception))]
    fn __exit__(&self, py: Python<'_>, exception: &Bound<'_, PyTuple>) -> PyResult<bool> {
        let failed = exception.get_item(0).is_ok_and(|kind| !kind.is_none());
        // The block may have confirmed the item already, or given it back.
        match self.take() {
            Ok(claim) if failed => py.detach(|| claim.give_back()).or_raise()?,
            Ok(claim) => drop(py.detach(|| claim.done()).or_raise()?),
            Err(_) => {}
        }
        Ok(false)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<QueueItem {} of {}>", self.number, self.received.repr(py)?))
    }
}
