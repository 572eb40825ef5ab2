"""The compiled part of tensorlend: Python classes over the Rust client library.

The docstrings are those of the compiled module: `python bindings/python/tests/stubs.py` copies them into this file.
"""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from types import EllipsisType, GenericAlias, TracebackType
from typing import Any, Generic, Literal, Never, NoReturn, final, overload

import numpy as np
import numpy.typing as npt

# If torch is not installed, its tensors have the type Any.
from torch import Tensor as _TorchTensor  # type: ignore[import-not-found,unused-ignore]  # pyright: ignore
from typing_extensions import Buffer, CapsuleType, Self, TypeVar

from tensorlend._refs import TensorRef
from tensorlend._types import AnyDType, CudaStream, Metadata, Mode, Policy, Start, Stat, Steps, TorchDevice, Value

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True, default=_AnyValue)
# The type of a tensor's elements, as for np.ndarray.
_S = TypeVar("_S", bound=np.generic)
_S_co = TypeVar("_S_co", bound=np.generic, covariant=True, default=Any)

_Shape = int | Sequence[int]
# The names of one batch: one name, or several.
_BatchNames = str | tuple[str, ...] | list[str]
# A dtype with a known type of elements.
_DTypeOf = type[_S] | np.dtype[_S]
# "cuda:0", "GPU-...", "cpu", a number, or a Device of this module or of torch.
_Device = str | int | Device | TorchDevice
# A tensor in host memory, or on a device.
_Leased = Lease | DeviceLease
_AnyValue = Lease | DeviceLease | Dataset
_Item = Value | Mapping[str, Value]
_Array = npt.NDArray[Any]
_Options = dict[str, Any]
# None: the response has all outputs. Names: the response has these. A dict: the name under which each is published, or None for
# the response.
_Outputs = Sequence[str] | Mapping[str, str] | Mapping[str, str | None] | None
_Prepare = Mapping[str, Steps] | None
# Needed because `list` in the class Client is the method.
_Names = list[str]
_Counts = list[tuple[str, int]]
_Dicts = list[dict[str, Any]]
_Values = list[_AnyValue]
_Infos = list[Info]
_Devices = list[Device]
_Numbers = list[int]
_Objects = list[Any]
# Called with the number of extensions around it, its code and its bytes.
_Extension = Callable[[int, int, bytes], Any]

__all__ = [
    "Batches",
    "Call",
    "Caller",
    "Cancel",
    "Client",
    "Dataset",
    "Device",
    "DeviceDraft",
    "DeviceLease",
    "Draft",
    "Embedded",
    "Info",
    "Lease",
    "LegacyExport",
    "Message",
    "Model",
    "Queue",
    "QueueItem",
    "QueueItems",
    "Recipe",
    "Server",
    "Stream",
    "Subscription",
    "Version",
    "__build__",
    "__version__",
    "_Descriptor",
    "_Rows",
    "_Ticket",
    "_Wakeups",
    "_send_receipt",
    "_watch_faults",
    "connect",
    "daemon",
    "embedded",
    "tool",
]

__build__: str
__version__: str

def connect(
    address: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    *,
    namespace: str | None = None,
    label: str | None = None,
    harden: bool = False,
    memory_limit: int | None = None,
    request_timeout: float | None = None,
) -> Client:
    """Connects to a running daemon.

    If the daemon does not respond, this call raises DisconnectedError after `request_timeout`. So
    does each later call that sends a request.

    Parameters
    ----------
    address : str, path or sequence of these, default None
        The daemon's socket, or several that are tried in order. None tries $TENSORLEND_SOCKET, the user's daemon, then
        the system's.
    namespace : str or None, default None
        The namespace to join. None joins this user's private namespace.
    label : str or None, default None
        A name for this client, which `tensorlend ls` shows.
    harden : bool, default False
        Protects this process from other processes of the same user, which can then neither trace it
        nor take its descriptors. The process writes no core dumps.
    memory_limit : int or None, default None
        Maximum bytes of shared memory that this client may take.
    request_timeout : float or None, default None
        Seconds after which a request fails if the daemon does not respond. None is 30 s. If the daemon has ended, a request waits
        for the next daemon for this time, but for 5 s at most.

    Returns
    -------
    Client
        An open session. Close it, or use it as a context manager.

    Raises
    ------
    DisconnectedError
        No daemon listens at any of the addresses.
    PermissionError
        This user may not join the namespace.
    IncompatibleError
        The daemon is of another version, or the kernel is too old.
    ArgumentError
        `request_timeout` is negative.
    """

def embedded(config: str | None = None) -> Embedded:
    """Starts a daemon in a thread of this process.

    Parameters
    ----------
    config : str or None, default None
        A configuration in TOML, as in a configuration file of tensorlendd. None is the default
        configuration.

    Returns
    -------
    Embedded
        The running daemon. Close it, or use it as a context manager.

    Raises
    ------
    ArgumentError
        The configuration is invalid.
    DaemonStartError
        The daemon could not start.

    Examples
    --------
    >>> import tensorlend
    >>> with tensorlend.embedded('pool.bytes_max = "256MiB"') as daemon, daemon.connect() as client:
    ...     _ = client.put("x", [1.0, 2.0])
    ...     client.get("x").shape
    (2,)
    """

def tool(arguments: Sequence[str], again: Sequence[str]) -> int:
    """Runs the command-line tool, and returns its exit status. `again` is the command with which the
    tool starts itself, with more arguments.
    """

def _send_receipt(address: bytes, receipt: bytes) -> bool: ...
def _watch_faults() -> None: ...
def daemon(arguments: Sequence[str]) -> int:
    """Runs the daemon, and returns its exit status."""

