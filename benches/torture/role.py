"""The processes of an application: a producer, a consumer, and the ancestor of both where a system needs one.

    role.py CONFIG.json       a producer or a consumer
    role.py ANCESTOR.json     the ancestor: starts the roles whose configurations it reads on its standard input

A role appends lines to its log: the time, the kind, fields. It reads commands from its control file.

A value's 64-bit words are its number, the time, the producer's pid, and then the number until the end. So one mixture of two
values shows.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attack
import numpy as np
import systems

#: Seconds in which a client must get over an error by itself. Then the role opens a new one, as an application would.
PATIENCE_S = 3.0
KEPT = 0xFEED


class Role:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.system = systems.load(config["system"], Path(config["folder"]))
        self.log_fd = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.control = config["control"]
        Path(self.control).touch()
        # A process that replaces this one does not obey its commands.
        self.read_to = os.stat(self.control).st_size
        self.size = config["size"]
        self.stopping = False
        self.end: Any = None
        self.failing_since: float | None = None

    def log(self, kind: str, *fields: object) -> None:
        os.write(self.log_fd, f"{time.monotonic():.6f} {kind} {' '.join(map(str, fields))}\n".encode())

    def commands(self) -> list[list[str]]:
        if os.stat(self.control).st_size == self.read_to:
            return []
        with open(self.control, "rb") as file:
            file.seek(self.read_to)
            text = file.read()
        self.read_to += len(text)
        return [line.split() for line in text.decode().splitlines()]

    def open(self) -> Any:
        raise NotImplementedError

    def step(self) -> None:
        raise NotImplementedError

    def obey(self, command: list[str]) -> None:
        if command[0] == "stop":
            self.stopping = True
        elif command[0] == "reopen":
            self.reopen()
        elif command[0] == "fork":
            self.fork()
        elif command[0] == "size":
            self.size = int(command[1])

    def fork(self) -> None:
        """A child that reads what its parent holds, for a second, and ends as a program does."""
        if os.fork() == 0:
            self.log("child", os.getpid())
            self.in_child()
            time.sleep(1)
            self.in_child()
            sys.exit(0)

    def in_child(self) -> None:
        pass

    def reopen(self) -> None:
        end, self.end = self.end, None
        if end is not None:
            # The close of a broken client may wait for its broker.
            threading.Thread(target=self._close, args=(end,), daemon=True).start()
        self.end = self.open()
        self.failing_since = None
        self.log("reopened")

    def _close(self, end: Any) -> None:
        try:
            end.close()
        except Exception as error:
            self.error(error)

    def error(self, error: BaseException) -> None:
        text = " ".join(str(error).split())[:300]
        self.log("error", f"{type(error).__name__}: {text}")

    def run(self) -> None:
        self.log("begun", os.getpid())
        while not self.stopping:
            try:
                if self.end is None:
                    self.end = self.open()
                    self.log("ready", os.getpid())
                for command in self.commands():
                    self.obey(command)
                if not self.stopping:
                    self.step()
                    self.failing_since = None
            except Exception as error:
                self.error(error)
                now = time.monotonic()
                self.failing_since = self.failing_since or now
                time.sleep(0.1)
                if self.end is not None and now - self.failing_since > PATIENCE_S:
                    try:
                        self.reopen()
                    except Exception as again:
                        self.error(again)
        if self.end is not None:
            self._close(self.end)
        self.log("ended")


class Producer(Role):
    number = 0
    due = 0.0

    def open(self) -> Any:
        end = self.system.producer(self.config["topic"], self.config["consumers"])
        if self.system.keeps and self.config["keep"] and self.number == 0:
            end.keep(np.full(self.size // 8, KEPT, np.uint64))
            self.log("kept")
        return end

    def step(self) -> None:
        value = np.full(self.size // 8, self.number, np.uint64)
        began = time.monotonic_ns()
        value[:3] = (self.number, began, os.getpid())
        self.number += 1
        self.end.send(value)
        self.log("sent", self.number - 1, (time.monotonic_ns() - began) // 1000)
        self.due = max(self.due + self.config["period"], time.monotonic())
        time.sleep(max(0.0, self.due - time.monotonic()))


class Consumer(Role):
    held: Any = None

    def open(self) -> Any:
        self.held = None
        return self.system.consumer(self.config["topic"], self.config["index"])

    def step(self) -> None:
        self.held = None
        value = self.end.receive(0.2)
        if value is None:
            return
        now = time.monotonic_ns()
        words = np.asarray(value).view(np.uint64)
        number, sent, pid = (int(word) for word in words[:3])
        whole = bool((words[3:] == number).all())
        self.log("value", number, pid, (now - sent) // 1000, int(whole), words.nbytes)
        self.held = words

    def in_child(self) -> None:
        if self.held is not None:
            words = self.held
            self.log("inherited", int(bool((words[3:] == words[0]).all())))

    def obey(self, command: list[str]) -> None:
        if command[0] in ("write", "truncate", "scribble"):
            self.attack(command[0])
        elif command[0] == "fetch":
            found = self.end.kept()
            words = None if found is None else np.asarray(found).view(np.uint64)
            state = "lost" if words is None else "whole" if bool((words == KEPT).all()) else "torn"
            self.log("fetched", state)
        else:
            super().obey(command)

    def attack(self, how: str) -> None:
        deadline = time.monotonic() + 3
        while self.held is None and time.monotonic() < deadline:
            self.step()
        self.log("attack", how)
        if how == "write":
            outcome = attack.write(self.held)
        elif how == "truncate":
            outcome = attack.truncate()
        else:
            outcome = attack.scribble()
        self.log("attacked", outcome)


def run(config: dict[str, Any]) -> None:
    """The whole life of a role."""
    (Producer if config["role"] == "producer" else Consumer)(config).run()


def ancestor(config: dict[str, Any]) -> None:
    system = systems.load(config["system"], Path(config["folder"]))
    log = os.open(config["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(kind: str, *fields: object) -> None:
        os.write(log, f"{time.monotonic():.6f} {kind} {' '.join(map(str, fields))}\n".encode())

    def watch(process: Any) -> None:
        process.join()
        write("exit", process.pid, process.exitcode)

    system.prepare(config["topic"], config["consumers"])
    write("ready", os.getpid())
    for line in sys.stdin:
        child = json.loads(line)
        process = system.spawn(run, child)
        if process is not None:
            write("started", process.pid)
            threading.Thread(target=watch, args=(process,), daemon=True).start()
    system.finish()


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    if config["role"] == "ancestor":
        ancestor(config)
    else:
        run(config)


if __name__ == "__main__":
    main()
