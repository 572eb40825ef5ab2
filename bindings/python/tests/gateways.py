"""Two brokers with a gateway each, over loopback: other machines, as far as a program can tell."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from waiting import eventually

import tensorlend

SPACE = '[[namespace]]\nexport = ["sim/*", "cam", "runs", "kv/*"]\nimport = ["*"]\naccept_put = ["inbox/*"]\n'


def program() -> str:
    """The gateway's program: of ``TENSORLEND_BIN_DIR``, or on the path."""
    found = shutil.which("tensorlend-gateway", path=os.environ.get("TENSORLEND_BIN_DIR"))
    if found is None:
        pytest.skip("tensorlend-gateway is not built: cargo build -p tensorlend-gateway, and set TENSORLEND_BIN_DIR")
    return found


@dataclass
class Node:
    """A broker, a client of it, and its gateway."""

    address: str
    client: tensorlend.Client
    gateway: subprocess.Popen[bytes]
    folder: Path

    def end(self) -> None:
        self.gateway.kill()
        self.gateway.wait()

    def start(self) -> None:
        """Starts the gateway again."""
        self.gateway = _started(self.folder)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the gateway, and continues it at the end."""
        self.gateway.send_signal(signal.SIGSTOP)
        # The signal takes effect some time later.
        os.waitpid(self.gateway.pid, os.WUNTRACED)
        try:
            yield
        finally:
            self.gateway.send_signal(signal.SIGCONT)

    def stat(self) -> dict[str, Any]:
        """The gateway's counters."""
        counters: dict[str, Any] = json.loads(bytes(self.client.get(".gateway/stat").numpy()))
        return counters

    def sees(self, other: str, alive: bool) -> None:
        def seen() -> bool:
            assert self.gateway.poll() is None, "the gateway has ended"
            return any(n["node"] == other and n["alive"] == alive for n in self.client.nodes())

        eventually(f"{other} is seen", seen)


def _started(folder: Path) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
    return subprocess.Popen([program(), "--config", str(folder / "gateway.toml")], env=environment)


@contextmanager
def node(folder: Path, name: str, way: str, address: str | None = None) -> Iterator[Node]:
    """A node with a broker of its own, or with the one at this address."""
    folder.mkdir()
    zenoh, config = folder / "zenoh.json5", folder / "gateway.toml"
    zenoh.write_text("{ scouting: { multicast: { enabled: false } } }")
    with ExitStack() as stack:
        if address is None:
            address = stack.enter_context(tensorlend.embedded()).address
        client = stack.enter_context(tensorlend.connect(address, label="test"))
        config.write_text(f'node = "{name}"\nsocket = "{address}"\nzenoh = "{zenoh}"\n{way}\n{SPACE}')
        found = Node(address, client, _started(folder), folder)
        try:
            yield found
        finally:
            found.end()


@contextmanager
def two(folder: Path, address: str | None = None, **settings: str) -> Iterator[tuple[Node, Node]]:
    """``here`` and ``there``, which see each other. ``there`` may have a broker already. The settings are lines of the
    gateways' configurations."""
    program()
    with socket.create_server(("127.0.0.1", 0)) as server:
        # Free now, and probably still free when the gateway binds it.
        port = server.getsockname()[1]
    endpoint = f'["tcp/127.0.0.1:{port}"]'
    lines = "".join(f"\n{name} = {value}" for name, value in settings.items())
    with (
        node(folder / "there", "there", f"listen = {endpoint}{lines}", address) as there,
        node(folder / "here", "here", f"listen = []\nconnect = {endpoint}{lines}") as here,
    ):
        here.sees("there", True)
        there.sees("here", True)
        yield here, there
