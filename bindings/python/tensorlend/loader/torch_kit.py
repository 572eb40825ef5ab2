"""The torch-specific parts of a loader. Leaves may be torch tensors or numpy arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset, default_collate

from tensorlend._dtypes import NUMBERS
from tensorlend._errors import DeviceError
from tensorlend._native import Draft, Lease
from tensorlend.loader import arena
from tensorlend.loader.job import Job
from tensorlend.loader.numpy_kit import NumpyKit

_DTYPES = frozenset(getattr(torch, name) for name in (*NUMBERS, "bfloat16"))


class TorchKit(NumpyKit):
    """The kit for loaders whose leaves are torch tensors or numpy arrays.

    Parameters
    ----------
    pin : int or None, default None
        The number of the CUDA device for which the trainer locks the pages of torch tensors; None locks none.
    """

    def __init__(self, pin: int | None = None) -> None:
        self._pin = pin
        self.plain = pin is None

    def enter(self, job: Job) -> None:
        super().enter(job)
        torch.set_num_threads(1)
        torch.manual_seed(job.seed)
        _tell_torch(job)
        _stack_into_slots()

    def kind(self, value: Any) -> str | None:
        return "t" if is_leaf(value) else super().kind(value)

    def spec(self, value: Any) -> tuple[Sequence[int], Any]:
        if isinstance(value, torch.Tensor):
            return value.shape, value.dtype
        return super().spec(value)

    def covers(self, value: Any, draft: Draft) -> bool:
        if not isinstance(value, torch.Tensor):
            return super().covers(value, draft)
        return covers(value, draft)

    def copy(self, value: Any, draft: Draft) -> None:
        if isinstance(value, torch.Tensor):
            draft.torch().copy_(value)
        else:
            super().copy(value, draft)

    def show(self, kind: str) -> Callable[[Lease], Any]:
        if kind != "t":
            return super().show(kind)
        return Lease.torch if self._pin is None else partial(_page_locked, self._pin)

    def gather(self, dataset: Any, collate: Callable[..., Any]) -> Callable[[Any], Any] | None:
        if type(dataset) is TensorDataset and collate is default_collate and all(map(is_leaf, dataset.tensors)):
            return _Gather(dataset.tensors)
        return super().gather(dataset, collate)


def _page_locked(device: int, lease: Lease) -> torch.Tensor:
    """Returns a tensor that views the lease, in locked pages. The lease ends after the tensor is
    gone and the current stream has done the work queued by then, such as a copy to the device.
    """
    try:
        lease.page_lock(device, stream=torch.cuda.current_stream(device))
    except DeviceError as error:
        warnings.warn(f"batches are copied to page-locked memory: {error}", RuntimeWarning, stacklevel=2)
    return lease.torch()


def covers(tensor: torch.Tensor, draft: Draft) -> bool:
    """Whether a tensor still views the whole of a draft. A tensor's shape and storage can be replaced in place."""
    same = tuple(tensor.shape) == draft.shape and str(tensor.dtype) == f"torch.{draft.dtype}"
    return same and tensor.is_contiguous() and tensor.data_ptr() == draft.torch().data_ptr()


def is_leaf(value: Any) -> bool:
    """Returns whether a tensor consists only of elements in host memory. Other tensors (sparse
    ones, those on a device, those with a gradient, subclasses) are pickled.
    """
    return (
        type(value) is torch.Tensor
        and value.layout is torch.strided
        and value.dtype in _DTYPES
        and value.device.type == "cpu"
        and not value.requires_grad
        and not value.is_nested
    )


def empty(shape: Sequence[int] | int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Returns an uninitialized tensor for a batch.

    In a worker, the tensor is in shared memory. If a `collate_fn` returns it, alone or within lists
    and dicts, the trainer receives the tensor without a copy. In other processes the result is that
    of `torch.empty`.

    Parameters
    ----------
    shape : int or sequence of int
        Sizes, in elements.
    dtype : torch.dtype or None, default None
        Element type; None is torch's default type.

    Returns
    -------
    torch.Tensor
        The tensor, with undefined elements.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    here = arena.current
    if here is None or dtype not in _DTYPES:
        return torch.empty(shape, dtype=dtype)
    draft = here.draft(shape, dtype)
    view: torch.Tensor = draft.torch()
    here.own(view, draft)
    return view


class _Gather:
    """Makes whole batches of a TensorDataset, equal to those of `default_collate`, in one step for each tensor."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def __call__(self, indices: Any) -> list[torch.Tensor]:
        # Copy the indices, because leased arrays are read-only, and torch warns about read-only
        # arrays.
        chosen = torch.as_tensor(np.array(indices, np.int64))
        length = len(self._tensors[0])
        chosen = torch.where(chosen < 0, chosen + length, chosen)
        gathered = []
        for tensor in self._tensors:
            out = empty((len(chosen), *tensor.shape[1:]), tensor.dtype)
            gathered.append(torch.index_select(tensor, 0, chosen, out=out))
        return gathered


def _tell_torch(job: Job) -> None:
    """Sets the result of `torch.utils.data.get_worker_info` through torch's private modules, because torch has no
    public function for this.
    """
    from torch.utils.data._utils import worker

    worker._worker_info = worker.WorkerInfo(
        id=job.worker, num_workers=job.workers, seed=job.seed, dataset=job.dataset
    )


def _stack_into_slots() -> None:
    """Makes torch's `default_collate` stack tensors directly into drafts in this process, even if a
    `collate_fn` calls it. Changes the table of collate functions that torch documents.
    """
    from torch.utils.data._utils.collate import default_collate_fn_map

    usual = default_collate_fn_map[torch.Tensor]

    def stack(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
        first = batch[0]
        if not is_leaf(first):
            stacked: torch.Tensor = usual(batch, collate_fn_map=collate_fn_map)
            return stacked
        # Check the shapes here, because torch would resize the output tensor.
        if any(tensor.shape != first.shape for tensor in batch):
            return torch.stack(batch, 0)
        return torch.stack(batch, 0, out=empty((len(batch), *first.shape), first.dtype))

    default_collate_fn_map[torch.Tensor] = stack
