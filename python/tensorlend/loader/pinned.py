"""Batches copied into page-locked memory, from which a device reads faster."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tensorlend.loader.batches import Batches

#: Interval in seconds at which the thread checks whether a reader still wants batches.
_LOOK_SECONDS = 0.1


def pin(batch: Any) -> Any:
    """Returns the batch with its tensors in page-locked memory. For an object with a method `pin_memory`, it returns
    the result of that method.
    """
    if hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, (str, bytes)):
        return batch
    if isinstance(batch, Mapping):
        return _like(batch, {key: pin(value) for key, value in batch.items()})
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(pin, batch))
    if isinstance(batch, Sequence):
        return _like(batch, [pin(item) for item in batch])
    return batch


def _like(batch: Any, members: Any) -> Any:
    try:
        return type(batch)(members)
    except TypeError:
        return members


class Pinned(Iterator[Any]):
    """An iterator over batches that a thread pins, at most `ahead` in advance. Dropping the iterator ends the thread.
    """

    def __init__(self, batches: Batches, ahead: int, device: int) -> None:
        self._batches = batches
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(max(ahead, 1))
        stop = threading.Event()
        # The thread has a reference to the queue and none to this object, so that this object can be dropped while the thread
        # runs.
        self._thread = threading.Thread(
            target=_run, args=(batches, self._queue, stop, device), name="loader pin", daemon=True
        )
        self._end = weakref.finalize(self, _end, stop, self._queue, self._thread)
        self._ended = False
        self._thread.start()

    def __iter__(self) -> Pinned:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        good, batch = self._queue.get()
        if good:
            return batch
        # After the error of one batch, further batches follow. After an error of the workers, none do.
        self._ended = isinstance(batch, StopIteration) or self._batches.ended
        try:
            raise batch
        finally:
            del batch

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty if they have ended."""
        return self._batches.worker_pids

    def close(self) -> None:
        """Ends the epoch, the thread and the workers."""
        self._ended = True
        self._end()
        self._batches.close()


def _run(batches: Batches, out: queue.Queue[tuple[bool, Any]], stop: threading.Event, device: int) -> None:
    # Use one thread, because torch would otherwise copy with all cores.
    torch.set_num_threads(1)
    torch.accelerator.set_device_index(device)
    while not stop.is_set():
        try:
            item = (True, pin(next(batches)))
        except BaseException as error:
            item = (False, error)
        while not stop.is_set():
            try:
                out.put(item, timeout=_LOOK_SECONDS)
                break
            except queue.Full:
                continue
        if not item[0] and (isinstance(item[1], StopIteration) or batches.ended):
            return
        del item


def _end(stop: threading.Event, out: queue.Queue[tuple[bool, Any]], thread: threading.Thread) -> None:
    stop.set()
    if thread is not threading.current_thread():
        thread.join(1.0)
    while True:
        try:
            out.get_nowait()
        except queue.Empty:
            return
