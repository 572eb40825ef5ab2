"""The trainer's control of its worker processes. It starts them, sends orders, receives their
messages, and ends them.
"""

from __future__ import annotations

import os
import secrets
import select
import time
import weakref
from collections.abc import Iterable
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from tensorlend._errors import ClosedError, Error, NotFoundError, StreamEndedError, TimeoutError  # noqa: A004
from tensorlend._native import Message, Recipe, Subscription
from tensorlend._processes import join, signal_name, stop
from tensorlend._types import Mode
from tensorlend.loader.failure import Failure
from tensorlend.loader.host import Host
from tensorlend.loader.job import Job
from tensorlend.loader.orders import BATCH_BITS, Order, Task, stamp
from tensorlend.loader.worker import work

#: Interval in seconds at which a wait for a message checks that the workers live.
_POLL_SECONDS = 0.2
#: Time in seconds that a worker has to exit after its stream has ended.
_EXIT_SECONDS = 5.0
#: Time in seconds that workers have to end before SIGTERM, then before SIGKILL, and that the kernel
#: then has to end them. The sum limits how much later a program ends.
_END_SECONDS = 0.5
_TERMINATE_SECONDS = 0.5
_KILL_SECONDS = 0.5


class Crew:
    """The worker processes of a trainer, each with a pipe for orders and a stream of batches."""

    def __init__(self, host: Host, jobs: list[Job], context: Any, mode: Mode, any_order: bool) -> None:
        self.host = host
        self.epoch = 0
        self._jobs = jobs
        self._mode = mode
        self._any_order = any_order
        self._subscriptions: list[Subscription | None] = [None] * len(jobs)
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        # Names of the tensors with the indices of this and the previous epoch.
        self._named: list[str] = []
        streams = [job.stream for job in jobs]
        # The finalizer has a reference to the host. If one garbage cycle contains host and crew,
        # the workers must end before the host's daemon.
        self._end = weakref.finalize(
            self, _end, os.getpid(), host, self._processes, self._pipes, self._subscriptions, streams, self._named
        )
        # A process that multiprocessing started skips Python's exit functions, and waits without limit for its children. This
        # finalizer runs before that wait.
        util.Finalize(self, self._end, exitpriority=100)
        try:
            for job in jobs:
                self._start(job, context)
        except BaseException:
            self.close()
            raise

    @classmethod
    def stream_names(cls, count: int) -> list[str]:
        """Returns unique names for the workers' streams."""
        token = secrets.token_hex(6)
        return [f"loader/{token}/{worker}" for worker in range(count)]

    def _start(self, job: Job, context: Any) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(job, theirs), name=f"loader worker {job.worker}", daemon=True)
        self._pipes.append(ours)
        process.start()
        self._processes.append(process)
        theirs.close()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [process.pid for process in self._processes]

    @property
    def closed(self) -> bool:
        """Whether the workers were dismissed."""
        return not self._end.alive

    def close(self) -> None:
        """Dismisses the workers. Batches that were not taken are lost."""
        self._end()

    def order(self, order: Order) -> None:
        """Sends an order to all workers."""
        for worker in range(len(self._jobs)):
            self.tell(worker, order)

    def begin(self) -> int:
        """Begins the next epoch and returns its number. From now on, messages of earlier epochs are skipped."""
        # Keep the indices of the previous epoch, which a worker may still need.
        self._forget(keep=1)
        self.epoch += 1
        return self.epoch

    def publish(self, indices: Any) -> str:
        """Publishes the indices of this epoch, and returns their name. The name lasts until the epoch after the next
        begins.
        """
        name = f"{self._jobs[0].stream.rpartition('/')[0]}/order/{self.epoch}"
        self.host.client.put(name, indices, ephemeral=True)
        self._named.append(name)
        return name

    def _forget(self, keep: int) -> None:
        while len(self._named) > keep:
            self.host.client.delete(self._named.pop(0))

    def tell(self, worker: int, what: Order | Task) -> None:
        """Sends an order to one worker."""
        try:
            self._pipes[worker].send(what)
        except (BrokenPipeError, ConnectionResetError):
            self._lost(worker)

    def receive(self, worker: int, due: int, timeout: float) -> Message:
        """Returns the message of a worker with the stamp `due`, and skips older messages. `timeout` is
        in seconds, and 0 means no limit.
        """
        subscription = self._subscriptions[worker]
        message = None
        if subscription is not None:
            try:
                message = subscription.try_recv()
            except StreamEndedError:
                self._lost(worker)
            if message is not None and message.timestamp == due:
                return message
        return self._wait(worker, due, message, timeout)

    def take(self, worker: int, due: int, timeout: float, recipe: Recipe | None) -> Any:
        """Receives a message as `receive` does. If the message has already arrived and the recipe applies to it,
        returns its batch instead.
        """
        subscription = self._subscriptions[worker]
        if subscription is None or recipe is None:
            return self.receive(worker, due, timeout)
        try:
            taken = subscription._take(due, recipe)
        except StreamEndedError:
            self._lost(worker)
        if taken is None or type(taken) is Message:
            return self._wait(worker, due, taken, timeout)
        return taken

    def _wait(self, worker: int, due: int, message: Message | None, timeout: float) -> Message:
        deadline = time.monotonic() + timeout if timeout > 0 else None
        while message is None or message.timestamp != due:
            if message is not None and message.timestamp > due:
                raise RuntimeError(f"loader worker {worker} sent batch {message.timestamp} where {due} was due")
            message = self._next(worker, deadline, timeout)
        return message

    def _next(self, worker: int, deadline: float | None, timeout: float) -> Message:
        while True:
            try:
                return self._subscription(worker).recv(self._poll_seconds(deadline, timeout))
            except TimeoutError:
                self._check_workers()
            except (StreamEndedError, NotFoundError):
                self._lost(worker)
            except ClosedError:
                # Another thread may have closed the loader.
                if self.closed:
                    raise RuntimeError("the loader was closed while a batch was waited for") from None
                raise

    def receive_next(self, worker: int, batch: int, others: Iterable[int], timeout: float) -> tuple[int, Message]:
        """Returns the next message of this epoch, and its worker. This is the given batch of the given worker or, if batches come in
        any order, any message of `others`.
        """
        if not self._any_order:
            return worker, self.receive(worker, stamp(self.epoch, batch), timeout)
        deadline = time.monotonic() + timeout if timeout > 0 else None
        while True:
            poll = select.poll()
            for worker in others:
                try:
                    subscription = self._subscription(worker)
                    while (message := subscription.try_recv()) is not None:
                        if message.timestamp >> BATCH_BITS == self.epoch:
                            return worker, message
                    poll.register(subscription.fileno(), select.POLLIN)
                except TimeoutError:
                    # If the worker has not opened its stream yet, check that the worker lives.
                    self._check_workers()
                except (StreamEndedError, NotFoundError):
                    self._lost(worker)
            # Wait with a limit, because a killed producer wakes no subscriber.
            poll.poll(self._poll_seconds(deadline, timeout) * 1000)
            self._check_workers()

    def _poll_seconds(self, deadline: float | None, timeout: float) -> float:
        if deadline is None:
            return _POLL_SECONDS
        left = deadline - time.monotonic()
        if left <= 0:
            raise RuntimeError(f"the loader timed out after {timeout} seconds: raise timeout=, or see why the worker is slow")
        return min(left, _POLL_SECONDS)

    def _subscription(self, worker: int) -> Subscription:
        subscription = self._subscriptions[worker]
        if subscription is None:
            subscription = self._subscriptions[worker] = self.host.client.subscribe(
                self._jobs[worker].stream,
                start="oldest",
                pollable=self._any_order,
                wait=_POLL_SECONDS,
                mode=self._mode,
            )
        return subscription

    def _lost(self, worker: int) -> NoReturn:
        """Raises the error for a stream that has ended, usually because its worker has died, perhaps before this process subscribed."""
        if not self.closed:
            self._processes[worker].join(_EXIT_SECONDS)
        self._check_workers()
        raise RuntimeError(f"the stream of loader worker {worker} was ended by another client")

    def _check_workers(self) -> None:
        """Raises if a worker has died or has sent an error."""
        if self.closed:
            raise RuntimeError("the loader was closed while a batch was waited for")
        for worker, process in enumerate(self._processes):
            if self._pipes[worker].poll(0):
                try:
                    failure = self._pipes[worker].recv()
                except (EOFError, OSError):
                    process.join(_EXIT_SECONDS)
                else:
                    self.close()
                    raise failure.error() if isinstance(failure, Failure) else RuntimeError(str(failure))
            if process.exitcode is not None:
                pid, code = process.pid, process.exitcode
                self.close()
                raise RuntimeError(f"loader worker {worker} (pid {pid}) exited unexpectedly with {_exit_text(code)}")


