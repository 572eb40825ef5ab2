"""The default client, for calls to which the program passes no client. The client is connected to
the running daemon, or to a daemon in this process.
"""

from __future__ import annotations

import logging
import os
import threading

from tensorlend import _native
from tensorlend._errors import DisconnectedError

_LOG = logging.getLogger("tensorlend")

_lock = threading.Lock()
_client: _native.Client | None = None
_daemon: _native.Embedded | None = None


def default_client() -> _native.Client:
    """Returns the process's default client.

    Connects to the daemon that TENSORLEND_SOCKET names, or to the user's or the system's daemon. If
    no daemon runs, starts a daemon in this process. Then sets TENSORLEND_SOCKET, so that child
    processes use the same daemon.
    """
    global _client, _daemon
    with _lock:
        if _client is None or _client.closed:
            try:
                _client = _native.connect()
            except DisconnectedError:
                if "TENSORLEND_SOCKET" in os.environ and _daemon is None:
                    raise
                _daemon = _native.embedded()
                _LOG.info("no daemon runs: started a daemon in this process, at %s", _daemon.address)
                os.environ["TENSORLEND_SOCKET"] = _daemon.address
                _client = _native.connect(_daemon.address)
        return _client


def _in_child() -> None:
    # Replace the lock in a forked child, because a thread of the parent may have held it during the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)
