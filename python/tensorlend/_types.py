"""Types that signatures name."""

from collections.abc import Mapping
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
