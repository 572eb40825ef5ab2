"""The daemon that holds the batches. It is the loader's own daemon, or a daemon that the caller named."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from tensorlend._native import Client, Embedded, connect, embedded


class Host:
    """A daemon, and this process's client of the daemon."""

    def __init__(self, address: str | os.PathLike[str] | Sequence[str] | None, namespace: str | None) -> None:
        daemon: Embedded | None = None
        if address is None:
            daemon = embedded()
            address = daemon.address
        self.client: Client = connect(address, namespace=namespace, label="loader")
        self.address: tuple[str, ...] = tuple(os.fspath(path) for path in self.client.address)
        self.namespace: str | None = self.client.namespace
        # The process that owns the daemon. A forked child must not stop the daemon.
        self.pid = os.getpid()
        self._end = weakref.finalize(self, _end, self.client, daemon)

    @classmethod
    def of(cls, client: Client) -> Host:
        """Returns a host that uses the caller's client, and does not close it."""
        host = cls.__new__(cls)
        host.client = client
        host.address = tuple(os.fspath(path) for path in client.address)
        host.namespace = client.namespace
        host.pid = os.getpid()
        return host


def _end(client: Client, daemon: Embedded | None) -> None:
    client.close()
    if daemon is not None:
        daemon.close()
