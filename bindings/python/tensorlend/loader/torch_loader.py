"""The loader whose batches are torch tensors."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.context import BaseContext
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, SequentialSampler

from tensorlend._native import Client
from tensorlend._types import Mode
from tensorlend.loader import arguments
from tensorlend.loader.epochs import Drawn, Epoch, Iterated, Known
from tensorlend.loader.job import Job
from tensorlend.loader.torch_kit import TorchKit
from tensorlend.loader.workforce import Address, Manner, Workforce

#: The arguments of DataLoader in the installed torch. Older releases have no `in_order`.
_KNOWN = inspect.signature(DataLoader.__init__).parameters


class SharedLoader(DataLoader[Any]):
    """Iterates over a dataset's batches as torch's DataLoader does, without a copy from the workers to the trainer.

    Worker processes write batches into shared memory, and the trainer gets tensors that view them.
    All arguments of DataLoader have the same meaning, and give the same batches in the same order
    for the same seeds. With 0 workers the loader works as a DataLoader.

    Parameters
    ----------
    dataset : object
        A Dataset or an IterableDataset. DataPipes are not supported.
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
    pin_memory : bool, default False
        Whether tensors are in page-locked memory. For a CUDA device the pages of the batches
        themselves are locked. Otherwise the tensors are copies.
    drop_last : bool, default False
        Whether an incomplete last batch is left out.
    timeout : float, default 0
        Maximum wait for a batch in seconds; 0 waits without limit.
    worker_init_fn : callable or None, default None
        Called in each worker with the worker's number.
    multiprocessing_context : str, context or None, default None
        The way to start workers: "fork", "spawn" or "forkserver".
    generator : torch.Generator or None, default None
        For shuffling and for the workers' seeds.
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
        torch does not support read-only memory. "read": a write to a batch in place ends the
        process (SIGSEGV). "cow": a write changes this process's copy, at the price of a mapping for
        each tensor.

    Raises
    ------
    ValueError
        The arguments contradict one another, or the dataset is a DataPipe.
    RuntimeError
        From `next`: a worker died, or took longer than `timeout`.
    LimitError
        From `next`: the daemon's memory is used up, for instance by batches that are kept.

    Notes
    -----
    A tensor keeps its memory, so batches that the program keeps are not overwritten. If a worker
    raises an exception, `next` raises an exception of the same type, or a RuntimeError if that type
    cannot be made from one message. The message contains the worker's traceback. Close the loader,
    or use it as a context manager.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.zeros(1000, 28, 28), torch.arange(1000))
    >>> for pictures, labels in SharedLoader(dataset, 64, 2, shuffle=True):
    ...     assert pictures.shape[1:] == (28, 28) and len(pictures) == len(labels)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        workers: int | None = None,
        *,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[Any] | Iterable[Any] | None = None,
        num_workers: int | None = None,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: torch.Generator | None = None,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        in_order: bool = True,
        address: Address | None = None,
        namespace: str | None = None,
        client: Client | None = None,
        mode: Mode = "read",
    ) -> None:
        _refuse_pipes(dataset)
        options: dict[str, Any] = {"in_order": in_order} if "in_order" in _KNOWN else {}
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=arguments.worker_count(workers, num_workers),
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            **options,
        )
        self._in_order = in_order
        # The attributes have the names of the arguments, because Lightning makes new loaders from attributes.
        self.address = address
        self.namespace = namespace
        self.client = client
        self.mode: Mode = mode
        self._workforce = Workforce(address, namespace, client, mode)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.num_workers == 0:
            return super().__iter__()
        pin = self.pin_memory and _can_pin()
        in_place = pin and self.mode == "read" and torch.cuda.is_available()
        epoch = self._epoch()
        manner = Manner(
            context=self.multiprocessing_context or torch.multiprocessing.get_context(),
            ahead=max(self.prefetch_factor or 0, 1),
            persistent=self.persistent_workers,
            in_order=self._in_order,
            mode=self.mode,
            timeout=self.timeout,
        )
        kit = TorchKit(torch.cuda.current_device() if in_place else None)
        batches = self._workforce.batches(self._job(kit), self.num_workers, manner, self._draw_seed, epoch)
        if not pin:
            return batches
        from tensorlend.loader.pinned import Pinned

        return Pinned(batches)

    def close(self) -> None:
        """Ends persistent workers, and the loader's own daemon. Tensors that were taken stay valid."""
        self._workforce.close()

    def __enter__(self) -> SharedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _job(self, kit: TorchKit) -> Job:
        return Job(
            dataset=self.dataset,
            iterable=isinstance(self.dataset, IterableDataset),
            batch_size=self.batch_size,
            batched=self.batch_sampler is not None,
            drop_last=self.drop_last,
            collate=self.collate_fn,
            init=self.worker_init_fn,
            kit=kit,
        )

    def _epoch(self) -> Epoch:
        if isinstance(self.dataset, IterableDataset):
            return Iterated()
        indices = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if self._in_order:
            known = _known(indices)
            if known is not None:
                return known
        return Drawn(iter(indices))


def _known(indices: Any) -> Known | None:
    """Returns the epoch of torch's own samplers; None for others. Nothing can change the indices of
    torch's samplers after the epoch has begun.
    """
    size, drop_last, sampler = None, False, indices
    # Compare the exact types, because subclasses of these samplers may do anything.
    if type(indices) is BatchSampler:
        size, drop_last, sampler = indices.batch_size, indices.drop_last, indices.sampler
    if type(sampler) is SequentialSampler:
        return Known(None, len(sampler), size, drop_last)
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples <= len(sampler.data_source):
        return Known(iter(sampler), len(sampler), size, drop_last)
    return None


def _refuse_pipes(dataset: Any) -> None:
    pipes = tuple(getattr(torch.utils.data, name) for name in ("IterDataPipe", "MapDataPipe") if hasattr(torch.utils.data, name))
    if isinstance(dataset, pipes):
        raise ValueError("DataPipes are not supported: give a Dataset or an IterableDataset")


def _can_pin() -> bool:
    if torch.accelerator.is_available():
        return True
    warnings.warn("pin_memory option is set, but there is no accelerator: memory is not pinned", stacklevel=3)
    return False
