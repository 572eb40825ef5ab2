"""Arrays that are the caller's own, from leases on shared memory."""

import threading
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt

import tensorlend

__all__ = ["COPIED_BYTES_MAX", "Array", "holds", "private"]

Array = npt.NDArray[Any]

# Up to here a copy is cheaper than mapping the pages again for a writer.
COPIED_BYTES_MAX = 1 << 20

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
            return lease.numpy().copy()
    mapped = client.get(name, mode="cow")
    array: Array = mapped.numpy()
    _held.count(array)
    return array


def holds(dataset: tensorlend.Dataset, holder: object) -> dict[str, Array]:
    """A dataset's tensors, read-only. Short ones are copied and the lease ends; otherwise the arrays lie in the slots and
    keep the lease for as long as they live, and ``holder`` counts as what keeps it."""
    nbytes = sum(lease.nbytes for lease in dataset.values())
    if nbytes <= COPIED_BYTES_MAX or not _held.admits():
        with dataset:
            return {name: np.array(lease.numpy()) for name, lease in dataset.items()}
    _held.count(holder)
    return {name: lease.numpy() for name, lease in dataset.items()}
