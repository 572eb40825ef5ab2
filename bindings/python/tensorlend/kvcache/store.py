"""A store of blocks. Engine E saves and loads blocks, any other engine F does the same, daemon D owns the memory.

A block is one value: raw bytes under `kv/TAG.RANK/KEY`. TAG is the hash of the model's identity, KEY the hash of the prefix.

Saving. E creates a draft, fills it and publishes it. The publication is one atomic exchange. If E
is killed before the publication, no name refers to the draft, and D frees the memory. If E is
killed after it, the block stays. E and F may both save a block that they computed at the same time.
The later publication then replaces the earlier one, whose memory is freed. Both have the same
bytes.

Loading. E leases the block, copies it and drops the lease. If F evicts the block in the meantime, E's lease stays valid. If F
evicts it before the lease, E finds no name and computes the block itself.

Eviction. E lists all blocks, orders them by their last use and deletes the oldest until `bytes_max`
is kept. E and F may do this at the same time, and then both delete the same oldest blocks. There is
no lock, so no killed process can leave it locked. A deleted block that some process leases keeps
its memory until the lease ends.

Order. The last use is the later of two times: the timestamp of the value, which is the start of the
prompt, and the time in the reports of uses (`recency.py`). A deeper block of the same prompt is
older by some nanoseconds, so that a prompt is evicted from its end.

A daemon that ends or hangs. E continues, because lookups and leases of mapped blocks need no
daemon. A call that needs the daemon fails after the client's `request_timeout`, and the store then
reports misses for a pause (`pause.py`).
After its constructor, a store raises no error of the daemon to the engine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tensorlend import _native
from tensorlend._errors import Error, LimitError, NotFoundError
from tensorlend.kvcache.counters import Counters
from tensorlend.kvcache.identity import BLOCKS, MODELS, REPORTS, Identity
from tensorlend.kvcache.pause import Pause
from tensorlend.kvcache.recency import REPORT_AGE_S, Recency, unpacked

if TYPE_CHECKING:
    from tensorlend._native import Client, Info, Lease

#: Fraction of `bytes_max` that remains after an eviction.
KEPT = 0.9
#: A store lists all blocks again after it has saved this fraction of `bytes_max`, because other
#: stores save, too.
LISTED_AGAIN = 1 / 16

_Bytes = npt.NDArray[np.uint8]


class BlockStore:
    """The lent blocks of one rank of one model.

    Not thread-safe: each thread of an engine needs a store of its own. Stores of all threads, processes and models of a
    namespace share one limit, `bytes_max`.

    Parameters
    ----------
    client : Client
        The client, of the namespace whose engines share blocks.
    identity : Identity
        The identity of the model's blocks.
    rank : int or str, default 0
        The rank of this process, if several processes compute the model together.
    bytes_max : int
        Maximum bytes of all blocks in the namespace. All engines should use the same limit, because
        the smallest limit applies.

    Raises
    ------
    PermissionError
        This user may not write to the namespace.
    DisconnectedError
        The daemon has ended.
    """

    def __init__(self, client: Client, identity: Identity, *, rank: int | str = 0, bytes_max: int) -> None:
        self._client = client
        self._identity = identity
        self._group = identity.group(rank)
        self._report = f"{REPORTS}/{identity.tag()}.{rank}/{os.getpid()}-{os.urandom(4).hex()}"
        self._bytes_max = bytes_max
        self._counters = Counters()
        self._recency = Recency()
        self._listed_bytes: int | None = None
        self._saved_since = 0
        self._pause = Pause()
        client.put(f"{MODELS}/{identity.tag()}", np.zeros(1, np.uint8), metadata=identity.described())

    @property
    def identity(self) -> Identity:
        """The identity of the model's blocks."""
        return self._identity

    @property
    def counters(self) -> Counters:
        """The counters of this store."""
        return self._counters

    def match(self, keys: Sequence[str]) -> int:
        """Returns the number of leading blocks that are lent. Neither counts nor notes a use.

        Parameters
        ----------
        keys : sequence of str
            Keys of a prompt (`Identity.keys`), or of a part of it.

        Returns
        -------
        int
            The number of blocks before the first one that is not lent.
        """
        matched = 0
        with self._tolerating() as is_usable:
            if is_usable:
                for key in keys:
                    if not self._client.exists(self.name(key)):
                        break
                    matched += 1
        return matched

    def note(self, keys: Sequence[str], matched: int, *, own: int = 0) -> None:
        """Counts a query for a prompt's blocks, and notes the use of lent blocks.

        Parameters
        ----------
        keys : sequence of str
            The keys of the whole prompt.
        matched : int
            The number of blocks that `match` has found after the engine's own.
        own : int, default 0
            The number of leading blocks that the engine's own memory has. They count as used, not as queried.
        """
        self._counters.queries += len(keys) - own
        self._counters.hits += matched
        self._recency.touch(keys[: own + matched], time.time_ns())
        self._report_if_due()

    def load(self, key: str, nbytes: int | None) -> Lease[np.uint8] | None:
        """Leases a block.

        Parameters
        ----------
        key : str
            The key.
        nbytes : int or None
            The length that a block has. None accepts every length.

        Returns
        -------
        Lease or None
            The bytes of the block, read-only. None if the block is not lent, or has another length.
        """
        with self._tolerating() as is_usable:
            if is_usable:
                lease = leased(self._client, self.name(key))
                # Any client of the namespace may have published the value.
                if lease is not None and lease.dtype == np.uint8 and lease.shape == (lease.nbytes if nbytes is None else nbytes,):
                    self._counters.loaded_blocks += 1
                    self._counters.loaded_bytes += lease.nbytes
                    self._report_if_due()
                    return lease
        self._counters.lost += 1
        return None

    def save(self, key: str, nbytes: int, fill: Callable[[_Bytes], None], *, depth: int = 0, begun_ns: int | None = None) -> bool:
        """Lends a block, unless it is already lent or there is no room.

        Parameters
        ----------
        key : str
            The key.
        nbytes : int
            The length of a block.
        fill : callable
            Writes the block into an array of bytes, where other engines will read it.
        depth : int, default 0
            The number of blocks before this one in the prompt.
        begun_ns : int or None, default None
            When the engine began this prompt, in nanoseconds since 1970; None for now. Pass the same time for all blocks of a
            prompt, so that the deepest is evicted first.

        Returns
        -------
        bool
            True if the block is lent now.
        """
        with self._tolerating() as is_usable:
            if is_usable:
                name = self.name(key)
                if self._client.exists(name):
                    return True
                self._make_room(nbytes)
                draft = self._create(nbytes, (time.time_ns() if begun_ns is None else begun_ns) - depth)
                if draft is not None:
                    try:
                        fill(draft.array)
                    except BaseException:
                        draft.drop()
                        raise
                    if self._publish(draft, name):
                        self._saved_since += nbytes
                        self._counters.saved_blocks += 1
                        self._counters.saved_bytes += nbytes
                        self._report_if_due()
                        return True
        self._counters.refused += 1
        return False

    def remove(self, key: str) -> bool:
        """Deletes a block. Leases on it stay valid.

        Parameters
        ----------
        key : str
            The key.

        Returns
        -------
        bool
            True if the block was lent.
        """
        with self._tolerating() as is_usable:
            if is_usable:
                return self._client.delete(self.name(key))
        return False

    def evict(self, bytes_left: int) -> int:
        """Deletes blocks of all models. Deletes the blocks with the oldest last use first.

        Parameters
        ----------
        bytes_left : int
            Maximum bytes of all blocks afterwards.

        Returns
        -------
        int
            Bytes of the blocks that this call deleted. Leases on them stay valid, and keep their memory.
        """
        infos = self._client.list(f"{BLOCKS}/*/*")
        total = sum(info.nbytes for info in infos)
        evicted = 0
        if total > bytes_left:
            for info in self._oldest_first(infos):
                if total <= bytes_left:
                    break
                total -= info.nbytes
                if self._client.delete(info.name):
                    evicted += info.nbytes
                    self._counters.evicted_blocks += 1
        self._counters.evicted_bytes += evicted
        self._listed_bytes, self._saved_since = total, 0
        return evicted

    def report(self) -> None:
        """Publishes the counters and the last uses, for other stores and for `summary`."""
        with self._tolerating() as is_usable:
            if is_usable:
                counters = {"counters": asdict(self._counters)}
                self._client.put(self._report, self._recency.packed(), metadata=counters, timestamp=time.time_ns())

    def close(self) -> None:
        """Publishes the counters and the last uses a last time. The blocks stay lent."""
        self.report()

    def name(self, key: str) -> str:
        """Returns the name under which a block is lent.

        Parameters
        ----------
        key : str
            The key.

        Returns
        -------
        str
            The name.
        """
        return f"{self._group}/{key}"

    def _create(self, nbytes: int, timestamp: int) -> Any | None:
        """Returns a draft; None if there is no room even after an eviction."""
        for is_last in (False, True):
            try:
                return self._client.create(nbytes, np.uint8, timestamp=timestamp)
            except LimitError:
                if not is_last:
                    self._evict_some(nbytes)
        return None

    def _publish(self, draft: Any, name: str) -> bool:
        """Publishes a draft. Returns False if the namespace has no room for a new name. The engine
        then saves later blocks.
        """
        try:
            draft.publish(name)
        except LimitError:
            draft.drop()
            self._evict_some(0)
            return False
        return True

    def _evict_some(self, nbytes: int) -> None:
        """Evicts the oldest blocks, because a limit of the daemon is lower than `bytes_max`, or of
        another kind.
        """
        total = sum(info.nbytes for info in self._client.list(f"{BLOCKS}/*/*"))
        self.evict(int(total * KEPT) - nbytes)

    def _make_room(self, nbytes: int) -> None:
        """Evicts blocks if this one would exceed the limit."""
        if self._listed_bytes is not None and self._saved_since <= self._bytes_max * LISTED_AGAIN:
            if self._listed_bytes + self._saved_since + nbytes <= self._bytes_max:
                return
        total = sum(info.nbytes for info in self._client.list(f"{BLOCKS}/*/*"))
        self._listed_bytes, self._saved_since = total, 0
        if total + nbytes > self._bytes_max:
            self.evict(int(self._bytes_max * KEPT) - nbytes)

    def _oldest_first(self, infos: list[Info]) -> list[Info]:
        used: dict[str, int] = {}
        for name in self._client.names(f"{REPORTS}/*/*"):
            lease = leased(self._client, name)
            if lease is None:
                continue
            with lease:
                if lease.timestamp < time.time_ns() - REPORT_AGE_S * 1e9:
                    self._client.delete(name)
                    continue
                group = f"{BLOCKS}/{name.split('/')[1]}"
                for key, at in unpacked(lease.numpy()).items():
                    block = f"{group}/{key}"
                    used[block] = max(at, used.get(block, 0))
        return sorted(infos, key=lambda info: max(info.timestamp, used.get(info.name, 0)))

    def _report_if_due(self) -> None:
        if self._recency.due():
            self.report()

    @contextmanager
    def _tolerating(self) -> Iterator[bool]:
        """Yields whether the store may send requests to the daemon. Counts an error instead of
        raising it, and pauses after the error.
        """
        try:
            yield self._pause.is_over()
        except Error:
            self._pause.begin()
            self._counters.errors += 1


def leased(client: Client, name: str) -> Lease[Any] | None:
    """Leases a tensor in host memory. Returns None if the name has no value, or a value of another
    kind.
    """
    try:
        lease = client.get_value(name)
    except NotFoundError:
        return None
    return lease if isinstance(lease, _native.Lease) else None
