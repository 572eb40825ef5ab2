"""The kit for loaders of numpy arrays."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tensorlend._dtypes import NUMBERS
from tensorlend._native import Draft, Lease
from tensorlend.loader import job as jobs
from tensorlend.loader.job import Job
from tensorlend.loader.numpy_collate import ArrayDataset, default_collate


class NumpyKit:
    """The kit for loaders whose leaves are numpy arrays."""

    plain = True

    def enter(self, job: Job) -> None:
        jobs.enter(job)
        random.seed(job.seed)
        # Seed numpy with other words than `random`, which gets the worker's seed. Both use the
        # same generator, and would otherwise draw the same numbers.
        words = [job.worker, job.base_seed & 0xFFFFFFFF, job.base_seed >> 32, 0]
        np.random.seed(np.random.SeedSequence(words).generate_state(4))

    def kind(self, value: Any) -> str | None:
        # Accept memory maps, whose file the trainer does not need. Other subclasses may hold more than their elements.
        if type(value) in (np.ndarray, np.memmap) and value.dtype.name in NUMBERS and value.dtype.isnative:
            return "n"
        return None

    def spec(self, value: Any) -> tuple[Sequence[int], Any]:
        return value.shape, value.dtype.name

    def covers(self, value: Any, draft: Draft) -> bool:
        return bool(value.shape == draft.shape and value.dtype == draft.dtype and value.flags.c_contiguous)

    def copy(self, value: Any, draft: Draft) -> None:
        np.copyto(draft.array, value)

    def show(self, kind: str) -> Callable[[Lease], Any]:
        return Lease.numpy

    def gather(self, dataset: Any, collate: Callable[..., Any]) -> Callable[[Any], Any] | None:
        if type(dataset) is ArrayDataset and collate is default_collate:
            return dataset.gather
        return None
