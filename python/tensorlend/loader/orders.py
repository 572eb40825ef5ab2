"""What the trainer tells its workers to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: A message's timestamp is its epoch and the number of its batch, in so many bits.
BATCH_BITS = 40


def stamp(epoch: int, batch: int) -> int:
    """By which the trainer knows a message."""
    return epoch << BATCH_BITS | batch


#: For each worker, how far it has to come in the epoch before, if that was broken off: it makes the batches below that number,
#: and drops them. So random numbers that it draws do not depend on how far it happened to be, and are those of torch's loader.
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
    """Each worker makes what it is given, one task after the other."""

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
