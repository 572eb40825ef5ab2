"""A worker process."""

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

#: How long to wait for the trainer to subscribe before looking whether it is still there, in seconds.
_SUBSCRIBE_SECONDS = 0.1

#: A worker that waits for room looks so often while a batch of its own is taken, within these bounds in seconds.
_LOOKS = 8
_LOOK_SECONDS_MIN, _LOOK_SECONDS_MAX = 20e-6, 2e-3
#: After so many seconds it waits to be woken instead.
_LOOK_SECONDS = 0.1

#: The number of a batch in its epoch, and what makes it.
Batch = tuple[int, Callable[[], Any]]


def work(job: Job, pipe: Connection) -> None:
    """The process's whole life."""
    try:
        _reset_signals()
        _serve(job, Control(pipe))
    except (KeyboardInterrupt, BrokenPipeError):
        # The trainer was interrupted as well, or is gone: there is nobody to tell.
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
    """Undoes what a forked worker has inherited: the trainer's handlers, by which SIGTERM would not end it, and blocked signals.
    What is ignored stays ignored."""
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
        # When the last message went, and how long it took the trainer to make room, at least.
        self._sent = 0.0
        self._pace = 0.0
        self._by_index: Callable[[Any], Any] | None = None
        # What went wrong before there was a batch to blame for it.
        self._failed: Failure | None = None

    def run(self) -> None:
        """Carries out orders until there are no more."""
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
        """One order; returns the next."""
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
        """Makes what would have been made, for nobody."""
        while batch < end:
            try:
                make()
            except StopIteration:
                if self._job.iterable:
                    return
            except Exception:
                # Of a batch that nobody wants.
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
                # The trainer has ended.
                return
        size = order.batch_size
        for batch in range(job.worker, order.count, job.workers):
            part = indices[batch] if size is None else np.asarray(indices[batch * size : (batch + 1) * size])
            yield batch, partial(self._fetch, part)

    def _whole(self, order: Whole) -> Iterator[Batch]:
        batches: Iterator[Any] | None = None

        def following() -> Any:
            nonlocal batches
            # Here, so that what a dataset raises when it is first asked is told as an error of its first batch.
            if batches is None:
                batches = fetch.by_iteration(self._job)
            return next(batches)

        return ((batch, following) for batch in count())

    def _fetch(self, indices: Any) -> Any:
        if self._by_index is None:
            self._by_index = fetch.by_index(self._job)
        return self._by_index(indices)

    def _make(self, epoch: int, batch: int, make: Callable[[], Any]) -> bool:
        """Makes a batch and sends it, or what went wrong; False if there are no more."""
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
                content, metadata = self._sorry(stop)
        except Exception as error:
            content, metadata = self._sorry(error)
        # Nothing may look at what is sent any more: the slots could not be used again as soon as the trainer is done.
        self._arena.clear()
        self._send(content, metadata, stamp(epoch, batch))
        return more

    def _sorry(self, error: BaseException) -> tuple[Content, bytes]:
        failure = self._failure(error)
        # It may hold the batch that could not be made, and with it the memory that was short.
        error.__traceback__ = None
        self._arena.clear()
        try:
            return self._packer.failure(failure)
        except Exception:
            # No memory even for that.
            self._control.complain(failure)
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
        """Sends as soon as there is room, and looks for it from time to time; False if there is none for long.

        Whoever sleeps for room has to be woken by the trainer, which costs it more than taking the batch does: a system call, and
        an interrupt for the other core. So it is left alone for as long as it takes batches.
        """
        began = now = time.monotonic()
        while now - began < _LOOK_SECONDS:
            try:
                self._stream.try_send(content, metadata=metadata, timestamp=stamp)
            except StreamFullError:
                time.sleep(min(max(self._pace / _LOOKS, _LOOK_SECONDS_MIN), _LOOK_SECONDS_MAX))
                now = time.monotonic()
            else:
                if now > began:
                    self._pace = now - self._sent
                return True
        return False

    def _failure(self, error: BaseException) -> Failure:
        return Failure.of(error, f"loader worker process {self._job.worker}")
