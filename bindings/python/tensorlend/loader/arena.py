"""The drafts in which a worker builds its current batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tensorlend._native import Draft


class Arena:
    """The drafts of one batch, and the arrays that view them."""

    def __init__(self, create: Callable[[Sequence[int], Any], Draft]) -> None:
        self._create = create
        self._drafts: dict[int, tuple[Any, Draft]] = {}

    def draft(self, shape: Sequence[int], dtype: Any) -> Draft:
        """Returns a draft that no array views yet."""
        return self._create(shape, dtype)

    def own(self, view: Any, draft: Draft) -> None:
        """Records that `view` covers the whole of `draft`. A batch that contains the view then sends the draft without
        a copy.
        """
        # Store the view, too, so that no other object gets its id.
        self._drafts[id(view)] = (view, draft)

    def find(self, view: Any) -> Draft | None:
        """Returns the draft that `view` covers."""
        found = self._drafts.get(id(view))
        return found[1] if found is not None else None

    def clear(self) -> None:
        """Drops all drafts that were not sent."""
        self._drafts.clear()


#: The arena of this process, if it is a worker. It is a global, because collating functions have no argument for it.
current: Arena | None = None


def enter(arena: Arena) -> None:
    """Makes this process a worker that writes to `arena`."""
    global current
    current = arena
