"""The log that a role appends to, read while the role writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Seen(NamedTuple):
    """A value that a consumer received."""

    at: float
    number: int
    pid: int
    latency_us: int
    whole: bool
    nbytes: int


class Sent(NamedTuple):
    """A value that a producer handed over: its `send` returned."""

    at: float
    number: int
    took_us: int
    pid: int


class Log:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.read_to = 0
        self.rest = b""
        self.seen: list[Seen] = []
        self.sent: list[Sent] = []
        self.other: list[tuple[float, str, list[str]]] = []
        #: The role's process, and each one that replaced it.
        self.pids: list[int] = []
        #: For each of them, the time at which its end of the topic was open.
        self.ready: list[float] = []

    def update(self) -> None:
        try:
            with open(self.path, "rb") as file:
                if os.fstat(file.fileno()).st_size == self.read_to:
                    return
                file.seek(self.read_to)
                text = file.read()
        except FileNotFoundError:
            return
        self.read_to += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        for line in lines:
            at, kind, *fields = line.decode(errors="replace").split()
            if kind == "value":
                number, pid, latency, whole, nbytes = map(int, fields)
                self.seen.append(Seen(float(at), number, pid, latency, bool(whole), nbytes))
            elif kind == "sent":
                self.sent.append(Sent(float(at), int(fields[0]), int(fields[1]), self.pids[-1]))
            elif kind == "begun":
                self.pids.append(int(fields[0]))
            else:
                self.other.append((float(at), kind, fields))
                if kind == "ready":
                    self.ready.append(float(at))

    def last(self, kind: str) -> list[str] | None:
        """The fields of the latest line of this kind."""
        return next((fields for _, each, fields in reversed(self.other) if each == kind), None)

    def count(self, kind: str) -> int:
        return sum(1 for _, each, _ in self.other if each == kind)

    def errors(self) -> list[str]:
        """The errors in the order of their first appearance, each once."""
        return list(dict.fromkeys(" ".join(fields) for _, kind, fields in self.other if kind == "error"))
