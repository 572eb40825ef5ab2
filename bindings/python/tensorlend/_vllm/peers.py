"""Blocks of other nodes. Engine E of node N fetches blocks that engines of node P have lent.

N's gateway gives the block `kv/GROUP/KEY` of P the name `P/kv/GROUP/KEY`. E reads this name, and the gateways copy the block to N. E
then lends the block on N as `kv/GROUP/KEY`, so that all engines of N find it, and N's store evicts it as all others.

Once for each node. N's gateway is the only process of N that asks P. If two engines of N read one name at the same time, the gateway
fetches it once. Once the block is lent on N, no engine asks for it. So E needs no claim, which a killed engine could keep.

Bounds. A thread of E fetches one prefix after the other, and at most `PREFIXES_MAX` wait. It reads blocks in the order of the prefix,
at most `AHEAD_MAX` at once, and at most `AHEAD_BYTES` (but always one). E asks at most `PEERS_MAX` nodes.

Waits. A request waits for a fetch while waiting may be faster than computing: see `WAIT_PART`. Then it loads the leading blocks that have
come, and computes the rest. Other requests of E continue. A fetch ends with the wait of its requests.

Failures. If P ends or cannot be reached, N's gateway reports an error, and the block counts as not lent. If P is slow, the request's
wait ends. E does not ask P for a pause (`pause.py`) after an error, and after `SLOW_S` without an answer. A gateway publishes a value when it has all its bytes, and E
lends a value on N only if it has the length of a block.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend._errors import Error
from tensorlend.kvcache.pause import Pause
from tensorlend.kvcache.store import leased

if TYPE_CHECKING:
    from tensorlend._native import Client, Lease
    from tensorlend.kvcache import BlockStore

_LOG = logging.getLogger("tensorlend")

#: Maximum number of nodes that an engine asks.
PEERS_MAX = 8
#: Maximum number of prefixes that an engine fetches or has queued.
PREFIXES_MAX = 4
#: Maximum number and bytes of blocks that are requested and not yet lent.
AHEAD_MAX = 8
AHEAD_BYTES = 64 << 20
#: Maximum wait for a fetch, as a part of the time that the missing tokens take to compute. A request whose fetch fails
#: takes 1 + `WAIT_PART` times as long as computing. A larger part would accept slower networks.
WAIT_PART = 0.5
#: Seconds without an answer after which a node is left alone for a pause.
SLOW_S = 0.5
#: Seconds below which a fetch is not worth its questions.
WAIT_MIN_S = 0.005
#: Seconds for which an engine without other work waits before it asks again.
POLL_S = 0.001


@dataclass(eq=False)
class Fetch:
    """The blocks of a prefix that are not lent on this node. `depth` is the number of blocks before them."""

    keys: Sequence[str]
    depth: int
    #: The latest time until which a request waits.
    until: float
    done: threading.Event = field(default_factory=threading.Event)

    def left_s(self) -> float:
        """Returns the seconds for which a request still waits."""
        return self.until - time.monotonic()


def _release(asked: Future[Lease[Any] | None]) -> None:
    """Ends the lease of an answer for which nobody waits any more."""
    lease = asked.result()
    if lease is not None:
        lease.release()


@dataclass(frozen=True)
class _Block:
    key: str
    depth: int
    store: BlockStore


class Peers:
    """Fetches blocks of other nodes in the background.

    The methods are for the thread of the engine's scheduler, and never wait for another node.
    """

    def __init__(self, client: Client, stores: Sequence[BlockStore], names: Sequence[str], nbytes: int) -> None:
        """Takes the stores of all ranks, which nobody else may use, the names of the nodes, and the bytes of a block."""
        self._client, self._stores, self._nbytes = client, stores, nbytes
        self._ahead = max(1, min(AHEAD_MAX, AHEAD_BYTES // nbytes))
        self._pauses = {name: Pause() for name in names}
        self._lock = threading.Lock()
        self._fetches: list[Fetch] = []
        self._queue: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        #: The fetch for which a request waits, and the end of the wait. None after the wait.
        self._waits: dict[str, tuple[Fetch, float] | None] = {}
        self._questions: queue.SimpleQueue[tuple[Future[Lease[Any] | None], str, str] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="tensorlend peers", daemon=True)
        self._thread.start()
        # Daemon threads, since a gateway that hangs must not keep the engine's process.
        for _ in range(self._ahead):
            threading.Thread(target=self._ask, name="tensorlend peers", daemon=True).start()

    def is_coming(self, request: str, keys: Sequence[str], depth: int, wait_s: float, *, may_poll: bool = False) -> bool:
        """Returns whether the request should wait for these blocks. The first call for a request begins a fetch.

        With `may_poll`, the call itself waits for up to `POLL_S`.
        """
        if request not in self._waits:
            until = time.monotonic() + wait_s
            begun = self._begin(keys, depth, until) if wait_s >= WAIT_MIN_S else None
            self._waits[request] = None if begun is None else (begun, until)
        waited = self._waits[request]
        if waited is None:
            return False
        fetch, until = waited
        if may_poll:
            fetch.done.wait(POLL_S)
        if fetch.done.is_set() or time.monotonic() >= until:
            self._waits[request] = None
            return False
        return True

    def end(self, request: str) -> None:
        """Forgets a request."""
        self._waits.pop(request, None)

    def close(self) -> None:
        """Ends the threads after their present blocks, and reports the counters."""
        with self._lock:
            for fetch in self._fetches:
                fetch.until = 0
        self._queue.put(None)
        for _ in range(self._ahead):
            self._questions.put(None)
        self._thread.join(1)

    def _usable(self) -> list[str]:
        return [name for name, pause in self._pauses.items() if pause.is_over()]

    def _begin(self, keys: Sequence[str], depth: int, until: float) -> Fetch | None:
        """Returns a fetch of these blocks; None if no node is usable, or too many fetches wait."""
        if not self._usable():
            return None
        with self._lock:
            for fetch in self._fetches:
                if keys[0] in fetch.keys:
                    fetch.until = max(fetch.until, until)
                    return fetch
            if len(self._fetches) >= PREFIXES_MAX:
                return None
            fetch = Fetch(keys, depth, until)
            self._fetches.append(fetch)
        self._queue.put(fetch)
        return fetch

    def _run(self) -> None:
        while (fetch := self._queue.get()) is not None:
            try:
                if fetch.left_s() > 0:
                    self._fetch(fetch)
            except Exception:  # The thread serves all later requests, which compute what it could not fetch.
                _LOG.exception("a fetch of KV blocks failed")
            finally:
                with self._lock:
                    self._fetches.remove(fetch)
                fetch.done.set()
        for store in self._stores:
            store.close()

    def _ask(self) -> None:
        while (question := self._questions.get()) is not None:
            asked, peer, name = question
            if asked.set_running_or_notify_cancel():
                asked.set_result(self._get(peer, name))
            # The future has a lease.
            del asked, question

    def _fetch(self, fetch: Fetch) -> None:
        """Asks one node after the other. The next node gives what the previous ones lack."""
        blocks = [_Block(key, depth, store) for depth, key in enumerate(fetch.keys, fetch.depth) for store in self._stores]
        for peer in self._usable():
            blocks = blocks[self._fetch_from(peer, blocks, fetch) :]
            if not blocks or fetch.left_s() <= 0:
                break

    def _fetch_from(self, peer: str, blocks: Sequence[_Block], fetch: Fetch) -> int:
        """Fetches blocks in their order. Returns the number of leading blocks that are lent on this node now."""
        ahead: deque[Future[Lease[Any] | None] | None] = deque()
        asked: Future[Lease[Any] | None] | None = None
        waited_s = 0.0
        done, begun_ns = 0, time.time_ns()
        try:
            while done < len(blocks) and fetch.left_s() > 0:
                # Ask for the first block alone, because most nodes do not have the prefix.
                for block in blocks[done + len(ahead) : done + (self._ahead if done else 1)]:
                    question: Future[Lease[Any] | None] | None = None
                    if not block.store.match([block.key]):
                        question = Future()
                        self._questions.put((question, peer, block.store.name(block.key)))
                    ahead.append(question)
                asked = ahead.popleft()
                if asked is not None:
                    waited_s = -time.monotonic()
                    lease = asked.result(max(0, fetch.left_s()))
                    asked = None
                    if lease is None or not self._lend(blocks[done], lease, begun_ns):
                        break
                done += 1
        except TimeoutError:
            if waited_s + time.monotonic() >= SLOW_S:
                self._pause(peer)
        finally:
            for left in (asked, *ahead):
                if left is not None and not left.cancel():
                    left.add_done_callback(_release)
        return done

    def _get(self, peer: str, name: str) -> Lease[Any] | None:
        """Leases a block of a node. The gateway fetches it first."""
        try:
            return leased(self._client, f"{peer}/{name}")
        except Error:
            pass
        except Exception:
            _LOG.exception("a question for a KV block failed")
        self._pause(peer)
        return None

    def _pause(self, peer: str) -> None:
        with self._lock:
            self._pauses[peer].begin()

    def _lend(self, block: _Block, lease: Lease[Any], begun_ns: int) -> bool:
        with lease:
            # Any client of the other node's namespace may have published the value.
            if lease.dtype != np.uint8 or lease.shape != (self._nbytes,):
                return False
            source = lease.numpy()
            if not block.store.save(block.key, self._nbytes, lambda into: np.copyto(into, source), depth=block.depth, begun_ns=begun_ns):
                return False
            block.store.counters.fetched_blocks += 1
            block.store.counters.fetched_bytes += self._nbytes
            return True
