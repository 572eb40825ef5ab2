"""The arguments of a worker process at its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensorlend.loader.kit import Kit


@dataclass(frozen=True)
class Job:
    """One worker's job, for as many epochs as it lives."""

    #: Sockets of the broker, in the order in which they are tried.
    address: tuple[str, ...]
    namespace: str | None
    #: Name of the stream that this worker opens.
    stream: str
    #: Batches that may wait in it.
    capacity: int
    worker: int
    workers: int
    #: Of all workers; a worker's own is this and its number.
    base_seed: int
    dataset: Any
    #: Whether the dataset is iterated, rather than indexed.
    iterable: bool
    #: None: samples come one by one, and are not collated into batches.
    batch_size: int | None
    #: Whether indices come in groups, each of which makes a batch.
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
    """Description of a worker process: its number, the number of workers, its seed and its copy of the dataset."""

    id: int
    num_workers: int
    seed: int
    #: This process's copy of the dataset.
    dataset: Any


_info: WorkerInfo | None = None


def get_worker_info() -> WorkerInfo | None:
    """Describes the worker process that calls it. An iterable dataset chooses its share by it.

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
