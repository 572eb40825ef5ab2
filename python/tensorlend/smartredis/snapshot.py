"""Arrays that are the caller's own, from leases on shared memory."""

from typing import Any

import numpy.typing as npt

import tensorlend

__all__ = ["Array", "copied"]

Array = npt.NDArray[Any]


def copied(lease: tensorlend.Lease | tensorlend.DeviceLease) -> Array:
    """A copy in memory of this process.

    A lease's own array would be there sooner, but not in a forked child: programs load data and then start workers.
    """
    array = lease.numpy()
    # numpy has two integers of 8 bytes. An array from a buffer may be of numpy.longlong where numpy.int64 was put, and
    # programs compare types.
    exact = array.view(array.dtype.str) if array.dtype.kind in "iu" else array
    return exact.copy()
