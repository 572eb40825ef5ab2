"""The state of a loader: a daemon, and workers that may persist."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tensorlend._native import Client
from tensorlend._types import Mode
from tensorlend.loader.batches import Batches
from tensorlend.loader.crew import Crew
from tensorlend.loader.epochs import Epoch
from tensorlend.loader.host import Host
from tensorlend.loader.job import Job
from tensorlend.loader.parcel import Unpacker

Address = str | os.PathLike[str] | Sequence[str]


@dataclass(frozen=True)
class Manner:
    """The options that apply to all workers of a loader."""

    #: The context of `multiprocessing` that starts the workers.
    context: Any
    #: Number of batches that each worker makes in advance.
    ahead: int
    #: Whether the workers stay for the next epoch.
    persistent: bool
    in_order: bool
    #: The mode of the leases on batches: "read" or "cow".
    mode: Mode
    #: Maximum wait for a batch in seconds; 0 for no limit.
    timeout: float


class Workforce:
    """The daemon that holds the batches, and the workers that make them."""

    def __init__(self, address: Address | None, namespace: str | None, client: Client | None, mode: Mode) -> None:
        if client is not None and (address is not None or namespace is not None):
            raise ValueError("client option is mutually exclusive with address and namespace")
        if mode not in ("read", "cow"):
            raise ValueError(f'mode option should be "read" or "cow", but got {mode!r}')
        self._address = address
        self._namespace = namespace
        self._client = client
        self._host: Host | None = None
        self._crew: Crew | None = None
        # The last epoch of persistent workers.
        self._epoch: Epoch | None = None
        self._unpacker: Unpacker | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Omit processes and sessions, which belong to this process. The receiver of a copy starts
        # its own.
        return {**self.__dict__, "_host": None, "_crew": None, "_epoch": None, "_unpacker": None}

    def batches(self, job: Job, workers: int, manner: Manner, draw_seed: Callable[[], int], epoch: Epoch) -> Batches:
        """Begins an epoch. `job` contains the common parts of all workers' jobs. `draw_seed`
        returns the base seed if workers are started.
        """
        crew = self._crew
        if crew is None or crew.closed or crew.host.pid != os.getpid() or len(crew) != workers:
            crew = self._start(job, workers, manner, draw_seed())
            self._epoch = None
        before, self._epoch = self._epoch, epoch if manner.persistent else None
        self._crew = crew if manner.persistent else None
        if self._unpacker is None:
            self._unpacker = Unpacker(job.kit)
        try:
            settle = before.settle() if before is not None else (0,) * workers
            epoch.begin(crew, self._unpacker, manner.ahead, manner.timeout, settle)
        except BaseException:
            crew.close()
            raise
        return Batches(crew, epoch, manner.persistent)

    def close(self) -> None:
        """Ends persistent workers, and the loader's own daemon unless an iterator still uses that daemon."""
        if self._crew is not None:
            self._crew.close()
        self._crew = self._host = self._epoch = None

    def _start(self, job: Job, workers: int, manner: Manner, base_seed: int) -> Crew:
        host = self._host
        if host is None or host.pid != os.getpid():
            host = self._host = Host(self._address, self._namespace) if self._client is None else Host.of(self._client)
        names = Crew.stream_names(workers)
        common = replace(
            job,
            address=host.address,
            namespace=host.namespace,
            base_seed=base_seed,
            workers=workers,
            # The capacity is one less than `ahead`, because a worker that waits for room holds one
            # more batch.
            capacity=max(manner.ahead - 1, 1),
        )
        jobs = [replace(common, worker=worker, stream=name) for worker, name in enumerate(names)]
        return Crew(host, jobs, manner.context, manner.mode, not manner.in_order)
