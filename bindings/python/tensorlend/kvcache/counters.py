"""Counters of block stores, and the summary of all stores of a namespace."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING

from tensorlend._errors import NotFoundError
from tensorlend.kvcache.identity import BLOCKS, MODELS, REPORTS

if TYPE_CHECKING:
    from tensorlend._native import Client


@dataclass
class Counters:
    """Counters of one store, or sums of several, since their beginning.

    `queries` counts the blocks of prompts that an engine asked for, and `hits` those of them that
    were lent. `saved_blocks` includes `fetched_blocks`, which came from other nodes. `lost` counts blocks that were lent when the
    engine asked, but evicted before it loaded them. `refused` counts blocks for which there was no room.
    """

    queries: int = 0
    hits: int = 0
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    saved_blocks: int = 0
    saved_bytes: int = 0
    fetched_blocks: int = 0
    fetched_bytes: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    lost: int = 0
    refused: int = 0
    errors: int = 0

    def hit_rate(self) -> float:
        """Returns the fraction of the queried blocks that were lent.

        Returns
        -------
        float
            0 to 1; 0 without queries.
        """
        return self.hits / self.queries if self.queries else 0.0

    def add(self, other: Counters) -> None:
        """Adds the counters of another store.

        Parameters
        ----------
        other : Counters
            The other counters.
        """
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class GroupBytes:
    """The lent blocks of one rank of one model. `model` and `dtype` are empty if no store has described the model."""

    model: str = ""
    dtype: str = ""
    blocks: int = 0
    bytes: int = 0


@dataclass
class Summary:
    """All lent blocks of a namespace, and the sums of the counters that their stores have reported."""

    counters: Counters = field(default_factory=Counters)
    groups: dict[str, GroupBytes] = field(default_factory=dict)
    stores: int = 0

    def prometheus(self) -> str:
        """Returns the summary as Prometheus reads it.

        Returns
        -------
        str
            Lines of text.
        """
        lines = [f"tensorlend_kv_{name}_total {value}" for name, value in asdict(self.counters).items()]
        for name, group in self.groups.items():
            labels = f"{{group={json.dumps(name)},model={json.dumps(group.model)},dtype={json.dumps(group.dtype)}}}"
            lines += [f"tensorlend_kv_blocks{labels} {group.blocks}", f"tensorlend_kv_bytes{labels} {group.bytes}"]
        return "\n".join(lines) + "\n"


def summary(client: Client) -> Summary:
    """Sums up the lent blocks of a namespace.

    Parameters
    ----------
    client : Client
        A client of the namespace.

    Returns
    -------
    Summary
        Bytes and blocks of each model, and counters.
    """
    result = Summary()
    described: dict[str, tuple[str, str]] = {}
    for info in client.list(f"{BLOCKS}/*/*"):
        name = info.name.split("/")[1]
        group = result.groups.get(name)
        if group is None:
            tag = name.split(".")[0]
            if tag not in described:
                described[tag] = _described(client, tag)
            group = result.groups[name] = GroupBytes(*described[tag])
        group.blocks += 1
        group.bytes += info.nbytes
    for name in client.names(f"{REPORTS}/*"):
        counters = reported(client, name)
        if counters is not None:
            result.counters.add(counters)
            result.stores += 1
    return result


def _described(client: Client, tag: str) -> tuple[str, str]:
    metadata = _metadata(client, f"{MODELS}/{tag}")
    return str(metadata.get("model", "")), str(metadata.get("dtype", ""))


def reported(client: Client, name: str) -> Counters | None:
    """Returns the counters of a report, which is untrusted. Returns None if the report has no valid
    counters.
    """
    metadata = _metadata(client, name).get("counters")
    if not isinstance(metadata, dict):
        return None
    known = {entry.name for entry in fields(Counters)}
    return Counters(**{name: value for name, value in metadata.items() if name in known and type(value) is int})


def _metadata(client: Client, name: str) -> dict[str, object]:
    # Any client may have published the value.
    try:
        with client.get_value(name) as lease:
            metadata = json.loads(lease.metadata_bytes)
    except (NotFoundError, ValueError, RecursionError):
        return {}
    return metadata if isinstance(metadata, dict) else {}
