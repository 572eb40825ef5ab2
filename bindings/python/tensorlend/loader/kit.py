"""The parts of a loader that depend on the library of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tensorlend._native import Draft, Lease
from tensorlend.loader.job import Job

Show = Callable[[Lease], Any]


class Kit(Protocol):
    """The code for one array library. The trainer pickles it for the workers."""

    #: Whether the leaves are plain views of leases, which native code may make.
    plain: bool

    def enter(self, job: Job) -> None:
        """Makes this process the worker of `job`. Sets seeds, threads, the result of
        `get_worker_info`, and collating into drafts.
        """

    def kind(self, value: Any) -> str | None:
        """Returns the letter that identifies the array library of `value`, if the value can be a leaf. Returns None for
        other values, which are pickled.
        """

    def spec(self, value: Any) -> tuple[Sequence[int], Any]:
        """Returns shape and dtype of a leaf."""

    def covers(self, value: Any, draft: Draft) -> bool:
        """Whether `value` still views the whole of `draft`. Arrays can be reshaped in place, so
        this may be false.
        """

    def copy(self, value: Any, draft: Draft) -> None:
        """Copies a leaf into a draft of its shape and dtype."""

    def show(self, kind: str) -> Show:
        """Returns a function that makes an array from a lease. `kind` is the letter of the array's
        library.
        """

    def gather(self, dataset: Any, collate: Callable[..., Any]) -> Callable[[Any], Any] | None:
        """Returns a function that makes a whole batch of an array of indices at once, for datasets that consist of arrays."""
