"""The epochs of the trainer. An epoch decides which worker's message is the next batch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tensorlend._native import Message
from tensorlend.loader.crew import Crew
from tensorlend.loader.orders import Settle, Shares, Task, Tasks, Whole, stamp
from tensorlend.loader.parcel import End, Unpacker


class Epoch(Protocol):
    """The interface of one epoch."""

    def begin(self, crew: Crew, unpacker: Unpacker, ahead: int, timeout: float, settle: Settle) -> None:
        """Starts the epoch. Each worker makes `ahead` batches in advance. A batch that takes more
        than `timeout` seconds is an error. `settle` is the result of the previous epoch's method of
        this name.
        """

    def settle(self) -> Settle:
        """Ends the epoch early. Returns the number of batches that each worker must make before it begins the next
        epoch.
        """

    def take(self) -> Any:
        """Returns the next batch, or raises StopIteration after the last one."""


class Known:
    """An epoch of a map-style dataset whose indices are known from the start. The trainer sends one
    order, and then receives batches.
    """

    def __init__(
        self,
        indices: Iterator[int] | npt.NDArray[np.int64] | None,
        length: int,
        batch_size: int | None,
        drop_last: bool,
    ) -> None:
        """Creates the epoch. `indices` contains or yields `length` indices; None stands for 0, 1, 2
        ...
        """
        size = batch_size or 1
        self._count = length // size if drop_last else -(-length // size)
        self._length = min(length, self._count * size)
        self._batch_size = batch_size
        self._array = indices if isinstance(indices, np.ndarray) else None
        self._sampler = indices if not isinstance(indices, np.ndarray) else None

    def begin(self, crew: Crew, unpacker: Unpacker, ahead: int, timeout: float, settle: Settle) -> None:
        self._crew, self._unpacker, self._timeout = crew, unpacker, timeout
        self._ahead, self._workers = ahead, len(crew)
        epoch = crew.begin()
        array = self._array
        if self._sampler is not None:
            array = np.fromiter(islice(self._sampler, self._length), np.int64, self._length)
        name = crew.publish(array) if array is not None else None
        crew.order(Shares(epoch, self._count, self._length, self._batch_size, name, settle))
        self._stamp = stamp(epoch, 0)
        self._taken = 0
        # If one more index is requested from a sampler, it may draw from its generator once more.
        # torch's loader makes that request for a short last batch, or after the last batch. This
        # epoch makes it at the same point, so that an interrupted epoch leaves the generator in
        # the same state.
        short = self._length < self._count * (self._batch_size or 1)
        self._exhaust_at = self._count - ahead * self._workers + (0 if short else 1)
        self._exhaust()

    def take(self) -> Any:
        taken = self._taken
        if taken == self._count:
            raise StopIteration
        unpacker = self._unpacker
        batch = self._crew.take(taken % self._workers, self._stamp + taken, self._timeout, unpacker.recipe)
        self._taken = taken + 1
        if self._sampler is not None:
            self._exhaust()
        return unpacker.batch(batch.value) if type(batch) is Message else batch

    def settle(self) -> Settle:
        return (min(self._count, self._taken + self._ahead * self._workers),) * self._workers

    def _exhaust(self) -> None:
        if self._sampler is not None and self._taken >= self._exhaust_at:
            for _ in self._sampler:
                pass
            self._sampler = None


class Drawn:
    """An epoch of a map-style dataset whose indices the trainer draws from a sampler while it takes batches."""

    def __init__(self, indices: Iterator[Any]) -> None:
        """Creates the epoch. `indices` yields the indices of one batch at a time."""
        self._indices = indices

    def begin(self, crew: Crew, unpacker: Unpacker, ahead: int, timeout: float, settle: Settle) -> None:
        self._crew, self._unpack, self._timeout = crew, unpacker.batch, timeout
        self._given = self._taken = 0
        self._more = True
        crew.order(Tasks(crew.begin(), settle))
        for _ in range(ahead):
            for worker in range(len(crew)):
                self._give(worker)

    def _give(self, worker: int) -> None:
        if not self._more:
            return
        try:
            indices = next(self._indices)
        except StopIteration:
            self._more = False
            return
        self._crew.tell(worker, Task(self._given, indices))
        self._given += 1

    def take(self) -> Any:
        if self._taken == self._given:
            raise StopIteration
        worker, message = self._receive()
        self._give(worker)
        return self._unpack(message.value)

    def _receive(self) -> tuple[int, Message]:
        workers = len(self._crew)
        received = self._crew.receive_next(self._taken % workers, self._taken, range(workers), self._timeout)
        self._taken += 1
        return received

    def settle(self) -> Settle:
        # The workers complete all tasks that were sent. Receive their batches here, so that the
        # pipes do not become full.
        while self._taken < self._given:
            self._receive()
        return (0,) * len(self._crew)


class Iterated:
    """An epoch of an iterable dataset. The trainer takes batches from the workers in turn, from
    each worker until its dataset ends.
    """

    def begin(self, crew: Crew, unpacker: Unpacker, ahead: int, timeout: float, settle: Settle) -> None:
        self._crew, self._unpack, self._timeout = crew, unpacker.batch, timeout
        self._taken = [0] * len(crew)
        self._ahead = ahead
        # The workers that have not ended, the next one first.
        self._turns = list(range(len(crew)))
        crew.order(Whole(crew.begin(), settle))

    def take(self) -> Any:
        while self._turns:
            first = self._turns[0]
            worker, message = self._crew.receive_next(first, self._taken[first], self._turns, self._timeout)
            self._taken[worker] += 1
            self._turns.remove(worker)
            # A worker that failed has not ended. It continues with the next samples.
            self._turns.append(worker)
            batch = self._unpack(message.value)
            if batch is not End:
                return batch
            self._turns.remove(worker)
        raise StopIteration

    def settle(self) -> Settle:
        return tuple(taken + self._ahead for taken in self._taken)
