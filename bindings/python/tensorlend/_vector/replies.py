"""The program's end of a worker's pipe."""

from __future__ import annotations

import select
import time
from multiprocessing.connection import Connection
from typing import Any

from tensorlend._processes import signal_name
from tensorlend.loader.failure import Failure

#: Time in seconds that a worker has to exit after its pipe has ended. Its exit code is unknown
#: before that exit.
_EXIT_SECONDS = 5.0


class Replies:
    """A pipe that skips the replies of calls that timed out, and that reports the end of the worker as a failure.

    It has the methods of a `Connection` that `gymnasium.vector.AsyncVectorEnv` calls.
    """

    def __init__(self, index: int, pipe: Connection, process: Any) -> None:
        #: The error that has ended the worker; None while it works.
        self.failure: BaseException | None = None
        self._index = index
        self._pipe = pipe
        self._process = process
        # Number of commands without a reply. All of them except the last have timed out.
        self._due = 0
        # Also poll the sentinel, which reports that the worker has ended. Processes that the
        # environment started may hold the worker's end of the pipe open.
        self._poll = select.poll()
        self._descriptor = pipe.fileno()
        self._poll.register(self._descriptor, select.POLLIN)
        self._poll.register(process.sentinel, select.POLLIN)

    @property
    def closed(self) -> bool:
        """Whether this end of the pipe is closed."""
        return self._pipe.closed

    def close(self) -> None:
        """Closes this end of the pipe."""
        self._pipe.close()

    def send(self, command: Any) -> None:
        """Sends a command to the worker."""
        self._due += 1
        try:
            self._pipe.send(command)
        except (BrokenPipeError, ConnectionResetError):
            # Ignore the error. `recv` reports that the worker has ended, with the error that it
            # may have sent before.
            pass

    def poll(self, timeout: float | None) -> bool:
        """Waits until `recv` would not block. Returns False if that takes more than `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.failure is None:
            events = self._poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
            if not events:
                return False
            if self._due <= 1:
                return True
            self._next(events)
        return True

    def recv(self) -> tuple[Any, bool]:
        """Returns the reply to the last command, and True. On failure, sets `failure` and returns
        None and False.
        """
        while self.failure is None:
            reply = self._next(self._poll.poll())
            if self._due == 0 and self.failure is None:
                return reply, True
        return None, False

    def _next(self, events: list[tuple[int, int]]) -> Any:
        reply, succeeded = None, False
        self._due -= 1
        try:
            # After the worker has ended, the pipe may still contain a reply. Check the events for
            # it, because `Connection.poll` takes longer than the rest of the method.
            if any(descriptor == self._descriptor for descriptor, _ in events):
                reply, succeeded = self._pipe.recv()
        except (EOFError, OSError):
            pass
        if isinstance(reply, Failure):
            self.failure = reply.error()
        elif not succeeded:
            self.failure = self._ended()
        return reply

    def _ended(self) -> RuntimeError:
        self._process.join(_EXIT_SECONDS)
        code = self._process.exitcode
        if code is None:
            how = "has closed its pipe"
        elif code < 0:
            how = f"was killed by {signal_name(code)}"
        else:
            how = f"exited with status {code}"
        return RuntimeError(
            f"the process of environment {self._index} (pid {self._process.pid}) {how}: "
            "close this vector environment, and make a new one"
        )
