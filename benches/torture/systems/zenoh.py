"""zenoh with shared memory: two peers that publish and subscribe.

https://github.com/eclipse-zenoh/zenoh-python/blob/main/examples/z_pub_shm.py and z_sub_shm.py for the calls: a provider, an
allocation that waits for the garbage collection, a publisher. CongestionControl.BLOCK, so that a slow subscriber loses nothing.
The peers find each other by multicast, which is the default.
"""

from __future__ import annotations

import resource
import time

import numpy as np

import systems


def session():
    import zenoh

    config = zenoh.Config()
    config.insert_json5("transport/shared_memory/enabled", "true")
    return zenoh.open(config)


class Sender:
    def __init__(self, topic: str) -> None:
        import zenoh

        self.session = session()
        # zenoh locks its memory, so that the process's limit of locked memory bounds the pool.
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        self.provider = zenoh.shm.ShmProvider.default_backend(64 << 20 if limit in (-1, resource.RLIM_INFINITY) else min(64 << 20, limit // 2))
        self.publisher = self.session.declare_publisher(topic)

    def send(self, array: np.ndarray) -> None:
        import zenoh

        buffer = self.provider.alloc(array.nbytes, policy=zenoh.shm.BlockOn(zenoh.shm.GarbageCollect()))
        buffer[:] = array.tobytes()
        self.publisher.put(buffer)

    def close(self) -> None:
        self.session.close()


class Receiver:
    def __init__(self, topic: str) -> None:
        import zenoh

        self.session = session()
        self.subscriber = self.session.declare_subscriber(topic, zenoh.handlers.FifoChannel(systems.DEPTH))
        self.sample = None

    def receive(self, timeout: float) -> np.ndarray | None:
        self.sample = None
        deadline = time.monotonic() + timeout
        # The channel's recv has no timeout.
        while (sample := self.subscriber.try_recv()) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        self.sample = sample
        # The Python package hands out copies of the payload.
        return np.frombuffer(sample.payload.to_bytes(), np.uint8)

    def close(self) -> None:
        self.session.close()


class Driver(systems.System):
    title = "zenoh"

    def version(self) -> str:
        import importlib.metadata

        import zenoh  # noqa: F401

        return importlib.metadata.version("eclipse-zenoh")

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(topic)
