"""The default client, for calls to which the program passes no client."""

from __future__ import annotations

import os
import threading

from tensorlend import _native

_lock = threading.Lock()
_client: _native.Client | None = None


def default_client() -> _native.Client:
    """Returns the process's default client, which `connect` connects without arguments."""
    global _client
    with _lock:
        if _client is None or _client.closed:
            _client = _native.connect()
        return _client


def _in_child() -> None:
    # Replace the lock in a forked child, because a thread of the parent may have held it during the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
