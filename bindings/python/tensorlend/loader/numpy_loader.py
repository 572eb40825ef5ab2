"""The loader whose batches are numpy arrays."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import islice
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np

from tensorlend._native import Client
from tensorlend._types import Mode
from tensorlend.loader import arguments, fetch
from tensorlend.loader.epochs import Drawn, Epoch, Iterated, Known
from tensorlend.loader.job import Job
from tensorlend.loader.numpy_collate import default_collate, default_convert
from tensorlend.loader.numpy_kit import NumpyKit
from tensorlend.loader.workforce import Address, Manner, Workforce


class SharedLoader:
    """Iterates over a dataset's batches, as numpy arrays in shared memory. Worker processes write
    the batches.

    Arguments that torch's DataLoader has, too, have the same meaning.

    Parameters
    ----------
    dataset : object
        A dataset with `__getitem__` and `__len__`, or an iterable. Each worker iterates over the whole iterable, unless
        the iterable chooses its share by `get_worker_info()`.
    batch_size : int or None, default 1
        Samples of a batch; None takes samples one by one, uncollated.
    workers : int or None, default None
        Worker processes; with 0 this process loads.
    shuffle : bool or None, default None
        Whether the order is random.
    sampler : iterable or None, default None
        Indices of samples, in their order.
    batch_sampler : iterable or None, default None
        Lists of indices, each of which makes a batch.
    num_workers : int or None, default None
        Another name for `workers`.
    collate_fn : callable or None, default None
        Makes a batch of a list of samples.
    drop_last : bool, default False
        Whether an incomplete last batch is left out.
    timeout : float, default 0
        Maximum wait for a batch in seconds; 0 waits without limit.
    worker_init_fn : callable or None, default None
        Called in each worker with the worker's number.
    multiprocessing_context : str, context or None, default None
        The way to start workers: "fork", "spawn" or "forkserver".
    generator : numpy.random.Generator, int or None, default None
        A generator or a seed, for shuffling and for the workers' seeds. The order does not depend on `workers`.
    prefetch_factor : int or None, default None
        Batches that each worker makes ahead.
    persistent_workers : bool, default False
        Whether the workers stay for the next epoch.
    in_order : bool, default True
        Whether batches come in the order of their indices.
    address : str, path, sequence of these or None, default None
        The daemon's sockets. None starts a daemon of the loader's own.
    namespace : str or None, default None
        The namespace to join.
    client : Client or None, default None
        A client to use.
    mode : {"read", "cow"}, default "read"
        "read": a write to a batch raises ValueError. "cow": a write changes only this process's
        copy.

    Raises
    ------
    ValueError
        The arguments contradict one another.
    RuntimeError
        From `next`: a worker died, or took longer than `timeout`.
    LimitError
        From `next`: the daemon's memory is used up, for instance by batches that are kept.

    Notes
    -----
    Worker i modulo `workers` makes batch i, and batches come in order. An array keeps its memory,
    so batches that the program keeps are not overwritten. If a worker raises an exception, `next`
    raises an exception of the same type, or a RuntimeError if that type cannot be made from one
    message. The message contains the worker's traceback. Close the loader, or use it as a context
    manager.

    Examples
    --------
    >>> from tensorlend.numpy import ArrayDataset, SharedLoader
    >>> pictures, labels = np.zeros((1000, 28, 28), np.float32), np.arange(1000)
    >>> loader = SharedLoader(ArrayDataset(pictures, labels), 64, 2, shuffle=True, generator=0)
    >>> for pictures, labels in loader:
    ...     assert pictures.shape[1:] == (28, 28) and len(pictures) == len(labels)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        workers: int | None = None,
        *,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: np.random.Generator | int | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        address: Address | None = None,
        namespace: str | None = None,
        client: Client | None = None,
        mode: Mode = "read",
    ) -> None:
        count = arguments.worker_count(workers, num_workers)
        iterable = not hasattr(dataset, "__getitem__")
        if timeout < 0:
            raise ValueError("timeout option should be non-negative")
        if persistent_workers and count == 0:
            raise ValueError("persistent_workers option needs workers > 0")
        if iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError("a dataset that is iterated has its own order: leave out shuffle, sampler and batch_sampler")
        if sampler is not None and shuffle:
            raise ValueError("sampler option is mutually exclusive with shuffle")
        if batch_sampler is not None and (batch_size != 1 or shuffle or sampler is not None or drop_last):
            raise ValueError("batch_sampler option is mutually exclusive with batch_size, shuffle, sampler and drop_last")
        if batch_sampler is None and batch_size is None and drop_last:
            raise ValueError("batch_size=None takes samples one by one, and is mutually exclusive with drop_last")
        if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size <= 0):
            raise ValueError(f"batch_size should be a positive integer value, but got batch_size={batch_size!r}")
        self.dataset = dataset
        self.num_workers = count
        self.batch_size = None if batch_sampler is not None else batch_size
        self.shuffle = bool(shuffle)
        self.sampler = sampler
        self.batch_sampler = batch_sampler
        self.drop_last = drop_last
        self.persistent_workers = persistent_workers
        self.address = address
        self.namespace = namespace
        self.client = client
        self.mode: Mode = mode
        batched = self.batch_size is not None or batch_sampler is not None
        self._iterable = iterable
        self._generator = np.random.default_rng(generator)
        # The seeds have a separate generator, so that the order does not depend on how often
        # workers are started.
        self._seeds = np.random.default_rng(self._generator.integers(1 << 63))
        self._manner = Manner(
            context=arguments.context(multiprocessing_context, count) or multiprocessing.get_context(),
            ahead=arguments.prefetch(prefetch_factor, count),
            persistent=persistent_workers,
            in_order=in_order,
            mode=mode,
            timeout=timeout,
        )
        self._job = Job(
            dataset=dataset,
            iterable=iterable,
            batch_size=self.batch_size,
            batched=batched,
            drop_last=drop_last,
            collate=collate_fn or (default_collate if batched else default_convert),
            init=worker_init_fn,
            kit=NumpyKit(),
        )
        self._workforce = Workforce(address, namespace, client, mode)

    def __iter__(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return self._here()
        return self._workforce.batches(self._job, self.num_workers, self._manner, self._draw_seed, self._epoch())

    def __len__(self) -> int:
        for sampler in (self.batch_sampler, None if self.batch_size is not None else self.sampler):
            if sampler is not None:
                return _length(sampler)
        length = _length(self.sampler if self.sampler is not None else self.dataset)
        if self.batch_size is None:
            return length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def close(self) -> None:
        """Ends persistent workers, and the loader's own daemon. Arrays that were taken stay valid."""
        self._workforce.close()

    def __enter__(self) -> SharedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw_seed(self) -> int:
        return int(self._seeds.integers(1 << 63))

    def _epoch(self) -> Epoch:
        if self._iterable:
            return Iterated()
        if self.sampler is None and self.batch_sampler is None and self._manner.in_order:
            return Known(self._permutation(), len(self.dataset), self.batch_size, self.drop_last)
        return Drawn(self._indices())

    def _permutation(self) -> np.ndarray[Any, np.dtype[np.int64]] | None:
        return self._generator.permutation(len(self.dataset)) if self.shuffle else None

    def _indices(self) -> Iterator[Any]:
        """Returns an iterator over the indices of each batch. Each element is a list of indices or,
        if samples are not batched, one index.
        """
        if self.batch_sampler is not None:
            return iter(self.batch_sampler)
        samples: Iterable[Any] | None = self.sampler
        if samples is None:
            permutation = self._permutation()
            samples = range(len(self.dataset)) if permutation is None else permutation.tolist()
        return iter(samples) if self.batch_size is None else self._groups(iter(samples), self.batch_size)

    def _groups(self, samples: Iterator[Any], size: int) -> Iterator[list[Any]]:
        while group := list(islice(samples, size)):
            if len(group) == size or not self.drop_last:
                yield group

    def _here(self) -> Iterator[Any]:
        if self._iterable:
            return fetch.by_iteration(self._job)
        return map(fetch.by_index(self._job), self._indices())


def _length(sized: Any) -> int:
    if not isinstance(sized, Sized):
        raise TypeError(f"{type(sized).__name__} has no length, so neither has the loader")
    return len(sized)
