"""The scheduler's part, which decides the blocks that a step loads and completes. This module needs
neither vllm nor torch.

A step of the engine computes tokens [computed, end) of each scheduled request, in the pages that
its block table names. A block is complete when all its tokens are computed. It is saved in the step
that completes it, if the scheduler knows its tokens by then. With asynchronous scheduling, it
learns the tokens of a block a step later, and the block is saved in that step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tensorlend.kvcache.identity import Identity, Prefix


@dataclass
class Load:
    """Blocks that a step loads into pages before its computation."""

    keys: list[str]
    pages: list[int]


@dataclass
class Save:
    """The pages of a request in one step.

    `pages` has all pages of the request up to the last one that this step writes. The step begins pages [begun, len(pages)). The
    pages from `first` on have these keys, and are complete after the step.
    """

    pages: list[int]
    begun: int
    first: int
    keys: list[str]
    begun_ns: int


@dataclass
class Step:
    """Loads and saves of one step, which the scheduler sends to all workers."""

    loads: list[Load] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)


@dataclass
class Tracked:
    """A request, from the scheduler's first query to the request's end."""

    prefix: Prefix
    begun_ns: int
    #: The load with which the next step begins: the first block, and the number of blocks.
    load: tuple[int, int] | None = None
    pages: list[int] | None = None
    saved: int | None = None


class Planner:
    """Plans the loads and saves of all requests. A request's tokens only grow."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._size = identity.block_tokens
        self._tracked: dict[str, Tracked] = {}

    def loadable(self, request: str, tokens: Sequence[int], salt: str) -> list[str]:
        """Returns the keys of the blocks that a request can load, and tracks the request. The last
        token must be computed, so its block is excluded.
        """
        tracked = self._tracked.get(request)
        if tracked is None:
            tracked = self._tracked[request] = Tracked(Prefix(self._identity, salt), time.time_ns())
        return tracked.prefix.grow(tokens)[: max(0, len(tokens) - 1) // self._size]

    def load(self, request: str, first: int, count: int) -> None:
        """Plans the load of blocks for the request's next step."""
        self._tracked[request].load = (first, count) if count else None

    def place(self, request: str, pages: Sequence[int]) -> None:
        """Sets a request's block table, in its first step and in the first step after a preemption."""
        tracked = self._tracked.get(request)
        if tracked is not None:
            tracked.pages, tracked.saved = list(pages), None

    def extend(self, request: str, pages: Sequence[int]) -> None:
        """Adds pages to a request's block table."""
        tracked = self._tracked.get(request)
        if tracked is not None and tracked.pages is not None:
            tracked.pages.extend(pages)

    def end(self, request: str) -> None:
        """Forgets a request."""
        self._tracked.pop(request, None)

    def clear(self) -> None:
        """Forgets all requests. Their later computations are not saved."""
        self._tracked.clear()

    def step(self, request: str, tokens: Sequence[int], computed: int, end: int, into: Step) -> None:
        """Adds the loads and saves of one request. The step computes tokens [computed, end) of the
        request, and `tokens` are known.
        """
        tracked, size = self._tracked.get(request), self._size
        if tracked is None or tracked.pages is None:
            return
        keys = tracked.prefix.grow(tokens)
        if tracked.load is not None:
            first, count = tracked.load
            into.loads.append(Load(keys[first : first + count], tracked.pages[first : first + count]))
            tracked.load = None
        # After a failed load, a block that is computed again is saved again.
        saved = computed // size if tracked.saved is None else min(tracked.saved, computed // size)
        complete = max(saved, min(end // size, len(keys)))
        begun, last = -(-computed // size), -(-end // size)
        tracked.saved = complete
        if complete > saved or last > begun:
            pages = tracked.pages[: max(last, complete)]
            into.saves.append(Save(pages, begun, saved, keys[saved:complete], tracked.begun_ns))


class Poison:
    """The pages that a worker could not load. All results computed from them are wrong, and must
    not be lent.

    A page is poisoned from the failed load until it is written again from its beginning, by a load
    or by a step that begins it. The engine learns of the failure after the step, and computes the
    page again. Steps that it has scheduled in the meantime still use the page.
    """

    def __init__(self) -> None:
        self._pages: set[int] = set()

    def add(self, page: int) -> None:
        """Notes a failed load."""
        self._pages.add(page)

    def clear(self, pages: Sequence[int]) -> None:
        """Notes pages that are written from their beginning."""
        self._pages.difference_update(pages)

    def spoils(self, save: Save) -> bool:
        """Returns whether a page before the end of the save is poisoned. Notes the pages that the
        step begins.

        A page that the step begins is computed from all pages before it. If one of these is poisoned, so is the new page.
        """
        if not self._pages:
            return False
        if self._pages.intersection(save.pages[: save.begun]):
            self._pages.update(save.pages[save.begun :])
            return True
        self.clear(save.pages[save.begun :])
        return False
