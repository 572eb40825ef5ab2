"""The last uses of blocks. Each store reports its own in one value, so a use costs no write to shared memory.

A report is an array of three words a row: the two halves of a key's 128 bits, and the time of the
last use in nanoseconds. A store writes its report at most once in `REPORT_S`. If its process is
killed, the uses since the last report are lost. Then the order of eviction is older by that time.
No block depends on a report.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

#: Seconds between two reports of a store.
REPORT_S = 1.0
#: Seconds after which an eviction deletes a report that its store has not written again. A lifetime
#: of the name would have the same effect, but each report would then wait for the daemon.
REPORT_AGE_S = 24 * 3600.0
#: Number of blocks in a report, which are the blocks with the latest uses.
USES_MAX = 65_536


class Recency:
    """The last uses of one store's blocks."""

    def __init__(self) -> None:
        self._uses: OrderedDict[str, int] = OrderedDict()
        self._reported = time.monotonic()

    def touch(self, keys: Iterable[str], now_ns: int) -> None:
        """Notes a use of the leading blocks of a prompt. Deeper blocks count as older, because they
        are useless without the earlier blocks.
        """
        for depth, key in enumerate(keys):
            self._uses[key] = now_ns - depth
            self._uses.move_to_end(key)
        while len(self._uses) > USES_MAX:
            self._uses.popitem(last=False)

    def due(self) -> bool:
        """Returns whether the report is old enough to be written again."""
        return time.monotonic() - self._reported >= REPORT_S

    def packed(self) -> npt.NDArray[np.uint64]:
        """Returns the report, and treats it as written."""
        rows = np.empty((len(self._uses), 3), np.uint64)
        for row, (key, used) in zip(rows, self._uses.items(), strict=True):
            row[:] = int(key[:16], 16), int(key[16:], 16), used
        self._reported = time.monotonic()
        return rows


def unpacked(rows: npt.NDArray[np.uint64]) -> dict[str, int]:
    """Returns the last use of each key of a report. A report is untrusted, but a wrong report
    changes only the order.
    """
    if rows.ndim != 2 or rows.shape[1:] != (3,) or rows.dtype != np.uint64:
        return {}
    return {f"{high:016x}{low:016x}": used for high, low, used in rows.tolist()}
