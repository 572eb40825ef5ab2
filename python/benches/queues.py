"""Compares `Client.queue` with `multiprocessing.Queue` and a floor: arrays go from producers to consumers.

python benches/queues.py [--rounds N] [--json FILE] [--before FOLDER]

The contenders take turns, in processes that wait for each other at the start of each turn. Then the time counts, until the
consumers have read a word of each page of all arrays. The processor time is that of all processes in this time. FOLDER contains
the package of an earlier version, which takes part, too, with processes of its own.

The contenders of this package: `with` confirms each array at the end of a block. `items` confirms each with the request for the
next one. `prefetch` claims and confirms up to 16 at a time. The floor has no daemon and survives no crash: producers copy arrays
into 16 places of shared memory, and the indices of free and of full places go through two sockets.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

#: Length of an array in bytes, and the number of arrays of all producers together.
SIZES = {64: 6000, 1 << 10: 6000, 1 << 20: 600}
#: Numbers of producers and of consumers.
SHAPES = (1, 3)
WAITING = 16
CONTENDERS = ("before", "with", "items", "prefetch", "multiprocessing", "floor")


class Floor:
    """Places in shared memory, and two sockets with the indices of free and of full ones."""

    def __init__(self, length: int) -> None:
        self.memory = SharedMemory(create=True, size=WAITING * length)
        self.length = length
        self.free, self.full = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
        for place in range(WAITING):
            self.free[0].send(bytes([place]))

    def place(self, number: int) -> np.ndarray[Any, Any]:
        return np.ndarray(self.length // 8, buffer=self.memory.buf, offset=number * self.length)

    def put(self, array: np.ndarray[Any, Any]) -> None:
        place = self.free[1].recv(1)
        self.place(place[0])[: len(array)] = array
        self.full[0].send(place + bytes([len(array) == 1]))

    def arrays(self) -> Iterator[np.ndarray[Any, Any]]:
        last = 0
        while not last:
            place, last = self.full[1].recv(2)
            if not last:
                yield self.place(place)
            self.free[0].send(bytes([place]))
        yield np.ones(1)


def lent_arrays(jobs: Any, how: str) -> Iterator[np.ndarray[Any, Any]]:
    if how in ("items", "prefetch"):
        for job in jobs.items(prefetch=16 if how == "prefetch" else 1):
            array = job.numpy()
            if len(array) == 1:
                job.done()
            yield array
    while True:
        with jobs.get() as job:
            array = job.numpy()
        yield array


def work(produces: bool, theirs: dict[str, Any], barriers: dict[int, Any], orders: Any) -> None:
    """Takes part in turns, as a producer or as a consumer."""
    import tensorlend

    jobs = tensorlend.connect().queue("bench", maxsize=WAITING)
    while order := orders.recv():
        how, length, count, each = order
        queue = {"multiprocessing": theirs["queue"], "floor": theirs["floors"][length]}.get(how, jobs)
        array = np.ones(length // 8)
        barriers[each].wait()
        began = time.process_time()
        if produces:
            for _ in range(count // each):
                queue.put(array)
        else:
            arrays = lent_arrays(jobs, how)
            if how == "multiprocessing":
                arrays = (queue.get() for _ in itertools.count())
            elif how == "floor":
                arrays = queue.arrays()
            for array in arrays:
                float(array[::512].sum())
                if len(array) == 1:
                    break
            del array, arrays
        orders.send(time.process_time() - began)


def lead() -> None:
    """Starts a daemon and the processes; reads turns from the standard input, and prints results."""
    import tensorlend

    context = multiprocessing.get_context("spawn")
    with tensorlend.embedded() as broker:
        os.environ["TENSORLEND_SOCKET"] = broker.address
        barriers = {each: context.Barrier(2 * each + 1) for each in SHAPES}
        theirs: dict[str, Any] = {"queue": context.Queue(WAITING), "floors": {length: Floor(length) for length in SIZES}}
        ends = {}
        for produces in (True, False):
            for number in range(max(SHAPES)):
                ends[produces, number], there = context.Pipe()
                context.Process(target=work, args=(produces, theirs, barriers, there), daemon=True).start()
        jobs = tensorlend.connect().queue("bench")
        for line in sys.stdin:
            how, length, count, each = json.loads(line)
            for number in range(each):
                for produces in (True, False):
                    ends[produces, number].send((how, length, count, each))
            barriers[each].wait()
            began, used = time.perf_counter(), time.process_time()
            spent = sum(ends[True, number].recv() for number in range(each))
            # The threads of `multiprocessing.Queue` may still be sending.
            while how == "multiprocessing" and theirs["queue"].qsize():
                time.sleep(0.0002)
            for _ in range(each):
                {"multiprocessing": theirs["queue"], "floor": theirs["floors"][length]}.get(how, jobs).put(np.ones(1))
            spent += sum(ends[False, number].recv() for number in range(each))
            took = time.perf_counter() - began
            # The daemon's threads are part of this process.
            spent += time.process_time() - used
            number = count // each * each
            print(json.dumps([number / took, spent / number * 1e6]), flush=True)
        for floor in theirs["floors"].values():
            floor.memory.unlink()


def table(title: str, place: int, digits: int, found: dict[str, dict[str, list[list[float]]]]) -> None:
    contenders = next(iter(found.values()))
    print(f"\n{title}: median (least to most), ratio of the medians to multiprocessing\n")
    print("| array, processes | " + " | ".join(contenders) + " |\n|" + "---|" * (len(contenders) + 1))
    for case, results in found.items():
        values = {how: [result[place] for result in of] for how, of in results.items()}
        medians = {how: statistics.median(of) for how, of in values.items()}
        ratios = {how: median / medians["multiprocessing"] for how, median in medians.items()}
        cells = [
            f"{medians[how]:,.{digits}f} ({min(of):,.{digits}f} to {max(of):,.{digits}f}), {ratios[how]:.2f}"
            for how, of in values.items()
        ]
        print(f"| {case} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--before")
    parser.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.lead:
        lead()
        return

    def leader(env: dict[str, str]) -> Any:
        command = [sys.executable, __file__, "--lead"]
        return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)

    leaders = {how: now for now in [leader(dict(os.environ))] for how in CONTENDERS[1:]}
    if options.before:
        leaders = {"before": leader({**os.environ, "PYTHONPATH": options.before}), **leaders}
    found: dict[str, dict[str, list[list[float]]]] = {}
    # The first round warms all processes up.
    for number in range(-1, options.rounds):
        for length, count in SIZES.items():
            for each in SHAPES:
                results = found.setdefault(f"{length:,} B, {each}x{each}", {how: [] for how in leaders})
                for how in leaders if number % 2 == 0 else reversed(leaders):
                    leaders[how].stdin.write(json.dumps([how, length, count if number >= 0 else 60, each]) + "\n")
                    result = json.loads(leaders[how].stdout.readline())
                    if number >= 0:
                        results[how].append(result)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(found, file)
    for one in set(leaders.values()):
        one.stdin.close()
        one.wait()
    table("arrays/s", 0, 0, found)
    table("processor time of an array in us", 1, 1, found)


if __name__ == "__main__":
    main()
