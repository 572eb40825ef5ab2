"""The systems, one module each. A driver uses its system as the system's documentation says, and names the page."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import queue
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

#: The modules of this folder, in the order of the table.
ALL = [
    "tensorlend", "tensorlend_store", "tensorlend_system", "iceoryx2", "zenoh", "dora", "torch_mp", "shared_memory", "redis", "redis_aof", "vineyard", "ray",
]  # fmt: skip
#: Messages that may wait for a reader, in every system that lets one choose.
DEPTH = 8


class Sender(Protocol):
    """A producer's end of a topic."""

    def send(self, array: np.ndarray) -> None:
        """Hands a copy of the array to the topic's consumers. May wait, may raise."""

    def close(self) -> None: ...


class Receiver(Protocol):
    """A consumer's end of a topic."""

    def receive(self, timeout: float) -> np.ndarray | None:
        """The next value, valid until the next call; None if none came."""

    def close(self) -> None: ...


class System:
    """A driver. One object lives in the harness, and one in each process of the application."""

    title = ""
    #: The name of its package.
    package = ""
    #: Whether a process of its own serves the others.
    has_broker = False
    #: Whether producers and consumers must descend from one process, which then starts them.
    ancestor = False
    #: Whether the system itself replaces a producer or consumer that was killed.
    restarts = False
    #: Whether a value can be kept under a name: `Sender.keep(array)` and `Receiver.kept()`.
    keeps = False
    #: Seconds until everything must have started.
    start_s = 45.0
    #: Seconds of an ordinary cell, for the estimate of a run.
    cell_s = 12.0
    #: The only faults of a variant that differs from another driver in those alone; all faults if empty.
    only: tuple[str, ...] = ()
    #: "older" and then "newer" in the fault that replaces a version by the next one.
    stage = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def version(self) -> str:
        """The version; raises ImportError or OSError if the system is not installed."""
        return importlib.metadata.version(self.package)

    def older(self) -> str:
        """Returns the older version; raises LookupError with the reason if none can run."""
        if self.ancestor:
            raise LookupError("all processes descend from one, of one version")
        found = next(iter(importlib.metadata.distributions(name=self.package, path=[older_packages()])), None)
        if not self.package or found is None:
            raise LookupError("no older version is installed")
        return checked(found.version, self.newer())

    def newer(self) -> str:
        """Returns the version that replaces it."""
        return self.version()

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        """Starts the broker's processes, and returns when they serve. The last one is the broker that faults hit."""
        return []

    def broker_pid(self, processes: list[subprocess.Popen[bytes]]) -> int:
        return processes[-1].pid

    def stop_broker(self, processes: list[subprocess.Popen[bytes]]) -> None:
        """Stops the broker's processes as the documentation says."""
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            process.wait(10)

    def prepare(self, topic: str, consumers: int) -> None:
        """Called once in the ancestor."""

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> Any:
        """Called in the ancestor: starts a process that calls `run(config)`, and returns a handle or None."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called in the ancestor at the end."""

    def producer(self, topic: str, consumers: int) -> Any:
        raise NotImplementedError

    def consumer(self, topic: str, index: int) -> Any:
        raise NotImplementedError


def older_packages() -> str:
    """The folder with older versions of packages."""
    return os.environ.get("TORTURE_OLDER", "/nonexistent")


def checked(older: str, newer: str) -> str:
    """Returns the older version; raises LookupError if the newer one is not newer."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in version.split(".") if part.isdigit()]

    if numbers(older) >= numbers(newer):
        raise LookupError(f"the installed version {newer} is not newer than {older}")
    return older


def connected(connect: Callable[[], Any], limit_s: float, errors: type[BaseException] = Exception) -> Any:
    """What `connect` returns, called again until it raises no such error."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return connect()
        except errors:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def taken(values: Any, timeout: float) -> Any:
    """The next item of a queue, or None."""
    try:
        return values.get(timeout=timeout)
    except queue.Empty:
        return None


def load(name: str, folder: Path) -> System:
    """The driver of a system."""
    return importlib.import_module(f"systems.{name}").Driver(folder)
