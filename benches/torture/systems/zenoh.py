"""zenoh with shared memory: two peers that publish and subscribe.

https://github.com/eclipse-zenoh/zenoh-python/blob/main/examples/z_pub_shm.py and z_sub_shm.py for the calls: a provider, an
allocation, a publisher. CongestionControl.BLOCK, so that a slow subscriber loses nothing. A value that gets no shared memory
goes over the network. The peers find each other by multicast, which is the default, on the only interface of the cell.
"""

from __future__ import annotations

import resource
import time

import numpy as np

import systems

#: zenoh locks its memory, and a subscriber keeps the memory of earlier publishers locked. So a pool takes a quarter of the limit.
LIMIT = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
POOL = 16 << 20 if LIMIT in (-1, resource.RLIM_INFINITY) else min(16 << 20, LIMIT // 4)


def session():
    import zenoh

    config = zenoh.Config()
    config.insert_json5("transport/shared_memory/enabled", "true")
    config.insert_json5("transport/shared_memory/transport_optimization/enabled", "false")
    config.insert_json5("scouting/multicast/interface", '"lo"')
    return zenoh.open(config)


class Sender:
    def __init__(self, topic: str) -> None:
        import zenoh

        self.session = session()
        self.provider = zenoh.shm.ShmProvider.default_backend(POOL)
        self.publisher = self.session.declare_publisher(topic, congestion_control=zenoh.CongestionControl.BLOCK)

    def send(self, array: np.ndarray) -> None:
        import zenoh

        value = array.tobytes()
        try:
            buffer = self.provider.alloc(len(value), policy=zenoh.shm.Defragment(zenoh.shm.GarbageCollect()))
            buffer[:] = value
            value = buffer
        except zenoh.ZError:
            pass
        self.publisher.put(value)

    def close(self) -> None:
        # The session sends the publisher's messages in the background.
        time.sleep(0.3)
        self.publisher.undeclare()
        self.session.close()


class Receiver:
    def __init__(self, topic: str) -> None:
        import zenoh

        self.session = session()
        self.subscriber = self.session.declare_subscriber(topic, zenoh.handlers.FifoChannel(systems.DEPTH))

    def receive(self, timeout: float) -> np.ndarray | None:
        deadline = time.monotonic() + timeout
        # The channel's recv has no timeout.
        while (sample := self.subscriber.try_recv()) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        # The Python package hands out copies of the payload.
        return np.frombuffer(sample.payload.to_bytes(), np.uint8)

    def close(self) -> None:
        self.subscriber.undeclare()
        self.session.close()


class Driver(systems.System):
    title, package = "zenoh", "eclipse-zenoh"

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(topic)
