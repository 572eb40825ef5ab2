"""Measures how long it takes to hand an array to another process and learn that it was read.

    python exchange.py [--out STEM] [--quick] [--sizes BYTES ...] [--rounds N] [--runs N] [--only WORD ...] [--picture FILE]

Two processes. In each round the producer writes every element of a float32 array and hands the array over. The consumer reads every
element, compares all of them with the number of the round, and answers. So all contenders move the same bytes. A contender whose
name contains "in place" writes the array where the consumer reads it. The others write an array of their own, and send it.

Contenders are the floor (memory that both have mapped, and a byte over a socket), tensorlend, and each of these that is installed:
pickle over a Pipe, pickle 5 with buffers out of band, multiprocessing.shared_memory, Arrow IPC, torch's queue, Ray, Redis. Each
contender has a consumer of its own; they take turns. With --runs, the processes start anew for each run. With --picture, draws the
times of 1 MiB.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import mmap
import multiprocessing
import os
import pickle
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import tensorlend
from measure import Peer, Row, duration, left_out, machine, parser, redis_server, row, save

Get = Callable[[], Any]

#: The names of the measurements.
ROUND_TRIP = "round trip: write, hand over, read, answer"
PUT = "put: how long the producer is busy"


def check(array: Any, number: int) -> None:
    """Reads every element of an array of this round. Elements of earlier rounds are smaller."""
    found = np.asarray(array).min()
    assert found == number, f"round {number} has an element of round {found}"


@functools.lru_cache(maxsize=1)
def own(nbytes: int) -> np.ndarray:
    """The producer's own array."""
    return np.zeros(nbytes // 4, np.float32)


class Contender:
    """One way. `put` in the producer, then a byte over a socket, then `get` in the consumer and a byte back."""

    name = ""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def written(self, number: int) -> np.ndarray:
        """Writes the producer's own array, which all contenders share."""
        array = own(self.nbytes)
        array.fill(number)
        return array

    def consumer(self) -> Get:
        """Called in the consumer's process: what gets an object with the buffer protocol."""
        raise NotImplementedError

    def put(self, number: int) -> None:
        """Writes every element and hands the array over. Called in the producer's process."""
        raise NotImplementedError

    def close(self) -> None:
        """Tidies up."""


class Floor(Contender):
    name = "floor: common memory, in place"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        descriptor = os.memfd_create("floor")
        os.ftruncate(descriptor, nbytes)
        self.memory = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.array = np.frombuffer(self.memory, np.float32)

    def consumer(self) -> Get:
        return lambda: self.array

    def put(self, number: int) -> None:
        self.array.fill(number)


class CopyFloor(Floor):
    name = "floor: common memory, one copy"

    def put(self, number: int) -> None:
        np.copyto(self.array, self.written(number))


class TwoBlocks(Contender):
    """Two blocks in turns: any carrier needs two that keeps the former value for its readers while the next one is written."""

    name = "floor: two blocks in turns, in place"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.blocks = [Floor(nbytes).array, Floor(nbytes).array]
        self.sent = 0

    def consumer(self) -> Get:
        blocks = itertools.cycle(self.blocks)
        return lambda: next(blocks)

    def next(self) -> np.ndarray:
        """The block whose former value the consumer has read."""
        self.sent += 1
        return self.blocks[(self.sent - 1) % 2]

    def put(self, number: int) -> None:
        self.next().fill(number)


class TwoBlocksCopy(TwoBlocks):
    name = "floor: two blocks in turns, one copy"

    def put(self, number: int) -> None:
        np.copyto(self.next(), self.written(number))


class Lend(Contender):
    name = "tensorlend, in place"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.broker = tensorlend.embedded('[pool]\nbytes_max = "4GiB"\n')
        self.client = self.broker.connect()

    def consumer(self) -> Get:
        client = tensorlend.connect(self.broker.address)
        return lambda: client.get("array").numpy()

    def put(self, number: int) -> None:
        draft = self.client.create((self.nbytes // 4,), "float32")
        draft.array.fill(number)
        draft.publish("array")

    def close(self) -> None:
        self.client.close()
        self.broker.close()


class LendCopy(Lend):
    name = "tensorlend, put"

    def put(self, number: int) -> None:
        self.client.put("array", self.written(number))


class Pipe(Contender):
    name = "pickle over a Pipe"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.reader, self.writer = multiprocessing.Pipe(False)

    def consumer(self) -> Get:
        return self.reader.recv

    def put(self, number: int) -> None:
        self.writer.send(self.written(number))


class OutOfBand(Contender):
    name = "pickle 5 out of band, socket"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.writer, self.reader = socket.socketpair()

    def consumer(self) -> Get:
        memory = bytearray(self.nbytes)

        def get() -> Any:
            (length,) = struct.unpack("<I", self._exactly(4))
            head = self._exactly(length)
            view = memoryview(memory)
            while view:
                view = view[self.reader.recv_into(view) :]
            return pickle.loads(head, buffers=[memory])

        return get

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            parts += self.reader.recv(count - len(parts))
        return parts

    def put(self, number: int) -> None:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(self.written(number), protocol=5, buffer_callback=buffers.append)
        self.writer.sendall(struct.pack("<I", len(head)) + head)
        for buffer in buffers:
            self.writer.sendall(buffer.raw())


class SharedMemory(Contender):
    name = "multiprocessing.shared_memory, reused"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.block = shared_memory.SharedMemory(create=True, size=nbytes)
        self.array = np.frombuffer(self.block.buf, np.float32, nbytes // 4)

    def consumer(self) -> Get:
        block = shared_memory.SharedMemory(self.block.name)
        return lambda: np.frombuffer(block.buf, np.float32, self.nbytes // 4)

    def put(self, number: int) -> None:
        np.copyto(self.array, self.written(number))

    def close(self) -> None:
        del self.array
        self.block.close()
        self.block.unlink()


class SharedMemoryInPlace(SharedMemory):
    name = "multiprocessing.shared_memory, reused, in place"

    def put(self, number: int) -> None:
        self.array.fill(number)


class FreshSharedMemory(Contender):
    name = "multiprocessing.shared_memory, fresh, in place"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.names, self.told = multiprocessing.Pipe(False)
        self.last: shared_memory.SharedMemory | None = None
        self.opened: shared_memory.SharedMemory | None = None

    def consumer(self) -> Get:
        def get() -> Any:
            block = shared_memory.SharedMemory(self.names.recv())
            if self.opened is not None:
                self.opened.close()
            self.opened = block
            return np.frombuffer(block.buf, np.float32, self.nbytes // 4)

        return get

    def put(self, number: int) -> None:
        self.close()
        self.last = shared_memory.SharedMemory(create=True, size=self.nbytes)
        np.frombuffer(self.last.buf, np.float32, self.nbytes // 4).fill(number)
        self.told.send(self.last.name)

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
            self.opened = None
        if self.last is not None:
            self.last.close()
            self.last.unlink()
            self.last = None


class Arrow(Contender):
    name = "Arrow IPC, socket"

    def __init__(self, nbytes: int) -> None:
        import pyarrow

        super().__init__(nbytes)
        self.arrow = pyarrow
        self.writer, self.reader = socket.socketpair()
        self.sink = self.writer.makefile("wb")

    def consumer(self) -> Get:
        source = self.reader.makefile("rb")
        return lambda: self.arrow.ipc.read_tensor(self.arrow.PythonFile(source, "r")).to_numpy()

    def put(self, number: int) -> None:
        self.arrow.ipc.write_tensor(self.arrow.Tensor.from_numpy(self.written(number)), self.arrow.PythonFile(self.sink, "w"))
        self.sink.flush()


class TorchQueue(Contender):
    name = "torch.multiprocessing.Queue"

    def __init__(self, nbytes: int) -> None:
        import torch
        import torch.multiprocessing

        super().__init__(nbytes)
        self.torch = torch
        torch.multiprocessing.set_sharing_strategy("file_system")
        self.queue: Any = torch.multiprocessing.get_context("fork").SimpleQueue()

    def consumer(self) -> Get:
        return lambda: self.queue.get().numpy()

    def put(self, number: int) -> None:
        # A queue moves a tensor to shared memory and leaves it there, so a program sends a new one each time.
        self.queue.put(self.torch.full((self.nbytes // 4,), float(number)))


class Redis(Contender):
    name = "Redis SET and GET, Unix socket"

    def __init__(self, nbytes: int) -> None:
        import redis

        super().__init__(nbytes)
        self.server = contextlib.ExitStack()
        folder = self.server.enter_context(tempfile.TemporaryDirectory())
        self.server.enter_context(redis_server(folder))
        self.path = f"{folder}/redis.sock"
        self.redis = redis
        self.client = redis.Redis(unix_socket_path=self.path)

    def consumer(self) -> Get:
        client = self.redis.Redis(unix_socket_path=self.path)
        return lambda: np.frombuffer(client.get("array"), np.float32)

    def put(self, number: int) -> None:
        self.client.set("array", self.written(number).data.cast("B"))

    def close(self) -> None:
        self.server.close()


class Ray(Contender):
    name = "Ray put and get"

    def __init__(self, nbytes: int) -> None:
        import ray

        super().__init__(nbytes)
        self.ray = ray
        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", object_store_memory=2 << 30)

        @ray.remote(num_cpus=0)
        class Consumer:
            def get(self, array: np.ndarray, number: int) -> None:
                check(array, number)

        self.actor = Consumer.remote()

    def put(self, number: int) -> None:
        # One call does all of it: the object is put, found and answered.
        self.ray.get(self.actor.get.remote(self.ray.put(self.written(number)), number))

    def close(self) -> None:
        self.ray.kill(self.actor)


CONTENDERS = [
    Floor,
    CopyFloor,
    TwoBlocks,
    TwoBlocksCopy,
    Lend,
    LendCopy,
    SharedMemoryInPlace,
    SharedMemory,
    FreshSharedMemory,
    OutOfBand,
    Pipe,
    Arrow,
    TorchQueue,
    Redis,
    Ray,
]


def rounds(nbytes: int, quick: bool) -> int:
    """How often: fewer for what takes long."""
    many = 400 if nbytes <= 1 << 16 else 100 if nbytes <= 1 << 20 else 20 if nbytes <= 1 << 24 else 6
    return max(3, many // (10 if quick else 1))


class Turn:
    """A contender with its consumer."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.put_s: list[float] = []
        self.all_s: list[float] = []
        self.peer: Peer | None = None
        self.number = 0
        if not isinstance(contender, Ray):

            def work() -> Callable[[], None]:
                get, numbers = contender.consumer(), itertools.count(1)
                return lambda: check(get(), next(numbers))

            self.peer = Peer(work)

    def once(self) -> None:
        self.number += 1
        began = time.perf_counter()
        if self.peer is None:
            self.contender.put(self.number)
            put = time.perf_counter()
        elif isinstance(self.contender, Pipe | OutOfBand | Arrow):
            # Data in a pipe waits for its reader.
            self.peer.go()
            self.contender.put(self.number)
            put = time.perf_counter()
            self.peer.wait()
        else:
            self.contender.put(self.number)
            put = time.perf_counter()
            self.peer.go()
            self.peer.wait()
        self.put_s.append(put - began)
        self.all_s.append(time.perf_counter() - began)

    def close(self) -> None:
        if self.peer is not None:
            self.peer.close()
        self.contender.close()


def measure(nbytes: int, count: int, only: list[str], missing: dict[str, str]) -> list[Row]:
    """All contenders at one size, or those whose names contain one of the words in `only`."""
    turns = []
    for kind in CONTENDERS:
        if only and not any(word in kind.name for word in only):
            continue
        try:
            turns.append(Turn(kind(nbytes)))
        except (ImportError, OSError, RuntimeError) as error:
            missing[kind.name] = str(error)
    try:
        for block in range(5):
            for turn in turns:
                for _ in range(max(1, count // 5)):
                    turn.once()
                if block == 0:
                    # The first block warms up.
                    turn.put_s.clear()
                    turn.all_s.clear()
    finally:
        for turn in turns:
            turn.close()
    return [
        r
        for turn in turns
        for r in (
            row(ROUND_TRIP, turn.contender.name, nbytes, turn.all_s),
            row(PUT, turn.contender.name, nbytes, turn.put_s),
        )
    ]


def middle(same: tuple[Row, ...]) -> Row:
    """The row of several runs: the median of their medians, with the extremes of the medians."""
    medians = [one.median_us for one in same]
    if len(same) == 1:
        return same[0]
    rounds_of_all = sum(one.rounds for one in same)
    return replace(same[0], median_us=statistics.median(medians), min_us=min(medians), max_us=max(medians), rounds=rounds_of_all)


#: The bars of the picture: names of contenders, and their labels.
BARS = {
    Floor.name: "shared memory by hand, in place",
    Lend.name: "tensorlend, in place",
    CopyFloor.name: "shared memory by hand, one copy",
    LendCopy.name: "tensorlend, one copy (put)",
    OutOfBand.name: OutOfBand.name,
    Arrow.name: Arrow.name,
    TorchQueue.name: TorchQueue.name,
    Ray.name: Ray.name,
    Pipe.name: Pipe.name,
    Redis.name: "Redis SET and GET",
}

STYLE = """\
svg { color: #1f2328; }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3; } }
text { font: 13px system-ui, sans-serif; fill: currentColor; }
.small { font-size: 12px; }
.middle { text-anchor: middle; }
.end { text-anchor: end; }
.bold { font-weight: 600; }
.grid { stroke: currentColor; stroke-opacity: .2; }
rect { fill: #6e7781; fill-opacity: .55; }
.ours { fill: #1a7f37; fill-opacity: .9; }
.floor { fill: none; stroke: currentColor; stroke-dasharray: 4 3; }"""


def picture(rows: list[Row], runs: int) -> str:
    """The round trips of 1 MiB as bars on a logarithmic scale."""
    title = "Round trip of a 1 MiB array between two Python processes"
    found = {r.contender: r.median_us for r in rows if r.what == ROUND_TRIP and r.nbytes == 1 << 20}
    bars = sorted((found[name], label) for name, label in BARS.items() if name in found)
    decade = 210
    bottom = 46 + 28 * len(bars) - 2
    facts = machine()
    described = "; ".join(f"{label}: {duration(us)}" for us, label in bars)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {bottom + 40}" role="img" aria-labelledby="t d">',
        f'<title id="t">{title}</title>',
        f'<desc id="d">{described}. Logarithmic scale, shorter is faster.</desc>',
        f"<style>\n{STYLE}\n</style>",
        f'<text x="20" y="22" class="bold">{title}, every byte written and read (shorter is faster)</text>',
    ]
    for at, tick in enumerate(("10 us", "100 us", "1 ms")):
        x = 250 + decade * at
        lines.append(f'<path class="grid" d="M{x} 36V{bottom}"/><text x="{x}" y="{bottom + 18}" class="small middle">{tick}</text>')
    for at, (us, label) in enumerate(bars):
        y, width = 46 + 28 * at, round(decade * math.log10(us / 10))
        ours = label.startswith("tensorlend")
        kind = "ours" if ours else "floor" if label.endswith("by hand, in place") else ""
        bold = " bold" if ours else ""
        lines.append(
            f'<text x="240" y="{y + 13}" class="end{bold}">{label}</text><rect x="250" y="{y}" width="{width}" height="18" class="{kind}"/>'
            f'<text x="{258 + width}" y="{y + 13}" class="small{bold}">{duration(us)}</text>'
        )
    runs_said = f"Medians of {runs} runs" if runs > 1 else "Medians of one run"
    kernel = facts["machine"].split("-")[0]
    lines.append(
        f'<text x="20" y="{bottom + 34}" class="small">Logarithmic scale. {runs_said}, {kernel}, Python {facts["python"]}, {facts["date"]}.</text>'
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("python-exchange"))
    options.add_argument("--quick", action="store_true")
    options.add_argument("--rounds", type=int, help="rounds for each contender and size, in five blocks")
    options.add_argument("--runs", type=int, default=1, help="runs; each row is the median of their medians")
    options.add_argument("--picture", type=Path, help="where to draw the times of 1 MiB, as SVG")
    options.add_argument("--only", nargs="*", default=[], help="words of the names of contenders")
    options.add_argument("--sizes", type=int, nargs="*", default=[1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28])
    arguments = options.parse_args()
    missing: dict[str, str] = {}
    runs: list[list[Row]] = []
    for _ in range(arguments.runs):
        runs.append([])
        for nbytes in arguments.sizes:
            count = arguments.rounds or rounds(nbytes, arguments.quick)
            runs[-1] += measure(nbytes, count, arguments.only, missing)
    rows = [middle(same) for same in zip(*runs, strict=True)]
    if arguments.picture:
        arguments.picture.write_text(picture(rows, arguments.runs))
    save(arguments.out, "Handing an array to another process, from Python", rows, Floor.name, left_out(missing))


if __name__ == "__main__":
    main()
