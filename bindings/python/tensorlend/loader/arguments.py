"""Arguments that both loaders take, and their checks."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import BaseContext


def worker_count(workers: int | None, num_workers: int | None) -> int:
    """Returns the number of workers from `workers` or `num_workers`, which is torch's name. Returns
    0 if neither is given.
    """
    if workers is not None and num_workers is not None and workers != num_workers:
        raise ValueError(f"workers and num_workers are two words for one option, but got {workers} and {num_workers}")
    count = workers if workers is not None else num_workers
    if count is None:
        return 0
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"workers option should be an int, but got {count!r}: all options after it are keywords")
    if count < 0:
        raise ValueError("workers option should be non-negative; use 0 to load in this process")
    return count


def prefetch(prefetch_factor: int | None, workers: int) -> int:
    """Returns the number of batches that each worker makes in advance."""
    if workers == 0 and prefetch_factor is not None:
        raise ValueError("prefetch_factor option needs workers > 0")
    if prefetch_factor is None:
        return 2
    if prefetch_factor < 0:
        raise ValueError("prefetch_factor option should be non-negative")
    return max(prefetch_factor, 1)


def context(given: str | BaseContext | None, workers: int) -> BaseContext | None:
    """Returns the context that starts worker processes; None for the default."""
    if given is None:
        return None
    if workers == 0:
        raise ValueError("multiprocessing_context option needs workers > 0")
    if isinstance(given, str):
        methods = multiprocessing.get_all_start_methods()
        if given not in methods:
            raise ValueError(f"multiprocessing_context option should be one of {methods}, but got {given!r}")
        return multiprocessing.get_context(given)
    if not isinstance(given, BaseContext):
        raise TypeError(f"multiprocessing_context option should be a context or the name of one, but got {given!r}")
    return given
