"""Batches in page-locked memory, from which a device reads faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tensorlend.loader.batches import Batches
from tensorlend.loader.numpy_collate import like


def pin(batch: Any) -> Any:
    """Returns the batch with its tensors in page-locked memory. Tensors that are already in such
    memory stay, and others are copied. If an object has a method `pin_memory`, returns the result
    of that method.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, Mapping):
        return like(batch, {key: pin(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pin, batch))
    if isinstance(batch, Sequence):
        return like(batch, [pin(item) for item in batch])
    return batch


class Pinned(Iterator[Any]):
    """An iterator over batches that pins each of them."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Pinned:
        return self

    def __next__(self) -> Any:
        return pin(next(self._batches))

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty if they have ended."""
        return self._batches.worker_pids

    def close(self) -> None:
        """Ends the epoch and the workers."""
        self._batches.close()
