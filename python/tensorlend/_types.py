"""Types that signatures name."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy.typing as npt

#: Which pages a reader looks at: the producer's own, read-only; or the same until it writes to one, then a copy of its own.
Mode: TypeAlias = Literal["read", "cow"]

#: What travels with a value: a dict, kept as JSON, or bytes.
Metadata: TypeAlias = Mapping[str, Any] | bytes

#: What a stream does when a subscriber lags by more than its capacity.
Policy: TypeAlias = Literal["block", "drop-oldest", "error"]

#: Which message of a stream a subscription begins with.
Start: TypeAlias = Literal["newest", "oldest", "next"]


class SupportsDLPack(Protocol):
    """A tensor of a library that speaks DLPack: torch, jax, cupy and others."""

    def __dlpack__(self, *, stream: Any = None) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class SupportsArrayInterface(Protocol):
    """An array that tells its address as numpy does."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsCudaArrayInterface(Protocol):
    """An array on a CUDA device that tells its address as numba does."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


#: What can be put, sent and appended: arrays and buffers, tensors, and what numpy makes an array of.
Value: TypeAlias = npt.ArrayLike | SupportsDLPack | SupportsArrayInterface | SupportsCudaArrayInterface


class TorchDType(Protocol):
    """An element type of torch."""

    @property
    def is_floating_point(self) -> bool: ...
    @property
    def itemsize(self) -> int: ...


#: Whatever np.dtype takes, with the same meaning; "bfloat16" and "float8_..."; a dtype of torch, or its name ("torch.float32").
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
    """A stream of numba, whose handle is a number or one of ctypes."""

    @property
    def handle(self) -> Any: ...


#: A handle, or a stream of torch, cupy, numba or cuda.core.
CudaStream: TypeAlias = int | SupportsCudaStream | TorchStream | CupyStream | NumbaStream

#: Steps before a model's input: "chw", or {"scale": 1 / 255}.
Steps: TypeAlias = Sequence[str | Mapping[str, object]]