def _exit_text(code: int) -> str:
    return f"exit code {code}" + (f": killed by {signal_name(code)}" if code < 0 else "")


def _end(
    pid: int,
    host: Host,
    processes: list[Any],
    pipes: list[Connection],
    subscriptions: list[Subscription | None],
    streams: list[str],
    named: list[str],
) -> None:
    if os.getpid() != pid:
        # A forked child drops its copy of the crew. It must not end the workers, which belong to the parent.
        return
    for pipe in pipes:
        _dismiss(pipe)
    # Close the subscriptions first. Without subscribers, no worker waits for room in its stream.
    for subscription in subscriptions:
        if subscription is not None:
            subscription.close()
    join(processes, _END_SECONDS)
    stop(processes, _TERMINATE_SECONDS, _KILL_SECONDS)
    for process in processes:
        if not process.is_alive():
            process.close()
    try:
        for stream in streams:
            host.client.delete_stream(stream)
        for name in named:
            host.client.delete(name)
    except Error:
        # Ignore the error, because all names have ended with the daemon.
        pass


def _dismiss(pipe: Connection) -> None:
    # Send None before closing. Closing alone does not reach the worker, because workers that were
    # forked later also hold this end of the pipe open.
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    try:
        if poll.poll(0):
            pipe.send(None)
    except OSError:
        pass
    pipe.close()
