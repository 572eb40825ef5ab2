"""The trainer's orders to its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A message's timestamp is its epoch and the number of its batch, in this number of bits.
BATCH_BITS = 40


def stamp(epoch: int, batch: int) -> int:
    """Returns the timestamp that identifies a message."""
    return epoch << BATCH_BITS | batch


#: For each worker, the batch number that it must reach in the previous epoch, if that was interrupted. The worker makes the
#: batches below that number and drops them. So its random numbers do not depend on its progress at the interruption, and equal
#: those of torch's loader.
Settle = tuple[int, ...]


@dataclass(frozen=True)
class Shares:
    """Worker w of W makes the batches w, w + W, w + 2 W ... of an order of indices that is known from the start."""

    epoch: int
    #: Batches in all.
    count: int
    #: Indices in all.
    length: int
    #: None: each index is a batch of its own.
    batch_size: int | None
    #: Name of an int64 tensor with the indices; None for 0, 1, 2 ...
    order: str | None
    settle: Settle = ()


@dataclass(frozen=True)
class Tasks:
    """Each worker makes the batches of its tasks, one after the other."""

    epoch: int
    settle: Settle = ()


@dataclass(frozen=True)
class Task:
    """One batch of an epoch of tasks."""

    batch: int
    indices: Any


@dataclass(frozen=True)
class Whole:
    """Each worker iterates over its copy of the dataset until it ends."""

    epoch: int
    settle: Settle = ()


Order = Shares | Tasks | Whole
