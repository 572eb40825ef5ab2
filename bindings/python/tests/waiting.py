"""Waits for events. The ends are generous: a busy machine is no failure."""

import socket
import time
from collections.abc import Callable
from os import PathLike

#: The longest that any step may take, in seconds.
LONG = 600.0


def eventually(what: str, ready: Callable[[], bool]) -> None:
    """Waits until `ready` returns True."""
    deadline = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come to be"
        time.sleep(0.01)


def listens(path: str | PathLike[str]) -> bool:
    """Returns whether a daemon listens at the socket. The file exists before that."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        return end.connect_ex(str(path)) == 0
