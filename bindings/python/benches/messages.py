"""An array through a queue of torch or multiprocessing: as torch's tensor, as a pickle, and as a lease.

python benches/messages.py [--rounds N]

The contenders take turns. The floor is the hop of bytes as long as a lease's message, after one copy of the array into memory that both
processes have mapped. The pipe is the hop of a pickle of 100 bytes without a queue. In a hop the sender calls `put` with a new array. The
contender's receiver, a forked process, reads one byte of each page, drops the array, and answers with the least byte. At the end, the
script counts the requests to the daemon for each message. Without torch, the queue is multiprocessing's.
"""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measure import PAGE, described, interleaved, parser, size

import tensorlend
import tensorlend.multiprocessing

try:
    import torch.multiprocessing as torch_multiprocessing
    from torch import from_numpy
except ImportError:
    torch_multiprocessing = None

#: Bytes of a lease's message.
MESSAGE = 250
#: Messages whose requests are counted.
COUNTED = 100

SIZES = [4 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 16 << 20]


def look(inbox: Any, answers: Any, common: mmap.mmap) -> None:
    """The receiver."""
    while (value := inbox.get()) is not None:
        if isinstance(value, tuple):
            value = np.frombuffer(common, np.uint8, value[0])
        # Earlier messages have smaller values, so the least byte is that of an earlier message, if there is one.
        least = int(value[::PAGE].min())
        del value
        answers.send_bytes(bytes([least]))


def pass_on(inbox: Any, answers: Any) -> None:
    """The receiver at the end of the pipe."""
    while True:
        inbox.recv()
        answers.send_bytes(b"0")


def main() -> None:
    arguments = parser(__doc__, rounds=100).parse_args()
    client = tensorlend.embedded().connect()
    plain = tensorlend.multiprocessing.uninstall
    installs: dict[str, Any] = {"torch's tensor": plain} if torch_multiprocessing else {}
    installs |= {
        "pickle": plain,
        "lease, mode cow": lambda: tensorlend.multiprocessing.install(client=client, smallest=0),
        "lease, mode read": lambda: tensorlend.multiprocessing.install(client=client, smallest=0, mode="read"),
        "floor": plain,
        "pipe": plain,
    }
    context = (torch_multiprocessing or multiprocessing).get_context("fork")
    common = mmap.mmap(-1, max(SIZES))
    # Each contender has its own receiver, because the memory that one frees changes what the next allocation costs.
    ends = {}
    for name in installs:
        inbox, (here, there) = context.Queue(), context.Pipe()
        context.Process(target=look, args=(inbox, there, common), daemon=True).start()
        ends[name] = inbox, here
    (bare_inbox, bare), (bare_back, bare_answers) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    context.Process(target=pass_on, args=(bare_inbox, bare_answers), daemon=True).start()
    print(described(f"medians of {arguments.rounds} rounds (least to most), in us"), end="\n\n")
    print(f"| array | {' | '.join(installs)} | {next(iter(installs))} / cow, read, floor |")
    print("|---|" + "---:|" * (len(installs) + 1))
    for nbytes in SIZES:
        numbers = itertools.count()

        def hop(name: str, nbytes: int = nbytes, numbers: Iterator[int] = numbers) -> float:
            installs[name]()
            value = next(numbers) % 251 + 1
            array = np.full(nbytes, value, dtype=np.uint8)
            message: Any = from_numpy(array) if name == "torch's tensor" else array
            began = time.perf_counter()
            if name == "pipe":
                bare.send(b"x" * 85)
                bare_back.recv_bytes()
                return (time.perf_counter() - began) * 1e6
            if name == "floor":
                np.copyto(np.frombuffer(common, np.uint8, nbytes), array)
                message = (nbytes, b"x" * MESSAGE)
            inbox, here = ends[name]
            inbox.put(message)
            found = here.recv_bytes()
            assert found == bytes([value]), "the receiver read another message"
            return (time.perf_counter() - began) * 1e6

        times = interleaved(installs, arguments.rounds, hop, warm=5)
        middle = {name: statistics.median(found) for name, found in times.items()}
        cells = [f"{middle[name]:,.0f} ({min(found):,.0f} to {max(found):,.0f})" for name, found in times.items()]
        first = next(iter(middle.values()))
        ratios = ", ".join(f"{first / middle[name]:.1f}" for name in ("lease, mode cow", "lease, mode read", "floor"))
        print(f"| {size(nbytes)} | {' | '.join(cells)} | {ratios} |", flush=True)
    for name, install in installs.items():
        if not name.startswith("lease"):
            continue
        install()
        inbox, here = ends[name]
        before = client.stat()["requests"]
        for _ in range(COUNTED):
            inbox.put(np.ones(1 << 20, dtype=np.uint8))
            here.recv_bytes()
        # One of the requests is the one that reads the number.
        print(f"{name}: {(client.stat()['requests'] - before - 1) / COUNTED:.2f} requests for each message of 1 MB")
    for inbox, _ in ends.values():
        inbox.put(None)


if __name__ == "__main__":
    main()
