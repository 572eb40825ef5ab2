"""What a worker hears from its trainer."""

from __future__ import annotations

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
#: How long a worker has to end by itself once the trainer is gone.
_END_SECONDS = 2.0


class Control:
    """A worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._heard: deque[Any] = deque()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._trainer = multiprocessing.parent_process()
        self._parent = os.getppid()
        self._main = threading.get_ident()
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

    def orphaned(self) -> bool:
        """Whether the trainer is gone."""
        # A fork server's children have another parent than the trainer.
        gone = self._trainer is None or bool(wait([self._trainer.sentinel], timeout=0))
        return gone or os.getppid() != self._parent

    def complain(self, what: Any) -> None:
        """Tells the trainer what cannot be told by the stream."""
        self._pipe.send(what)

    def _watch(self) -> None:
        # Whatever the worker is at: waiting for orders, or for room in a stream that nobody serves any more, or a sample.
        while not self.orphaned():
            time.sleep(_LOOK_SECONDS)
        # As Ctrl-C does; sent to the thread, it ends a wait within a system call too.
        signal.pthread_kill(self._main, signal.SIGINT)
        time.sleep(_END_SECONDS)
        os._exit(1)

    def _hear(self) -> None:
        while self._poll.poll(0):
            try:
                self._heard.append(self._pipe.recv())
            except (EOFError, OSError):
                self._heard.append(None)
                return
