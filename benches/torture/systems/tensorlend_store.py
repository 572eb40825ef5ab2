"""tensorlend with an fd store, which keeps the memory while the daemon is dead. docs/how-to/fd-store.md."""

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
        configuration = self.folder / "tensorlendd.toml"
        configuration.write_text(f'mode = "user"\nsocket = "{self.folder}/tensorlend.sock"\nfd_store = "{path}"\n')
        daemon = subprocess.Popen([self.program(), "--config", str(configuration)], stderr=subprocess.DEVNULL)
        self.connected().close()
        return [self.store, daemon]

    #: The store survives the daemon.
    keep_helpers = True
