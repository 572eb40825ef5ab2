"""Loads files of weights as numpy arrays in lent memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend import _weights
from tensorlend._errors import DTypeError
from tensorlend._safetensors import DTYPES

if TYPE_CHECKING:
    import numpy.typing as npt

    from tensorlend._native import Client
    from tensorlend._types import Mode

#: Types of elements that numpy itself has.
PLAIN_DTYPES = frozenset(name for name in DTYPES if not name.startswith(("BF", "F8_")))


def load_file(
    path: str | os.PathLike[str], *, client: Client | None = None, mode: Mode = "cow", timeout: float | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a safetensors file. One process of the machine reads the file, and all
    other processes map it.

    The first call on the machine reads the file into lent memory and publishes it. Later calls,
    also of other processes, lease that memory. A file that was replaced or written to is read
    again. Arrays of the old file stay as they are.

    Parameters
    ----------
    path : str or path-like
        The file.
    client : Client or None, default None
        The client. None is the default client, of the running daemon or of a daemon in this
        process.
    mode : {"read", "cow"}, default "cow"
        "cow" for arrays that may be written to, which copies the pages that are written, for this process alone; "read" for read-only arrays.
    timeout : float or None, default None
        Maximum wait in seconds for another process that reads the file. None waits for as long as reading a file of this
        size can take, and then reads it in this process.

    Returns
    -------
    dict of str to numpy.ndarray
        The arrays, in the order of the file. All of them view one lease, which ends with the last
        array.

    Raises
    ------
    ArgumentError
        The file is not a valid safetensors file, or another process writes to it.
    DTypeError
        An array has elements that numpy needs `ml_dtypes` for, which is not installed.
    LimitError
        The daemon has no memory left for the file.
    TimeoutError
        Another process, which has locked the file, has not read it in time.
    """
    return _arrays(_weights.load(path, client, mode, timeout))


def load_weights(
    name: str, *, client: Client | None = None, mode: Mode = "cow", timeout: float | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of weights that have a name, without a file.

    Weights that are published under the name later do not change these arrays.

    Parameters
    ----------
    name : str
        The name by which `tensorlend.weights.publish` has published them.
    client : Client or None, default None
        As in `load_file`.
    mode : {"read", "cow"}, default "cow"
        As in `load_file`.
    timeout : float or None, default None
        Maximum wait in seconds for the first weights of this name. None does not wait.

    Returns
    -------
    dict of str to numpy.ndarray
        The arrays, in the order of the file. All view one lease, which ends with the last of them.

    Raises
    ------
    NotFoundError
        The name has no weights.
    ArgumentError
        The value of this name is not a file of weights.
    DTypeError
        An array has elements that numpy needs `ml_dtypes` for, which is not installed.
    TimeoutError
        No process has published weights in time.
    """
    return _arrays(_weights.load_named(name, client, mode, timeout))


def _arrays(weights: _weights.Weights) -> dict[str, npt.NDArray[Any]]:
    return {
        entry.name: weights.bytes[entry.begin : entry.end].view(_dtype(entry.name, entry.dtype)).reshape(entry.shape)
        for entry in weights.tensors
    }


def _dtype(name: str, dtype: str) -> np.dtype[Any]:
    if dtype in PLAIN_DTYPES:
        return np.dtype(DTYPES[dtype])
    try:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, DTYPES[dtype]))
    except (ImportError, AttributeError) as error:
        raise DTypeError(f"tensor {name!r} has elements of type {dtype}, which numpy lacks: install ml_dtypes") from error
    return found
