"""A client's connection to its daemon, by ``SSDB``, and its prefixes."""

import re
import threading
import time

import tensorlend

from .config import Options
from .context import Context
from .error import RedisConnectionError, RedisRuntimeError
from .logging import LLDebug, LLInfo, log_data, log_warning
from .prefixes import Prefixes

__all__ = ["Connection", "check_address"]

_UNIX = "unix://"
_TCP = "tcp://"
_ALLOWED = re.compile(r"[A-Za-z0-9.:,/_-]+")
_PORT = re.compile(r"[0-9]+")

# The hosts that were logged. Each host is logged once in a process, because programs make hundreds
# of clients.
_logged: set[str] = set()
_logged_lock = threading.Lock()


class Connection(Context):
    """A connected client of ``tensorlend``, with its options.

    :param cluster: whether the program expects a cluster: only ``get_db_cluster_info`` differs
    :raises RedisConnectionError: if ``SSDB`` is not set or malformed, or no daemon responds within ``SR_CONN_TIMEOUT``
    :raises ValueError: for times that are not positive
    """

    def __init__(self, options: Options, logger_name: str, cluster: bool | None = None) -> None:
        super().__init__(logger_name)
        self.options = options.copy()
        log_data(logger_name, LLDebug, "new client")
        if cluster is None:
            cluster = self.options.string("SR_DB_TYPE", "Clustered").lower() == "clustered"
        self.cluster = cluster
        self.addresses = _addresses(self.options.string("SSDB", ""))
        self.prefixes = Prefixes.from_options(self.options)
        self.client = self._connect()
        self._log_hosts()

    def check_address(self, address: str) -> None:
        """Checks that an address belongs to this database. ``SSDB`` must contain the address,
        unless the database is a cluster, whose nodes ``SSDB`` need not name.

        :raises RedisRuntimeError: if it does not belong to this database, or is malformed
        """
        if check_address(address) not in self.addresses and not self.cluster:
            raise RedisRuntimeError(f"{address} is not in SSDB, where there is {', '.join(self.addresses)}")

    @property
    def place(self) -> str:
        """Returns the daemon's address."""
        return " or ".join(map(str, self.client.address))

    def describe(self) -> str:
        return "\n".join(
            [
                f"Client {self.context}",
                f"  daemon: {self.place}, tensorlend {self.client.daemon_version}",
                f"  namespace: {self.client.namespace}",
                f"  SSDB: {', '.join(self.addresses)}",
            ]
        )

    def _connect(self) -> tensorlend.Client:
        seconds = _positive(self.options, "SR_CONN_TIMEOUT", 100)
        interval = _positive(self.options, "SR_CONN_INTERVAL", 1000) / 1000
        for name, default in (("SR_CMD_TIMEOUT", 100), ("SR_CMD_INTERVAL", 1000), ("SR_SOCKET_TIMEOUT", 250)):
            _positive(self.options, name, default)
        socket = next((a.removeprefix(_UNIX) for a in self.addresses if a.startswith(_UNIX)), None)
        deadline = time.monotonic() + seconds
        waits = False
        while True:
            try:
                return tensorlend.connect(socket, label=self.context or None)
            except tensorlend.DisconnectedError as e:
                # Try again until the deadline, because a program may start before the daemon.
                if time.monotonic() + interval > deadline:
                    raise RedisConnectionError(f"no daemon within {seconds} s (SR_CONN_TIMEOUT): {e}") from e
                if not waits:
                    log_warning(self.context, LLInfo, f"no daemon yet, waiting up to {seconds} s for it: {e}")
                waits = True
            except tensorlend.Error as e:
                raise RedisConnectionError(str(e)) from e
            time.sleep(interval)

    def _log_hosts(self) -> None:
        hosts = ",".join(self.addresses)
        if any(address.startswith(_UNIX) for address in self.addresses):
            return
        with _logged_lock:
            if hosts in _logged:
                return
            _logged.add(hosts)
        log_data(self.context, LLInfo, f"SSDB names {hosts}; the client uses the tensorlend daemon at {self.place}")


def check_address(address: str) -> str:
    """Returns an address as ``host:port`` or ``unix://path``.

    :raises RedisRuntimeError: if it is neither
    """
    if address.startswith(_UNIX) and address != _UNIX:
        return address
    host, _, port = address.removeprefix(_TCP).partition(":")
    if not host or not _PORT.fullmatch(port):
        raise RedisRuntimeError(f"{address!r} is no address: it must be as host:port or unix://path")
    return f"{host}:{port}"


def _addresses(ssdb: str) -> list[str]:
    if not ssdb:
        raise RedisConnectionError("SSDB is not set; it must be as host:port or unix://path")
    if not _ALLOWED.fullmatch(ssdb):
        raise RedisConnectionError("SSDB has characters that no address has")
    try:
        return [check_address(address) for address in ssdb.split(",") if address]
    except RedisRuntimeError as e:
        raise RedisConnectionError(str(e)) from None


def _positive(options: Options, name: str, default: int) -> int:
    value = options.integer(name, default)
    if not 0 < value <= 2**31 // 1000:
        raise ValueError(f"{name} is {value}; it must be from 1 to {2**31 // 1000}")
    return value
