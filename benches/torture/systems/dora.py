"""dora: a dataflow of a producer and its consumers, started through dora's coordinator and daemon.

https://github.com/dora-rs/dora/blob/main/docs/cli.md: `dora coordinator`, `dora daemon`, `dora start --detach`. docs/api-python.md:
Node, send_output, next. docs/fault-tolerance.md: restart_policy on-failure, with which the daemon replaces a killed node. The
inputs have the queue policy backpressure, which keeps up to 10 times the queue's size.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import systems

CONFIGS: list[dict[str, Any]] = []


class Sender:
    def __init__(self, node) -> None:
        self.node = node

    def send(self, array: np.ndarray) -> None:
        import pyarrow

        self.node.send_output("value", pyarrow.array(array))

    def close(self) -> None:
        del self.node


class Receiver(Sender):
    def receive(self, timeout: float) -> np.ndarray | None:
        event = self.node.next(timeout)
        if event is None or event["type"] == "STOP":
            raise EOFError("the dataflow has ended")
        return event["value"].to_numpy() if event["type"] == "INPUT" else None


class Driver(systems.System):
    title, package = "dora", "dora-rs"
    has_broker = ancestor = restarts = keep_helpers = True
    start_s, cell_s = 90.0, 25.0
    coordinator: subprocess.Popen[bytes] | None = None

    def command(self, *arguments: str) -> list[str]:
        # The coordinator keeps its store in the home folder.
        os.environ["HOME"] = str(self.folder)
        return [str(Path(sys.executable).parent / "dora"), *arguments]

    def call(self, *arguments: str) -> None:
        subprocess.run(self.command(*arguments), check=True, timeout=60, stdin=subprocess.DEVNULL)

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        if self.coordinator is None or self.coordinator.poll() is not None:
            self.coordinator = subprocess.Popen(self.command("coordinator"))
        daemon = subprocess.Popen(self.command("daemon"))
        systems.connected(lambda: self.call("status"), 60)
        return [self.coordinator, daemon]

    def spawn(self, run: Callable[[dict[str, Any]], None], config: dict[str, Any]) -> None:
        """Starts the dataflow when its last node is known, the producer."""
        CONFIGS.append(config)
        if config["role"] == "producer":
            nodes = [self.node(each) for each in CONFIGS]
            path = self.folder / f"{config['topic']}.yml"
            path.write_text(json.dumps({"nodes": nodes}))
            self.call("start", str(path), "--detach", "--name", config["topic"])

    def node(self, config: dict[str, Any]) -> dict[str, Any]:
        path = self.folder / f"{config['topic']}-{config['role']}-{config['index']}.json"
        path.write_text(json.dumps(config))
        node = {"id": path.stem, "path": sys.executable, "args": f"{Path(sys.argv[0]).absolute()} {path}", "restart_policy": "on-failure"}
        source = {"source": f"{config['topic']}-producer-0/value", "queue_size": systems.DEPTH, "queue_policy": "backpressure"}
        return {**node, "outputs": ["value"]} if config["role"] == "producer" else {**node, "inputs": {"value": source}}

    def finish(self) -> None:
        subprocess.run(self.command("stop", "--name", CONFIGS[0]["topic"]), check=False, timeout=30, stdin=subprocess.DEVNULL)

    def producer(self, topic: str, consumers: int) -> Sender:
        import dora

        return Sender(dora.Node())

    def consumer(self, topic: str, index: int) -> Receiver:
        import dora

        return Receiver(dora.Node())
