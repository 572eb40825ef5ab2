"""vineyard: arrays put under a name, the earlier ones deleted.

https://v6d.io/notes/getting-started.html: client.put with a name, client.get_name, client.get, client.delete. A consumer polls
the name each millisecond.
"""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np

import systems


class Sender:
    def __init__(self, client, topic: str) -> None:
        self.client, self.topic, self.earlier = client, topic, []

    def send(self, array: np.ndarray) -> None:
        found = self.client.put(array, persist=True, name=self.topic)
        self.earlier.append(found)
        if len(self.earlier) > systems.DEPTH:
            self.client.delete(self.earlier.pop(0))

    def keep(self, array: np.ndarray) -> None:
        self.client.put(array, persist=True, name="kept")

    def close(self) -> None:
        self.client.delete(self.earlier)
        self.client.close()


class Receiver:
    def __init__(self, client, topic: str) -> None:
        self.client, self.topic, self.last = client, topic, None

    def receive(self, timeout: float) -> np.ndarray | None:
        import vineyard

        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self.client.get_name(self.topic)
                if repr(found) != self.last:
                    value = self.client.get(found)
                    self.last = repr(found)
                    return np.asarray(value)
            except vineyard.ObjectNotExistsException:
                pass  # The topic has no value yet, or its value was just deleted.
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)

    def kept(self) -> np.ndarray | None:
        import vineyard

        try:
            return np.asarray(self.client.get(self.client.get_name("kept")))
        except vineyard.ObjectNotExistsException:
            return None

    def close(self) -> None:
        self.client.close()


class Driver(systems.System):
    title = "vineyard"
    has_broker = keeps = True
    #: Each process imports the package for seconds.
    start_s, cell_s = 120.0, 30.0

    def version(self) -> str:
        import vineyard

        return str(vineyard.__version__)

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        options = ["--socket", str(self.folder / "vineyard.sock"), "--size", "512M", "--meta", "local", "--rpc", "false"]
        server = subprocess.Popen([sys.executable, "-m", "vineyard", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        systems.connected(lambda: self.connected().close(), 60)
        return [server]

    def connected(self):
        import vineyard

        return vineyard.connect(str(self.folder / "vineyard.sock"))

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(self.connected(), topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(self.connected(), topic)