@final
class Embedded:
    """A daemon in a thread of this process, for tests and small programs.

    The daemon has its own socket and memory, and needs no service and no root. Child processes can
    connect to its address.

    Notes
    -----
    Thread-safe. Close this object, or use it as a context manager. Closing stops the daemon and
    disconnects its clients. The end of the process has the same effect.
    """

    @property
    def address(self) -> str:
        """The daemon's socket, to which clients of any process can connect."""

    def connect(
        self, *, namespace: str | None = None, label: str | None = None, memory_limit: int | None = None
    ) -> Client:
        """Connects to this daemon.

        The client keeps the daemon alive. So `embedded().connect()` gives a program its own daemon
        until the client is closed.

        Parameters
        ----------
        namespace : str or None, default None
            The namespace to join. None joins this user's private namespace.
        label : str or None, default None
            A name for this client, which `tensorlend ls` shows.
        memory_limit : int or None, default None
            Maximum bytes of shared memory that this client may take.

        Returns
        -------
        Client
            An open session.

        Raises
        ------
        DisconnectedError
            The daemon was closed.
        """

    def close(self) -> None:
        """Stops the daemon, and disconnects its clients."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...

@final
class Client:
    """A session with the daemon, in one namespace.

    `connect` and `Embedded.connect` open a session. Each value has a name, and is visible to every
    client of the namespace.

    Notes
    -----
    Thread-safe: any thread may use the client. In a forked child, and after unpickling, the client
    opens a new session. Published values outlive the client. Waits release the interpreter's lock,
    and Ctrl-C ends them.
    """

    # It raises a TypeError that names `connect`.
    def __new__(cls, *_arguments: Never, **_options: Never) -> Self: ...
    @property
    def namespace(self) -> str:
        """The namespace's name."""

    @property
    def address(self) -> list[Path]:
        """The sockets that the client tries, in order."""

    @property
    def daemon_version(self) -> str:
        """The daemon's version: the release, the commit and its date, and the newest protocol and layout.

        `tensorlend.__build__` is the same for this package.
        """

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    @property
    def _options(self) -> dict[str, Any]: ...
    def close(self) -> None:
        """Ends the session as soon as its leases, drafts, streams and subscriptions are gone.

        Waits in other threads, on the client or on its objects, raise DisconnectedError.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(self, *_exception: object) -> Coroutine[Any, Any, None]: ...
    def __reduce__(self) -> tuple[Callable[..., Client], tuple[Any, ...]]: ...
    def _repr_html_(self) -> str: ...
    def put(
        self,
        name: str,
        value: Value,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Version:
        """Publishes a copy of an array under a name. The array is copied once, and never serialized.

        The order of axes in memory is kept, for example Fortran order. An array with gaps or negative strides is
        stored in C order.

        Parameters
        ----------
        name : str
            The name. A previous value is replaced; leases on it stay valid.
        value : array_like, Draft or tensor
            An array of any shape with elements of a numeric dtype, a tensor that supports DLPack,
            or a draft of this client, which is published without a copy.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        ttl : float or None, default None
            Time to live in seconds, after which the name ends; None for no limit.
        ephemeral : bool, default False
            Whether the name ends with this client's session.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        ArgumentError
            The name, the metadata or another argument is invalid.
        DTypeError
            The elements cannot be lent: objects, structures, text, dates, or another byte order.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        PermissionError
            This user may not write to the namespace.

        Examples
        --------
        >>> version = client.put("weights", np.zeros((2, 3), np.float32), metadata={"epoch": 3})
        >>> client.get("weights").metadata["epoch"]
        3
        """

    @overload
    def create(
        self,
        shape: _Shape,
        dtype: _DTypeOf[_S],
        *,
        name: str | None = None,
        strides: Sequence[int] | None = None,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: None = None,
        stream: None = None,
    ) -> Draft[_S]:
        """Creates a tensor in shared memory. The program writes the tensor in place and publishes it.

        Parameters
        ----------
        shape : int or sequence of int
            Sizes, in elements.
        dtype : dtype or None, default None
            A dtype as for `numpy.dtype`, a dtype of torch, or a name of ml_dtypes. None is float64.
        name : str or None, default None
            The name under which `publish`, or the end of `with`, publishes it.
        strides : sequence of int or None, default None
            Strides in bytes, as numpy has them: multiples of the bytes of one element. None is C order.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        ttl : float or None, default None
            Time to live in seconds, after which the name ends; None for no limit.
        ephemeral : bool, default False
            Whether the name ends with this client's session.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch.
            None and "cpu" are host memory.
        stream : int or stream or None, default None
            The CUDA stream that will write a tensor on a device; None for host memory.

        Returns
        -------
        Draft or DeviceDraft
            The tensor; a DeviceDraft if `device` names a device. Its elements are undefined until they are written.

        Raises
        ------
        ArgumentError
            The shape, the strides or another argument is invalid.
        DTypeError
            Elements of this dtype cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        DeviceError
            The device cannot be used.

        Examples
        --------
        >>> with client.create((480, 640, 3), np.uint8, name="camera/front") as draft:
        ...     draft[:] = 128
        >>> client.get("camera/front").shape
        (480, 640, 3)
        """

    @overload
    def create(
        self,
        shape: _Shape,
        dtype: None = None,
        *,
        name: str | None = None,
        strides: Sequence[int] | None = None,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: None = None,
        stream: None = None,
    ) -> Draft[np.float64]: ...
    @overload
    def create(
        self,
        shape: _Shape,
        dtype: AnyDType,
        *,
        name: str | None = None,
        strides: Sequence[int] | None = None,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: None = None,
        stream: None = None,
    ) -> Draft: ...
    @overload
    def create(
        self,
        shape: _Shape,
        dtype: _DTypeOf[_S],
        *,
        name: str | None = None,
        strides: Sequence[int] | None = None,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: _Device,
        stream: CudaStream | None = None,
    ) -> DeviceDraft[_S]: ...
    @overload
    def create(
        self,
        shape: _Shape,
        dtype: AnyDType | None = None,
        *,
        name: str | None = None,
        strides: Sequence[int] | None = None,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: _Device,
        stream: CudaStream | None = None,
    ) -> DeviceDraft: ...
    @overload
    def get(
        self,
        name: str,
        *,
        mode: Mode = "read",
        dtype: _DTypeOf[_S],
        stream: CudaStream | None = None,
        default: EllipsisType = ...,
    ) -> Lease[_S] | DeviceLease[_S]:
        """Leases the tensor that the name holds now, without a copy. Later publications do not change
        this tensor.

        Parameters
        ----------
        name : str
            The tensor's name.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.
        dtype : dtype or None, default None
            The expected type of the elements, as `numpy.dtype` takes it. The call checks the type,
            and type checkers know it. None accepts every type.
        stream : int or stream or None, default None
            The CUDA stream that will read a tensor on a device: a handle, or a stream of torch, cupy, numba or
            cuda.core. If the tensor was published early, the stream waits for the producer's work. With None, the
            call itself waits.
        default : object, optional
            The result if the name has no value. Without it, the call raises NotFoundError.

        Returns
        -------
        Lease, DeviceLease or object
            The lease, a DeviceLease if the tensor is on a device; or `default`.

        Raises
        ------
        NotFoundError
            The name has no value.
        ArgumentError
            The name holds a dataset: use `get_dataset`.
        DTypeError
            The tensor has elements of another type than `dtype`, or the name holds an object: use `get_object`.
        LimitError
            This client holds its maximum number of leases.

        Examples
        --------
        >>> _ = client.put("x", np.arange(3))
        >>> client.get("x").numpy()
        array([0, 1, 2])
        """

    @overload
    def get(
        self, name: str, *, mode: Mode = "read", dtype: _DTypeOf[_S], stream: CudaStream | None = None, default: _T
    ) -> Lease[_S] | DeviceLease[_S] | _T: ...
    @overload
    def get(
        self,
        name: str,
        *,
        mode: Mode = "read",
        dtype: AnyDType | None = None,
        stream: CudaStream | None = None,
        default: EllipsisType = ...,
    ) -> _Leased: ...
    @overload
    def get(
        self, name: str, *, mode: Mode = "read", dtype: AnyDType | None = None, stream: CudaStream | None = None, default: _T
    ) -> _Leased | _T: ...
    def get_dataset(self, name: str, *, mode: Mode = "read") -> Dataset:
        """Leases the dataset that the name holds now. One lease holds all of its tensors.

        Parameters
        ----------
        name : str
            The dataset's name.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Dataset
            A mapping of names to leases.

        Raises
        ------
        NotFoundError
            The name has no value.
        ArgumentError
            The name holds one tensor: use `get`.
        """

    def get_value(self, name: str, *, mode: Mode = "read") -> _AnyValue:
        """Leases the value that the name holds now: a tensor or a dataset.

        Parameters
        ----------
        name : str
            The value's name.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The value.

        Raises
        ------
        NotFoundError
            The name has no value.
        """

    def get_many(self, names: Sequence[str], *, mode: Mode = "read") -> _Values:
        """Leases the values that names hold now, in the order of the names.

        Equivalent to `get_value` for each name, and faster, because the cache misses of the names overlap.

        Parameters
        ----------
        names : sequence of str
            The names, at most 4,096: a client holds at most this many leases.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        list of Lease, DeviceLease or Dataset
            A value for each name. The values are no snapshot: each is its name's value at some moment during the call.

        Raises
        ------
        NotFoundError
            A name has no value. As with every error, it names the first such name, and the call holds no lease.
        LimitError
            This client holds its maximum number of leases.
        TypeError
            `names` is one name, or has an item that is no str.

        Examples
        --------
        >>> _ = client.put("a", np.arange(2)), client.put("b", np.arange(3))
        >>> [value.shape for value in client.get_many(["a", "b"])]
        [(2,), (3,)]
        """

    @overload
    def batches(
        self, names: Iterable[_BatchNames], library: None = None, *, ahead: int = 16, mode: Mode = "read"
    ) -> Batches[_AnyValue | tuple[_AnyValue, ...]]:
        """Returns an iterator over the values of names, in their order.

        The iterator leases several values at once, which takes a fraction of the time of leasing each separately.

        Parameters
        ----------
        names : iterable of str or of tuple of str
            The names. A tuple of names makes a tuple of values.
        library : {"numpy", "torch"} or None, default None
            The library of the arrays: an array for each tensor, and a tuple of arrays for each dataset. None yields
            leases and datasets.
        ahead : int, default 16
            Number of values that are leased at once. The iterator does not see values that are
            published after their name was leased.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Batches
            The iterator. Close it, or use it as a context manager.

        Raises
        ------
        ArgumentError
            `library`, `ahead` or `mode` is invalid.
        TypeError
            `names` is one name.
        """

    @overload
    def batches(
        self, names: Iterable[_BatchNames], library: Literal["numpy"], *, ahead: int = 16, mode: Mode = "read"
    ) -> Batches[_Array | tuple[_Array | tuple[_Array, ...], ...]]: ...
    @overload
    def batches(
        self, names: Iterable[_BatchNames], library: Literal["torch"], *, ahead: int = 16, mode: Mode = "read"
    ) -> Batches[_TorchTensor | tuple[_TorchTensor | tuple[_TorchTensor, ...], ...]]: ...
    def get_into(self, name: str, out: Buffer) -> Version:
        """Copies the tensor's elements, in C order, into an array or a buffer.

        Parameters
        ----------
        name : str
            The tensor's name.
        out : buffer
            A writable, contiguous array of the tensor's dtype and shape, or a buffer of bytes of exactly its length.

        Returns
        -------
        Version
            The version of the copied value.

        Raises
        ------
        NotFoundError
            The name has no value.
        ArgumentError
            The array has another shape, or the buffer another length.
        DTypeError
            The array has elements of another type.
        """

    @overload
    def wait_for(
        self, name: str, timeout: float | None = None, *, mode: Mode = "read", dtype: _DTypeOf[_S]
    ) -> Lease[_S] | DeviceLease[_S]:
        """Waits until the name has a value, and leases this value.

        Parameters
        ----------
        name : str
            The value's name.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.
        dtype : dtype or None, default None
            The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
            accepts every type.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The value; a lease if `dtype` is given.

        Raises
        ------
        TimeoutError
            The name got no value within `timeout`.
        DTypeError
            The tensor has elements of another type than `dtype`.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    @overload
    def wait_for(
        self, name: str, timeout: float | None = None, *, mode: Mode = "read", dtype: AnyDType | None = None
    ) -> _AnyValue: ...
    @overload
    def wait_for_async(
        self, name: str, timeout: float | None = None, *, mode: Mode = "read", dtype: _DTypeOf[_S]
    ) -> Coroutine[Any, Any, Lease[_S] | DeviceLease[_S]]:
        """Awaits `wait_for`. All waits of the client share one thread. Cancelling ends the wait.

        Parameters
        ----------
        name : str
            The value's name.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.
        dtype : dtype or None, default None
            The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
            accepts every type.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The value; a lease if `dtype` is given.

        Raises
        ------
        TimeoutError
            The name got no value within `timeout`.
        DTypeError
            The tensor has elements of another type than `dtype`.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    @overload
    def wait_for_async(
        self, name: str, timeout: float | None = None, *, mode: Mode = "read", dtype: AnyDType | None = None
    ) -> Coroutine[Any, Any, _AnyValue]: ...
    @overload
    def wait_newer(
        self,
        name: str,
        seen: Version | _AnyValue | None = None,
        timeout: float | None = None,
        *,
        mode: Mode = "read",
        dtype: _DTypeOf[_S],
    ) -> Lease[_S] | DeviceLease[_S]:
        """Waits until the name has a value other than `seen`, and leases this value.

        Parameters
        ----------
        name : str
            The value's name.
        seen : Version, Lease, DeviceLease, Dataset or None, default None
            The value seen last, or its version. None accepts any value.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.
        dtype : dtype or None, default None
            The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
            accepts every type.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The value; a lease if `dtype` is given.

        Raises
        ------
        TimeoutError
            The name got no value other than `seen` within `timeout`.
        DTypeError
            The tensor has elements of another type than `dtype`.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    @overload
    def wait_newer(
        self,
        name: str,
        seen: Version | _AnyValue | None = None,
        timeout: float | None = None,
        *,
        mode: Mode = "read",
        dtype: AnyDType | None = None,
    ) -> _AnyValue: ...
    @overload
    def wait_newer_async(
        self,
        name: str,
        seen: Version | _AnyValue | None = None,
        timeout: float | None = None,
        *,
        mode: Mode = "read",
        dtype: _DTypeOf[_S],
    ) -> Coroutine[Any, Any, Lease[_S] | DeviceLease[_S]]:
        """Awaits `wait_newer`. All waits of the client share one thread. Cancelling ends the wait.

        Parameters
        ----------
        name : str
            The value's name.
        seen : Version, Lease, DeviceLease, Dataset or None, default None
            The value seen last, or its version. None accepts any value.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.
        dtype : dtype or None, default None
            The expected type of the elements, as `numpy.dtype` takes it. The call checks it, and type checkers know it. None
            accepts every type.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The value; a lease if `dtype` is given.

        Raises
        ------
        TimeoutError
            The name got no value other than `seen` within `timeout`.
        DTypeError
            The tensor has elements of another type than `dtype`.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    @overload
    def wait_newer_async(
        self,
        name: str,
        seen: Version | _AnyValue | None = None,
        timeout: float | None = None,
        *,
        mode: Mode = "read",
        dtype: AnyDType | None = None,
    ) -> Coroutine[Any, Any, _AnyValue]: ...
    def exists(self, name: str) -> bool:
        """Returns whether the name has a value, as `name in client` does.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        bool
            True if the name has a value.
        """

    def __contains__(self, name: str, /) -> bool: ...
    def __getitem__(self, name: str, /) -> _AnyValue: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def _ipython_key_completions_(self) -> _Names: ...
    def version(self, name: str) -> Version | None:
        """Returns the version of the name's value, without a lease.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        Version or None
            The version; None if the name has no value.
        """

    @overload
    def delete(self, name: str, *, glob: None = None) -> bool:
        """Deletes a name, or all names that match a pattern. Leases on the values stay valid.

        Parameters
        ----------
        name : str, optional
            The name. It is no pattern.
        glob : str, optional
            In place of `name`, a pattern as in `names`. Values that are published during the call may stay.

        Returns
        -------
        bool or int
            For a name, False if it did not exist. For a pattern, the number of deleted names.

        Raises
        ------
        PermissionError
            This user may not write to the namespace.

        Examples
        --------
        >>> _ = client.put("run1/a", 1), client.put("run1/b", 2)
        >>> client.delete(glob="run1/*")
        2
        """

    @overload
    def delete(self, name: None = None, *, glob: str) -> int: ...
    def rename(self, source: str, destination: str) -> None:
        """Renames a value. The destination's previous value is replaced.

        Parameters
        ----------
        source : str
            The present name.
        destination : str
            The new name.

        Raises
        ------
        NotFoundError
            The source has no value.
        """

    def copy(self, source: str, destination: str) -> Version:
        """Copies a value to another name.

        Parameters
        ----------
        source : str
            The name of the value.
        destination : str
            The name of the copy. A previous value is replaced.

        Returns
        -------
        Version
            The version of the copy.

        Raises
        ------
        NotFoundError
            The source has no value.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def info(self, name: str) -> Info:
        """Describes the value of a name, without a lease.

        Parameters
        ----------
        name : str
            The name.

        Returns
        -------
        Info
            Dtype, shape, sizes and owner.

        Raises
        ------
        NotFoundError
            The name has no value.
        """

    def streams(self, glob: str = "*") -> _Counts:
        """Returns the streams whose names match a pattern.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        list of (str, int)
            Name and number of subscribers of each.
        """

    def lists(self, glob: str = "*") -> _Counts:
        """Returns the lists whose names match a pattern.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        list of (str, int)
            Name and length of each list.
        """

    def nodes(self) -> _Dicts:
        """Returns the nodes that this machine's gateway knows.

        Returns
        -------
        list of dict
            A description of each node.

        Raises
        ------
        RemoteError
            This machine's gateway does not respond.
        """

    def placement(self, name: str) -> dict[str, Any] | None:
        """Returns the place of the value of another machine's name, and the age of the local copy.

        Parameters
        ----------
        name : str
            The name, "NODE/NAME".

        Returns
        -------
        dict or None
            The keys node, alive, cached, stale and stamp; None for a name of this machine.

        Raises
        ------
        RemoteError
            This machine's gateway does not respond.
        """

    def remote_names(self, glob: str = "*") -> dict[str, Any]:
        """Returns the names of other nodes that match a pattern.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        dict
            The keys are names (a dict for each name), silent (nodes that did not respond) and more
            (whether the list is incomplete).

        Raises
        ------
        RemoteError
            This machine's gateway does not respond.
        """

    def put_remote(
        self,
        name: str,
        value: Value,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
    ) -> None:
        """Publishes an array under a name of another machine. When the call returns, that machine has the value.

        Parameters
        ----------
        name : str
            The name, "NODE/NAME".
        value : array_like, Draft or tensor
            The tensor, as in `put`.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.

        Raises
        ------
        RemoteError
            The node cannot be reached or refuses, or this machine's gateway does not respond.
        ArgumentError
            The name has no node, or another argument is invalid.
        """

    def fetch_list(self, name: str) -> int:
        """Fetches the missing items of another machine's list.

        Parameters
        ----------
        name : str
            The list's name, "NODE/LIST".

        Returns
        -------
        int
            The number of the list's items on this machine after the call.

        Raises
        ------
        RemoteError
            The node cannot be reached or refuses, or this machine's gateway does not respond.
        """

    def put_dataset(
        self,
        name: str,
        tensors: Mapping[str, Value],
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Version:
        """Publishes copies of several tensors under one name. Readers see all of these tensors or
        none.

        Parameters
        ----------
        name : str
            The name. A previous value is replaced; leases on it stay valid.
        tensors : mapping of str to array_like, Draft, DeviceDraft or tensor
            The tensors by name. Some may be in host memory, and others on devices.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        ttl : float or None, default None
            Time to live in seconds, after which the name ends; None for no limit.
        ephemeral : bool, default False
            Whether the name ends with this client's session.
        device : str, int or device or None, default None
            The memory of all tensors, as in `put`. None keeps the memory in which each array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes the arrays on devices, as in `put`.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        ArgumentError
            A name, a tensor, the metadata or another argument is invalid.
        DTypeError
            The elements of a tensor cannot be lent.
        DeviceError
            The daemon does not lend the device's memory, or the work on a tensor failed.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.

        Examples
        --------
        >>> _ = client.put_dataset("batch", {"x": np.zeros((8, 2)), "y": np.arange(8)})
        >>> x, y = client.get_dataset("batch").numpy()
        >>> x.shape
        (8, 2)
        """

    def append(
        self,
        name: str,
        item: _Item,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> int:
        """Appends a tensor, or a mapping of several tensors, to a list.

        Parameters
        ----------
        name : str
            The list's name. The first item creates the list.
        item : array_like, Draft, tensor or mapping of these
            The item. A mapping becomes a dataset.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The index of the item.

        Raises
        ------
        ArgumentError
            The name or another argument is invalid.
        DTypeError
            The elements cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def append_names(self, name: str, names: Sequence[str]) -> int:
        """Appends copies of the present values of names to a list, as adjacent items. Readers see all
        of these items or none.

        Parameters
        ----------
        name : str
            The list's name.
        names : sequence of str
            The names of the values, at most 1,024.

        Returns
        -------
        int
            The index of the first of these items.

        Raises
        ------
        NotFoundError
            One of the names has no value.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def length(self, name: str) -> int:
        """Returns the length of a list.

        Parameters
        ----------
        name : str
            The list's name.

        Returns
        -------
        int
            Number of items; 0 if the list does not exist.
        """

    def wait_length(
        self, name: str, length: int, op: Literal[">=", "==", "<="] = ">=", timeout: float | None = None
    ) -> int:
        """Waits until a list has a certain length.

        Parameters
        ----------
        name : str
            The list's name.
        length : int
            Number of items to wait for.
        op : {">=", "==", "<="}, default ">="
            The comparison of the list's length with `length`.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        int
            The list's length.

        Raises
        ------
        TimeoutError
            The list's length did not satisfy the condition within `timeout`.
        ArgumentError
            `op` is none of these three comparisons.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def _check(self) -> None: ...
    def _try_newer(self, name: str, seen: Any, mode: str, dtype: Any) -> _AnyValue | None: ...
    def _tell_newer(self, wakeups: _Wakeups, number: int, name: str, seen: Any) -> _Ticket | None: ...
    def _try_length(self, name: str, length: int, op: str) -> int | None: ...
    def _tell_length(self, wakeups: _Wakeups, number: int, name: str, length: int, op: str) -> _Ticket: ...
    def _mail(
        self, value: Any, prefix: str, ttl: float
    ) -> tuple[str, tuple[int, int], tuple[bytes, bytes]] | None: ...
    def _settle_mail(self) -> None: ...
    def wait_length_async(
        self, name: str, length: int, op: Literal[">=", "==", "<="] = ">=", timeout: float | None = None
    ) -> Coroutine[Any, Any, int]:
        """Awaits `wait_length`. All waits of the client share one thread. Cancelling ends the wait.

        Parameters
        ----------
        name : str
            The list's name.
        length : int
            Number of items to wait for.
        op : {">=", "==", "<="}, default ">="
            The comparison of the list's length with `length`.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        int
            The list's length.

        Raises
        ------
        TimeoutError
            The list's length did not satisfy the condition within `timeout`.
        ArgumentError
            `op` is none of these three comparisons.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def get_all(self, name: str, *, mode: Mode = "read") -> _Values:
        """Leases all items of a list.

        Parameters
        ----------
        name : str
            The list's name.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        list of Lease, DeviceLease or Dataset
            The items in their order.

        Raises
        ------
        NotFoundError
            There is no such list.
        """

    def get_range(self, name: str, start: int, stop: int, *, mode: Mode = "read") -> _Values:
        """Leases adjacent items of a list.

        Parameters
        ----------
        name : str
            The list's name.
        start : int
            The index of the first item.
        stop : int
            The index after the last item.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        list of Lease, DeviceLease or Dataset
            The items in their order. Indices beyond the list's end are left out.

        Raises
        ------
        NotFoundError
            There is no such list.
        """

    def clear(self, name: str) -> bool:
        """Empties a list. Leases on its items stay valid.

        Parameters
        ----------
        name : str
            The list's name.

        Returns
        -------
        bool
            False if the list did not exist.
        """

    def rename_list(self, source: str, destination: str) -> None:
        """Renames a list.

        Parameters
        ----------
        source : str
            The present name.
        destination : str
            The new name. A previous list of this name is replaced.

        Raises
        ------
        NotFoundError
            There is no such list.
        """

    def stream(self, name: str, *, capacity: int = 8, policy: Policy = "block") -> Stream:
        """Opens a stream, as its only producer.

        Parameters
        ----------
        name : str
            The stream's name.
        capacity : int, default 8
            Number of messages, the latest ones, that the stream keeps for subscribers that lag. It is rounded up to a power
            of two, from 1 to 65,536.
        policy : {"block", "drop-oldest", "error"}, default "block"
            The effect of a subscriber that lags by more messages. "block": the producer waits for
            this subscriber. "drop-oldest": the subscriber loses its oldest messages. "error":
            `send` raises StreamFullError.

        Returns
        -------
        Stream
            The producer's end. Close it, or use it as a context manager.

        Raises
        ------
        ArgumentError
            The capacity or the policy is invalid.
        ConflictError
            This client, or another one that is connected, produces the stream.
        LimitError
            A limit of the daemon's configuration is reached.
        """

    def subscribe(
        self,
        name: str,
        *,
        start: Start = "newest",
        pollable: bool = False,
        wait: float | None = None,
        mode: Mode = "read",
    ) -> Subscription:
        """Subscribes to a stream.

        Parameters
        ----------
        name : str
            The stream's name.
        start : {"newest", "oldest", "next"}, default "newest"
            The first message: the newest one, the oldest one that the stream still keeps, or the
            next one that is sent.
        pollable : bool, default False
            Whether the subscription has a descriptor, which `async for` and select need.
        wait : float or None, default None
            Maximum wait in seconds until the stream is opened. None does not wait.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Subscription
            An iterator of messages. Close it, or use it as a context manager.

        Raises
        ------
        NotFoundError
            There is no such stream, and `wait` is None.
        TimeoutError
            The stream was not opened within `wait` seconds.
        LimitError
            A limit of the daemon's configuration is reached.
        """

    def subscribe_async(
        self,
        name: str,
        *,
        start: Start = "newest",
        pollable: bool = False,
        wait: float | None = None,
        mode: Mode = "read",
    ) -> Coroutine[Any, Any, Subscription]:
        """Awaits `subscribe`, which runs in a thread of its own. Cancelling ends the wait.

        Parameters
        ----------
        name : str
            The stream's name.
        start : {"newest", "oldest", "next"}, default "newest"
            The first message: the newest one, the oldest one that the stream still keeps, or the
            next one that is sent.
        pollable : bool, default False
            Whether the subscription has a descriptor, which `async for` and select need.
        wait : float or None, default None
            Maximum wait in seconds until the stream is opened. None does not wait.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Subscription
            An iterator of messages. Close it, or use it as a context manager.

        Raises
        ------
        NotFoundError
            There is no such stream, and `wait` is None.
        TimeoutError
            The stream was not opened within `wait` seconds.
        LimitError
            A limit of the daemon's configuration is reached.
        """

    def delete_stream(self, name: str) -> bool:
        """Deletes a stream.

        Parameters
        ----------
        name : str
            The stream's name.

        Returns
        -------
        bool
            False if the stream did not exist.

        Raises
        ------
        ConflictError
            Another client that is connected produces the stream.
        """

    def serve(self, service: str, *, mode: Mode = "read") -> Server:
        """Opens a server of a service, which responds to requests. The servers of a service share its callers.

        Parameters
        ----------
        service : str
            The service's name.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Server
            An iterator of requests. Close it, or use it as a context manager.

        Raises
        ------
        LimitError
            A limit of the daemon's configuration is reached.
        """

    def caller(self, service: str, *, capacity: int = 8, mode: Mode = "read") -> Caller:
        """Opens a caller, which sends requests to the servers of a service.

        The caller selects a server at the first request.

        Parameters
        ----------
        service : str
            The service's name.
        capacity : int, default 8
            Maximum number of requests in flight.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Caller
            The caller. Close it, or use it as a context manager.

        Raises
        ------
        LimitError
            A limit of the daemon's configuration is reached.
        """

    def queue(self, name: str, *, maxsize: int = 0) -> Queue:
        """Returns a queue. Each item of a queue goes to one of several consumers.

        Parameters
        ----------
        name : str
            The queue's name, which is the name of a list. The first item creates the list.
        maxsize : int, default 0
            Maximum number of waiting items, at which `put` waits. All producers share one maximum: while the queue has items,
            `put` with a different maximum raises ArgumentError. 0 is the maximum that another producer gave, or none.

        Returns
        -------
        Queue
            The queue.

        Raises
        ------
        ArgumentError
            The name is invalid, or of another machine.
        """

    def put_model(
        self,
        name: str,
        model: bytes | bytearray,
        *,
        batch_max: int = 1,
        batch_min: int | None = None,
        batch_wait_ms: float = 0.0,
        tag: str = "",
    ) -> Version:
        """Adds or replaces a model. Runners (tensorlend-runner) load the model by themselves.

        Parameters
        ----------
        name : str
            The model's name.
        model : bytes or bytearray
            The bytes of an ONNX file.
        batch_max : int, default 1
            Maximum rows of a batch that a runner makes of several requests.
        batch_min : int or None, default None
            Rows at which a batch starts without waiting for more; None is `batch_max`.
        batch_wait_ms : float, default 0.0
            Maximum wait of the first request of a batch for others, in milliseconds.
        tag : str, default ""
            A text for the user, such as the model's version.

        Returns
        -------
        Version
            The version of the model.

        Raises
        ------
        ArgumentError
            The name or an option is invalid.
        """

    def get_model(self, name: str) -> _Leased:
        """Leases a model's bytes.

        Parameters
        ----------
        name : str
            The model's name.

        Returns
        -------
        Lease
            A tensor of uint8, in host memory.

        Raises
        ------
        NotFoundError
            There is no such model.
        """

    def delete_model(self, name: str) -> bool:
        """Removes a model.

        Parameters
        ----------
        name : str
            The model's name.

        Returns
        -------
        bool
            False if the model did not exist.
        """

    def models(self, glob: str = "*") -> _Names:
        """Returns the names of the models that match a pattern.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        list of str
            The names.
        """

    def model_statistics(self, name: str) -> _Dicts:
        """Returns metrics of a model's runners.

        Parameters
        ----------
        name : str
            The model's name.

        Returns
        -------
        list of dict
            The metrics of each runner.
        """

    def model(self, name: str) -> Model:
        """Opens a model that is run many times.

        Parameters
        ----------
        name : str
            The model's name.

        Returns
        -------
        Model
            The model. Close it, or use it as a context manager.

        Raises
        ------
        ArgumentError
            The name is invalid.
        """

    def run_model(
        self,
        name: str,
        inputs: Mapping[str, Value | str],
        outputs: _Outputs = None,
        *,
        prepare: _Prepare = None,
        timeout: float | None = 60.0,
        mode: Mode = "read",
    ) -> Dataset:
        """Runs a model once, as `model(name).run(inputs, outputs, ...)` does.

        Parameters
        ----------
        name : str
            The model's name.
        inputs : mapping of str to str or array_like
            For each of the model's inputs an array in host memory, or the name of a tensor.
        outputs : sequence of str, mapping of str to str or None, or None, default None
            None returns all outputs, and a sequence selects some. A mapping gives each output the
            name under which it is published. An output that the mapping gives None is returned
            instead.
        prepare : mapping of str to steps or None, default None
            Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
        timeout : float or None, default 60.0
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Dataset
            The outputs by name.

        Raises
        ------
        TimeoutError
            No runner responded within `timeout`.
        ServiceError
            The runner reported an error, or ended before it responded.
        """

    def run_model_async(
        self,
        name: str,
        inputs: Mapping[str, Value | str],
        outputs: _Outputs = None,
        *,
        prepare: _Prepare = None,
        timeout: float | None = 60.0,
        mode: Mode = "read",
    ) -> Coroutine[Any, Any, Dataset]:
        """Awaits `run_model`, which runs in a thread of its own. Cancelling abandons the runner.

        Parameters
        ----------
        name : str
            The model's name.
        inputs : mapping of str to str or array_like
            For each of the model's inputs an array in host memory, or the name of a tensor.
        outputs : sequence of str, mapping of str to str or None, or None, default None
            None returns all outputs, and a sequence selects some. A mapping gives each output the
            name under which it is published. An output that the mapping gives None is returned
            instead.
        prepare : mapping of str to steps or None, default None
            Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
        timeout : float or None, default 60.0
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Dataset
            The outputs by name.

        Raises
        ------
        TimeoutError
            No runner responded within `timeout`.
        ServiceError
            The runner reported an error, or ended before it responded.
        """

    def share(self, value: Value, *, metadata: Metadata | None = None, ttl: float | None = None) -> TensorRef:
        """Publishes a copy of an array under a unique name, for another process.

        Parameters
        ----------
        value : array_like, Draft or tensor
            The tensor, as in `put`.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        ttl : float or None, default None
            Time to live in seconds, after which the name ends; None for no limit.

        Returns
        -------
        TensorRef
            A small reference that can be pickled and sent.

        Raises
        ------
        DTypeError
            The elements cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_object(
        self,
        name: str,
        obj: Any,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        ttl: float | None = None,
        ephemeral: bool = False,
    ) -> Version:
        """Publishes an object as one tensor.

        Plain values need no pickle. The call needs the package msgpack: pip install
        'tensorlend[objects]'.

        Parameters
        ----------
        name : str
            1 to 255 bytes of UTF-8.
        obj : object
            Dicts, lists, text, numbers, arrays, Arrow data, frames, and anything that can be pickled.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            A number of the producer's choice, usually nanoseconds.
        ttl : float or None, default None
            Time to live in seconds, after which the name ends; None for no limit.
        ephemeral : bool, default False
            Whether the name ends with this client's session.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        NameError
            The name is invalid.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def get_object(self, name: str, *, trust_pickle: bool = False, lazy: bool = False, mode: Mode = "read") -> Any:
        """Returns an object that `put_object` published.

        Arrays in the object view shared memory and keep it alive.

        Parameters
        ----------
        name : str
            1 to 255 bytes of UTF-8.
        trust_pickle : bool, default False
            Whether to load pickles in the object, which lets their publisher run any code here.
        lazy : bool, default False
            Whether to return a FrozenList or a FrozenDict, which decodes an item at each access.
        mode : {"read", "cow"}, default "read"
            "read" for read-only arrays; "cow" for writable private copies on write.

        Returns
        -------
        object
            The object.

        Raises
        ------
        NotFoundError
            The name has no value.
        UntrustedPickleError
            The object contains a pickle, and `trust_pickle` is False.
        """


    def stat(self) -> Stat:
        """Returns the daemon's metrics.

        Returns
        -------
        dict
            Memory in bytes, numbers of segments, clients, names and so on.

        Raises
        ------
        DisconnectedError
            The daemon has ended.
        """

    def ping(self) -> float:
        """Measures the time until the daemon's response.

        Returns
        -------
        float
            Seconds.

        Raises
        ------
        DisconnectedError
            The daemon has ended.
        """

    def memory(self) -> tuple[int, int]:
        """Returns this client's own memory. Reads local counters, and never waits.

        Returns
        -------
        tuple of (int, int)
            Bytes of slots in use, and of segments.
        """

    def leased(self) -> int:
        """Returns the bytes of the namespace's tensors on which clients hold leases.

        Returns
        -------
        int
            Bytes of distinct tensors.

        Raises
        ------
        DisconnectedError
            The daemon has ended.
        """

    def devices(self) -> _Devices:
        """Returns the devices whose memory the daemon lends, whether or not this process sees them.

        Returns
        -------
        list of Device
            The devices.
        """

    def device_memory(self, device: _Device) -> tuple[int, int]:
        """Returns this client's own memory on a device.

        Parameters
        ----------
        device : str, int or device
            The device, as in `put`.

        Returns
        -------
        tuple of (int, int)
            Bytes of slots in use, and of segments.

        Raises
        ------
        DeviceError
            There is no such device.
        ArgumentError
            `device` is host memory.
        """

    def names(self, glob: str = "*") -> _Names:
        """Returns the names that match a pattern, without reading their values.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        list of str
            The names, sorted.
        """

    def list(self, glob: str = "*") -> _Infos:
        """Returns descriptions of the names that match a pattern.

        Leaves out names whose values cannot be described, with a RuntimeWarning. Examples are a
        faulty client's values, spilled values without memory to read them back, and values that
        need a lease while this client has none left. `names` returns those names, too.

        Parameters
        ----------
        glob : str, default "*"
            A pattern, in which "*" stands for any text.

        Returns
        -------
        list of Info
            The descriptions, sorted by name.
        """
@final
class Model:
    """A model to run, with one connection to a runner. `Client.model` opens it.

    Notes
    -----
    Thread-safe. Runs of several threads follow one another. Close the model, or use it as a context
    manager.
    """

    @property
    def name(self) -> str:
        """The model's name."""

    def run(
        self,
        inputs: Mapping[str, Value | str],
        outputs: _Outputs = None,
        *,
        prepare: _Prepare = None,
        timeout: float | None = 60.0,
        mode: Mode = "read",
    ) -> Dataset:
        """Runs the model and waits for the response.

        Parameters
        ----------
        inputs : mapping of str to str or array_like
            For each of the model's inputs, an array in host memory or the name of a tensor.
        outputs : sequence of str, mapping of str to str or None, or None, default None
            None returns all outputs, and a sequence selects some. A mapping gives each output the
            name under which it is published. An output that the mapping gives None is returned
            instead.
        prepare : mapping of str to steps or None, default None
            Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
        timeout : float or None, default 60.0
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Dataset
            The outputs by name. Its metadata has `queue_us`, the time from sending to the run, and `run_us`, the time
            of the model alone, in microseconds.

        Raises
        ------
        TimeoutError
            No runner responded within `timeout`.
        ServiceError
            The runner reported an error, or ended before it responded.
        ClosedError
            The model was closed.
        """

    def run_async(
        self,
        inputs: Mapping[str, Value | str],
        outputs: _Outputs = None,
        *,
        prepare: _Prepare = None,
        timeout: float | None = 60.0,
        mode: Mode = "read",
    ) -> Coroutine[Any, Any, Dataset]:
        """Awaits `run`, which runs in a thread of its own. Cancelling abandons the runner.

        Parameters
        ----------
        inputs : mapping of str to str or array_like
            For each of the model's inputs an array in host memory, or the name of a tensor.
        outputs : sequence of str, mapping of str to str or None, or None, default None
            None returns all outputs, and a sequence selects some. A mapping gives each output the
            name under which it is published. An output that the mapping gives None is returned
            instead.
        prepare : mapping of str to steps or None, default None
            Steps before an input, such as {"x": ["chw", {"scale": 1 / 255}, "batch"]}.
        timeout : float or None, default 60.0
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        Dataset
            The outputs by name, as `run` returns them.

        Raises
        ------
        TimeoutError
            No runner responded within `timeout`.
        ServiceError
            The runner reported an error, or ended before it responded.
        ClosedError
            The model was closed.
        """

    def close(self) -> None:
        """Closes the connection to the runner. A run of this model in another thread raises
        ClosedError.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...

@final
class Server:
    """One server of a service, as a synchronous and asynchronous iterator of requests. `Client.serve`
    opens it.

    Notes
    -----
    Thread-safe: each request goes to one of the threads that wait. Only the process that opened the
    server may use it. Close the server, or use it as a context manager.

    Examples
    --------
    >>> with client.serve("double") as server:
    ...     server.try_recv() is None
    True
    """

    @property
    def service(self) -> str:
        """The service's name."""

    @property
    def callers(self) -> int:
        """Number of callers that the server serves now."""

    def recv(self, timeout: float | None = None) -> Call:
        """Waits for the next request.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        Call
            The request.

        Raises
        ------
        TimeoutError
            No request arrived within `timeout`.
        ClosedError
            The server was closed.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def try_recv(self) -> Call | None:
        """Returns the next request without waiting.

        Returns
        -------
        Call or None
            The request; None if there is none.

        Raises
        ------
        ClosedError
            The server was closed.
        """

    def recv_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Call]:
        """Awaits `recv`. The event loop watches a descriptor. Cancelling ends the wait and loses no request.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        Call
            The request.

        Raises
        ------
        TimeoutError
            No request arrived within `timeout`.
        ClosedError
            The server was closed.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def close(self) -> None:
        """Closes this server. A wait for its requests in another thread raises ClosedError.

        The callers of this server move to another server, if there is one.
        """

    @property
    def _key(self) -> tuple[str, int]: ...
    def _try_recv(self) -> Call | None: ...
    def _news(self) -> bool: ...
    def _check(self) -> None: ...
    def _descriptor(self) -> _Descriptor | None: ...
    def _tell(self, wakeups: _Wakeups, number: int) -> _Ticket | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Call: ...
    def __aiter__(self) -> AsyncIterator[Call]: ...

@final
class Queue:
    """A queue with many producers and consumers, in which each item goes to one consumer.
    `Client.queue` returns it.

    A consumer confirms its item, by `QueueItem.done` or at the end of a `with` block. If the
    consumer's process ends before that, another consumer gets the item. So an item is delivered
    twice if a consumer did its work but was killed before it confirmed the item.

    Notes
    -----
    Thread-safe. Only the process that created the object may use it.

    Examples
    --------
    >>> jobs = client.queue("docs/jobs", maxsize=100)
    >>> jobs.put([1.0, 2.0])
    0
    >>> with jobs.get() as job:
    ...     job.numpy()
    array([1., 2.])
    >>> jobs.empty()
    True
    """

    def put(
        self,
        item: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> int:
        """Appends a tensor, or a mapping of several tensors. Waits while the queue is full.

        Parameters
        ----------
        item : array_like, Draft, tensor or mapping of these
            The item. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The item's number, counted from 0.

        Raises
        ------
        TimeoutError
            The queue was full during the whole timeout. If `item` was a Draft, it is closed.
        DTypeError
            The elements cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_async(
        self,
        item: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Awaits `put`, which runs in a thread of its own. Cancelling ends the wait.

        Parameters
        ----------
        item : array_like, Draft, tensor or mapping of these
            The item. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The item's number, counted from 0.

        Raises
        ------
        TimeoutError
            The queue was full the whole time. A Draft is used up.
        DTypeError
            The elements cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_many(
        self,
        items: Iterable[_Item],
        timeout: float | None = None,
        *,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> range:
        """Appends several items in one request, as adjacent items: all of them or none. Waits until the queue has room for all of
        them.

        For small items this takes less time than a `put` for each.

        Parameters
        ----------
        items : iterable of items
            The items, each as `put` takes it: at most 1,024, and at most the queue's maximum, which another producer may have
            given. An item with metadata is a Draft.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        device : str, int or device or None, default None
            The memory of all items: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which each array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes arrays on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of each array's producer.

        Returns
        -------
        range
            The items' numbers, counted from 0; empty without items.

        Raises
        ------
        TimeoutError
            The queue had no room for all items during the whole timeout. Drafts among the items are closed.
        ArgumentError
            There are more than 1,024 items, or more than the queue's maximum.
        DTypeError
            The elements of an item cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_many_async(
        self,
        items: Iterable[_Item],
        timeout: float | None = None,
        *,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Coroutine[Any, Any, range]:
        """Awaits `put_many`, which runs in a thread of its own. Cancelling ends the wait.

        Parameters
        ----------
        items : iterable of items
            The items, each as `put` takes it: at most 1,024, and at most the queue's maximum, which another producer may have
            given. An item with metadata is a Draft.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        device : str, int or device or None, default None
            The memory of all items: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which each array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes arrays on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of each array's producer.

        Returns
        -------
        range
            The items' numbers, counted from 0; empty without items.

        Raises
        ------
        TimeoutError
            The queue had no room for all items the whole time. Drafts among the items are closed.
        ArgumentError
            There are more than 1,024 items, or more than the queue's maximum.
        DTypeError
            The elements of an item cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_object(self, obj: Any, timeout: float | None = None) -> int:
        """Appends an object, as `Client.put_object` publishes one. `QueueItem.get_object` returns the
        object.

        Parameters
        ----------
        obj : object
            Dicts, lists, text, numbers, arrays, Arrow data, frames, and anything that can be pickled.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        int
            The item's number, counted from 0.

        Raises
        ------
        TimeoutError
            The queue was full during the whole timeout.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def put_object_async(self, obj: Any, timeout: float | None = None) -> Coroutine[Any, Any, int]:
        """Awaits `put_object`, which runs in a thread of its own. Cancelling ends the wait.

        Parameters
        ----------
        obj : object
            Dicts, lists, text, numbers, arrays, Arrow data, frames, and anything that can be pickled.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        int
            The item's number, counted from 0.

        Raises
        ------
        TimeoutError
            The queue was full the whole time.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    def get(self, timeout: float | None = None, *, mode: Mode = "read") -> QueueItem:
        """Claims the first item that waits. Waits while the queue is empty.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        QueueItem
            The item. Use it as a context manager, or call `done`.

        Raises
        ------
        TimeoutError
            The queue was empty during the whole timeout.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def get_async(self, timeout: float | None = None, *, mode: Mode = "read") -> Coroutine[Any, Any, QueueItem]:
        """Awaits `get`, which runs in a thread of its own. Cancelling ends the wait. An item that
        arrives after that is given back.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        QueueItem
            The item. Use it as a context manager, or call `done`.

        Raises
        ------
        TimeoutError
            The queue was empty the whole time.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def next(self, done: QueueItem, timeout: float | None = None, *, mode: Mode = "read") -> QueueItem:
        """Confirms an item, and claims the first item that waits, in one request. Waits while the queue is empty.

        The confirmation counts before the wait, and whatever happens then.

        Parameters
        ----------
        done : QueueItem
            The item to confirm. If it was confirmed or given back already, this only claims.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        QueueItem
            The next item. Use it as a context manager, or call `done` or `Queue.next`.

        Raises
        ------
        TimeoutError
            The queue was empty the whole time.
        DisconnectedError
            The client was closed, or the daemon has ended. The client confirms the item with its next request.
        """

    def next_async(
        self, done: QueueItem, timeout: float | None = None, *, mode: Mode = "read"
    ) -> Coroutine[Any, Any, QueueItem]:
        """Awaits `next`, which runs in a thread of its own. Cancelling ends the wait, and leaves the
        confirmation as it is. An item that arrives after that is given back.

        Parameters
        ----------
        done : QueueItem
            The item to confirm. If it was confirmed or given back already, this only claims.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        QueueItem
            The next item. Use it as a context manager, or call `done` or `Queue.next`.

        Raises
        ------
        TimeoutError
            The queue was empty the whole time.
        DisconnectedError
            The client was closed, or the daemon has ended. The client confirms the item with its next request.
        """

    def items(self, timeout: float | None = None, *, prefetch: int = 1, mode: Mode = "read") -> QueueItems:
        """Returns an iterator over the queue's items. Each step confirms the previous item with the request that claims the next
        one.

        An exception in the loop and `break` give the last item back; call `QueueItem.done` before `break` to confirm it.

        Parameters
        ----------
        timeout : float or None, default None
            The iteration ends, without a TimeoutError, when the queue has been empty for this many seconds; None waits
            without limit.
        prefetch : int, default 1
            Maximum number of items that one request claims, from 1 to 64. With more than 1, up to that many finished items are
            delivered again if this process ends, and no other consumer gets the items that wait here.
        mode : {"read", "cow"}, default "read"
            "read": the producer's own pages, read-only. "cow": a private, writable view in host memory; the first write to
            a page copies it.

        Returns
        -------
        QueueItems
            The iterator.
        """

    def qsize(self) -> int:
        """Returns the number of items that wait for a consumer. Sends a request to the daemon.

        Returns
        -------
        int
            Number of items, without those that a consumer has claimed.
        """

    def claimed(self) -> int:
        """Returns the number of items that consumers have claimed and not confirmed. Sends a request
        to the daemon.

        Returns
        -------
        int
            Number of items.
        """

    def empty(self) -> bool:
        """Returns whether no item waits for a consumer. Sends a request to the daemon.

        Returns
        -------
        bool
            True if no item waits. Consumers may still give claimed items back.
        """

    @property
    def name(self) -> str:
        """The queue's name."""

    @property
    def maxsize(self) -> int:
        """The number of waiting items from which `put` waits; 0 for no maximum."""

    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...

@final
class QueueItem:
    """An item that this consumer has claimed. No other consumer gets the item unless this one gives it
    back.

    As a context manager, the object confirms the item at the end of the block, and gives the item
    back after an exception. Deleting the object also gives back an item that is not confirmed.

    Notes
    -----
    Thread-safe.
    """

    @property
    def value(self) -> _AnyValue:
        """The item: a Lease, a DeviceLease or a Dataset."""

    @property
    def number(self) -> int:
        """The item's number, counted from 0."""

    def numpy(self) -> _Array:
        """Returns a numpy array that views the tensor in place, and keeps it alive.

        Returns
        -------
        numpy.ndarray
            The array; read-only unless the mode is "cow".

        Raises
        ------
        TypeError
            The item is a dataset.
        """

    def get_object(self, *, trust_pickle: bool = False) -> Any:
        """Returns an object that `Queue.put_object` appended. Arrays in the object view shared memory
        and keep it alive.

        Parameters
        ----------
        trust_pickle : bool, default False
            Whether to load pickles in the object, which lets its producer run any code here.

        Returns
        -------
        object
            The object.

        Raises
        ------
        UntrustedPickleError
            The object contains a pickle, and `trust_pickle` is False.
        """

    def done(self) -> bool:
        """Confirms the item. The daemon then deletes the item.

        Returns
        -------
        bool
            False if the claim had ended, because the queue was cleared, or the daemon was replaced
            and another consumer has the item.

        Raises
        ------
        ArgumentError
            The item is already confirmed or given back.
        DisconnectedError
            No daemon responded. The client confirms the item with its next request. If the client's
            session ends before that, the item is delivered again.
        """

    def give_back(self) -> None:
        """Gives the item back. The next consumer that asks for an item gets this one.

        Raises
        ------
        ArgumentError
            The item is already confirmed or given back.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...

@final
class QueueItems:
    """The items of a queue, one after the other. `Queue.items` returns it.

    Each step confirms the previous item with the request that claims the next one. The end of the iterator gives back the last
    item, unless the program has confirmed it.

    Notes
    -----
    One thread at a time uses an iterator.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> QueueItem: ...

@final
class Call:
    """A request that waits for its response. `respond` and `fail` send the response.

    As a context manager, the object sends an exception of the block to the caller. The exception
    then propagates.

    Notes
    -----
    Thread-safe. Dropping a request without a response makes the request fail for its caller.
    """

    @property
    def value(self) -> _AnyValue:
        """The request: a Lease, a DeviceLease or a Dataset."""

    @property
    def tensor(self) -> _Leased:
        """The Lease or DeviceLease of a request that is one tensor. Raises TypeError for a dataset."""

    @property
    def dataset(self) -> Dataset:
        """The Dataset of a request that is several tensors. Raises TypeError for one tensor."""

    @property
    def is_open(self) -> bool:
        """Whether the request still needs its response."""

    def numpy(self) -> npt.NDArray[Any]:
        """Returns a numpy array that views the tensor in place, and keeps it alive.

        Returns
        -------
        numpy.ndarray
            The array; read-only unless the mode is "cow".

        Raises
        ------
        TypeError
            The request is a dataset.
        """

    def respond(
        self,
        value: _Item,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> None:
        """Responds with a tensor, or a mapping of several tensors. A disconnected caller is not an
        error.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The response. A mapping becomes a dataset.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Raises
        ------
        ArgumentError
            The request has its response already, or an argument is invalid. In the latter case the
            request stays open.
        DTypeError
            The elements cannot be lent. The request stays open.
        """

    def answer(
        self,
        value: _Item,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> None:
        """Responds as `respond` does. This is the former name of `respond`.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The response, as in `respond`.
        metadata : mapping or bytes or None, default None
            As in `respond`.
        timestamp : int, default 0
            As in `respond`.
        device : str, int or device or None, default None
            As in `respond`.
        stream : int or stream or None, default None
            As in `respond`.
        """

    def fail(self, why: str) -> None:
        """Responds with an error: the caller raises ServiceError.

        Parameters
        ----------
        why : str
            The error's text.

        Raises
        ------
        ArgumentError
            The request has its response already.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, exception: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]: ...

@final
class Caller:
    """Sends requests to the servers of a service. `Client.caller` opens it.

    Notes
    -----
    Thread-safe, but a call in one thread waits for the call in another. So each thread should have
    a caller of its own. Only the process that opened the caller may use it. Close the caller, or
    use it as a context manager.
    """

    @property
    def service(self) -> str:
        """The service's name."""

    @property
    def outstanding(self) -> int:
        """Number of requests in flight."""

    def call(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> _AnyValue:
        """Sends a request, and waits for its response.

        After a timeout, or Ctrl-C, the caller abandons the server. The next request goes to another server, if there is
        one.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The request. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The response.

        Raises
        ------
        TimeoutError
            No response arrived within `timeout`.
        ServiceError
            The server reported an error, or ended before it responded.
        ClosedError
            The caller was closed.
        DTypeError
            The elements cannot be lent.
        """

    def call_async(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Coroutine[Any, Any, _AnyValue]:
        """Awaits `call`. The event loop watches a descriptor. A thread waits only for the connection
        to a server. Cancelling abandons the server.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The request. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        Lease, DeviceLease or Dataset
            The response.

        Raises
        ------
        TimeoutError
            No response arrived within `timeout`.
        ServiceError
            The server reported an error, or ended before it responded.
        ClosedError
            The caller was closed.
        DTypeError
            The elements cannot be lent.
        """

    def send(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> int:
        """Sends a request without waiting for its response. Waits for a server if there is none.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The request. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The request's number, which `recv` returns with the response.

        Raises
        ------
        TimeoutError
            No server appeared within `timeout`.
        ArgumentError
            The caller's maximum number of requests is in flight.
        ClosedError
            The caller was closed.
        """

    def send_async(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Awaits `send`. A thread waits only for the connection to a server. Cancelling ends the wait
        for a server.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The request. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The request's number, which `recv` returns with the response.

        Raises
        ------
        TimeoutError
            No server appeared within `timeout`.
        ArgumentError
            The caller's maximum number of requests is in flight.
        ClosedError
            The caller was closed.
        """

    def recv(self, timeout: float | None = None) -> tuple[int, _AnyValue]:
        """Waits for the response to the oldest request in flight. After a timeout the request stays in flight.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        tuple of (int, Lease, DeviceLease or Dataset)
            The request's number, and its response.

        Raises
        ------
        TimeoutError
            No response arrived within `timeout`.
        ServiceError
            The server reported an error, or ended before it responded.
        ArgumentError
            No request is in flight.
        ClosedError
            The caller was closed.
        """

    def recv_async(self, timeout: float | None = None) -> Coroutine[Any, Any, tuple[int, _AnyValue]]:
        """Awaits `recv`. The event loop watches a descriptor. Cancelling ends the wait and loses no response.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        tuple of (int, Lease, DeviceLease or Dataset)
            The request's number, and its response.

        Raises
        ------
        TimeoutError
            No response arrived within `timeout`.
        ServiceError
            The server reported an error, or ended before it responded.
        ArgumentError
            No request is in flight.
        ClosedError
            The caller was closed.
        """

    def give_up(self) -> None:
        """Abandons the server, and all requests in flight to it.

        The next request goes to another server, if there is one.

        Raises
        ------
        ClosedError
            The caller was closed.
        """

    def close(self) -> None:
        """Ends the caller's connection to the service. A wait of this caller in another thread raises
        ClosedError.
        """

    @property
    def _key(self) -> tuple[str, int]: ...
    def _reserve(self) -> bool: ...
    def _unreserve(self) -> None: ...
    def _connected(self, alone: bool) -> bool | None: ...
    def _try_recv(self) -> tuple[int, _AnyValue] | None: ...
    def _news(self) -> bool: ...
    def _check(self) -> None: ...
    def _descriptor(self) -> _Descriptor | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...

@final
class Draft(Generic[_S_co]):
    """A tensor that is being written, in the memory where its readers will see it. The tensor is
    invisible until it is published.

    As a context manager, a draft with a name is published at the end of the block. An exception in
    the block drops the draft. A block must publish, send or drop a draft without a name.
    `draft[...]` reads and writes elements as its numpy array does.
    `Draft[np.float32]` is its type in annotations.

    Notes
    -----
    Publishing makes the arrays that `array` returned read-only. After publication, do not write to
    other views of the draft. Only the process that created the draft may use it. Threads may write
    to different parts of the draft, and one of them publishes it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in elements."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as numpy has them."""

    @property
    def dtype(self) -> np.dtype[_S_co]:
        """Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def name(self) -> str | None:
        """The name under which the draft will be published; None if it was created without one."""

    @property
    def array(self) -> npt.NDArray[_S_co]:
        """A numpy array that views the draft. It is writable until the draft is published."""

    @property
    def is_open(self) -> bool:
        """Whether the draft is neither published nor dropped."""

    def numpy(self) -> npt.NDArray[_S_co]:
        """Returns the property `array`. Leases have a method of this name, too.

        Returns
        -------
        numpy.ndarray
            The array, writable until the draft is published.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def torch(self) -> _TorchTensor:
        """Returns a writable torch tensor that views the draft. torch must be installed.

        Returns
        -------
        torch.Tensor
            The tensor. Do not write to the tensor after the draft is published.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def set_metadata(self, metadata: Metadata) -> None:
        """Sets the tensor's metadata.

        Parameters
        ----------
        metadata : mapping or bytes
            A dict, stored as JSON, or bytes; 64 KiB at most.

        Raises
        ------
        ArgumentError
            The metadata is too long.
        ClosedError
            The draft was published or dropped.
        """

    def set_timestamp(self, nanoseconds: int) -> None:
        """Sets the tensor's timestamp.

        Parameters
        ----------
        nanoseconds : int
            Nanoseconds since 1970, or of any clock that its users agree on.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def publish(self, name: str | None = None) -> Version:
        """Publishes the draft. Then every client of the namespace can read the tensor.

        Parameters
        ----------
        name : str or None, default None
            The name. None is the name with which the draft was created.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        ArgumentError
            There is no name, or the name is invalid.
        ClosedError
            The draft was published or dropped.
        PermissionError
            This user may not write to the namespace.
        """

    def drop(self) -> None:
        """Drops the draft. Its memory is freed once no array views the memory."""

    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...
    def _repr_html_(self) -> str: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum | int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]: ...

@final
class Lease(Generic[_S_co]):
    """The right to read one tensor in place.

    While the lease lives, its memory is not reused, even if the name or the producer ends.
    `numpy.asarray(lease)`, `numpy.from_dlpack(lease)` and `torch.from_dlpack(lease)` view the
    tensor in place and keep the lease alive. `lease[...]`, `len(lease)` and iteration work as for a
    numpy array. `lease.numpy()` returns an array with all of numpy's methods. `Lease[np.float32]`
    is the type for annotations.

    Notes
    -----
    Thread-safe: any thread may read the tensor, and so may children that the process forks. The
    lease ends with the last reference to it or to its arrays. `release` and `with` end the lease
    earlier. Children that were forked before continue to read until they end. Pickling sends the
    tensor's name and version.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in elements."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as numpy has them."""

    @property
    def dtype(self) -> np.dtype[_S_co]:
        """Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def device(self) -> Literal["cpu"]:
        """The tensor's device: always "cpu"."""

    @property
    def metadata(self) -> dict[str, Any]:
        """The tensor's metadata as a dict; empty if it has none."""

    @property
    def metadata_bytes(self) -> bytes:
        """The tensor's metadata as bytes."""

    @property
    def timestamp(self) -> int:
        """The tensor's timestamp in nanoseconds; 0 if none was set."""

    @property
    def version(self) -> Version:
        """The version of the name's value."""

    @property
    def name(self) -> str:
        """The name by which the tensor was found.

        This is its own name, the name of its stream or list, or its name in a dataset.
        """

    @property
    def mode(self) -> Mode:
        """The mode of the lease: "read" or "cow"."""

    @property
    def readonly(self) -> bool:
        """Whether the tensor is read-only."""

    @property
    def valid(self) -> bool:
        """Whether the session of the lease still exists, so that the memory stays in place; False after release."""

    @property
    def _origin(self) -> tuple[list[Path], str | None, str, str | None, tuple[int, int], Mode, bool]: ...
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    __dlpack_c_exchange_api__: CapsuleType
    def numpy(self) -> npt.NDArray[_S_co]:
        """Returns a numpy array that views the tensor in place, and keeps the lease alive.

        Types that numpy lacks (bfloat16, float8) become types of ml_dtypes. Without that package
        they become unsigned integers.

        Returns
        -------
        numpy.ndarray
            The array; read-only unless the mode is "cow".

        Raises
        ------
        ClosedError
            The lease was released.
        ForkedError
            The parent process got the lease.
        """

    def torch(self) -> _TorchTensor:
        """Returns a torch tensor that views the tensor in place, and keeps the lease alive. torch must
        be installed.

        torch does not check for read-only memory. With mode "read", a write to the tensor ends the
        process with SIGSEGV.

        Returns
        -------
        torch.Tensor
            The tensor.

        Raises
        ------
        ClosedError
            The lease was released.
        ForkedError
            The parent process got the lease.
        """

    def page_lock(self, device: _Device, *, stream: CudaStream | None = None) -> None:
        """Locks the tensor's pages in memory. Then a device copies from them at full speed while the
        program continues.

        The first call for a segment locks the whole segment, which takes some milliseconds. The
        call is not needed if the daemon's configuration sets `pool.page_lock`.

        Parameters
        ----------
        device : str, int or object
            The device, as in `client.put`.
        stream : int or stream or None, default None
            A stream in which another library copies from the tensor. The lease then ends only after
            the work that is queued on this stream when the lease and its last array are gone.

        Raises
        ------
        DeviceError
            There is no such device, or the driver refused.
        """

    def to(self, device: _Device, *, stream: CudaStream | None = None) -> DeviceDraft[_S_co]:
        """Copies the tensor to a device, as work of a stream, without waiting for the copy.

        The lease lasts until the stream has done the copy. If the pages are locked (`page_lock`, or
        the configuration's `pool.page_lock`), the call does not wait. Otherwise the driver copies
        the bytes before the call returns.

        Parameters
        ----------
        device : str, int or object
            The device, as in `client.put`. The daemon must lend its memory.
        stream : int or stream or None, default None
            The stream; None is the legacy default stream.

        Returns
        -------
        DeviceDraft
            The copy, for use in place (`torch.from_dlpack`, `cupy.asarray`) or for `publish`.

        Raises
        ------
        DeviceError
            There is no such device, or the daemon does not lend its memory.
        LimitError
            The daemon has no memory left on the device.
        """

    def release(self) -> None:
        """Ends the lease now, or when the last array that views the tensor is gone."""

    def _immutable(self) -> CapsuleType: ...
    def __arrow_array__(self, type: Any = None) -> Any: ...
    def __jax_array__(self) -> Any: ...
    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> npt.NDArray[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> Any: ...
    def __setitem__(self, key: Any, value: Any, /) -> None: ...
    def __float__(self) -> float: ...
    def __int__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...
    def _repr_html_(self) -> str: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum | int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __reduce__(self) -> tuple[Callable[..., Lease], tuple[Any, ...]]: ...

@final
class DeviceDraft(Generic[_S_co]):
    """A tensor that is being written on a device, in the memory where its readers will see it.

    The tensor is invisible until it is published. `torch.from_dlpack(draft)`,
    `cupy.from_dlpack(draft)` and `numba.cuda.as_cuda_array(draft)` give access to the memory in
    place. As a context manager, a draft with a name is published at the end of the block. An
    exception in the block drops the draft. A block must publish, send or drop a draft without a
    name.

    Notes
    -----
    Publishing waits for the work on the draft in the streams that `record_stream` and `stream=`
    name. Without such streams, publishing waits for the streams passed to `__dlpack__`. If a
    consumer named no stream, publishing waits for all work in the device's primary context. Only
    the process that created the draft may use it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in elements."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as numpy has them."""

    @property
    def dtype(self) -> np.dtype[_S_co]:
        """Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def device(self) -> str:
        """The device, by its number in this process: "cuda:0", for example."""

    @property
    def device_uuid(self) -> str:
        """The device, by its UUID, which is the same in every process: "GPU-..."."""

    @property
    def ptr(self) -> int:
        """The address of the tensor's first element on the device.

        After reading it, publishing waits for all work in the device's primary context, unless `record_stream` or
        `stream=` names the writing streams.
        """

    @property
    def name(self) -> str | None:
        """The name under which the draft will be published; None if it was created without one."""

    @property
    def is_open(self) -> bool:
        """Whether the draft is neither published nor dropped."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def record_stream(self, stream: CudaStream) -> None:
        """Records a stream whose work writes the tensor. Publishing waits for the recorded streams only.

        Parameters
        ----------
        stream : int or stream
            A handle, or a stream of torch, cupy, numba or cuda.core. The draft keeps such a stream
            alive.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def torch(self) -> _TorchTensor:
        """Returns a writable torch tensor that views the draft. Records torch's current stream, on
        which the tensor may be used.

        Returns
        -------
        torch.Tensor
            The tensor, on the device. torch must be installed.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def copy_from(self, array: Value) -> None:
        """Copies a host array into the tensor. The copy is complete when this returns.

        Parameters
        ----------
        array : array_like
            An array of the same shape and dtype.

        Raises
        ------
        ArgumentError
            The array has another shape, dtype or order of axes.
        """

    def set_metadata(self, metadata: Metadata) -> None:
        """Sets the tensor's metadata.

        Parameters
        ----------
        metadata : mapping or bytes
            A dict, stored as JSON, or bytes; 64 KiB at most.

        Raises
        ------
        ArgumentError
            The metadata is too long.
        ClosedError
            The draft was published or dropped.
        """

    def set_timestamp(self, nanoseconds: int) -> None:
        """Sets the tensor's timestamp.

        Parameters
        ----------
        nanoseconds : int
            Nanoseconds since 1970, or of any clock that its users agree on.

        Raises
        ------
        ClosedError
            The draft was published or dropped.
        """

    def publish(self, name: str | None = None, *, stream: CudaStream | None = None) -> Version:
        """Waits for pending work on the tensor, and publishes the tensor. Then every client of the
        namespace can read it.

        Parameters
        ----------
        name : str or None, default None
            The name. None is the name with which the draft was created.
        stream : int or stream or None, default None
            A stream to record first, as by `record_stream`.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        ArgumentError
            There is no name, or the name is invalid.
        ClosedError
            The draft was published or dropped.
        DeviceError
            The work on the device failed.
        """

    def publish_early(self, name: str | None = None, stream: CudaStream | None = None) -> Version:
        """Publishes the tensor while work on it is still pending. The call does not wait for this work.

        Readers wait for a CUDA event of this process. If the process is killed before the work is
        done, the readers get DeviceError.

        Parameters
        ----------
        name : str or None, default None
            The name. None is the name with which the draft was created.
        stream : int or stream or None, default None
            The stream with the pending work. None is the legacy default stream.

        Returns
        -------
        Version
            The version of the published value.

        Raises
        ------
        ArgumentError
            There is no name, or the draft has a time to live or is ephemeral.
        ClosedError
            The draft was published or dropped.
        """

    def drop(self) -> None:
        """Drops the draft. Its memory is freed once no array views the memory and all work on it is
        done.
        """

    def __len__(self) -> int: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...
    def _repr_html_(self) -> str: ...
    def __dlpack__(
        self,
        *,
        stream: CudaStream | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum | int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, _value: BaseException | None, _traceback: TracebackType | None
    ) -> Literal[False]: ...

@final
class DeviceLease(Generic[_S_co]):
    """The right to read one tensor on a device in place.

    While the lease lives, its memory is not reused, even if the name or the producer ends.
    `torch.from_dlpack(lease)`, `cupy.asarray(lease)` and `numba.cuda.as_cuda_array(lease)` view the
    tensor in place and keep the lease alive.

    Notes
    -----
    The lease ends when the last of these arrays is gone and the recorded streams have done the work
    queued by then. The recorded streams are those passed to `__dlpack__`, the legacy default
    stream, and those of `record_stream`. Only the process that took the lease may use it.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, in elements."""

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides in bytes, as numpy has them."""

    @property
    def dtype(self) -> np.dtype[_S_co]:
        """Element type, as numpy's dtype; bfloat16 and float8 as those of ml_dtypes."""

    @property
    def ndim(self) -> int:
        """Number of dimensions."""

    @property
    def size(self) -> int:
        """Number of elements."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""

    @property
    def device(self) -> str:
        """The device, by its number in this process: "cuda:0", for example."""

    @property
    def device_uuid(self) -> str:
        """The device, by its UUID, which is the same in every process: "GPU-..."."""

    @property
    def ptr(self) -> int:
        """The address of the tensor's first element on the device.

        A kernel that writes to this address fails and breaks its context. The lease lasts as long
        as this object. Then it waits for the reads queued on the legacy default stream and on
        recorded streams.
        """

    @property
    def metadata(self) -> dict[str, Any]:
        """The tensor's metadata as a dict; empty if it has none."""

    @property
    def metadata_bytes(self) -> bytes:
        """The tensor's metadata as bytes."""

    @property
    def timestamp(self) -> int:
        """The tensor's timestamp in nanoseconds; 0 if none was set."""

    @property
    def version(self) -> Version:
        """The version of the name's value."""

    @property
    def name(self) -> str:
        """The name by which the tensor was found: its own, or that of its stream or list."""

    @property
    def mode(self) -> Literal["read"]:
        """The mode of the lease: always "read", since device memory has no copy-on-write."""

    @property
    def readonly(self) -> Literal[True]:
        """Whether the tensor is read-only: always true."""

    @property
    def valid(self) -> bool:
        """Whether the session of the lease still exists, so that the memory stays in place; False after release."""

    @property
    def early(self) -> bool:
        """Whether the tensor was published early, so that its producer's work on it may still be pending."""

    @property
    def _origin(self) -> tuple[list[Path], str | None, str, str | None, tuple[int, int], Mode, bool]: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def record_stream(self, stream: CudaStream) -> None:
        """Records a stream whose work reads the tensor.

        The lease ends only after the work that is queued on the stream at the lease's release.

        Parameters
        ----------
        stream : int or stream
            A handle, which must stay valid until then. Or a stream of torch, cupy, numba or
            cuda.core, which the lease keeps alive.

        Raises
        ------
        ClosedError
            The lease was released.
        """

    def wait(self, stream: CudaStream | None = None) -> None:
        """Orders later work on a stream after the producer's work, if the tensor was published early.

        Parameters
        ----------
        stream : int or stream or None, default None
            The stream to order and to record. With a stream, the call does not wait. With None, the
            call itself waits.

        Raises
        ------
        DeviceError
            The producer ended before its work was done.
        """

    def to_host(self, out: Draft[_S_co] | None = None) -> npt.NDArray[_S_co]:
        """Returns a copy of the elements in host memory.

        Parameters
        ----------
        out : Draft or None, default None
            A draft in host memory of the same dtype and size, without strides. The device writes into its slot.

        Returns
        -------
        numpy.ndarray
            A new array in C order, or the draft's array.

        Raises
        ------
        DeviceError
            The copy failed.
        DTypeError
            The draft has another dtype.
        """

    def numpy(self) -> NoReturn:
        """Raises BufferError, because only `to_host` copies device memory to the host.

        Raises
        ------
        BufferError
            Always.
        """

    def torch(self) -> _TorchTensor:
        """Returns a torch tensor that views the tensor in place. Records torch's current stream, on
        which the result may be used.

        torch does not check for read-only memory. A kernel that writes to this memory fails and
        breaks the process's CUDA context.

        Returns
        -------
        torch.Tensor
            The tensor, on the device. torch must be installed.

        Raises
        ------
        ClosedError
            The lease was released.
        """

    def legacy_ipc_handle(self) -> LegacyExport:
        """Copies the tensor into a plain block of device memory, for a program that supports only cuIpcOpenMemHandle.

        The block is not protected, and not counted against limits.

        Returns
        -------
        LegacyExport
            The copy. Close it, or use it as a context manager.

        Raises
        ------
        DeviceError
            The device has no memory left, or the copy failed.
        """

    def release(self) -> None:
        """Ends the lease now, or when the last array that views the tensor is gone.

        In either case the lease ends only after the work on the recorded streams. This call does
        not wait for that work.
        """

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> NoReturn: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any, /) -> NoReturn: ...
    # It raises BufferError, too.
    def __iter__(self) -> Iterator[Any]: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...
    def _repr_html_(self) -> str: ...
    # It raises BufferError.
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: CudaStream | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[Enum | int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __reduce__(self) -> tuple[Callable[..., DeviceLease], tuple[Any, ...]]: ...

@final
class LegacyExport:
    """A copy of a tensor in a plain block of device memory. Another process opens the block with
    cuIpcOpenMemHandle.

    Notes
    -----
    Close this object, or use it as a context manager. Closing or dropping the object frees the
    block. Every process that has opened the block must close the block first.
    """

    @property
    def handle(self) -> bytes:
        """The CUipcMemHandle, 64 bytes. Any process that knows this handle can open the block and
        write to it.
        """

    @property
    def ptr(self) -> int:
        """The block's address in this process."""

    @property
    def nbytes(self) -> int:
        """The block's length in bytes."""

    def close(self) -> None:
        """Frees the block."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...

@final
class Device:
    """A device whose memory the daemon lends. `Client.devices` returns such objects."""

    @property
    def uuid(self) -> str:
        """The device's UUID, "GPU-..." or "MIG-...", which is the same in every process."""

    @property
    def name(self) -> str:
        """The driver's name of the device."""

    @property
    def allocator(self) -> Literal["pool", "arena", "async"]:
        """The allocator: "pool", "arena" or "async"."""

    @property
    def segment_bytes(self) -> int:
        """Length of an ordinary segment, in bytes. With the allocator "async", the unit of slots."""

    @property
    def segment_bytes_max(self) -> int:
        """Length of the longest segment, in bytes."""

    @property
    def index(self) -> int | None:
        """The device's number in this process, as in "cuda:0". None if this process does not see it.

        Reading the number loads the driver.
        """

@final
class Dataset(Mapping[str, Lease | DeviceLease]):
    """Several tensors that were published together, as a mapping of names to leases. One lease holds
    all of them.

    The order is that of publication. A tensor on a device has a DeviceLease, every other tensor a Lease.

    Notes
    -----
    Thread-safe: any thread may read the dataset, and so may children that the process forks. Its
    lease ends with the last reference to the dataset, to its leases or to arrays of its tensors.
    `release` and `with` end the lease earlier. Pickling sends the dataset's name and version.
    """

    @property
    def metadata(self) -> dict[str, Any]:
        """The dataset's metadata as a dict; empty if it has none."""

    @property
    def metadata_bytes(self) -> bytes:
        """The dataset's metadata as bytes."""

    @property
    def timestamp(self) -> int:
        """The dataset's timestamp in nanoseconds; 0 if none was set."""

    @property
    def version(self) -> Version:
        """The version of the name's value."""

    @property
    def name(self) -> str:
        """The name by which the dataset was found: its own, or that of its stream or list."""

    @property
    def valid(self) -> bool:
        """Whether the session of the lease still exists; False after release."""

    def release(self) -> None:
        """Ends the lease now, or when the last array that views one of its tensors is gone."""

    def __getitem__(self, name: str, /) -> Lease | DeviceLease: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...
    def __contains__(self, name: object, /) -> bool: ...
    @overload
    def get(self, name: str, default: None = None) -> Lease | DeviceLease | None:
        """Returns the dataset's tensor with this name.

        Parameters
        ----------
        name : str
            The tensor's name in the dataset.
        default : object, default None
            The result if no tensor has the name.

        Returns
        -------
        Lease, DeviceLease or object
            The tensor, or `default`. A DeviceLease if the tensor is on a device.
        """

    @overload
    def get(self, name: str, default: Lease | DeviceLease) -> Lease | DeviceLease: ...
    @overload
    def get(self, name: str, default: _T) -> Lease | DeviceLease | _T: ...
    # Lists instead of a mapping's views, because a dataset does not change.
    def keys(self) -> list[str]:  # type: ignore[override]
        """Returns the names of the dataset's tensors.

        Returns
        -------
        list of str
            The names, in the order of publication.
        """

    def values(self) -> list[Lease | DeviceLease]:  # type: ignore[override]
        """Returns leases of the dataset's tensors.

        Returns
        -------
        list of Lease or DeviceLease
            The leases, in the order of publication.
        """

    def items(self) -> list[tuple[str, Lease | DeviceLease]]:  # type: ignore[override]
        """Returns names and leases of the dataset's tensors.

        Returns
        -------
        list of (str, Lease or DeviceLease)
            The pairs, in the order of publication.
        """

    def numpy(self) -> tuple[npt.NDArray[Any], ...]:
        """Returns numpy arrays that view all tensors of the dataset in place, and keep them alive.

        Returns
        -------
        tuple of numpy.ndarray
            The arrays, in the order of publication.

        Raises
        ------
        ClosedError
            The dataset was released.
        BufferError
            A tensor is on a device: call `to_host` of its lease.
        """

    def torch(self) -> tuple[_TorchTensor, ...]:
        """Returns torch tensors that view all tensors of the dataset in place, and keep them alive.

        torch does not check for read-only memory. With mode "read", a write to these tensors ends
        the process with SIGSEGV.

        Returns
        -------
        tuple of torch.Tensor
            The tensors, in the order of publication. torch must be installed.

        Raises
        ------
        ClosedError
            The dataset was released.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def _repr_html_(self) -> str: ...
    @property
    def _origin(self) -> tuple[list[Path], str | None, str, tuple[int, int], Mode, bool]: ...

@final
class Batches(Iterator[_T_co]):
    """An iterator over the values of many names, in their order. `Client.batches` returns it.

    The iterator leases several values at once, ahead of their turn. Between two training steps, the
    code and data of a lease leave the processor's caches. If several leases are taken together,
    only the first one pays for the cache misses. The iterator's length is the number of values that
    it has not returned yet, if the names have a length.

    Notes
    -----
    One thread at a time may use the iterator. Only the process that opened the iterator may use it.
    Close the iterator, or use it as a context manager. Closing releases the values that were leased
    ahead.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> _T_co: ...
    def close(self) -> None:
        """Ends the iteration, and releases the values that were leased ahead.

        Raises
        ------
        ValueError
            Another thread is taking a value.
        """

    def __len__(self) -> int: ...
    def __bool__(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __class_getitem__(cls, item: Any) -> GenericAlias: ...

@final
class Version:
    """The version of a name's value. If a name has the same version twice, no client wrote to it in
    between.

    Versions have no order. They can be hashed and pickled.
    """

    @classmethod
    def from_words(cls, words: tuple[int, int]) -> Self:
        """Returns the version with these words.

        Parameters
        ----------
        words : tuple of (int, int)
            The words of a version, from this or another process.

        Returns
        -------
        Version
            The version.
        """

    @property
    def words(self) -> tuple[int, int]:
        """Two numbers that identify the version in every process."""

    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __reduce__(self) -> tuple[Callable[..., Version], tuple[tuple[int, int]]]: ...

@final
class Info:
    """Description of a name's value and its owner. `Client.info` and `Client.list` return such
    descriptions. A description holds no lease.
    """

    @property
    def name(self) -> str:
        """The name."""

    @property
    def kind(self) -> Literal["tensor", "dataset"]:
        """The kind of value: "tensor" or "dataset"."""

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Element type of a tensor; None for a dataset."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Sizes of a tensor, in elements; None for a dataset."""

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Strides of a tensor in bytes, as numpy has them; None for a dataset."""

    @property
    def members(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and shape of a dataset's tensors, by name; empty for a tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, of all members together."""

    @property
    def metadata_bytes(self) -> int:
        """Length of the metadata, in bytes."""

    @property
    def timestamp(self) -> int:
        """The value's timestamp in nanoseconds; 0 if none was set."""

    @property
    def pid(self) -> int:
        """Pid of the value's owner."""

    @property
    def uid(self) -> int:
        """Uid of the value's owner."""

    @property
    def label(self) -> str:
        """Label of the value's owner."""

    @property
    def alive(self) -> bool:
        """Whether the value's owner is connected."""

    @property
    def version(self) -> Version:
        """The version of the name's value."""

    @property
    def ttl(self) -> float | None:
        """Seconds until the name's time to live ends; None if the name has none."""

    @property
    def ephemeral(self) -> bool:
        """Whether the value ends with its owner's session."""

@final
class Stream:
    """The producer's end of a stream. `Client.stream` opens it.

    Notes
    -----
    Thread-safe. Only the process that opened the stream may use it. Close the stream, or use it as
    a context manager. Subscribers still receive the messages that were sent before.

    Examples
    --------
    >>> with client.stream("camera", policy="drop-oldest") as camera:
    ...     frames = client.subscribe("camera", start="next")
    ...     _ = camera.send(np.zeros((4, 4), np.uint8), timestamp=17)
    ...     frames.recv(timeout=10).timestamp
    17
    """

    @property
    def name(self) -> str:
        """The stream's name."""

    @property
    def sent(self) -> int:
        """Number of messages sent."""

    @property
    def capacity(self) -> int:
        """Number of messages that the stream keeps for subscribers that lag."""

    @property
    def subscribers(self) -> int:
        """Number of the stream's present subscribers."""

    def send(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> int:
        """Sends a tensor, or a mapping of several tensors, to every subscriber.

        The call waits only if the policy is "block" and a subscriber lags by the stream's whole
        capacity.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The message. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The message's sequence number.

        Raises
        ------
        TimeoutError
            The stream was full for the whole `timeout`.
        StreamFullError
            The stream is full, and its policy is "error".
        ClosedError
            The stream was closed.
        DTypeError
            The elements cannot be lent.
        """

    def send_async(
        self,
        value: _Item,
        timeout: float | None = None,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Awaits `send`, which runs in a thread of its own. Cancelling ends the wait for room.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The message. A mapping becomes a dataset.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The message's sequence number.

        Raises
        ------
        TimeoutError
            The stream was full for the whole `timeout`.
        StreamFullError
            The stream is full, and its policy is "error".
        ClosedError
            The stream was closed.
        DTypeError
            The elements cannot be lent.
        """

    def try_send(
        self,
        value: _Item,
        *,
        metadata: Metadata | None = None,
        timestamp: int = 0,
        device: _Device | None = None,
        stream: CudaStream | None = None,
    ) -> int:
        """Sends as `send` does, without waiting.

        Parameters
        ----------
        value : array_like, Draft, tensor or mapping of these
            The message. A mapping becomes a dataset.
        metadata : mapping or bytes or None, default None
            A dict, stored as JSON, or bytes; 64 KiB at most.
        timestamp : int, default 0
            Nanoseconds since 1970, or of any clock that its users agree on; 0 for none.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch,
            or "cpu". None keeps the memory in which the array is.
        stream : int or stream or None, default None
            The CUDA stream whose pending work writes an array on a device: a handle, or a stream of torch, cupy, numba
            or cuda.core. None is the stream of the array's producer.

        Returns
        -------
        int
            The message's sequence number.

        Raises
        ------
        StreamFullError
            The stream has no room. A draft stays open.
        ClosedError
            The stream was closed.
        DTypeError
            The elements cannot be lent.
        """

    @overload
    def create(
        self, shape: _Shape, dtype: _DTypeOf[_S], *, device: None = None, stream: None = None
    ) -> Draft[_S]:
        """Creates a tensor in shared memory. The program writes the tensor in place and sends it.

        Parameters
        ----------
        shape : int or sequence of int
            Sizes, in elements.
        dtype : dtype or None, default None
            A dtype as for `numpy.dtype`, a dtype of torch, or a name of ml_dtypes. None is float64.
        device : str, int or device or None, default None
            The memory: "cuda:0" or 0 for this process's first device, a UUID, a device of `Client.devices` or of torch.
            None and "cpu" are host memory.
        stream : int or stream or None, default None
            The CUDA stream that will write a tensor on a device.

        Returns
        -------
        Draft or DeviceDraft
            The tensor; a DeviceDraft if `device` names a device.

        Raises
        ------
        ArgumentError
            The shape is invalid.
        DTypeError
            Elements of this dtype cannot be lent.
        LimitError
            A limit of the daemon's configuration, of this client or of the machine is reached.
        """

    @overload
    def create(
        self, shape: _Shape, dtype: None = None, *, device: None = None, stream: None = None
    ) -> Draft[np.float64]: ...
    @overload
    def create(self, shape: _Shape, dtype: AnyDType, *, device: None = None, stream: None = None) -> Draft: ...
    @overload
    def create(
        self, shape: _Shape, dtype: _DTypeOf[_S], *, device: _Device, stream: CudaStream | None = None
    ) -> DeviceDraft[_S]: ...
    @overload
    def create(
        self, shape: _Shape, dtype: AnyDType | None = None, *, device: _Device, stream: CudaStream | None = None
    ) -> DeviceDraft: ...
    def wait_subscribers(self, count: int, timeout: float | None = None) -> None:
        """Waits until the stream has `count` subscribers. Then all of them receive the first message.

        Parameters
        ----------
        count : int
            Number of subscribers.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Raises
        ------
        TimeoutError
            The stream did not have `count` subscribers within `timeout`.
        ClosedError
            The stream was closed.
        """

    def wait_subscribers_async(self, count: int, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """Awaits `wait_subscribers`, which runs in a thread of its own. Cancelling ends the wait.

        Parameters
        ----------
        count : int
            Number of subscribers.
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Raises
        ------
        TimeoutError
            The stream did not have `count` subscribers within `timeout`.
        ClosedError
            The stream was closed.
        """

    def close(self) -> None:
        """Ends the stream. Subscribers still receive the messages that were sent before.

        A send in another thread that waits for room raises ClosedError.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def _repr_html_(self) -> str: ...

@final
class Subscription:
    """The subscriber's end of a stream, as a synchronous and asynchronous iterator of messages. The
    iterator ends with the stream.

    `Client.subscribe` opens a subscription.

    Notes
    -----
    Thread-safe: each message goes to one of the threads that wait. Only the process that opened the
    subscription may use it. Close the subscription, or use it as a context manager.
    """

    @property
    def name(self) -> str:
        """The stream's name."""

    @property
    def lost(self) -> int:
        """Total number of messages that the subscription has lost."""

    @property
    def position(self) -> int:
        """The number of the next message in the stream."""

    @property
    def pollable(self) -> bool:
        """Whether the subscription has a descriptor."""

    def recv(self, timeout: float | None = None) -> Message:
        """Waits for the next message.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        Message
            The message.

        Raises
        ------
        TimeoutError
            No message arrived within `timeout`.
        StreamEndedError
            The stream has ended, and no message is left.
        ClosedError
            The subscription was closed.
        DisconnectedError
            The client was closed, or the daemon has ended.
        """

    def try_recv(self) -> Message | None:
        """Returns the next message without waiting.

        Returns
        -------
        Message or None
            The message; None if there is none.

        Raises
        ------
        StreamEndedError
            The stream has ended, and every message was taken.
        ClosedError
            The subscription was closed.
        """

    def recv_async(self, timeout: float | None = None) -> Coroutine[Any, Any, Message]:
        """Awaits the next message. The event loop watches the descriptor, and no thread waits. Several
        tasks may wait. Each message goes to one of them, and a cancelled task takes no message.

        Parameters
        ----------
        timeout : float or None, default None
            Maximum wait in seconds; None waits without limit.

        Returns
        -------
        Message
            The message.

        Raises
        ------
        TimeoutError
            No message arrived within `timeout`.
        StreamEndedError
            The stream has ended, and every message was taken.
        ArgumentError
            The subscription is not pollable.
        ClosedError
            The subscription was closed.
        """

    def fileno(self) -> int:
        """Returns a descriptor for select and epoll.

        The descriptor becomes readable when there may be a message.

        Returns
        -------
        int
            The descriptor, which belongs to the subscription.

        Raises
        ------
        ArgumentError
            The subscription is not pollable.
        """

    def close(self) -> None:
        """Ends the subscription. A wait in another thread raises ClosedError."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Message: ...
    def __aiter__(self) -> AsyncIterator[Message]: ...
    @property
    def _key(self) -> tuple[str, int]: ...
    def _news(self) -> bool: ...
    def _check(self) -> None: ...
    def _descriptor(self) -> _Descriptor: ...
    def _take(self, timestamp: int, recipe: Recipe) -> Any: ...

@final
class _Rows:
    def __new__(cls, lease: Lease[Any], table: int, count: int) -> Self: ...
    def row(self, number: int, extension: _Extension) -> Any:
        """Returns the value of a row. `extension` converts the values for which msgpack has no type. It is called with the
        nesting depth, the extension's code and its bytes.
        """

    def rows(self, indices: _Numbers, positions: tuple[int, int, int], extension: _Extension) -> _Objects:
        """Returns the values of several rows. `indices` are positions in a range of row numbers (start, step, length)."""

    def decode(self, text: bytes, depth: int, extension: _Extension) -> Any:
        """Returns the value of a msgpack text that lies within `depth` extensions."""


@final
class Recipe:
    """A description of the batches of torch tensors that messages with certain metadata become.
    Converting such a message creates no Python objects for the message, the dataset or the leases.
    These objects would cost the trainer time in each batch.
    """

    def __new__(cls, metadata: bytes, nest: Literal["one", "list", "tuple"]) -> Self: ...

@final
class _Wakeups:
    def __new__(cls) -> Self: ...
    def fileno(self) -> int: ...
    def take(self) -> list[int]:
        """Returns the numbers of the waits that are over, each once."""

@final
class _Ticket: ...

@final
class _Descriptor:
    def fileno(self) -> int: ...

@final
class Cancel:
    """Ends the waits of one thread that works for a coroutine."""

    def __new__(cls) -> Self: ...
    def cancel(self) -> None:
        """Ends the thread's present wait and all later waits."""

    def run(self, work: Callable[..., _T], arguments: tuple[Any, ...], options: _Options) -> _T:
        """Calls `work` in this thread. `cancel` ends the waits of `work`."""

@final
class Message:
    """A message of a stream. As a context manager, the message releases its value at the end of the
    block.

    Notes
    -----
    Thread-safe. The message holds a lease on its value until `release`, or until the message and
    all arrays of the value are gone.
    """

    @property
    def sequence(self) -> int:
        """The message's number in the stream, counted from 0."""

    @property
    def lost(self) -> int:
        """Number of messages that the subscription lost immediately before this message."""

    @property
    def timestamp(self) -> int:
        """The message's timestamp in nanoseconds; 0 if none was set."""

    @property
    def value(self) -> _AnyValue:
        """The message's value: a Lease, a DeviceLease or a Dataset."""

    @property
    def tensor(self) -> _Leased:
        """The Lease or DeviceLease of a message that is one tensor. Raises TypeError for a dataset."""

    @property
    def dataset(self) -> Dataset:
        """The Dataset of a message that is several tensors. Raises TypeError for one tensor."""

    def numpy(self) -> npt.NDArray[Any]:
        """Returns a numpy array that views the tensor in place, and keeps it alive.

        Returns
        -------
        numpy.ndarray
            The array; read-only unless the mode is "cow".

        Raises
        ------
        TypeError
            The message is a dataset.
        """

    def release(self) -> None:
        """Ends the lease on the value now, or when the last array that views the value is gone."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> Literal[False]: ...
