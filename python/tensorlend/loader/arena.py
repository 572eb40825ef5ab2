"""Where a worker writes the batch that it is making."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorlend._native import Draft


class Arena:
    """The drafts of one batch, and the arrays that look at them."""

    def __init__(self, create: Callable[[Sequence[int], Any], Draft]) -> None:
        self._create = create
        self._drafts: dict[int, tuple[Any, Draft]] = {}

    def draft(self, shape: Sequence[int], dtype: Any) -> Draft:
        """A draft that nobody looks at yet."""
        return self._create(shape, dtype)

    def own(self, view: Any, draft: Draft) -> None:
        """Remembers that `view` looks at the whole of `draft`: in a batch it stands for it, and needs no copy."""
        # The view is kept so that its id is not given to another object.
        self._drafts[id(view)] = (view, draft)

    def find(self, view: Any) -> Draft | None:
        """The draft that `view` looks at."""
        found = self._drafts.get(id(view))
        return found[1] if found is not None else None

    def clear(self) -> None:
        """Forgets all: what was not sent is dropped."""
        self._drafts.clear()


#: The arena of this process, if it is a worker. Collating functions have no argument by which it could come.
current: Arena | None = None


def enter(arena: Arena) -> None:
    """Makes this process a worker that writes to `arena`."""
    global current
    current = arena
