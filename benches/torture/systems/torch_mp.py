"""torch.multiprocessing: tensors in bounded queues, one for each consumer.

https://docs.pytorch.org/docs/stable/multiprocessing.html: the queues move the tensors' memory into shared memory and send
handles. The sharing strategy is Linux's default, file_descriptor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import systems

QUEUES: list[Any] = []


class Sender:
    def send(self, array: np.ndarray) -> None:
        import torch

        tensor = torch.from_numpy(array.view(np.uint8).copy())
        for each in QUEUES:
            each.put(tensor, timeout=5)

    def close(self) -> None:
        """The sender serves the handles, so that it must live until its tensors have been received."""
        deadline = time.monotonic() + 2
        while not all(each.empty() for each in QUEUES) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)


class Receiver:
    def __init__(self, index: int) -> None:
        self.queue = QUEUES[index]

    def receive(self, timeout: float) -> np.ndarray | None:
        tensor = systems.taken(self.queue, timeout)
        return None if tensor is None else tensor.numpy()

    def close(self) -> None:
        pass


class Driver(systems.System):
    title = "torch.multiprocessing"
    package = "torch"
    ancestor = True

    def prepare(self, topic: str, consumers: int) -> None:
        import torch
        import torch.multiprocessing

        torch.set_num_threads(1)
        QUEUES[:] = [torch.multiprocessing.Queue(systems.DEPTH) for _ in range(consumers)]

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> Any:
        import torch.multiprocessing

        process = torch.multiprocessing.Process(target=run, args=(config,))
        process.start()
        return process

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender()

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(index)
