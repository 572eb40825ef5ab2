"""What differs between the libraries whose arrays make up batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorlend._native import Draft, Lease
from tensorlend.loader.job import Job

Show = Callable[[Lease], Any]


class Kit(Protocol):
    """A library's part. It is sent to the workers, so it has no state that cannot be pickled."""

    def enter(self, job: Job) -> None:
        """Makes this process the worker of `job`: seeds, threads, what `get_worker_info` answers, collating into drafts."""

    def kind(self, value: Any) -> str | None:
        """The letter of the library whose array `value` is, if it can be a leaf; None for all else, which is pickled."""

    def spec(self, value: Any) -> tuple[Sequence[int], Any]:
        """Shape and dtype of a leaf."""

    def covers(self, value: Any, draft: Draft) -> bool:
        """Whether `value`, which looked at the whole of `draft` once, still does: arrays can be reshaped in place."""

    def copy(self, value: Any, draft: Draft) -> None:
        """Copies a leaf into a draft of its shape and dtype."""

    def show(self, kind: str) -> Show:
        """What shows a lease as an array of the library with that letter."""

    def gather(self, dataset: Any, collate: Callable[..., Any]) -> Callable[[Any], Any] | None:
        """What makes a whole batch of an array of indices at once, for datasets that are nothing but arrays."""
