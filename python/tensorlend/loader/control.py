"""What a worker hears from its trainer."""

from __future__ import annotations

import multiprocessing
import os
import select
from collections import deque
from multiprocessing.connection import Connection, wait
from typing import Any

from tensorlend.loader.orders import Task

#: A trainer that was killed closes its pipes, but a process forked meanwhile may hold them open: so it is looked for by number too.
_LOOK_SECONDS = 2.0


class Control:
    """A worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._heard: deque[Any] = deque()
        self._poll = select.poll()
        self._poll.register(pipe.fileno(), select.POLLIN)
        self._trainer = multiprocessing.parent_process()
        self._parent = os.getppid()

    def wait(self) -> Any:
        """The next order or task; None if there will be none: the trainer wants no more, or is gone. A task is skipped if an
        order came after it."""
        while not self._heard:
            if not self._poll.poll(_LOOK_SECONDS * 1000):
                if self.orphaned():
                    return None
                continue
            self._hear()
        while isinstance(self._heard[0], Task) and any(not isinstance(other, Task) for other in self._heard):
            self._heard.popleft()
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

    def _hear(self) -> None:
        while self._poll.poll(0):
            try:
                self._heard.append(self._pipe.recv())
            except (EOFError, OSError):
                self._heard.append(None)
                return
