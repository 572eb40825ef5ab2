"""Two brokers with a gateway each, over loopback: other machines, as far as a program can tell."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import eventually

import tensorlend

SPACE = '[[namespace]]\nexport = ["sim/*", "cam", "runs"]\nimport = ["*"]\naccept_put = ["inbox/*"]\n'


def program() -> str:
    """The gateway's program: of ``TENSORLEND_BIN_DIR``, or on the path."""
    found = shutil.which("tensorlend-gateway", path=os.environ.get("TENSORLEND_BIN_DIR"))
    if found is None:
        pytest.skip("tensorlend-gateway is not built: cargo build -p tensorlend-gateway, and set TENSORLEND_BIN_DIR")
    return found


@dataclass
class Node:
    """A broker, a client of it, and its gateway."""

    client: tensorlend.Client
    gateway: subprocess.Popen[bytes]

    def end(self) -> None:
        self.gateway.kill()
        self.gateway.wait()

    def sees(self, other: str, alive: bool) -> None:
        eventually(f"{other} is seen", lambda: any(n["node"] == other and n["alive"] == alive for n in self.client.nodes()))


@contextmanager
def node(folder: Path, name: str, way: str) -> Iterator[Node]:
    folder.mkdir()
    zenoh, config = folder / "zenoh.json5", folder / "gateway.toml"
    zenoh.write_text("{ scouting: { multicast: { enabled: false } } }")
    with tensorlend.embedded() as broker, broker.connect(label="test") as client:
        config.write_text(f'node = "{name}"\nsocket = "{broker.address}"\nzenoh = "{zenoh}"\n{way}\n{SPACE}')
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        with subprocess.Popen([program(), "--config", str(config)], env=environment) as gateway:
            try:
                yield Node(client, gateway)
            finally:
                gateway.kill()


@contextmanager
def two(folder: Path) -> Iterator[tuple[Node, Node]]:
    """``here`` and ``there``, which see each other."""
    program()
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Free now, and hopefully in a moment.
        port = server.getsockname()[1]
    endpoint = f'["tcp/127.0.0.1:{port}"]'
    with (
        node(folder / "there", "there", f"listen = {endpoint}") as there,
        node(folder / "here", "here", f"listen = []\nconnect = {endpoint}") as here,
    ):
        here.sees("there", True)
        there.sees("here", True)
        yield here, there
