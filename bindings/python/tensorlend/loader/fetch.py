"""Functions that make batches from a worker's dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from tensorlend.loader.job import Job


def by_index(job: Job) -> Callable[[Any], Any]:
    """Returns a function that makes a batch from a list or an array of indices. If samples are not
    batched, the function takes one index.
    """
    dataset, collate = job.dataset, job.collate
    if not job.batched:
        return lambda index: collate(dataset[_plain(index)])
    whole = job.kit.gather(dataset, collate)
    if whole is not None:
        return whole
    several = getattr(dataset, "__getitems__", None)
    if several is not None:
        return lambda indices: collate(several(_plain(indices)))
    return lambda indices: collate([dataset[index] for index in _plain(indices)])


def _plain(indices: Any) -> Any:
    # Convert numpy's integers, because datasets expect Python's int as an index.
    return indices.tolist() if isinstance(indices, (np.ndarray, np.generic)) else indices


def by_iteration(job: Job) -> Iterator[Any]:
    """Yields batches until the dataset ends. An exception of the dataset does not end the
    iteration, so the caller may take the next batch.
    """
    return _Iteration(job)


class _Iteration:
    def __init__(self, job: Job) -> None:
        self._samples = iter(job.dataset)
        self._job = job
        self._ended = False

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        job = self._job
        if not job.batched:
            return job.collate(next(self._samples))
        if self._ended:
            raise StopIteration
        samples = list(islice(self._samples, job.batch_size))
        self._ended = len(samples) < (job.batch_size or 0)
        if not samples or (job.drop_last and self._ended):
            raise StopIteration
        return job.collate(samples)
