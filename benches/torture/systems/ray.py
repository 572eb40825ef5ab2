"""Ray: a producer actor puts arrays and calls its consumer actors, with a bounded number of pending calls.

https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html for the bound, and
https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html for max_restarts and max_task_retries: Ray itself replaces an
actor that dies. The kept value is the state of a detached actor, because objects end with their owner.
"""

from __future__ import annotations

import importlib.metadata
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import world

import systems

HANDLES: list[Any] = []

VALUES: queue.Queue[Any] = queue.Queue(systems.DEPTH)


class Process:
    """An actor: a role in one thread, and for a consumer its values in another one."""

    def take(self, value: np.ndarray) -> None:
        VALUES.put(value, timeout=30)

    def run(self, config: dict[str, Any]) -> None:
        import role

        role.run(config)


class Keeper:
    value: np.ndarray | None = None

    def keep(self, value: np.ndarray) -> None:
        self.value = value

    def kept(self) -> np.ndarray | None:
        return self.value


class Sender:
    def __init__(self, topic: str, consumers: int) -> None:
        import ray

        self.ray, self.pending = ray, []
        self.consumers = [ray.get_actor(f"{topic}-consumer-{index}") for index in range(consumers)]

    def send(self, array: np.ndarray) -> None:
        ref = self.ray.put(array)
        self.pending.append([consumer.take.remote(ref) for consumer in self.consumers])
        if len(self.pending) > systems.DEPTH:
            self.ray.get(self.pending.pop(0), timeout=5)

    def keep(self, array: np.ndarray) -> None:
        keeper = self.ray.remote(num_cpus=0)(Keeper).options(name="kept", lifetime="detached", get_if_exists=True).remote()
        self.ray.get(keeper.keep.remote(array))

    def close(self) -> None:
        self.pending.clear()


class Receiver:
    def receive(self, timeout: float) -> np.ndarray | None:
        try:
            return VALUES.get(timeout=timeout)
        except queue.Empty:
            return None

    def kept(self) -> np.ndarray | None:
        import ray

        return ray.get(ray.get_actor("kept").kept.remote(), timeout=3)

    def close(self) -> None:
        pass


class Driver(systems.System):
    title = "Ray"
    has_broker = ancestor = restarts = keeps = True
    start_s = 45.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        # Everybody in this world may join. Else every process needs a token.
        os.environ["RAY_AUTH_MODE"] = "disabled"

    def version(self) -> str:
        return importlib.metadata.version("ray")

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        """A program that calls ray.init and stays: https://docs.ray.io/en/latest/ray-core/starting-ray.html."""
        arguments = "address='local', num_cpus=2, include_dashboard=False, object_store_memory=512 << 20, namespace='torture'"
        program = f"import ray, signal; print(ray.init({arguments}).address_info['address'], flush=True); signal.pause()"
        head = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert head.stdout is not None
        (self.folder / "ray").write_bytes(head.stdout.readline())
        return [head]

    def raylets(self) -> list[int]:
        return [pid for pid in world.processes() if world.name(pid).split(" ")[0] == "raylet"]

    def broker_pid(self, processes: list[subprocess.Popen[bytes]]) -> int:
        """The raylet, in which the object store is."""
        return next(iter(self.raylets()), processes[-1].pid)

    def prepare(self, topic: str, consumers: int) -> None:
        import ray

        deadline = time.monotonic() + self.start_s
        while not ray.is_initialized():
            try:
                # One namespace for all, so that get_actor finds the actors.
                ray.init(address=(self.folder / "ray").read_text().strip(), namespace="torture", log_to_driver=False, logging_level="ERROR")
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
        import ray

        name = f"{config['topic']}-{config['role']}-{config['index']}"
        options = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 8, "num_cpus": 0}
        HANDLES.append(ray.remote(Process).options(name=name, **options).remote())
        HANDLES[-1].run.remote(config)

    def finish(self) -> None:
        import ray

        ray.shutdown()

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(topic, consumers)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver()
