"""Pauses after failures, so that an engine asks a process that does not respond only now and then."""

from __future__ import annotations

import time

#: Seconds without requests after a failure, and their maximum after several failures.
RETRY_S = 1.0
RETRY_MAX_S = 16.0


class Pause:
    """The pause after a failure. It doubles with each failure soon after the previous pause."""

    def __init__(self) -> None:
        self._until = -RETRY_MAX_S
        self._pause_s = RETRY_S

    def is_over(self) -> bool:
        """Returns whether requests may be sent."""
        return time.monotonic() >= self._until

    def begin(self) -> None:
        """Notes a failure. Another failure during the pause has no effect."""
        if not self.is_over():
            return
        # A success may not have needed the other process, so only time ends a series of failures.
        now = time.monotonic()
        is_again = now < self._until + RETRY_MAX_S
        self._pause_s = min(self._pause_s * 2, RETRY_MAX_S) if is_again else RETRY_S
        self._until = now + self._pause_s
