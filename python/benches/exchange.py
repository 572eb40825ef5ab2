"""Measures how long it takes to hand an array to another process and learn that it was read.

    python exchange.py [--out STEM] [--quick] [--sizes BYTES ...] [--rounds N] [--only WORD ...]

Two processes. The producer has an array of float32 and puts it; the consumer gets it, reads a byte of every page, and
answers. Beside the floor (memory that both have mapped, and a byte over a socket) every contender that is installed:
pickle over a Pipe, pickle 5 with buffers out of band, multiprocessing.shared_memory, Arrow IPC, torch's queue, Ray, vineyard,
Redis. Each contender has a consumer of its own; they take turns.
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import multiprocessing
import os
import pickle
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import numpy as np
import tensorlend
from measure import Peer, Row, row, save, touch

Put = Callable[[np.ndarray], None]
Get = Callable[[], Any]


class Contender:
    """One way. `put` in the producer, then a byte over a socket, then `get` in the consumer and a byte back."""

    name = ""
    #: Whether the array is written where it is read: nothing is copied.
    in_place = False

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def consumer(self) -> Get:
        """Called in the consumer's process: what gets an object with the buffer protocol."""
        raise NotImplementedError

    def put(self, array: np.ndarray) -> None:
        """Called in the producer's process."""
        raise NotImplementedError

    def close(self) -> None:
        """Tidies up."""


