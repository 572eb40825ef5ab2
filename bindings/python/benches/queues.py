"""Compares `Client.queue` with `multiprocessing.Queue`, torch's queue, Redis and a floor: arrays go from producers to consumers.

python benches/queues.py [--rounds N] [--lengths ...] [--json FILE] [--before FOLDER]

The contenders take turns, in processes that wait for each other at the start of each turn. Then the time counts, until the
consumers have read a word of each page of all arrays. The processor time is that of all processes in this time. FOLDER contains
the package of an earlier version, which takes part, too, with processes of its own.

The contenders of this package: `with` confirms each array at the end of a block. `items` confirms each with the request for the
next one. `prefetch` claims and confirms up to 16 at a time. `put_many` does so, too, and puts 16 arrays in one request.

Redis takes part if its server and the package `redis` are there, torch if the package is. `redis` is Redis's pattern for reliable
queues: LPUSH, then BLMOVE to a list of the consumer, then LREM. `redis, 16` sends 16 of these commands at a time. Its memory does
not survive a crash of the server. The floor has no daemon and survives no crash: producers copy arrays into places of shared
memory, and the indices of free and of full places go through two sockets.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import socket
import statistics
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.shared_memory import SharedMemory
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from measure import markdown, parser, redis_server, spread

#: Length of an array in bytes, and the number of arrays of all producers together.
SIZES = {64: 6000, 1 << 10: 6000, 1 << 20: 600}
#: Numbers of producers and of consumers.
SHAPES = (1, 3)
#: Maximum of waiting arrays, and the number of arrays of one request.
WAITING = 64
TOGETHER = 16
HAS_TORCH = find_spec("torch") is not None
HAS_REDIS = bool(shutil.which("redis-server")) and find_spec("redis") is not None
OTHERS = ("multiprocessing", *["torch"] * HAS_TORCH, *["redis", "redis, 16"] * HAS_REDIS, "floor")
CONTENDERS = ("before", "with", "items", "prefetch", "put_many", *OTHERS)


class Torch:
    """torch's queue. Each array becomes a tensor of its own, since torch copies a tensor to shared memory only once."""

    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def put(self, array: np.ndarray[Any, Any]) -> None:
        import torch

        self.queue.put(torch.from_numpy(array).clone())

    def arrays(self) -> Iterator[np.ndarray[Any, Any]]:
        while True:
            yield self.queue.get().numpy()


class Redis:
    """A list of Redis, with a list of each consumer for the arrays that it has not confirmed."""

    def __init__(self, socket: str, together: int) -> None:
        import redis

        self.server = redis.Redis(unix_socket_path=socket)
        self.together = together
        self.ready: list[bytes] = []
        self.own = f"taken by {os.getpid()}"

    def put(self, array: np.ndarray[Any, Any]) -> None:
        self.put_all([array])

    def put_all(self, arrays: list[np.ndarray[Any, Any]]) -> None:
        # Redis has no maximum: a producer waits while the list is long.
        waiting = self.server.lpush("bench", *[array.tobytes() for array in arrays])
        while waiting > WAITING - self.together:
            time.sleep(0.0001)
            waiting = self.server.llen("bench")

    def arrays(self) -> Iterator[np.ndarray[Any, Any]]:
        done: list[bytes] = []
        while True:
            first = self.server.blmove("bench", self.own, 0, "RIGHT", "LEFT")
            taken = [first]
            if self.together > 1:
                pipeline = self.server.pipeline(transaction=False)
                for item in done:
                    pipeline.lrem(self.own, 1, item)
                for _ in range(self.together - 1):
                    pipeline.lmove("bench", self.own, "RIGHT", "LEFT")
                taken += [item for item in pipeline.execute()[len(done) :] if item]
                done = taken
            for place, item in enumerate(taken):
                if len(item) == 8:
                    # Another consumer gets the arrays that this one has taken and not processed.
                    for other in taken[place + 1 :]:
                        self.server.rpush("bench", other)
                    self.server.delete(self.own)
                elif self.together == 1:
                    self.server.lrem(self.own, 1, item)
                yield np.frombuffer(item)


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
    if how in ("items", "prefetch", "put_many"):
        for job in jobs.items(prefetch=1 if how == "items" else TOGETHER):
            array = job.numpy()
            if len(array) == 1:
                job.done()
            yield array
    while True:
        with jobs.get() as job:
            array = job.numpy()
        yield array


