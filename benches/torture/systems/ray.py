"""Ray: a producer actor puts arrays and calls its consumer actors, with a bounded number of pending calls.

https://docs.ray.io/en/latest/ray-core/patterns/limit-pending-tasks.html for the bound, and
https://docs.ray.io/en/latest/ray-core/fault_tolerance/actors.html for max_restarts and max_task_retries: Ray itself replaces an
actor that dies. The kept value is the state of a detached actor, because objects end with their owner.
"""

import os
import queue
import subprocess
import sys
from typing import Any

import world

import systems

HANDLES: list[Any] = []
VALUES: queue.Queue[Any] = queue.Queue(systems.DEPTH)
OPTIONS = {"max_restarts": -1, "max_task_retries": -1, "max_concurrency": 8, "num_cpus": 0}
KEPT = {"name": "kept", "lifetime": "detached", "get_if_exists": True, "num_cpus": 0}
#: A program that calls ray.init and stays: https://docs.ray.io/en/latest/ray-core/starting-ray.html.
HEAD = """import ray, signal
head = ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=512 << 20, namespace="torture")
print(head.address_info["address"], flush=True); signal.pause()"""


class Process:
    """An actor: a role in one thread, and for a consumer its values in another one. Or the holder of the kept value."""

    def take(self, value):
        VALUES.put(value, timeout=30)

    def run(self, config):
        __import__("role").run(config)

    def keep(self, value):
        self.value = value

    def kept(self):
        return self.value


class End:
    def __init__(self, names):
        import ray

        self.ray, self.pending = ray, []
        self.consumers = [ray.get_actor(name) for name in names]

    def send(self, array):
        ref = self.ray.put(array)
        self.pending.append([consumer.take.remote(ref) for consumer in self.consumers])
        if len(self.pending) > systems.DEPTH:
            self.ray.get(self.pending.pop(0), timeout=5)

    def keep(self, array):
        self.ray.get(self.ray.remote(Process).options(**KEPT).remote().keep.remote(array))

    def receive(self, timeout):
        return systems.taken(VALUES, timeout)

    def kept(self):
        return self.ray.get(self.ray.get_actor("kept").kept.remote(), timeout=3)

    def close(self):
        self.pending.clear()


class Driver(systems.System):
    title, package = "Ray", "ray"
    has_broker = ancestor = restarts = keeps = True
    #: A head node and its first workers start in a minute or more where other programs run.
    start_s, cell_s = 180.0, 60.0

    def start_broker(self):
        # Everybody in this world may join. Else every process needs a token.
        os.environ["RAY_AUTH_MODE"] = "disabled"
        head = subprocess.Popen([sys.executable, "-c", HEAD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        (self.folder / "ray").write_bytes(head.stdout.readline())
        return [head]

    def broker_pid(self, processes):
        """The raylet, in which the object store is."""
        return next((pid for pid in world.processes() if world.name(pid).split(" ")[0] == "raylet"), processes[-1].pid)

    def prepare(self, topic, consumers):
        # The parent has set RAY_AUTH_MODE. One namespace for all, so that get_actor finds the actors.
        __import__("ray").init((self.folder / "ray").read_text().strip(), namespace="torture", log_to_driver=False)

    def spawn(self, run, config):
        name = f"{config['topic']}-{config['role']}-{config['index']}"
        HANDLES.append(__import__("ray").remote(Process).options(name=name, **OPTIONS).remote())
        HANDLES[-1].run.remote(config)

    def producer(self, topic, consumers):
        return End([f"{topic}-consumer-{index}" for index in range(consumers)])

    def consumer(self, topic, index):
        return End([])
