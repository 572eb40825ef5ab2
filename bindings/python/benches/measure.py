"""Common parts of the benchmarks: two processes, contenders that take turns, medians with their extremes, one report."""

from __future__ import annotations

import json
import os
import platform
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

#: Steps of a page: one byte of each is read, as whoever uses a tensor reads it.
PAGE = 4096


@dataclass
class Row:
    """One figure: microseconds, of so many rounds."""

    what: str
    contender: str
    nbytes: int
    median_us: float
    min_us: float
    max_us: float
    rounds: int


def row(what: str, contender: str, nbytes: int, seconds: list[float]) -> Row:
    """The median with its extremes."""
    us = [s * 1e6 for s in seconds]
    return Row(what, contender, nbytes, statistics.median(us), min(us), max(us), len(us))


def machine() -> dict[str, str]:
    """Returns a description of the machine."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    return {
        "machine": f"{model}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def size(nbytes: int) -> str:
    """A length as people write it."""
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes:,} B"


def duration(us: float) -> str:
    """Microseconds as people write them."""
    if us < 1000:
        return f"{us:.3g} us"
    return f"{us / 1000:.3g} ms" if us < 1e6 else f"{us / 1e6:.3g} s"


def table(rows: Iterable[Row], reference: str, columns: Callable[[int], str] = size) -> str:
    """A Markdown table for each measurement: contenders down, sizes across; each median with its ratio to the reference."""
    rows = list(rows)
    parts = []
    for what in dict.fromkeys(r.what for r in rows):
        some = [r for r in rows if r.what == what]
        sizes = list(dict.fromkeys(r.nbytes for r in some))
        lines = [f"### {what}", "", "| contender | " + " | ".join(columns(n) for n in sizes) + " |", "|---|" + "--:|" * len(sizes)]
        found = {(r.contender, r.nbytes): r for r in some}
        for contender in dict.fromkeys(r.contender for r in some):
            cells = []
            for nbytes in sizes:
                r, base = found.get((contender, nbytes)), found.get((reference, nbytes))
                if r is None:
                    cells.append("")
                    continue
                ratio = f" ({r.median_us / base.median_us:.2f}x)" if base and contender != reference else ""
                cells.append(f"{duration(r.median_us)}{ratio}<br>{duration(r.min_us)} to {duration(r.max_us)}")
            lines.append(f"| {contender} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def save(
    stem: Path,
    title: str,
    rows: list[Row],
    reference: str,
    notes: list[str],
    *,
    columns: Callable[[int], str] = size,
) -> None:
    """Writes stem.json and stem.md. The columns need not be bytes: `columns` words them."""
    facts = machine()
    stem.with_suffix(".json").write_text(json.dumps({**facts, "rows": [asdict(r) for r in rows]}, indent=1) + "\n")
    head = f"# {title}\n\n{facts['machine']}, Python {facts['python']}, {facts['date']}. Medians of one run, the contenders in turns; below\neach the extremes; in brackets the ratio to: {reference}."
    text = "\n\n".join([head, table(rows, reference, columns), *notes])
    stem.with_suffix(".md").write_text(text + "\n")
    print(text)


class Peer:
    """A process beside this one that does something at each byte of a socket, and answers with one."""

    def __init__(self, work: Callable[[], Callable[[], None]]) -> None:
        """`work` is called in the child, and returns what it does at each byte."""
        self.socket, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                self.socket.close()
                self._serve(other, work())
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        other.close()
        self.socket.settimeout(120)
        self.wait()

    @staticmethod
    def _serve(end: socket.socket, once: Callable[[], None]) -> None:
        end.send(b"r")
        while end.recv(1) == b"g":
            once()
            end.send(b"d")

    def go(self) -> None:
        """Lets it do it once more."""
        self.socket.send(b"g")

    def wait(self) -> None:
        """Until it is done."""
        if not self.socket.recv(1):
            raise RuntimeError("the process beside this one has failed")

    def close(self) -> None:
        """Ends it. By a byte: other children hold copies of this end, so that closing it ends nothing."""
        self.socket.send(b"q")
        self.socket.close()
        os.waitpid(self.pid, 0)
