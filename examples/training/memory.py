"""Measures the memory of trainers, shared and private, as the kernel reports it in /proc/PID/smaps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
#: The name that the broker gives to the memory files of its segments.
SEGMENTS = "memfd:tensorlend-segment"


@dataclass
class Shared:
    """The memory of a number of trainers that hold all batches of an epoch."""

    loader: str
    trainers: int
    #: Sums over the trainers, in bytes of proportional set size: the broker's segments, and all other memory.
    segments: int
    own: int


def trainers(socket: str, loader: str, count: int, batch: int) -> Shared:
    """Starts trainers that train one epoch and hold its batches, and adds up their memory."""
    command = [sys.executable, HERE / "train.py", "--socket", socket, "--loader", loader]
    command += ["--batch", str(batch), "--epochs", "1", "--hold"]
    running = [
        subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    try:
        for process in running:
            assert process.stdout is not None
            if not any(line.startswith("knows") for line in process.stdout):
                raise RuntimeError(f"a trainer has failed: {command}")
        shares = [pss(process.pid) for process in running]
    finally:
        for process in running:
            process.communicate()
    return Shared(loader, count, sum(segments for segments, _ in shares), sum(own for _, own in shares))


def pss(pid: int) -> tuple[int, int]:
    """Returns the proportional set size (PSS) of a process and its children: bytes of segments, and other bytes."""
    segments = own = 0
    path = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        first, *rest = line.split(maxsplit=5)
        if "-" in first and not first.endswith(":"):
            path = rest[4] if len(rest) > 4 else ""
        elif first == "Pss:":
            share = int(rest[0]) * 1024
            if SEGMENTS in path:
                segments += share
            else:
                own += share
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            more = pss(int(child))
            segments, own = segments + more[0], own + more[1]
    return segments, own
