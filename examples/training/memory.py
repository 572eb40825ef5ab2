"""How much memory trainers have mapped of the data set, by the kernel's own account."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
#: How the broker names the files that segments lie in.
SEGMENTS = "memfd:tensorlend-segment"


@dataclass
class Shared:
    """So many trainers that hold all batches of an epoch."""

    loader: str
    trainers: int
    #: Sum over the trainers, in bytes: their shares (PSS) of lent segments, and of everything else.
    segments: int
    own: int


def trainers(socket: str, loader: str, count: int, batch: int) -> Shared:
    """Starts trainers, has each learn an epoch and hold it, and adds up what the kernel charges to each."""
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
    """Bytes that a process and its children have a share in: of segments, and of everything else."""
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
