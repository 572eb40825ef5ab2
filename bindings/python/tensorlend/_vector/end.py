"""The code that ends a vector environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorlend._errors import Error
from tensorlend._native import Client, Embedded, Subscription
from tensorlend._processes import stop

#: Time that processes have to exit after SIGTERM and after SIGKILL, in seconds.
_TERMINATE_SECONDS = 1.0
_KILL_SECONDS = 1.0


def end(
    client: Client,
    daemon: Embedded | None,
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
    stop(processes, _TERMINATE_SECONDS, _KILL_SECONDS)
    for subscription in subscriptions:
        subscription.close()
    try:
        for stream in streams:
            client.delete_stream(stream)
    except Error:
        # The daemon has ended, and the streams with it.
        pass
    if daemon is not None:
        client.close()
        daemon.close()
