"""The trainer's orders to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A message's timestamp consists of its epoch and, in this number of low bits, the number of its batch.
BATCH_BITS = 40


def stamp(epoch: int, batch: int) -> int:
    """Returns the timestamp that identifies a message."""
    return epoch << BATCH_BITS | batch


#: For each worker, the batch number that it must reach in the previous epoch, if that epoch was
#: interrupted. The worker makes the batches below that number and drops them. So its random numbers
#: do not depend on its progress at the interruption, and equal those of torch's loader.
Settle = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """An order whose indices are known from the start. If there are W workers, worker w makes the
    batches w, w + W, w + 2 W ...
    """

    epoch: int
    #: Number of batches of the epoch.
    count: int
    #: Number of indices of the epoch.
    length: int
    #: Number of indices of a batch; None if each index is a batch of its own.
    batch_size: int | None
    #: Name of an int64 tensor with the indices; None for 0, 1, 2 ...
    order: str | None
    settle: Settle = ()


@dataclass(frozen=True)
class Tasks:
    """An order to make the batches of the tasks that follow, one after the other."""

    epoch: int
    settle: Settle = ()


@dataclass(frozen=True)
class Task:
    """One batch of an epoch of tasks."""

    batch: int
    indices: Any


@dataclass(frozen=True)
class Whole:
    """An order to iterate over the worker's copy of the dataset until the dataset ends."""

    epoch: int
    settle: Settle = ()


Order = Shares | Tasks | Whole
