"""Private copies of arrays from leases on shared memory."""

from typing import Any

import numpy.typing as npt

import tensorlend

__all__ = ["Array", "copied"]

Array = npt.NDArray[Any]


def copied(lease: tensorlend.Lease | tensorlend.DeviceLease) -> Array:
    """Returns a copy in this process's memory. A lease's own array would be faster, but is invalid
    in a forked child. Programs fork workers after they have loaded data. The copy of a tensor on a device is in host
    memory.
    """
    if isinstance(lease, tensorlend.DeviceLease):
        return lease.to_host()
    array = lease.numpy()
    # numpy has two integer types of 8 bytes. An array from a buffer may have numpy.longlong although numpy.int64 was
    # put. Restore numpy.int64, because programs compare types.
    exact = array.view(array.dtype.str) if array.dtype.kind in "iu" else array
    return exact.copy()
