"""A daemon in a process of its own, which tests kill and start again, with a store of its descriptors as systemd has one."""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

from waiting import eventually

import tensorlend

# The descriptors move to the numbers from 3 on, and the pid stays by exec.
_START = """
import os, sys
numbers, names, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
numbers = [int(number) for number in numbers.split(",") if number]
import fcntl
high = [fcntl.fcntl(number, fcntl.F_DUPFD, 3 + 2 * len(numbers)) for number in numbers]
for to, number in enumerate(high, 3):
    os.dup2(number, to, inheritable=True)
    os.close(number)
if numbers:
    os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(numbers)), LISTEN_FDNAMES=names)
code = "from tensorlend._programs import daemon; daemon()"
os.execv(sys.executable, [sys.executable, "-c", code, *arguments])
"""


class StoredDaemon:
    """A daemon whose descriptors outlive it."""

    def __init__(self, folder: pathlib.Path, config: str = "") -> None:
        self.socket = folder / "socket"
        self._config, self._log = folder / "config.toml", folder / "log"
        self._config.write_text(config)
        self._inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._inbox.bind(str(folder / "notify"))
        self._stored: list[tuple[str, int]] = []
        self._marks = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def _listen(self) -> None:
        while True:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._inbox, 65_536, 253)
            except OSError:
                return
            lines = data.decode(errors="replace").splitlines()
            if "TEST=mark" in lines:
                self._marks += 1
            elif "TEST=end" in lines:
                return
            name = next((line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")), "")
            if "FDSTORE=1" in lines:
                self._stored += [(name, descriptor) for descriptor in descriptors]
            elif "FDSTOREREMOVE=1" in lines:
                for _, descriptor in [entry for entry in self._stored if entry[0] == name]:
                    os.close(descriptor)
                self._stored = [entry for entry in self._stored if entry[0] != name]

    def _tell(self, text: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text.encode(), self._inbox.getsockname())

    def start(self) -> None:
        """Starts a daemon with the stored descriptors."""
        before = self._marks
        self._tell("TEST=mark")
        eventually("the descriptor store", lambda: self._marks > before)
        numbers = [number for _, number in self._stored]
        command = [sys.executable, "-c", _START, ",".join(map(str, numbers)), ":".join(name for name, _ in self._stored)]
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [*command, "--config", self._config, "--socket", self.socket],
                pass_fds=numbers,
                stdout=log,
                stderr=log,
                env={**os.environ, "NOTIFY_SOCKET": str(self._inbox.getsockname())},
            )
        eventually("the daemon", self._answers)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._log.read_text()
        try:
            with tensorlend.connect(self.socket):
                return True
        except tensorlend.DisconnectedError:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Ends the daemon by a signal; its descriptors stay in the store."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    def close(self) -> None:
        """Ends the daemon and the store."""
        self.kill()
        self._tell("TEST=end")
        self._thread.join()
        self._inbox.close()
        for _, descriptor in self._stored:
            os.close(descriptor)
