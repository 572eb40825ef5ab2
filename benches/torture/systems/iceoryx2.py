"""iceoryx2: publish and subscribe with slices.

https://github.com/eclipse-iceoryx/iceoryx2/tree/main/examples/python/publish_subscribe_dynamic_data for the calls. The service
loses no samples: enable_safe_overflow(False), and a publisher then waits for a full subscriber. A subscriber polls, as in the
examples, here each millisecond.
"""

from __future__ import annotations

import ctypes
import time

import numpy as np

import systems

SLEEP_S = 0.001


def service(node, topic: str):
    import iceoryx2

    builder = node.service_builder(iceoryx2.ServiceName.new(topic)).publish_subscribe(iceoryx2.Slice[ctypes.c_uint8])
    return builder.enable_safe_overflow(False).subscriber_max_buffer_size(systems.DEPTH).open_or_create()


def node_of():
    import iceoryx2

    iceoryx2.set_log_level_from_env_or(iceoryx2.LogLevel.Error)
    return iceoryx2.NodeBuilder.new().create(iceoryx2.ServiceType.Ipc)


class Sender:
    def __init__(self, topic: str) -> None:
        import iceoryx2

        self.node = node_of()
        self.service = service(self.node, topic)
        builder = self.service.publisher_builder().initial_max_slice_len(1 << 20)
        self.publisher = builder.allocation_strategy(iceoryx2.AllocationStrategy.PowerOfTwo).create()

    def send(self, array: np.ndarray) -> None:
        sample = self.publisher.loan_slice_uninit(array.nbytes)
        ctypes.memmove(sample.payload().as_ptr(), array.ctypes.data, array.nbytes)
        sample.assume_init().send()

    def close(self) -> None:
        self.publisher.delete()
        del self.publisher, self.service, self.node


class Receiver:
    def __init__(self, topic: str) -> None:
        self.node = node_of()
        self.service = service(self.node, topic)
        self.subscriber = self.service.subscriber_builder().create()
        self.sample = None

    def receive(self, timeout: float) -> np.ndarray | None:
        self.release()
        deadline = time.monotonic() + timeout
        while (sample := self.subscriber.receive()) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(SLEEP_S)
        self.sample = sample
        payload = sample.payload()
        # Version 0.9 has no `as_memory_view`.
        return np.ctypeslib.as_array(ctypes.cast(payload.as_ptr(), ctypes.POINTER(ctypes.c_uint8)), (payload.len(),))

    def release(self) -> None:
        if self.sample is not None:
            self.sample.delete()
            self.sample = None

    def close(self) -> None:
        self.release()
        self.subscriber.delete()
        del self.subscriber, self.service, self.node


class Driver(systems.System):
    title = package = "iceoryx2"

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(topic)
