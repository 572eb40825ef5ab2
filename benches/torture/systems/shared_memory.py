"""multiprocessing.shared_memory, with the names of the blocks in pipes of multiprocessing.

https://docs.python.org/3/library/multiprocessing.shared_memory.html: a block is created, its name is sent, the other process
attaches; each process calls close, one calls unlink. All processes descend from one, so that they share one resource tracker.
Each value is a fresh block for each consumer, which unlinks it after its use. The names go through a pipe, since
https://docs.python.org/3/library/multiprocessing.html warns that a killed process can break a queue, which has locks.
"""

from __future__ import annotations

import multiprocessing
import platform
import time
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

import systems

#: For each consumer, the ends of two pipes: its names, and the names that it has used.
PIPES: list[Any] = []


class Sender:
    def __init__(self) -> None:
        self.pending: list[list[str]] = [[] for _ in PIPES]

    def send(self, array: np.ndarray) -> None:
        for (_, names, used, _), pending in zip(PIPES, self.pending, strict=True):
            deadline = time.monotonic() + 5
            while used.poll(max(0, deadline - time.monotonic()) if len(pending) >= systems.DEPTH else 0):
                name = used.recv()
                # A consumer uses the blocks in their order. A killed one has not told of its last.
                del pending[: pending.index(name) + 1 if name in pending else 0]
            if len(pending) >= systems.DEPTH:
                raise TimeoutError("the consumer has used no block for 5 s")
            block = SharedMemory(create=True, size=array.nbytes)
            np.frombuffer(block.buf, array.dtype, array.size)[:] = array
            names.send((block.name, array.nbytes))
            pending.append(block.name)
            block.close()

    def close(self) -> None:
        pass


class Receiver:
    def __init__(self, index: int) -> None:
        self.names, _, _, self.used = PIPES[index]
        self.block: SharedMemory | None = None

    def receive(self, timeout: float) -> np.ndarray | None:
        self.close()
        if not self.names.poll(timeout):
            return None
        name, size = self.names.recv()
        self.block = SharedMemory(name)
        return np.frombuffer(self.block.buf, np.uint64, size // 8)

    def close(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            block.unlink()
            self.used.send(block.name)
            try:
                block.close()
            except BufferError:
                pass  # An array still looks at the block. The mapping ends with the array.


class Driver(systems.System):
    title = "multiprocessing.shared_memory"
    ancestor = True

    def version(self) -> str:
        return f"Python {platform.python_version()}"

    def prepare(self, topic: str, consumers: int) -> None:
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()
        PIPES[:] = [(*multiprocessing.Pipe(duplex=False), *multiprocessing.Pipe(duplex=False)) for _ in range(consumers)]

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> Any:
        process = multiprocessing.Process(target=run, args=(config,))
        process.start()
        return process

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender()

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(index)
