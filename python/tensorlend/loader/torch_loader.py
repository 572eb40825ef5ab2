"""The loader for torch."""

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

#: Arguments that not every release of torch has.
_KNOWN = inspect.signature(DataLoader.__init__).parameters


class SharedLoader(DataLoader[Any]):
    """torch's DataLoader, but worker processes write collated batches straight into lent memory, and the trainer gets tensors that
    look at it: nothing is copied or sent but a few words.

    All arguments of DataLoader mean what they mean there, and give the same batches in the same order for the same seeds; those
    after `workers`, which is another word for `num_workers`, are keywords. With 0 workers it is a DataLoader. Besides:

    address, namespace, client: the broker; by default one of the loader's own, in a thread of this process.
    mode: "read" or "cow". torch does not know of read-only memory: in mode "read", writing to a batch in place ends the
        process (SIGSEGV). In mode "cow" it changes this process's copy, at the price of a mapping for each tensor.

    A tensor keeps its slot: batches that are kept are not overwritten. Errors of workers are raised by `next`, as the same type
    where that takes one message, with the worker's traceback. Raises RuntimeError if a worker dies, or takes longer than
    `timeout`; LimitError if the broker's memory is used up, for instance by batches that are kept.

    DataPipes are not supported: they raise ValueError.

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
        # Under the names of the arguments: Lightning makes loaders anew from attributes.
        self.address = address
        self.namespace = namespace
        self.client = client
        self.mode: Mode = mode
        self._workforce = Workforce(address, namespace, client, mode)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if self.num_workers == 0:
            return super().__iter__()
        pin = self.pin_memory and _can_pin()
        epoch = self._epoch()
        manner = Manner(
            context=self.multiprocessing_context or torch.multiprocessing.get_context(),
            ahead=max(self.prefetch_factor or 0, 1),
            persistent=self.persistent_workers,
            in_order=self._in_order,
            mode=self.mode,
            timeout=self.timeout,
        )
        batches = self._workforce.batches(self._job(), self.num_workers, manner, self._draw_seed, epoch)
        if not pin:
            return batches
        from tensorlend.loader.pinned import Pinned

        return Pinned(batches, manner.ahead * self.num_workers, torch.accelerator.current_device_index())

    def close(self) -> None:
        """Ends workers that persist, and the broker of its own. Tensors that were taken stay."""
        self._workforce.close()

    def __enter__(self) -> SharedLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _draw_seed(self) -> int:
        return int(torch.empty((), dtype=torch.int64).random_(generator=self.generator).item())

    def _job(self) -> Job:
        return Job(
            address=(),
            namespace=None,
            stream="",
            capacity=0,
            worker=0,
            workers=self.num_workers,
            base_seed=0,
            dataset=self.dataset,
            iterable=isinstance(self.dataset, IterableDataset),
            batch_size=self.batch_size,
            batched=self.batch_sampler is not None,
            drop_last=self.drop_last,
            collate=self.collate_fn,
            init=self.worker_init_fn,
            kit=TorchKit(),
        )

    def _epoch(self) -> Epoch:
        if isinstance(self.dataset, IterableDataset):
            return Iterated(self._in_order)
        indices = self.batch_sampler if self.batch_sampler is not None else self.sampler
        if self._in_order:
            known = _known(indices)
            if known is not None:
                return known
        return Drawn(iter(indices), self._in_order)


def _known(indices: Any) -> Known | None:
    """The order of torch's own samplers, which nothing can change once an epoch began."""
    size, drop_last, sampler = None, False, indices
    # Classes that derive from these may do anything.
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
