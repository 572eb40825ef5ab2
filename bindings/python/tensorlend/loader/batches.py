"""The iterator over an epoch's batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorlend.loader.crew import Crew
from tensorlend.loader.epochs import Epoch


class Batches(Iterator[Any]):
    """An iterator over the batches of one epoch. Dropping the iterator ends the workers, unless
    they persist.
    """

    def __init__(self, crew: Crew, epoch: Epoch, persistent: bool) -> None:
        self._crew = crew
        self._number = crew.epoch
        self._take = epoch.take
        self._persistent = persistent

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._crew.epoch != self._number:
            raise RuntimeError("the workers of this iterator have begun another epoch: persistent workers do one at a time")
        try:
            return self._take()
        except StopIteration:
            self._take = _ended
            if not self._persistent:
                self._crew.close()
            raise
        except (KeyboardInterrupt, SystemExit):
            # End the epoch, because no process reads the other batches.
            self._take = _ended
            self._crew.close()
            raise

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty if they have ended."""
        return [] if self._crew.closed else self._crew.pids

    def close(self) -> None:
        """Ends the epoch, and the workers."""
        self._take = _ended
        self._crew.close()


def _ended() -> Any:
    raise StopIteration
