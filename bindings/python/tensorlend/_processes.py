"""Waits for the ends of child processes."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Any


def join(processes: Sequence[Any], seconds: float) -> None:
    """Waits for the ends of all processes, for at most this time."""
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def stop(processes: Sequence[Any], terminate_s: float, kill_s: float) -> None:
    """Sends SIGTERM to the processes that run, and after `terminate_s` SIGKILL, whose effect takes at most `kill_s`."""
    for method, seconds in (("terminate", terminate_s), ("kill", kill_s)):
        for process in processes:
            if process.is_alive():
                getattr(process, method)()
        join(processes, seconds)


def signal_name(exitcode: int) -> str:
    """Returns the name of the signal that has killed a process with this negative exit code."""
    try:
        return signal.Signals(-exitcode).name
    except ValueError:
        return f"signal {-exitcode}"
