"""tensorlend with an fd store, which keeps the memory while the daemon is dead. docs/service.md."""

from __future__ import annotations

import subprocess
import time

from systems import tensorlend


class Driver(tensorlend.Driver):
    title = "tensorlend, fd store"
    store: subprocess.Popen[bytes] | None = None

    def start_broker(self) -> list[subprocess.Popen[bytes]]:
        path = self.folder / "store.sock"
        if self.store is None or self.store.poll() is not None:
            self.store = subprocess.Popen([self.program(), "--fd-store", str(path)], stderr=subprocess.DEVNULL)
            while not path.exists():
                time.sleep(0.01)
        self.settings = f'mode = "user"\nfd_store = "{path}"'
        return [self.store, *super().start_broker()]

    #: The store survives the daemon.
    keep_helpers = True