class Floor(Contender):
    name = "floor: common memory, in place"
    in_place = True

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        descriptor = os.memfd_create("floor")
        os.ftruncate(descriptor, nbytes)
        self.memory = mmap.mmap(descriptor, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.array = np.frombuffer(self.memory, np.float32)
        self.array[:] = 1

    def consumer(self) -> Get:
        return lambda: self.array

    def put(self, array: np.ndarray) -> None:
        pass


class CopyFloor(Floor):
    name = "floor: common memory, one copy"
    in_place = False

    def put(self, array: np.ndarray) -> None:
        np.copyto(self.array, array)


class TwoBlocks(Contender):
    """Two blocks in turns: any carrier needs two that keeps the former value for its readers while the next one is written."""

    name = "floor: two blocks in turns, in place"
    in_place = True

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.blocks = [Floor(nbytes).array, Floor(nbytes).array]
        self.sent = 0

    def consumer(self) -> Get:
        blocks = itertools.cycle(self.blocks)
        return lambda: next(blocks)

    def put(self, array: np.ndarray) -> None:
        self.sent += 1


class TwoBlocksCopy(TwoBlocks):
    name = "floor: two blocks in turns, one copy"
    in_place = False

    def put(self, array: np.ndarray) -> None:
        np.copyto(self.blocks[self.sent % 2], array)
        self.sent += 1


class Lend(Contender):
    name = "tensorlend, in place"
    in_place = True
    mode = "name"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.broker = tensorlend.embedded('[pool]\nbytes_max = "4GiB"\n')
        self.client = self.broker.connect()

    def consumer(self) -> Get:
        client = tensorlend.connect(self.broker.address)
        return lambda: client.get("array").numpy()

    def put(self, array: np.ndarray) -> None:
        self.client.create(array.shape, "float32").publish("array")

    def close(self) -> None:
        self.client.close()
        self.broker.close()


class LendCopy(Lend):
    name = "tensorlend, put"
    in_place = False

    def put(self, array: np.ndarray) -> None:
        self.client.put("array", array)


class Pipe(Contender):
    name = "pickle over a Pipe"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.reader, self.writer = multiprocessing.Pipe(False)

    def consumer(self) -> Get:
        return self.reader.recv

    def put(self, array: np.ndarray) -> None:
        self.writer.send(array)


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

    def put(self, array: np.ndarray) -> None:
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(array, protocol=5, buffer_callback=buffers.append)
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

    def put(self, array: np.ndarray) -> None:
        np.copyto(self.array, array)

    def close(self) -> None:
        del self.array
        self.block.close()
        self.block.unlink()


class FreshSharedMemory(Contender):
    name = "multiprocessing.shared_memory, fresh"

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.names, self.told = multiprocessing.Pipe(False)
        self.last: shared_memory.SharedMemory | None = None

    def consumer(self) -> Get:
        def get() -> Any:
            block = shared_memory.SharedMemory(self.names.recv())
            array = np.frombuffer(block.buf, np.float32, self.nbytes // 4).copy()
            block.close()
            return array

        return get

    def put(self, array: np.ndarray) -> None:
        self.close()
        self.last = shared_memory.SharedMemory(create=True, size=array.nbytes)
        np.copyto(np.frombuffer(self.last.buf, np.float32, array.size), array)
        self.told.send(self.last.name)

    def close(self) -> None:
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

    def put(self, array: np.ndarray) -> None:
        self.arrow.ipc.write_tensor(self.arrow.Tensor.from_numpy(array), self.arrow.PythonFile(self.sink, "w"))
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

    def put(self, array: np.ndarray) -> None:
        self.queue.put(self.torch.from_numpy(array).clone())


class Redis(Contender):
    name = "Redis SET and GET, Unix socket"

    def __init__(self, nbytes: int) -> None:
        import redis

        super().__init__(nbytes)
        if shutil.which("redis-server") is None:
            raise ImportError("redis-server is not installed")
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/redis.sock"
        options = ["--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no"]
        self.server = subprocess.Popen(
            ["redis-server", *options],
            stdout=subprocess.DEVNULL,
            # The honest opponent: without these, glibc maps and unmaps every large value.
            env={**os.environ, "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)},
        )
        while not os.path.exists(self.path):
            time.sleep(0.01)
        self.redis = redis
        self.client = redis.Redis(unix_socket_path=self.path)

    def consumer(self) -> Get:
        client = self.redis.Redis(unix_socket_path=self.path)
        return lambda: np.frombuffer(client.get("array"), np.float32)

    def put(self, array: np.ndarray) -> None:
        self.client.set("array", array.data.cast("B"))

    def close(self) -> None:
        self.server.terminate()
        self.server.wait()
        self.folder.cleanup()


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
            def get(self, array: np.ndarray) -> int:
                return touch(memoryview(array))

        self.actor = Consumer.remote()

    def put(self, array: np.ndarray) -> None:
        # One call does all of it: the object is put, found and answered.
        self.ray.get(self.actor.get.remote(self.ray.put(array)))

    def close(self) -> None:
        self.ray.kill(self.actor)


CONTENDERS = [
    Floor,
    CopyFloor,
    TwoBlocks,
    TwoBlocksCopy,
    Lend,
    LendCopy,
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
        if not isinstance(contender, Ray):

            def work() -> Callable[[], None]:
                get = contender.consumer()
                return lambda: (touch(memoryview(get())), None)[1]

            self.peer = Peer(work)

    def once(self, array: np.ndarray) -> None:
        began = time.perf_counter()
        if self.peer is None:
            self.contender.put(array)
            put = time.perf_counter()
        elif isinstance(self.contender, Pipe | OutOfBand | Arrow):
            # What goes through a pipe waits for its reader.
            self.peer.go()
            self.contender.put(array)
            put = time.perf_counter()
            self.peer.wait()
        else:
            self.contender.put(array)
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
    array = np.ones(nbytes // 4, np.float32)
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
                    turn.once(array)
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
            row("round trip: put, get, every page read, answer", turn.contender.name, nbytes, turn.all_s),
            row("put: how long the producer is busy", turn.contender.name, nbytes, turn.put_s),
        )
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("python-exchange"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, help="rounds for each contender and size, in five blocks")
    parser.add_argument("--only", nargs="*", default=[], help="words of the names of contenders")
    parser.add_argument("--sizes", type=int, nargs="*", default=[1 << 10, 1 << 16, 1 << 20, 1 << 24, 1 << 28])
    arguments = parser.parse_args()
    missing: dict[str, str] = {}
    rows: list[Row] = []
    for nbytes in arguments.sizes:
        count = arguments.rounds or rounds(nbytes, arguments.quick)
        rows += measure(nbytes, count, arguments.only, missing)
    notes = [f"Left out: {name} ({why.splitlines()[0] if why else 'not installed'})." for name, why in missing.items()]
    save(arguments.out, "Handing an array to another process, from Python", rows, Floor.name, notes)


if __name__ == "__main__":
    main()
