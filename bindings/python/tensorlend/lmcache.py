"""A remote storage plugin of LMCache: chunks in lent memory. See docs/how-to/kv-cache.md.

LMCache loads it by `remote_storage_plugins: ["tensorlend"]`. A lent value has LMCache's metadata, and then the bytes of the chunk.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
import threading
from typing import Any

import lmcache  # type: ignore[import-not-found, import-untyped, unused-ignore]
import numpy as np
import numpy.typing as npt
from lmcache.v1.protocol import RemoteMetadata  # type: ignore[import-not-found, import-untyped, unused-ignore]
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector  # type: ignore[import-not-found, import-untyped, unused-ignore]

from tensorlend import _native
from tensorlend._vllm.options import POOL_PART, REQUEST_S, sized
from tensorlend.kvcache import BlockStore, Identity

__all__ = ["TensorlendConnector"]

#: Prefix of the keys in LMCache's `extra_config`.
_OPTIONS = "remote_storage_plugin.tensorlend."


class TensorlendConnector(RemoteConnector):  # type: ignore[misc, unused-ignore]
    """Lends chunks of LMCache to all engines of the machine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, local_cpu_backend: Any, config: Any) -> None:
        metadata = local_cpu_backend.metadata
        super().__init__(local_cpu_backend.config, metadata)
        extra = (config.extra_config if config is not None else None) or {}
        address, namespace = extra.get(f"{_OPTIONS}address"), extra.get(f"{_OPTIONS}namespace")
        client = _native.connect(address, namespace=namespace, label=f"lmcache {os.getpid()}", request_timeout=REQUEST_S)
        more = {
            "engine": f"lmcache {getattr(lmcache, '__version__', '')}",
            "weights": str(extra.get(f"{_OPTIONS}weights_version", "")),
            "world_size": metadata.world_size,
            "shapes": [list(shape) for shape in self.meta_shapes],
            "dtypes": [str(dtype) for dtype in self.meta_dtypes],
            "format": self.meta_fmt.name,
        }
        dtype = str(metadata.kv_dtype).removeprefix("torch.")
        identity = Identity(metadata.model_name, dtype, metadata.chunk_size, more)
        given = extra.get(f"{_OPTIONS}bytes_max")
        bytes_max = int(client.stat()["pool_bytes_max"] * POOL_PART) if given is None else sized(given)
        # LMCache's key contains the worker. With MLA, all workers read the chunks of worker 0.
        self._store = BlockStore(client, identity, rank=0, bytes_max=bytes_max)
        #: LMCache calls from several threads, and a store is for one thread.
        self._lock = threading.Lock()
        self._local = local_cpu_backend

    async def exists(self, key: Any) -> bool:
        """Returns whether a chunk is lent."""
        return self.exists_sync(key)

    def exists_sync(self, key: Any) -> bool:
        """Returns whether a chunk is lent."""
        return self.batched_contains([key]) == 1

    def support_batched_contains(self) -> bool:
        """Returns True."""
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        """Returns the number of leading chunks that are lent."""
        hashed = [_key(key) for key in keys]
        with self._lock:
            matched = self._store.match(hashed)
            self._store.note(hashed, matched)
        return matched

    async def get(self, key: Any) -> Any:
        """Copies a chunk into LMCache's pool. Returns None if it is not lent, or the pool has no room."""
        with self._lock:
            lease = self._store.load(_key(key), None)
        if lease is None:
            return None
        with lease:
            return self._copied(lease.numpy())

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Lends a chunk, unless it is lent already."""
        chunk = np.frombuffer(memory_obj.byte_array, np.uint8)
        described = RemoteMetadata(chunk.size, memory_obj.get_shapes(), memory_obj.get_dtypes(), memory_obj.get_memory_format())
        head = np.frombuffer(described.serialize(), np.uint8)

        def fill(into: npt.NDArray[np.uint8]) -> None:
            into[: head.size] = head
            into[head.size :] = chunk

        with self._lock:
            self._store.save(_key(key), head.size + chunk.size, fill)

    def remove_sync(self, key: Any) -> bool:
        """Deletes a chunk. Returns whether it was lent."""
        with self._lock:
            return self._store.remove(_key(key))

    async def list(self) -> list[str]:
        """Returns no keys, because the names contain only their hashes."""
        return []

    async def close(self) -> None:
        """Reports the counters a last time. The chunks stay lent."""
        with self._lock:
            self._store.close()

    def _copied(self, value: npt.NDArray[np.uint8]) -> Any:
        """Returns a chunk in LMCache's pool. Any client of the namespace may have published the value."""
        head = self.remote_metadata_bytes
        try:
            described = RemoteMetadata.deserialize(value[:head].tobytes())
        except (struct.error, ValueError, KeyError, IndexError):
            return None
        if described.length != value.size - head:
            return None
        memory = self._local.allocate(described.shapes, described.dtypes, described.fmt)
        if memory is None:
            return None
        into = np.frombuffer(memory.byte_array, np.uint8)
        if into.size != described.length:
            memory.ref_count_down()
            return None
        np.copyto(into, value[head:])
        return memory


def _key(key: Any) -> str:
    return hashlib.sha256(key.to_string().encode()).hexdigest()[:32]
