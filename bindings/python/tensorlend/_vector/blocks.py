"""Memory for batches of observations, which is used again when the program has let go of a batch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

#: Maximum number of blocks of one shape and dtype. A program usually has the last batch and the batch before it.
_BLOCKS_MAX = 4


class Blocks:
    """Arrays that only this object refers to, except while the program has a batch in them.

    The program gets views of these arrays. numpy makes the array that owns the memory the base of each view, also of a view of
    a view. So an array without other references has no batch in use.
    """

    def __init__(self) -> None:
        self._blocks: dict[Any, list[np.ndarray[Any, Any]]] = {}
        # Measure it, because versions of Python count the references of a call differently.
        self._references = _references([np.empty(1)], 0)

    def empty(self, shape: Any, dtype: Any) -> np.ndarray[Any, Any]:
        """Returns an array that the program may keep and change. Its elements are arbitrary."""
        blocks = self._blocks.setdefault((shape, dtype), [])
        for at in range(len(blocks)):
            if _references(blocks, at) == self._references:
                return blocks[at].view()
        if len(blocks) == _BLOCKS_MAX:
            del blocks[0]
        blocks.append(np.empty(shape, dtype))
        return blocks[-1].view()


def _references(blocks: list[np.ndarray[Any, Any]], at: int) -> int:
    return sys.getrefcount(blocks[at])
