"""Bytes of a daemon that nothing keeps: segments of ended clients without a value or a lease, and bytes in use that belong to no segment."""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
from typing import Any

#: Seconds after which bytes count as orphaned.
COLLECTED_S = 60.0
#: Time between two samples of `tensorlend web`, and more.
SAMPLE_S = 0.6


class Orphans:
    """An observer of the daemon: `tensorlend web`, which reads shared memory and requests only the daemon's metrics."""

    def __init__(self, address: object, folder: pathlib.Path) -> None:
        self._socket = folder / "web"
        program = shutil.which("tensorlend", path=os.environ.get("TENSORLEND_BIN_DIR"))
        assert program is not None, "build the command line, and set TENSORLEND_BIN_DIR: the one of the wheel has no `web`"
        command = [program, "--socket", str(address), "web", "--listen", f"unix:{self._socket}"]
        self._web = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def close(self) -> None:
        """Ends the observer."""
        self._web.kill()
        self._web.wait()

    def bytes(self) -> int:
        """Waits until the daemon has collected the memory of ended clients, and returns the bytes that are left without a keeper."""
        end, found = time.monotonic() + COLLECTED_S, -1
        while True:
            time.sleep(SAMPLE_S)
            try:
                found = self._sample()
            except (OSError, KeyError, IndexError, http.client.HTTPException):
                # The daemon has just started, or `web` has.
                if time.monotonic() > end:
                    raise
                continue
            if found == 0 or time.monotonic() > end:
                return found

    def _sample(self) -> int:
        status = self._get("status")
        clients = {client["client"]: client["state"] for client in self._get("clients?limit=10000")["clients"]}
        segments = self._get("segments?limit=10000")["segments"]
        lent = sum(segment["bytes"] for segment in segments)
        unused = [segment for segment in segments if segment["live"] + segment["leased"] + segment["retired"] == 0]
        left = sum(segment["bytes"] for segment in unused if clients.get(segment["client"]) != "alive")
        return left + abs(int(status["daemon"]["bytes_in_use"]) - lent)

    def _get(self, what: str) -> Any:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(str(self._socket))
        connection.request("GET", f"/api/v1/{what}")
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer
