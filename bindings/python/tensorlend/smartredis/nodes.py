"""Administration of the database, whose only node is the daemon."""

import fnmatch
import re

import numpy as np

import tensorlend

from .calls import Calls
from .error import RedisRuntimeError
from .logging import LLInfo, log_warning
from .util import api_call

__all__ = ["NodeCalls"]

# The parameters are values of the namespace, so that all programs see them. tensorlend itself does not use them.
_PARAMETER = ".smartredis.config."
_NUMBER = re.compile(r"[0-9]+")
_BYTES = re.compile(r"[0-9]+([kmg]b?)?", re.IGNORECASE)
_SWITCH = re.compile(r"yes|no")
_TEXT = re.compile(r".*", re.DOTALL)
_PARAMETERS = {
    "appendonly": ("no", _SWITCH),
    "cluster-node-timeout": ("15000", _NUMBER),
    "ignore-warnings": ("", _TEXT),
    "lua-time-limit": ("5000", _NUMBER),
    "maxclients": ("10000", _NUMBER),
    "maxmemory": ("0", _BYTES),
    "maxmemory-policy": ("noeviction", _TEXT),
    "save": ("", _TEXT),
    "timeout": ("0", _NUMBER),
}


class NodeCalls(Calls):
    """The client's methods for administration. An address must be one of ``SSDB``, or may be any
    address if the program expects a cluster. Other addresses raise RedisRuntimeError.
    """

    @api_call
    def get_db_node_info(self, addresses: list[str]) -> list[dict[str, dict[str, str]]]:
        """Returns the daemon's description of itself, once for each address: sections of texts by name.

        ``Persistence.rdb_last_save_time`` is 0, because the daemon saves no values.
        """
        self._check(addresses)
        return [self._info() for _ in addresses]

    @api_call
    def get_db_cluster_info(self, addresses: list[str]) -> list[dict[str, str]]:
        """Returns the state of the cluster, once for each address. The cluster has one node.

        :raises RedisRuntimeError: if the program does not expect a cluster (``SR_DB_TYPE``)
        """
        if not self._connection.cluster:
            raise RedisRuntimeError("this is no cluster: SR_DB_TYPE says so")
        self._check(addresses)
        self._client.ping()
        return [{"cluster_state": "ok", "cluster_known_nodes": "1", "cluster_size": "1"} for _ in addresses]

    @api_call
    def flush_db(self, addresses: list[str]) -> None:
        """Deletes everything in the namespace: names, lists and streams."""
        self._check(addresses)
        for info in self._client.list():
            if not info.name.startswith(_PARAMETER):
                self._client.delete(info.name)
        for name, _ in self._client.lists():
            self._client.clear(name)
        for name, _ in self._client.streams():
            self._client.delete_stream(name)

    @api_call
    def config_get(self, expression: str, address: str) -> dict[str, str]:
        """Returns the parameters whose names match a pattern such as ``max*``, with their values; empty if none matches."""
        self._check([address])
        return {name: self._parameter(name) for name in _PARAMETERS if fnmatch.fnmatchcase(name, expression.lower())}

    @api_call
    def config_set(self, config_param: str, value: str, address: str) -> None:
        """Sets a parameter of the database. ``config_get`` returns the parameter, which has no
        effect on tensorlend.

        :raises RedisRuntimeError: if there is no such parameter, or it cannot have this value
        """
        self._check([address])
        name = config_param.lower()
        if name not in _PARAMETERS:
            raise RedisRuntimeError(f"there is no parameter {config_param!r}; there are {', '.join(_PARAMETERS)}")
        _, allowed = _PARAMETERS[name]
        if not allowed.fullmatch(value):
            raise RedisRuntimeError(f"{value!r} cannot be the value of {config_param!r}")
        self._client.put(_PARAMETER + name, np.zeros(1, np.uint8), metadata={"value": value})

    @api_call
    def save(self, addresses: list[str]) -> None:
        """Only logs a warning, because the daemon holds values in memory, and saves none."""
        self._check(addresses)
        log_warning(
            self._connection.context, LLInfo, "save: this call writes no file, and the values stay in memory (see `tensorlend save`)"
        )

    def _check(self, addresses: list[str]) -> None:
        for address in addresses:
            self._connection.check_address(address)

    def _parameter(self, name: str) -> str:
        try:
            with self._client.get(_PARAMETER + name) as lease:
                return str(lease.metadata["value"])
        except tensorlend.NotFoundError:
            default, _ = _PARAMETERS[name]
            return default

    def _info(self) -> dict[str, dict[str, str]]:
        stat = self._client.stat()
        keys = len(self._client.list()) + len(self._client.lists())
        sections: dict[str, dict[str, object]] = {
            "Server": {
                "tensorlend_version": stat["version"],
                "process_id": stat["pid"],
                "uptime_in_seconds": stat["uptime_ns"] // 10**9,
                "socket": self._connection.place,
                "namespace": self._client.namespace,
            },
            "Clients": {"connected_clients": stat["clients"]},
            "Memory": {
                "used_memory": stat["bytes_in_use"],
                "used_memory_rss": stat["pool_bytes"],
                "maxmemory": stat["pool_bytes_max"],
            },
            "Persistence": {"loading": 0, "rdb_last_save_time": 0},
            "Stats": {"total_requests": stat["requests"], "total_wakeups": stat["wakeups"]},
            "Keyspace": {"db0": f"keys={keys}"},
        }
        return {name: {key: str(value) for key, value in section.items()} for name, section in sections.items()}
