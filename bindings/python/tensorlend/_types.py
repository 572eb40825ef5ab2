"""Type aliases and protocols for the package's signatures."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict, TypeVar

import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T_co = TypeVar("_T_co", covariant=True)

#: Access to a leased tensor. "read" maps the producer's pages read-only. "cow" copies a page when
#: this process writes to it.
Mode: TypeAlias = Literal["read", "cow"]

#: Metadata of a value: a dict, stored as JSON, or bytes.
Metadata: TypeAlias = Mapping[str, Any] | bytes

#: Policy of a stream when a subscriber lags by more than the capacity.
Policy: TypeAlias = Literal["block", "drop-oldest", "error"]

#: The first message of a subscription.
Start: TypeAlias = Literal["newest", "oldest", "next"]


class SupportsDLPack(Protocol):
    """A tensor of a library that supports DLPack, such as torch, jax or cupy."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class SupportsArrayInterface(Protocol):
    """An array that reports its address through numpy's array interface."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array on a CUDA device that reports its address through numba's CUDA array interface."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SupportsArray(Protocol):
    """An object that numpy converts to an array."""

    def __array__(self) -> Any: ...


class Nested(Protocol[_T_co]):
    """A sequence, with sequences in it or not. A str is none, because it contains str alone."""

    def __len__(self, /) -> int: ...
    def __getitem__(self, index: int, /) -> "_T_co | Nested[_T_co]": ...
    def __contains__(self, value: object, /) -> bool: ...
    def __iter__(self, /) -> "Iterator[_T_co | Nested[_T_co]]": ...
    def __reversed__(self, /) -> "Iterator[_T_co | Nested[_T_co]]": ...
    def count(self, value: Any, /) -> int: ...
    def index(self, value: Any, /) -> int: ...


#: A number, an array or a buffer.
_Item: TypeAlias = "complex | Buffer | SupportsArray"

#: Values that can be put, sent and appended: numbers, arrays, buffers, tensors, and sequences that numpy converts to an array.
#: Text is no tensor.
Value: TypeAlias = "_Item | Nested[_Item] | SupportsDLPack | SupportsArrayInterface | SupportsCudaArrayInterface"


class TorchDType(Protocol):
    """An element type of torch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...


#: Anything that np.dtype accepts, with the same meaning; "bfloat16" and "float8_..."; a dtype of torch, or its name
#: ("torch.float32").
AnyDType: TypeAlias = npt.DTypeLike | TorchDType


class TorchDevice(Protocol):
    """A device of torch."""

    @property
    def type(self) -> str: ...
    @property
    def index(self) -> Any: ...


class SupportsCudaStream(Protocol):
    """A stream of a library that follows CUDA's protocol."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class TorchStream(Protocol):
    """A stream of torch."""

    @property
    def cuda_stream(self) -> int: ...


class CupyStream(Protocol):
    """A stream of cupy."""

    @property
    def ptr(self) -> int: ...


class NumbaStream(Protocol):
    """A stream of numba, whose handle is a number or a ctypes object."""

    @property
    def handle(self) -> Any: ...


#: A handle, or a stream of torch, cupy, numba or cuda.core.
CudaStream: TypeAlias = int | SupportsCudaStream | TorchStream | CupyStream | NumbaStream

#: Steps before a model's input: "chw", or {"scale": 1 / 255}.
Steps: TypeAlias = Sequence[str | Mapping[str, object]]


class StatUser(TypedDict):
    """Memory of one user, in `Stat`."""

    uid: int
    bytes: int


class StatDevice(TypedDict):
    """Lent memory of one device, in `Stat`."""

    uuid: str
    name: str
    allocator: str
    bytes_max: int
    bytes: int
    bytes_in_use: int
    segments: int


class StatNamespace(TypedDict):
    """Memory of one namespace, in `Stat`."""

    name: str
    bytes: int


class StatHolder(TypedDict):
    """A client whose process still has memory mapped after the client returned it, in `Stat`."""

    uid: int
    client: int
    pid: int
    connected: bool
    pieces: int
    bytes: int


class StatRefusals(TypedDict):
    """The numbers of refused requests by reason, in `Stat`."""

    limit: int
    invalid: int
    race: int


class Stat(TypedDict):
    """The daemon's metrics, as `Client.stat` returns them."""

    version: str
    pid: int
    uptime_ns: int
    mode: str
    pool_bytes_max: int
    pool_bytes: int
    bytes_in_use: int
    bytes_spare: int
    bytes_sheets: int
    segments: int
    clients: int
    frozen: int
    names: int
    requests: int
    wakeups: int
    refusals: int
    refusals_by_reason: StatRefusals
    device: str
    names_expired: int
    names_ephemeral_gone: int
    sessions_revoked: int
    bytes_spilled: int
    spill_failures: int
    uids: list[StatUser]
    devices: list[StatDevice]
    holders: list[StatHolder]
    namespaces: list[StatNamespace]
