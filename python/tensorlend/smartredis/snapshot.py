"""Arrays that are the caller's own, from leases on shared memory."""

import threading
import weakref
from typing import Any

import numpy.typing as npt

import tensorlend

__all__ = ["COPIED_BYTES_MAX", "Array", "exact", "holds", "private"]

Array = npt.NDArray[Any]

# Up to here the C library gives the memory of an earlier array again, and a copy is read sooner than pages that have to
# be mapped. Beyond, both cost the same, and a mapping needs no memory until it is written.
COPIED_BYTES_MAX = 32 << 20

# A dataset's tensors are copied anyway when they are taken out of it.
_KEPT_BYTES_MIN = 64 << 10

# A client can hold 4096 leases. A program that keeps what it got must be able to keep getting, so that from here on its
# arrays are copies.
_HELD_MAX = 1024


class _Held:
    """How many arrays and datasets of this process lie in slots."""

    def __init__(self) -> None:
        self._count = 0
        # A finalizer may run in the middle of any step of the same thread.
        self._lock = threading.RLock()

    def admits(self) -> bool:
        return self._count < _HELD_MAX

    def count(self, holder: object) -> None:
        with self._lock:
            self._count += 1
        weakref.finalize(holder, self._drop).atexit = False

    def _drop(self) -> None:
        with self._lock:
            self._count -= 1


_held = _Held()


def private(client: tensorlend.Client, name: str) -> Array:
    """What the name holds now, as a writable array that nobody else sees: short ones copied, long ones mapped copy on
    write, so that only the pages that are written are copied.

    :raises tensorlend.NotFoundError: if there is no such name
    """
    with client.get(name) as lease:
        if lease.nbytes <= COPIED_BYTES_MAX or not _held.admits():
            return exact(lease.numpy()).copy()
    mapped = client.get(name, mode="cow").numpy()
    _held.count(mapped)
    return exact(mapped)


def holds(dataset: tensorlend.Dataset, holder: object) -> dict[str, Array]:
    """A dataset's tensors, read-only. Short ones are copied and the lease ends; otherwise the arrays lie in the slots,
    and keep the lease for as long as they live. ``holder`` lives as long as they do."""
    nbytes = sum(lease.nbytes for lease in dataset.values())
    if nbytes < _KEPT_BYTES_MIN or not _held.admits():
        with dataset:
            return {name: exact(lease.numpy()).copy() for name, lease in dataset.items()}
    _held.count(holder)
    return {name: exact(lease.numpy()) for name, lease in dataset.items()}


def exact(array: Array) -> Array:
    """The same array with the type that programs compare with: numpy has two integers of 8 bytes, and an array from a
    buffer may be of ``numpy.longlong`` where ``numpy.int64`` was put."""
    dtype = array.dtype
    return array.view(dtype.str) if dtype.isbuiltin == 1 and dtype.kind in "iu" else array
