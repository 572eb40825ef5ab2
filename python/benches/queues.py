"""Compares `Client.queue` with `multiprocessing.Queue`: arrays go from two producers to two consumers.

python benches/queues.py [--rounds N] [--json FILE]

The two take turns. In each round, new processes connect and wait for each other. Then the time counts, until the consumers have
read a word of each page of all arrays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import time
from typing import Any

import numpy as np

import tensorlend

#: Length of an array in bytes, and the number of arrays of each producer.
SIZES = ((1 << 10, 2000), (64 << 10, 1000), (1 << 20, 200), (8 << 20, 50))
PRODUCERS = CONSUMERS = 2
WAITING = 16


def touched(array: np.ndarray[Any, Any]) -> float:
    return float(array[::512].sum())


def produce(lent: bool, passed: Any, length: int, count: int, barrier: Any) -> None:
    array = np.ones(length // 8)
    put = tensorlend.connect().queue("bench", maxsize=WAITING).put if lent else passed.put
    barrier.wait()
    for _ in range(count):
        put(array)
    if not lent:
        # The queue's thread may still be sending.
        passed.close()
        passed.join_thread()


def consume(lent: bool, passed: Any, barrier: Any) -> None:
    jobs = tensorlend.connect().queue("bench", maxsize=WAITING) if lent else None
    barrier.wait()
    while True:
        if jobs is not None:
            with jobs.get() as job:
                array = job.numpy()
                touched(array)
        else:
            array = passed.get()
            touched(array)
        if len(array) == 1:
            return


def measure(lent: bool, length: int, count: int) -> float:
    """Returns the number of arrays per second."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PRODUCERS + CONSUMERS + 1)
    passed = None if lent else context.Queue(WAITING)
    producers = [context.Process(target=produce, args=(lent, passed, length, count, barrier)) for _ in range(PRODUCERS)]
    consumers = [context.Process(target=consume, args=(lent, passed, barrier)) for _ in range(CONSUMERS)]
    for process in producers + consumers:
        process.start()
    client = tensorlend.connect()
    last: Any = client.queue("bench") if lent else passed
    barrier.wait()
    began = time.perf_counter()
    for process in producers:
        process.join()
    for _ in consumers:
        last.put(np.ones(1))
    for process in consumers:
        process.join()
    took = time.perf_counter() - began
    if any(process.exitcode for process in producers + consumers):
        raise SystemExit("a process failed")
    if lent:
        client.clear("bench")
    return PRODUCERS * count / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {}
    with tensorlend.embedded() as broker:
        os.environ["TENSORLEND_SOCKET"] = broker.address
        for number in range(options.rounds):
            for length, count in SIZES:
                rates = found.setdefault(str(length), {"tensorlend": [], "multiprocessing": []})
                order = [(True, "tensorlend"), (False, "multiprocessing")]
                for lent, name in order if number % 2 == 0 else reversed(order):
                    rates[name].append(measure(lent, length, count))
    print("| array | `Client.queue`, arrays/s | `multiprocessing.Queue`, arrays/s | ratio of the medians |\n|---|---|---|---|")
    for length, rates in found.items():
        cells = [f"{statistics.median(of):,.0f} ({min(of):,.0f} to {max(of):,.0f})" for of in rates.values()]
        ratio = statistics.median(rates["tensorlend"]) / statistics.median(rates["multiprocessing"])
        print(f"| {int(length) >> 10:,} KiB | {cells[0]} | {cells[1]} | {ratio:.1f} |")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main()
