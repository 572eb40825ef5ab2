"""The code that ends a vector environment."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tensorlend._errors import Error
from tensorlend._native import Client, Embedded, Subscription

#: Time that processes have to exit after SIGTERM and after SIGKILL, in seconds.
_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 1.0


def end(
    client: Client,
    broker: Embedded | None,
    processes: list[Any],
    pipes: list[Any],
    subscriptions: list[Subscription],
    streams: Sequence[str],
) -> None:
    """Ends the workers that have not exited yet, and deletes the streams. Also ends the daemon if
    this vector environment started it.
    """
    for pipe in pipes:
        pipe.close()
    for stop, seconds in (("terminate", _TERMINATE_SECONDS), ("kill", _KILL_SECONDS)):
        for process in processes:
            if process.is_alive():
                getattr(process, stop)()
        _join(processes, seconds)
    for subscription in subscriptions:
        subscription.close()
    try:
        for stream in streams:
            client.delete_stream(stream)
    except Error:
        # The daemon has ended, and the streams with it.
        pass
    if broker is not None:
        client.close()
        broker.close()


def _join(processes: list[Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
