"""multiprocessing.shared_memory, with the names of the blocks in queues of multiprocessing.

https://docs.python.org/3/library/multiprocessing.shared_memory.html: a block is created, its name is sent, the other process
attaches; each process calls close, one calls unlink. All processes descend from one, so that they share one resource tracker.
Each value is a fresh block for each consumer, which unlinks it after its use.
"""

from __future__ import annotations

import multiprocessing
import platform
import queue
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

import systems

QUEUES: list[Any] = []


class Sender:
    def send(self, array: np.ndarray) -> None:
        for names in QUEUES:
            block = SharedMemory(create=True, size=array.nbytes)
            try:
                np.frombuffer(block.buf, array.dtype, array.size)[:] = array
                names.put((block.name, array.nbytes), timeout=5)
            except BaseException:
                block.close()
                block.unlink()
                raise
            block.close()

    def close(self) -> None:
        pass


class Receiver:
    def __init__(self, index: int) -> None:
        self.names = QUEUES[index]
        self.block: SharedMemory | None = None

    def receive(self, timeout: float) -> np.ndarray | None:
        self.close()
        try:
            name, size = self.names.get(timeout=timeout)
        except queue.Empty:
            return None
        self.block = SharedMemory(name)
        return np.frombuffer(self.block.buf, np.uint64, size // 8)

    def close(self) -> None:
        block, self.block = self.block, None
        if block is not None:
            block.unlink()
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
        QUEUES[:] = [multiprocessing.Queue(systems.DEPTH) for _ in range(consumers)]

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> Any:
        process = multiprocessing.Process(target=run, args=(config,))
        process.start()
        return process

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender()

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(index)
