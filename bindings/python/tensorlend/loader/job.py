"""The arguments of a worker process at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorlend.loader.kit import Kit


@dataclass(frozen=True, kw_only=True)
class Job:
    """One worker's arguments, for all epochs of its process. A loader leaves those with a default to its workforce."""

    #: Sockets of the daemon, in the order in which the worker tries them.
    address: tuple[str, ...] = ()
    namespace: str | None = None
    #: Name of the stream that this worker opens.
    stream: str = ""
    #: Maximum number of batches that wait in the stream.
    capacity: int = 0
    worker: int = 0
    workers: int = 0
    #: The seed that all workers share. A worker adds its number to this seed.
    base_seed: int = 0
    dataset: Any
    #: Whether the dataset is iterated, rather than indexed.
    iterable: bool
    #: Samples of a batch; None if samples are not collated into batches.
    batch_size: int | None
    #: Whether indices come in groups. Each group makes a batch.
    batched: bool
    drop_last: bool
    collate: Callable[[Any], Any]
    init: Callable[[int], None] | None
    kit: Kit

    @property
    def seed(self) -> int:
        """This worker's seed."""
        return self.base_seed + self.worker


@dataclass(frozen=True)
class WorkerInfo:
    """The description of a worker process.

    It contains the worker's number, the number of workers, its seed and its copy of the dataset.
    """

    id: int
    num_workers: int
    seed: int
    #: This process's copy of the dataset.
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Returns a description of the calling worker process. An iterable dataset uses it to choose
    its share of the samples.

    Returns
    -------
    WorkerInfo or None
        The description; None in the trainer.
    """
    return _info


def enter(job: Job) -> None:
    """Makes this process the worker of `job`."""
    global _info
    _info = WorkerInfo(job.worker, job.workers, job.seed, job.dataset)
