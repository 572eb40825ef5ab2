"""The work of a worker process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from tensorlend._errors import DisconnectedError, NotFoundError, StreamFullError, TimeoutError  # noqa: A004
from tensorlend._native import Client, Stream, connect
from tensorlend.loader import arena, fetch
from tensorlend.loader.arena import Arena
from tensorlend.loader.control import Control
from tensorlend.loader.failure import Failure
from tensorlend.loader.job import Job
from tensorlend.loader.orders import Order, Shares, Task, Tasks, Whole, stamp
from tensorlend.loader.parcel import Content, Packer

#: Interval in seconds at which the wait for the trainer's subscription checks that the trainer lives.
_SUBSCRIBE_SECONDS = 0.1

#: Number of attempts to send during the time in which the trainer takes one batch of this worker.
#: The limits of the sleep between two attempts follow, in seconds.
_ATTEMPTS = 8
_ATTEMPT_SECONDS_MIN, _ATTEMPT_SECONDS_MAX = 20e-6, 2e-3
#: Time in seconds of polling after which the worker sleeps until the trainer wakes it.
_POLL_SECONDS = 0.1

#: The number of a batch in its epoch, and the function that makes it.
Batch = tuple[int, Callable[[], Any]]


def work(job: Job, pipe: Connection) -> None:
    """Runs the process from start to end."""
    try:
        _reset_signals()
        _serve(job, Control(pipe))
    except (KeyboardInterrupt, BrokenPipeError):
        # Send no error. The trainer was interrupted, too, or has ended.
        pass


def _serve(job: Job, control: Control) -> None:
    try:
        address = list(job.address)
        with connect(address, namespace=job.namespace, label=f"loader worker {job.worker}") as client:
            with client.stream(job.stream, capacity=job.capacity) as stream:
                try:
                    _Worker(job, control, client, stream).run()
                except DisconnectedError:
                    control.leave_if_orphaned()
                    raise
    except DisconnectedError:
        if not control.dismissed():
            raise


def _reset_signals() -> None:
    """Resets the signal state that a forked worker has inherited. The trainer's handlers would
    prevent SIGTERM from ending the worker, and signals may be blocked. Ignored signals stay
    ignored.
    """
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class _Worker:
    def __init__(self, job: Job, control: Control, client: Client, stream: Stream) -> None:
        self._job = job
        self._control = control
        self._client = client
        self._stream = stream
        self._arena = Arena(client.create)
        self._packer = Packer(job.kit, self._arena)
        self._subscribed = False
        # Time of the last send, and the shortest time in which the trainer made room. Both are in
        # seconds.
        self._sent = 0.0
        self._pace = 0.0
        self._by_index: Callable[[Any], Any] | None = None
        # An error before the first batch. It is sent in place of that batch.
        self._failed: Failure | None = None

    def run(self) -> None:
        """Executes orders until the trainer sends no more."""
        job = self._job
        arena.enter(self._arena)
        try:
            job.kit.enter(job)
            if job.init is not None:
                job.init(job.worker)
        except Exception as error:
            self._failed = self._failure(error)
        order = self._control.wait()
        while order is not None:
            order = self._epoch(order) if not isinstance(order, Task) else self._control.wait()

    def _epoch(self, order: Order) -> Any:
        """Executes one order, and returns the next order."""
        if isinstance(order, Tasks):
            return self._tasks(order)
        made = self._shares(order) if isinstance(order, Shares) else self._whole(order)
        for batch, make in made:
            if self._control.pending():
                following = self._control.wait()
                if following is not None:
                    self._settle(batch, make, made, following.settle[self._job.worker])
                return following
            if not self._make(order.epoch, batch, make):
                break
        return self._control.wait()

    def _settle(self, batch: int, make: Callable[[], Any], rest: Iterator[Batch], end: int) -> None:
        """Makes the batches that the previous epoch still owes, and drops them. So random numbers
        do not depend on the interruption.
        """
        while batch < end:
            try:
                make()
            except StopIteration:
                if self._job.iterable:
                    return
            except Exception:
                # Ignore the error, because no process reads this batch.
                pass
            self._arena.clear()
            following = next(rest, None)
            if following is None:
                return
            batch, make = following

    def _tasks(self, order: Tasks) -> Any:
        while True:
            task = self._control.wait()
            if not isinstance(task, Task):
                return task
            self._make(order.epoch, task.batch, partial(self._fetch, task.indices))

    def _shares(self, order: Shares) -> Iterator[Batch]:
        job = self._job
        indices: Any = range(order.length)
        if order.order is not None:
            try:
                indices = self._client.get(order.order).numpy()
            except NotFoundError:
                # Stop, because the trainer has ended.
                return
        size = order.batch_size
        for batch in range(job.worker, order.count, job.workers):
            part = indices[batch] if size is None else np.asarray(indices[batch * size : (batch + 1) * size])
            yield batch, partial(self._fetch, part)

    def _whole(self, order: Whole) -> Iterator[Batch]:
        batches: Iterator[Any] | None = None

        def following() -> Any:
            nonlocal batches
            # Make the iterator here, so that an exception of the dataset's first use becomes the error of its first
            # batch.
            if batches is None:
                batches = fetch.by_iteration(self._job)
            return next(batches)

        return ((batch, following) for batch in count())

    def _fetch(self, indices: Any) -> Any:
        if self._by_index is None:
            self._by_index = fetch.by_index(self._job)
        return self._by_index(indices)

    def _make(self, epoch: int, batch: int, make: Callable[[], Any]) -> bool:
        """Makes a batch, and sends it or its error. Returns False if the dataset has ended."""
        more = True
        try:
            if self._failed is not None:
                failed, self._failed = self._failed, None
                content, metadata = self._packer.failure(failed)
            else:
                content, metadata = self._packer.batch(make())
        except StopIteration as stop:
            if self._job.iterable:
                more = False
                content, metadata = self._packer.end()
            else:
                content, metadata = self._failed_batch(stop)
        except Exception as error:
            content, metadata = self._failed_batch(error)
        # Drop the views of the sent slots, because a view would keep a slot in use after the trainer has released it.
        self._arena.clear()
        self._send(content, metadata, stamp(epoch, batch))
        return more

    def _failed_batch(self, error: BaseException) -> tuple[Content, bytes]:
        failure = self._failure(error)
        # Drop the traceback, which may hold the failed batch, and so the memory that was missing.
        error.__traceback__ = None
        self._arena.clear()
        try:
            return self._packer.failure(failure)
        except Exception:
            # There is not enough memory even to send the error through the stream.
            self._control.send_failure(failure)
            raise

    def _send(self, content: Content, metadata: bytes, stamp: int) -> None:
        while not self._subscribed:
            try:
                self._stream.wait_subscribers(1, _SUBSCRIBE_SECONDS)
                self._subscribed = True
            except TimeoutError:
                if self._control.orphaned():
                    raise BrokenPipeError from None
                if self._control.dismissed():
                    return
        if not self._send_unwoken(content, metadata, stamp):
            self._stream.send(content, metadata=metadata, timestamp=stamp)
        self._sent = time.monotonic()

    def _send_unwoken(self, content: Content, metadata: bytes, stamp: int) -> bool:
        """Polls the stream for room, and sends as soon as the stream has room. Returns False after
        a long time without room.

        The trainer must wake a worker that sleeps for room. This needs a system call and an
        interrupt for the other core, which cost the trainer more than taking the batch. So workers
        do not sleep as long as the trainer takes batches.
        """
        began = now = time.monotonic()
        while now - began < _POLL_SECONDS:
            try:
                self._stream.try_send(content, metadata=metadata, timestamp=stamp)
            except StreamFullError:
                time.sleep(min(max(self._pace / _ATTEMPTS, _ATTEMPT_SECONDS_MIN), _ATTEMPT_SECONDS_MAX))
                now = time.monotonic()
            else:
                if now > began:
                    self._pace = now - self._sent
                return True
        return False

    def _failure(self, error: BaseException) -> Failure:
        return Failure.of(error, f"loader worker process {self._job.worker}")
