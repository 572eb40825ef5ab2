"""The options of the connector, and the identity of a model, from vLLM's configuration."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tensorlend import _native
from tensorlend._vllm.loader import weights_name
from tensorlend._vllm.peers import PEERS_MAX
from tensorlend.kvcache import BlockStore, Identity

if TYPE_CHECKING:
    from tensorlend._native import Client

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
#: Seconds for which a step of the engine waits for a daemon that has ended or hangs. Then the engine computes instead.
REQUEST_S = 1.0
#: Default part of the daemon's pool that blocks may take.
POOL_PART = 0.5
#: Default of the longest wait of a request for blocks of other nodes, in seconds.
PEER_WAIT_S = 1.0
PEER_WAIT_S_MAX = 60
#: vLLM's classes of caches in which a block's prefix determines the whole block.
_FULL_ATTENTION = ("FullAttentionSpec", "MLAAttentionSpec")


def sized(value: Any) -> int:
    """Returns a number of bytes, from a number or a text such as "8 GiB"."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]iB|)\s*", str(value))
    if found is None:
        raise ValueError(f"bytes_max is {value!r}: give a number of bytes, or a text such as '8 GiB'")
    return int(float(found[1]) * _UNITS[found[2]])


class Options:
    """`kv_connector_extra_config` of vLLM."""

    NAMES = ("address", "namespace", "bytes_max", "weights_version", "peers", "peer_wait_s")

    def __init__(self, extra: dict[str, Any]) -> None:
        unknown = sorted(set(extra) - set(self.NAMES))
        if unknown:
            raise ValueError(f"kv_connector_extra_config has {unknown[0]!r}: tensorlend knows {', '.join(self.NAMES)}")
        self.address: str | None = extra.get("address")
        self.namespace: str | None = extra.get("namespace")
        self.weights_version = str(extra.get("weights_version", ""))
        self.peers = _nodes(extra.get("peers", ()))
        self.peer_wait_s = float(extra.get("peer_wait_s", PEER_WAIT_S))
        if not (math.isfinite(self.peer_wait_s) and 0 <= self.peer_wait_s <= PEER_WAIT_S_MAX):
            raise ValueError(f"peer_wait_s is {self.peer_wait_s}: give seconds from 0 to {PEER_WAIT_S_MAX}")
        if self.peers and not self.weights_version:
            raise ValueError('peers is set: set weights_version, too, because the times of files differ from node to node')
        self._bytes_max = None if extra.get("bytes_max") is None else sized(extra["bytes_max"])

    def connect(self, role: str) -> Client:
        """Connects to the daemon."""
        label = f"vllm {role} {os.getpid()}"
        return _native.connect(self.address, namespace=self.namespace, label=label, request_timeout=REQUEST_S)

    def store(self, client: Client, identity: Identity, rank: str) -> BlockStore:
        """Opens a store of one rank's blocks."""
        bytes_max = self._bytes_max
        if bytes_max is None:
            bytes_max = int(client.stat()["pool_bytes_max"] * POOL_PART)
        return BlockStore(client, identity, rank=rank, bytes_max=bytes_max)


def identity_of(config: Any, version: str, options: Options) -> Identity:
    """Returns everything that determines the bytes of a block.

    The model's configuration and the files of its weights determine the values. The version of vLLM, the backend and the device
    determine the layout of the memory.
    """
    model, cache, parallel = config.model_config, config.cache_config, config.parallel_config
    if getattr(cache, "calculate_kv_scales", False):
        raise ValueError("calculate_kv_scales is set: each engine then has scales of its own, and cannot share blocks")
    if weights_name(config.load_config) is not None and not options.weights_version:
        raise ValueError("the weights are loaded by a name: set weights_version, because the name can get new weights")
    dtype = str(model.dtype if cache.cache_dtype == "auto" else cache.cache_dtype)
    attention = getattr(config, "attention_config", None)
    device = str(getattr(config.device_config, "device_type", ""))
    more = {
        "engine": f"vllm {version}",
        "revision": str(model.revision),
        "quantization": str(model.quantization),
        "weights": options.weights_version or _files(model.model),
        "load_format": str(config.load_config.load_format),
        "config": _hash(model.hf_config.to_json_string(use_diff=False)),
        "parallel": [parallel.tensor_parallel_size, parallel.pipeline_parallel_size],
        "device": device,
        "processor": _processor() if device == "cpu" else "",
        "backend": str(getattr(attention, "backend", None)),
        "computed_in": str(model.dtype),
    }
    return Identity(str(model.model), dtype.removeprefix("torch."), int(cache.block_size), more)


def _processor() -> str:
    """Returns the kind of processor. vLLM selects the order of keys and values in memory by the instruction set."""
    with open("/proc/cpuinfo") as file:
        flags = next((line.partition(":")[2].split() for line in file if line.startswith(("flags", "Features"))), [])
    return " ".join([platform.machine(), *sorted({"amx_tile", "avx512f", "avx2"} & set(flags))])


def block_bytes(config: Any, group: Any) -> int:
    """Returns the bytes of one rank's part of a block."""
    if config.parallel_config.pipeline_parallel_size > 1:
        raise ValueError("peers is set, and pipeline_parallel_size is above 1: the blocks of such ranks differ in size")
    return int(group.kv_cache_spec.page_size_bytes) * len(group.layer_names)


def _nodes(names: Any) -> tuple[str, ...]:
    """Checks the names of other nodes."""
    if isinstance(names, str) or not all(re.fullmatch(r"[A-Za-z0-9._-]{1,63}", str(name)) for name in names):
        raise ValueError(f"peers is {names!r}: give a list of the names that other nodes have in their gateways' configuration")
    if len(names) > PEERS_MAX:
        raise ValueError(f"peers has {len(names)} nodes: the maximum is {PEERS_MAX}")
    return tuple(map(str, names))


def check_groups(groups: Sequence[Any]) -> None:
    """Rejects models whose blocks are not determined by their prefix, or are incomplete, such as
    state spaces and sliding windows.
    """
    if len(groups) != 1:
        raise ValueError(f"the model has {len(groups)} KV cache groups: set --disable-hybrid-kv-cache-manager")
    kind = type(groups[0].kv_cache_spec).__name__
    if kind not in _FULL_ATTENTION:
        raise ValueError(f"the model's KV cache is a {kind}: the connector of tensorlend needs full attention in all layers")


def ranks_of(config: Any) -> list[str]:
    """Returns the names of all ranks that compute the model together."""
    parallel = config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise ValueError(f"{name} is {getattr(parallel, name)}: the connector of tensorlend needs 1")
    stages, parts = parallel.pipeline_parallel_size, parallel.tensor_parallel_size
    return [f"{stage}x{part}" for stage in range(stages) for part in range(parts)]


def rank_of(config: Any) -> str:
    """Returns the name of a worker's rank, which is a part of its blocks' names."""
    return ranks_of(config)[int(config.parallel_config.rank)]


def _files(model: str) -> str:
    """Returns a hash of the sizes and times of the weight files in a directory. Returns an empty
    text if the model is not a directory.
    """
    if not os.path.isdir(model):
        return ""
    found = []
    for entry in sorted(os.scandir(model), key=lambda entry: entry.name):
        if entry.name.endswith((".safetensors", ".bin", ".pt", ".gguf")):
            stat = entry.stat()
            found.append([entry.name, stat.st_size, stat.st_mtime_ns])
    return _hash(json.dumps(found))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
