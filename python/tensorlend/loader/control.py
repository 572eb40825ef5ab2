"""What a worker hears from its trainer."""

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

#: A trainer that was killed closes its pipes and its broker's sockets, but processes that it forked may hold them open: so it
#: is looked for as often.
_LOOK_SECONDS = 1.0


class Control:
    """A worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._heard: deque[Any] = deque()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._trainer = multiprocessing.parent_process()
        self._parent = os.getppid()
        if self._trainer is not None:
            _die_with(self._trainer.sentinel)
        threading.Thread(target=self._watch, name="loader watch", daemon=True).start()

    def wait(self) -> Any:
        """The next order or task; None if there will be none."""
        while not self._heard:
            self._poll.poll()
            self._hear()
        return self._heard.popleft()

    def pending(self) -> bool:
        """Whether there is something to hear."""
        return bool(self._heard) or bool(self._poll.poll(0))

    def dismissed(self) -> bool:
        """Whether the trainer wants no more."""
        self._hear()
        return None in self._heard

    def orphaned(self) -> bool:
        """Whether the trainer is gone."""
        # A fork server's children have another parent than the trainer.
        gone = self._trainer is None or bool(wait([self._trainer.sentinel], timeout=0))
        return gone or os.getppid() != self._parent

    def complain(self, what: Any) -> None:
        """Tells the trainer what cannot be told by the stream."""
        self._pipe.send(what)

    def leave_if_orphaned(self) -> None:
        """Ends the process at once if the trainer is gone. Leaving in good order would take its time: the daemon may be gone
        with it, while its sockets are held open by this process's siblings."""
        if self.orphaned():
            os._exit(1)

    def _watch(self) -> None:
        # Whatever the worker is at: waiting for orders, or for a sample.
        while True:
            self.leave_if_orphaned()
            time.sleep(_LOOK_SECONDS)

    def _hear(self) -> None:
        while self._poll.poll(0):
            try:
                self._heard.append(self._pipe.recv())
            except (EOFError, OSError):
                self._heard.append(None)
                return


def _die_with(sentinel: int) -> None:
    """Has the kernel kill this process when the trainer ends: at once, even while a call holds the interpreter's lock and waits
    for a daemon that was the trainer's own. A trainer that ends in good order has sent its workers home before."""
    fcntl.fcntl(sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(sentinel, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(sentinel, fcntl.F_SETFL, fcntl.fcntl(sentinel, fcntl.F_GETFL) | os.O_ASYNC)
