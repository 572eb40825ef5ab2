"""tensorlend: a stream and a name. docs/tutorial-python.md, docs/python.md."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

import systems


NEXT = os.environ.get("TENSORLEND_NEXT_BIN_DIR", "")


class Sender:
    def __init__(self, client, topic: str) -> None:
        self.client = client
        # The default policy: the sender waits for a subscriber that is `capacity` messages behind.
        self.stream = client.stream(topic, capacity=systems.DEPTH)

    def send(self, array: np.ndarray) -> None:
        self.stream.send(array, timeout=5)

    def keep(self, array: np.ndarray) -> None:
        self.client.put("kept", array)

    def close(self) -> None:
        self.stream.close()
        self.client.close()


class Receiver:
    def __init__(self, client, topic: str) -> None:
        self.client, self.topic = client, topic
        self.frames = client.subscribe(topic, wait=1)

    def receive(self, timeout: float) -> np.ndarray | None:
        import tensorlend

        try:
            return self.frames.recv(timeout=timeout).numpy()
        except TimeoutError:
            return None
        except tensorlend.StreamEndedError:
            # The producer has ended. The next one opens the stream again.
            self.frames = self.client.subscribe(self.topic, wait=1)
            return None

    def kept(self) -> np.ndarray | None:
        return self.client.get("kept").numpy() if self.client.exists("kept") else None

    def close(self) -> None:
        self.frames.close()
        self.client.close()


class Driver(systems.System):
    title = package = "tensorlend"
    has_broker = keeps = True

    def program(self) -> str:
        """The daemon: that of the next layout, TENSORLEND_BIN_DIR's, or the package's."""
        folders = [NEXT if self.stage == "newer" else "", os.environ.get("TENSORLEND_BIN_DIR", ""), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return shutil.which("tensorlendd", path=":".join(filter(None, folders))) or "tensorlendd"

    def older(self) -> str:
        if shutil.which("tensorlendd", path=NEXT) is None:
            raise LookupError("no program of the next layout was built")
        return self.version()

    def newer(self) -> str:
        return "a build with the next layout of shared memory"

    #: A daemon of a user, also where root runs this.
    settings = 'mode = "user"'

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        configuration = self.folder / "tensorlendd.toml"
        configuration.write_text(f'{self.settings}\nsocket = "{self.folder}/tensorlend.sock"\n')
        daemon = subprocess.Popen([self.program(), "--config", str(configuration)], stderr=subprocess.DEVNULL)
        self.connected().close()
        return [daemon]

    def connected(self):
        import tensorlend

        return systems.connected(lambda: tensorlend.connect(self.folder / "tensorlend.sock"), 10, tensorlend.Error)

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(self.connected(), topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(self.connected(), topic)
