"""An array through a queue of multiprocessing: as a pickle, as torch sends it, and as a lease.

python benches/messages.py [--rounds N] [--torch]

The contenders take turns. The floor is the hop of a number, which has no array. A hop is from `put` until the receiver, a forked process, has looked at a byte of each page and answered with an empty message.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
from measure import PAGE, machine, size

import tensorlend
import tensorlend.multiprocessing

SIZES = [4 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 16 << 20]


def look(inbox: Any, answers: Any) -> None:
    """The receiver."""
    while (value := inbox.get()) is not None:
        if isinstance(value, int):
            answers.send_bytes(b"0")
            continue
        array = value if isinstance(value, np.ndarray) else value.numpy()
        answers.send_bytes(bytes([int(array[::PAGE].sum()) % 256]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--torch", action="store_true")
    arguments = parser.parse_args()
    client = tensorlend.embedded().connect()
    installs: dict[str, Any] = {
        "pickle": tensorlend.multiprocessing.uninstall,
        "lease, mode cow": lambda: tensorlend.multiprocessing.install(client=client, smallest=0),
        "lease, mode read": lambda: tensorlend.multiprocessing.install(client=client, smallest=0, mode="read"),
    }
    library: Any = np
    if arguments.torch:
        import torch

        from tensorlend import torch as lent

        torch.set_num_threads(1)
        library = torch
        installs = {
            "torch": lent.uninstall,
            "lease, mode cow": lambda: lent.install(client=client, smallest=0),
            "lease, mode read": lambda: lent.install(client=client, smallest=0, mode="read"),
        }
    installs["floor"] = lambda: None
    context = multiprocessing.get_context("fork")
    inbox = context.Queue()
    here, there = context.Pipe()
    receiver = context.Process(target=look, args=(inbox, there), daemon=True)
    receiver.start()
    print(f"{machine()['machine']}, Python {machine()['python']}, medians of {arguments.rounds} rounds (and the least), in us\n")
    print(f"| array | {' | '.join(installs)} | ratio of the medians |")
    print("|---|" + "---:|" * (len(installs) + 1))
    for nbytes in SIZES:
        times: dict[str, list[float]] = {name: [] for name in installs}
        for number in range(arguments.rounds + 5):
            for name, install in installs.items():
                install()
                # torch moves what it sends to shared memory, and a tensor that is there already costs less: each is new.
                array = library.ones(nbytes, dtype=library.uint8) if name != "floor" else 1
                began = time.perf_counter()
                inbox.put(array)
                here.recv_bytes()
                if number >= 5:
                    times[name].append((time.perf_counter() - began) * 1e6)
        cells = [f"{statistics.median(found):,.0f} ({min(found):,.0f})" for found in times.values()]
        middle = [statistics.median(found) for found in times.values()]
        print(f"| {size(nbytes)} | {' | '.join(cells)} | {middle[0] / middle[1]:.1f} |", flush=True)
    inbox.put(None)
    receiver.join()


if __name__ == "__main__":
    main()
