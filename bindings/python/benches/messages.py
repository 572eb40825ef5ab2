"""An array through a queue of multiprocessing: as a pickle, and as a lease.

python benches/messages.py [--rounds N]

The contenders take turns. The floor is the hop of a number, which has no array. The pipe is the hop of a pickle of 100 bytes without a
queue. In a hop the sender writes every byte of a new array, and calls `put`. The receiver, a forked process, reads every byte, and answers with the
least of them. At the end, the script counts the requests to the daemon for each message.
"""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from measure import described, interleaved, parser, size

import tensorlend
import tensorlend.multiprocessing

#: Messages whose requests are counted.
COUNTED = 100

SIZES = [4 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 16 << 20]


def look(inbox: Any, answers: Any) -> None:
    """The receiver."""
    while (value := inbox.get()) is not None:
        if isinstance(value, int):
            answers.send_bytes(b"0")
            continue
        # Earlier messages have smaller values, so the least byte is that of an earlier message, if there is one.
        answers.send_bytes(bytes([int(value.min())]))


def pass_on(inbox: Any, answers: Any) -> None:
    """The receiver at the end of the pipe."""
    while True:
        inbox.recv()
        answers.send_bytes(b"0")


def main() -> None:
    arguments = parser(__doc__, rounds=100).parse_args()
    client = tensorlend.embedded().connect()
    installs: dict[str, Any] = {
        "pickle": tensorlend.multiprocessing.uninstall,
        "lease, mode cow": lambda: tensorlend.multiprocessing.install(client=client, smallest=0),
        "lease, mode read": lambda: tensorlend.multiprocessing.install(client=client, smallest=0, mode="read"),
    }
    installs |= {"floor": lambda: None, "pipe": lambda: None}
    context = multiprocessing.get_context("fork")
    inbox = context.Queue()
    here, there = context.Pipe()
    receiver = context.Process(target=look, args=(inbox, there), daemon=True)
    receiver.start()
    (bare_inbox, bare), (bare_back, bare_answers) = context.Pipe(duplex=False), context.Pipe(duplex=False)
    context.Process(target=pass_on, args=(bare_inbox, bare_answers), daemon=True).start()
    hops = {"pipe": (bare.send, bare_back)}
    print(described(f"medians of {arguments.rounds} rounds (and the least), in us"), end="\n\n")
    print(f"| array | {' | '.join(installs)} | ratios of the medians: cow, read |")
    print("|---|" + "---:|" * (len(installs) + 1))
    for nbytes in SIZES:
        numbers = itertools.count()

        def hop(name: str, nbytes: int = nbytes, numbers: Iterator[int] = numbers) -> float:
            installs[name]()
            value = next(numbers) % 251 + 1
            send, back = hops.get(name, (inbox.put, here))
            began = time.perf_counter()
            if name in ("floor", "pipe"):
                send(1 if name == "floor" else b"x" * 85)
            else:
                send(np.full(nbytes, value, dtype=np.uint8))
            found = back.recv_bytes()
            assert name in ("floor", "pipe") or found == bytes([value]), "the receiver read another message"
            return (time.perf_counter() - began) * 1e6

        times = interleaved(installs, arguments.rounds, hop, warm=5)
        cells = [f"{statistics.median(found):,.0f} ({min(found):,.0f})" for found in times.values()]
        middle = [statistics.median(found) for found in times.values()]
        ratios = f"{middle[0] / middle[1]:.1f}, {middle[0] / middle[2]:.1f}"
        print(f"| {size(nbytes)} | {' | '.join(cells)} | {ratios} |", flush=True)
    for name, install in installs.items():
        if not name.startswith("lease"):
            continue
        install()
        before = client.stat()["requests"]
        for _ in range(COUNTED):
            inbox.put(np.ones(1 << 20, dtype=np.uint8))
            here.recv_bytes()
        # One of the requests is the one that reads the number.
        print(f"{name}: {(client.stat()['requests'] - before - 1) / COUNTED:.2f} requests for each message of 1 MB")
    inbox.put(None)
    receiver.join()


if __name__ == "__main__":
    main()