def other_queues(theirs: dict[str, Any]) -> dict[str, Any]:
    """Returns this process's ends of the other contenders' queues."""
    queues = {"multiprocessing": theirs["queue"]}
    if HAS_TORCH:
        queues["torch"] = Torch(theirs["torch"])
    if HAS_REDIS:
        queues |= {"redis": Redis(theirs["redis"], 1), "redis, 16": Redis(theirs["redis"], TOGETHER)}
    return queues


def work(produces: bool, theirs: dict[str, Any], barriers: dict[int, Any], orders: Any) -> None:
    """Takes part in turns, as a producer or as a consumer."""
    import tensorlend

    jobs = tensorlend.connect().queue("bench", maxsize=WAITING)
    queues = other_queues(theirs)
    while order := orders.recv():
        how, length, count, each = order
        queue = theirs["floors"][length] if how == "floor" else queues.get(how, jobs)
        array = np.ones(length // 8)
        barriers[each].wait()
        began = time.process_time()
        if produces:
            if how in ("put_many", "redis, 16"):
                put = jobs.put_many if how == "put_many" else queue.put_all
                for left in range(count // each, 0, -TOGETHER):
                    put([array] * min(left, TOGETHER))
            else:
                for _ in range(count // each):
                    queue.put(array)
        else:
            arrays = lent_arrays(jobs, how)
            if how == "multiprocessing":
                arrays = (queue.get() for _ in itertools.count())
            elif queue is not jobs:
                arrays = queue.arrays()
            for array in arrays:
                float(array[::512].sum())
                if len(array) == 1:
                    break
            del array, arrays
        orders.send(time.process_time() - began)


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def lead() -> None:
    """Starts a daemon and the processes; reads turns from the standard input, and prints results."""
    import tensorlend

    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, tensorlend.embedded() as broker, contextlib.ExitStack() as servers:
        os.environ["TENSORLEND_SOCKET"] = broker.address
        barriers = {each: context.Barrier(2 * each + 1) for each in SHAPES}
        theirs: dict[str, Any] = {"queue": context.Queue(WAITING), "floors": {length: Floor(length) for length in SIZES}}
        if HAS_TORCH:
            import torch.multiprocessing

            theirs["torch"] = torch.multiprocessing.get_context("spawn").Queue(WAITING)
        redis = None
        if HAS_REDIS:
            theirs["redis"] = f"{folder}/redis.sock"
            redis = servers.enter_context(redis_server(folder))
        ends = {}
        for produces in (True, False):
            for number in range(max(SHAPES)):
                ends[produces, number], there = context.Pipe()
                context.Process(target=work, args=(produces, theirs, barriers, there), daemon=True).start()
        jobs = tensorlend.connect().queue("bench")
        queues = other_queues(theirs)
        for line in sys.stdin:
            how, length, count, each = json.loads(line)
            for number in range(each):
                for produces in (True, False):
                    ends[produces, number].send((how, length, count, each))
            barriers[each].wait()
            began, used = time.perf_counter(), time.process_time()
            served = processor_s(redis.pid) if redis else 0
            spent = sum(ends[True, number].recv() for number in range(each))
            # The threads of `multiprocessing.Queue` may still be sending.
            while how in ("multiprocessing", "torch") and theirs["queue" if how == "multiprocessing" else how].qsize():
                time.sleep(0.0002)
            for _ in range(each):
                (theirs["floors"][length] if how == "floor" else queues.get(how, jobs)).put(np.ones(1))
            spent += sum(ends[False, number].recv() for number in range(each))
            took = time.perf_counter() - began
            # The daemon's threads are part of this process.
            spent += time.process_time() - used
            if redis and how.startswith("redis"):
                spent += processor_s(redis.pid) - served
            number = count // each * each
            print(json.dumps([number / took, spent / number * 1e6]), flush=True)
        for end in ends.values():
            end.send(None)
        for floor in theirs["floors"].values():
            floor.memory.unlink()


def table(title: str, place: int, digits: int, found: dict[str, dict[str, list[list[float]]]]) -> None:
    print(f"\n{title}: median (least to most), ratio of the medians to multiprocessing\n")
    rows = []
    for case, results in found.items():
        values = {how: [result[place] for result in of] for how, of in results.items()}
        base = statistics.median(values["multiprocessing"])
        rows.append([case, *(f"{spread(of, digits)}, {statistics.median(of) / base:.2f}" for of in values.values())])
    print(markdown(["array, processes", *next(iter(found.values()))], rows))


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--lengths", type=int, nargs="+", default=list(SIZES), help="lengths of the arrays in bytes")
    arguments.add_argument("--json")
    arguments.add_argument("--before")
    arguments.add_argument("--lead", action="store_true", help=argparse.SUPPRESS)
    options = arguments.parse_args()
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
        for length in options.lengths:
            count = SIZES[length]
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
