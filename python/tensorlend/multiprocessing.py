"""Arrays through multiprocessing's queues, pipes and pools as leases: see docs/how-to/multiprocessing.md."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend import _transit

if TYPE_CHECKING:
    from tensorlend._native import Client
    from tensorlend._types import Mode

__all__ = ["SMALLEST", "TTL", "install", "uninstall"]

#: Arrays of fewer bytes are pickled: a lease costs three requests to the daemon, which take longer than a copy through a pipe.
SMALLEST = 512 * 1024

#: How long an array waits for its receiver, in seconds.
TTL = 600.0

_settings: _transit.Settings | None = None


def install(
    *, client: Client | None = None, smallest: int = SMALLEST, ttl: float = TTL, mode: Mode = "cow"
) -> None:
    """Makes arrays of numpy travel through multiprocessing as leases: by Queue, Pipe, Pool, Process and concurrent.futures.

    The receiver's array is its own, as if it was pickled: with mode "cow" it may write to it, which copies the pages that it writes; with
    mode "read", which is faster, the array is read-only. Arrays of fewer than `smallest` bytes are pickled. A message is received once, and
    within `ttl` seconds. `client` is by default of the daemon that runs, or of one in this process. Forked processes inherit this; spawned ones
    call it, too, if they send arrays.
    """
    global _settings
    _settings = _transit.settings(client, smallest, ttl, mode)
    ForkingPickler.register(np.ndarray, _reduce)


def uninstall() -> None:
    """Makes arrays travel as pickles again. Messages that are under way are received as before."""
    global _settings
    _settings = None


def _reduce(array: np.ndarray[Any, Any]) -> Any:
    by = _settings
    if by is not None and array.nbytes >= by.smallest and not array.dtype.hasobject:
        reduced = _transit.lend(array, by, "numpy")
        if reduced is not None:
            return reduced
    return array.__reduce_ex__(4)
