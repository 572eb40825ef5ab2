"""`mpi4py.bench pingpong` and the same ping-pong over streams, on the same two cores.

python benches/pingpong.py [--rounds N] [--sizes BYTES ...] [--cores FIRST SECOND] [--out STEM]

Needs mpi4py with an MPI library: pip install mpi4py mpich. The contenders take turns at each length. Each turn of mpi4py is a call of
its own program, with two new processes. A time is one way: half of a round trip, the mean of a turn. As in mpi4py's program, the clock
is read at each round trip, and there are 10,000 of them up to 16 KiB, 1,000 up to 1 MiB and 10 for more.

`Send` and `Recv` copy the bytes from an array of the sender to an array of the receiver. "copied in and out" does so, too. "read in
place" leaves the bytes where the sender's copy is. "in place" copies nothing, and no process touches the bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import Peer, Row, interleaved, left_out, parser, row, save

import tensorlend

SIZES = [1, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20]
MPI = "mpi4py Send and Recv"
OURS = ["tensorlend, copied in and out", "tensorlend, read in place", "tensorlend, in place"]


def counts(nbytes: int) -> tuple[int, int]:
    """Returns mpi4py's numbers of round trips: to warm up, and measured."""
    return (100, 10_000) if nbytes <= 1 << 14 else (10, 1000) if nbytes <= 1 << 20 else (1, 10)


def mpiexec() -> str:
    """Returns the path of the launcher. Raises ImportError if mpi4py or a library of MPI is not installed."""
    if importlib.util.find_spec("mpi4py") is None:
        raise ImportError("mpi4py is not installed")
    found = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        raise ImportError("mpiexec is not installed")
    return found


def mpi(nbytes: int, cores: list[int]) -> float:
    """Returns the seconds of a message by mpi4py's program."""
    bind = f"user:{cores[0]},{cores[1]}"
    program = [sys.executable, "-m", "mpi4py.bench", "pingpong", "-m", str(nbytes), "-n", str(nbytes), "--no-header"]
    text = subprocess.run([mpiexec(), "-n", "2", "-bind-to", bind, *program], check=True, capture_output=True, text=True, timeout=300).stdout
    line = re.fullmatch(rf"\s*{nbytes}\s+\S+ \| (\S+) \u00b1 .*", text.strip())
    assert line is not None, text
    return float(line[1])


def end(contender: str, nbytes: int, out: tensorlend.Stream, into: tensorlend.Subscription) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Returns the two calls of one end: `send` and `receive`."""
    mine = np.empty(nbytes, np.uint8)

    def copied() -> None:
        with into.recv() as message:
            np.copyto(mine, message.numpy())

    def in_place() -> None:
        into.recv().release()

    def send_in_place() -> None:
        out.send(out.create((nbytes,), "uint8"))

    send = send_in_place if contender == OURS[2] else lambda: out.send(mine)
    return send, copied if contender == OURS[0] else in_place


class Pair:
    """This process, and another one that sends each message back."""

    def __init__(self, contender: str, nbytes: int, cores: list[int], broker: tensorlend.Broker) -> None:
        warm, loop = counts(nbytes)
        self._counts = warm, loop
        self._client = broker.connect()
        name = f"{contender}/{nbytes}"

        def work() -> Callable[[], None]:
            client = tensorlend.connect(broker.address)
            back, there = client.stream(f"{name}/back", capacity=2), client.subscribe(f"{name}/there", wait=30)
            send, receive = end(contender, nbytes, back, there)
            # After `connect`: a client that may use only one core does not poll.
            os.sched_setaffinity(0, cores[1:])

            def once() -> None:
                for _ in range(warm + loop):
                    receive()
                    send()

            return once

        out = self._client.stream(f"{name}/there", capacity=2)
        self._peer = Peer(work)
        self._send, self._receive = end(contender, nbytes, out, self._client.subscribe(f"{name}/back", wait=30))

    def seconds(self) -> float:
        """Returns the seconds of a message."""
        warm, loop = self._counts
        times = []
        self._peer.go()
        for _ in range(warm + loop):
            began = time.perf_counter()
            self._send()
            self._receive()
            times.append((time.perf_counter() - began) / 2)
        self._peer.wait()
        return statistics.mean(times[warm:])

    def close(self) -> None:
        self._peer.close()
        self._client.close()


def measure(contenders: list[str], nbytes: int, rounds: int, cores: list[int]) -> list[Row]:
    """Returns the rows of all contenders at one length."""
    with contextlib.ExitStack() as stack:
        broker = stack.enter_context(tensorlend.embedded('[pool]\nbytes_max = "4GiB"\n'))
        pairs = {name: stack.enter_context(contextlib.closing(Pair(name, nbytes, cores, broker))) for name in OURS}
        unpinned = os.sched_getaffinity(0)

        def once(contender: str) -> float:
            if contender == MPI:
                return mpi(nbytes, cores)
            os.sched_setaffinity(0, cores[:1])
            try:
                return pairs[contender].seconds()
            finally:
                os.sched_setaffinity(0, unpinned)

        found = interleaved(contenders, rounds, once)
    return [row("one way", contender, nbytes, times) for contender, times in found.items()]


def main() -> None:
    options = parser(__doc__, rounds=5)
    options.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="powers of two, as mpi4py wants")
    options.add_argument("--cores", type=int, nargs=2, default=sorted(os.sched_getaffinity(0))[:2])
    options.add_argument("--out", type=Path, default=Path("pingpong"))
    arguments = options.parse_args()
    missing = {}
    try:
        mpiexec()
    except ImportError as error:
        missing[MPI] = str(error)
    contenders = [name for name in (MPI, *OURS) if name not in missing]
    rows = [found for nbytes in arguments.sizes for found in measure(contenders, nbytes, arguments.rounds, arguments.cores)]
    note = f"Cores {arguments.cores[0]} and {arguments.cores[1]}, load average {os.getloadavg()[0]:.1f}."
    save(arguments.out, "A ping-pong of MPI, and over streams", rows, MPI, [note, *left_out(missing)])


if __name__ == "__main__":
    main()
