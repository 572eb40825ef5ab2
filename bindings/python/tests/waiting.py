"""Waits for events. The ends are generous: a busy machine is no failure."""

import contextlib
import pathlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from os import PathLike
from typing import Any

#: Maximum duration of any step, in seconds.
LONG = 600.0


def eventually(what: str | Callable[[], object], ready: Callable[[], bool], interval: float = 0.01) -> None:
    """Waits until `ready` returns True. `what` describes the event, or the state that is there instead."""
    deadline = time.monotonic() + LONG
    while not ready():
        assert time.monotonic() < deadline, f"{what} did not come to be" if isinstance(what, str) else what()
        time.sleep(interval)


@contextlib.contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Lets a test that hangs fail."""

    def late(*_: object) -> None:
        raise AssertionError(f"the test took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def listens(path: str | PathLike[str], daemon: "subprocess.Popen[Any] | None" = None) -> bool:
    """Returns whether a daemon listens at the socket. The file exists before that. The daemon's process must not have ended."""
    assert daemon is None or daemon.poll() is None, "the daemon has ended"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        return end.connect_ex(str(path)) == 0


def gone(pids: Iterable[int]) -> None:
    """Waits until none of these processes runs."""
    for pid in pids:
        eventually(f"the end of process {pid}", lambda pid=pid: not is_running(pid))


def is_running(pid: int) -> bool:
    """Returns whether a process runs. An ended process is listed until its parent waits for it; the parent of an orphan is the
    machine's first process.
    """
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
