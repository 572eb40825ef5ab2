"""A worker's side of the trainer's orders."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import select
import signal
import threading
import time
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any

#: Interval in seconds at which a worker checks that its trainer lives. A killed trainer closes its
#: pipes, but processes that it forked may hold them open.
_POLL_SECONDS = 1.0


class Control:
    """A worker's end of the pipe to the trainer."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._received: deque[Any] = deque()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._trainer = multiprocessing.parent_process()
        self._parent = os.getppid()
        if self._trainer is not None:
            _die_with(self._trainer.sentinel)
        threading.Thread(target=self._watch, name="loader watch", daemon=True).start()

    def wait(self) -> Any:
        """Returns the next order or task; None if the trainer sends no more."""
        while not self._received:
            self._poll.poll()
            self._receive()
        return self._received.popleft()

    def pending(self) -> bool:
        """Whether an order or a task has arrived."""
        return bool(self._received) or bool(self._poll.poll(0))

    def dismissed(self) -> bool:
        """Whether the trainer needs no more batches."""
        self._receive()
        return None in self._received

    def orphaned(self) -> bool:
        """Whether the trainer has ended."""
        # The sentinel shows whether the trainer has ended. Children of a fork server have another parent, so the
        # parent's pid would not.
        gone = self._trainer is None or bool(wait([self._trainer.sentinel], timeout=0))
        return gone or os.getppid() != self._parent

    def send_failure(self, what: Any) -> None:
        """Sends an error to the trainer through the pipe, if it cannot be sent through the stream."""
        self._pipe.send(what)

    def leave_if_orphaned(self) -> None:
        """Ends the process at once if the trainer has ended. A regular exit could hang. The daemon
        may have ended with the trainer, while siblings of this process hold the daemon's sockets
        open.
        """
        if self.orphaned():
            os._exit(1)

    def _watch(self) -> None:
        # This thread runs in all states of the worker, while it waits for orders or for a sample.
        while True:
            self.leave_if_orphaned()
            time.sleep(_POLL_SECONDS)

    def _receive(self) -> None:
        while self._poll.poll(0):
            try:
                self._received.append(self._pipe.recv())
            except (EOFError, OSError):
                self._received.append(None)
                return


def _die_with(sentinel: int) -> None:
    """Makes the kernel kill this process when the trainer ends.

    This also works while a call holds the interpreter's lock and waits for a daemon that the trainer embedded. A trainer
    that ends normally dismisses its workers first."""
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
