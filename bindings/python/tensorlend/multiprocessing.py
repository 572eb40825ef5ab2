"""Sends arrays through multiprocessing's queues, pipes and pools as leases: see docs/how-to/multiprocessing.md."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend import _transit

if TYPE_CHECKING:
    from tensorlend._native import Client
    from tensorlend._types import Mode

__all__ = ["SMALLEST", "TTL", "install", "uninstall"]

#: Default minimum bytes of an array that is lent. Smaller arrays are pickled, because a copy through a
#: pipe takes less time than a private mapping.
SMALLEST = 512 * 1024

#: Default time in seconds for which an array waits for its receiver.
TTL = 86_400.0

_settings: _transit.Settings | None = None

_pickler: Any = ForkingPickler
_usual_dump = ForkingPickler.dump


def install(
    *, client: Client | None = None, smallest: int = SMALLEST, ttl: float = TTL, mode: Mode = "cow"
) -> None:
    """Sends arrays of numpy as leases through multiprocessing and concurrent.futures.

    This includes Queue, Pipe, Pool and Process.

    Writes to the received array do not change the sender's array, as if the array had been pickled. Each message is
    received once. Forked processes inherit the setting; spawned processes that send arrays must call this function,
    too.

    Parameters
    ----------
    client : Client or None, default None
        The client that publishes; None for one of the running daemon, or of a daemon in this process.
    smallest : int, default 524288
        Arrays of fewer bytes are pickled.
    ttl : float, default 86400.0
        Seconds within which a message must be received. Arrays of up to 4 MiB have a second less, or a sixteenth of the time if
        that is shorter. Messages end earlier when all processes of the program have ended.
    mode : {"read", "cow"}, default "cow"
        "cow": the receiver may write to its array. It copies arrays of up to 8 MiB, and maps larger ones, of which the kernel
        copies the written pages. "read" is faster, but the array is read-only.

    Raises
    ------
    DisconnectedError
        The daemon that the environment names cannot be reached.
    """
    global _settings
    _settings = _transit.settings(client, smallest, ttl, mode)
    ForkingPickler.register(np.ndarray, _reduce)
    # torch's queues call this method, and those of multiprocessing by `dumps`.
    _pickler.dump = _dump


def uninstall() -> None:
    """Sends arrays as pickles again. Messages that were sent before can still be received."""
    global _settings
    _settings = None
    _pickler.dump = _usual_dump


def _dump(pickler: ForkingPickler, value: Any) -> None:
    _transit.pickled(lambda: _usual_dump(pickler, value))


def _reduce(array: np.ndarray[Any, Any]) -> Any:
    by = _settings
    if by is not None and array.nbytes >= by.smallest and _transit.is_plain(array.dtype) and _transit.admits():
        reduced = _transit.lend(array, by, "numpy")
        if reduced is not None:
            return reduced
    return array.__reduce_ex__(4)
