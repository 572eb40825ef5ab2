"""Lends the batches that workers of torch's DataLoader send. Torch sends all other tensors.

torch shares the memory of each tensor that it sends: sender and receiver see each other's writes, and views of one storage
stay views of one storage. A leased tensor is a copy, so it may replace only a tensor that nothing but its message refers to. A
worker drops its batch after the send. If at the end of `fetch` only the batch refers to a tensor and its storage, then no
program can distinguish the receiver's copy from the tensor itself.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from multiprocessing import util
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing
from torch.multiprocessing import reductions
from torch.utils.data import get_worker_info
from torch.utils.data._utils import fetch
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map
from torch.utils.weak import WeakTensorKeyDictionary

from tensorlend import _transit
from tensorlend.loader.torch_kit import covers, is_leaf
from tensorlend.multiprocessing import SMALLEST as SMALLEST_ARRAY
from tensorlend.multiprocessing import TTL
from tensorlend.multiprocessing import install as _install_arrays
from tensorlend.multiprocessing import uninstall as _uninstall_arrays

if TYPE_CHECKING:
    from tensorlend._native import Client
    from tensorlend._types import Mode

#: Default minimum bytes of a tensor that is lent. torch sends each smaller tensor in a file in
#: /dev/shm.
SMALLEST = 128 * 1024

_settings: _transit.Settings | None = None

#: By tensor: the draft that the tensor views, and the content of the message that lends the tensor. They are no attributes of the
#: tensors, because copies and pickles of a tensor contain its attributes.
_drafts: Any = WeakTensorKeyDictionary()
_messages: Any = WeakTensorKeyDictionary()
#: Drafts of tensors that the program keeps. torch moves the memory of a tensor that it sends, and an array of numpy that views the
#: tensor would then view free memory. After the first one, this process stacks batches as torch does.
_kept: list[Any] = []

_FETCHERS: tuple[Any, ...] = (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher)
_usual_fetches = [fetcher.fetch for fetcher in _FETCHERS]

#: The lent tensors of this worker's batches, and whether the worker withdraws them at its end. A trainer that has left its loop
#: early does not receive the last batches.
_waiting = _transit.Waiting()
_withdraws = False


def install(*, client: Client | None = None, smallest: int = SMALLEST, ttl: float = TTL, mode: Mode = "cow") -> None:
    """Sends the batches of DataLoader's workers as leases. Also sends arrays as
    `tensorlend.multiprocessing.install` does.

    A tensor of a batch is lent if only the batch refers to the tensor and to its memory. Torch sends other tensors, such as
    samples that a data set caches and views, and all tensors that a program sends by torch.multiprocessing. Torch also sends
    tensors of fewer than `smallest` bytes, sparse tensors, and tensors on devices.

    Parameters
    ----------
    client : Client or None, default None
        The client that sends. None is the default client, of the running daemon or of a daemon in
        this process.
    smallest : int
        Smaller tensors, in bytes, are sent as torch sends them.
    ttl : float
        Seconds within which a message must be received, as in `tensorlend.multiprocessing.install`.
    mode : {"cow", "read"}, default "cow"
        "cow" for tensors of the receiver's own, "read" for read-only memory, which is faster, as in
        `tensorlend.multiprocessing.install`.
    """
    global _settings
    _install_arrays(client=client, smallest=max(smallest, SMALLEST_ARRAY), ttl=ttl, mode=mode)
    _settings = _transit.settings(client, smallest, ttl, mode)
    ForkingPickler.register(torch.Tensor, _reduce)
    # Leave a function of the program's own in its place.
    if default_collate_fn_map[torch.Tensor] is collate_tensor_fn:
        default_collate_fn_map[torch.Tensor] = _collate
    for fetcher, usual in zip(_FETCHERS, _usual_fetches, strict=True):
        fetcher.fetch = _marking(usual)


def uninstall() -> None:
    """Undoes `install`. Batches travel as torch sends them again, and arrays as pickles. Messages
    in flight can still be received.
    """
    global _settings
    _settings = None
    _uninstall_arrays()
    ForkingPickler.register(torch.Tensor, reductions.reduce_tensor)
    if default_collate_fn_map[torch.Tensor] is _collate:
        default_collate_fn_map[torch.Tensor] = collate_tensor_fn
    for fetcher, usual in zip(_FETCHERS, _usual_fetches, strict=True):
        fetcher.fetch = usual


def _reduce(tensor: torch.Tensor) -> Any:
    message = _messages.pop(tensor, None)
    return message if message is not None else reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stacks tensors in a worker, in lent memory. torch's own function stacks them in a file in /dev/shm."""
    by, first = _settings, batch[0]
    if by is None or _kept or get_worker_info() is None or not is_leaf(first) or first.nbytes * len(batch) < by.smallest:
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    if not all(is_leaf(tensor) and tensor.shape == first.shape and tensor.dtype == first.dtype for tensor in batch):
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    try:
        draft = by.client.create((len(batch), *first.shape), first.dtype)
        target = draft.torch()
    except Exception as error:
        # There is no memory or no daemon, or this version of torch cannot view memory of this dtype.
        _transit.count(first.nbytes * len(batch), error)
        return collate_tensor_fn(batch, collate_fn_map=collate_fn_map)
    stacked = torch.stack(batch, 0, out=target)
    _drafts[stacked] = draft
    return stacked


def _marking(usual: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a fetcher's method that also lends the tensors of the batch that only the batch refers to."""

    @wraps(usual)
    def fetch(self: Any, index: Any) -> Any:
        by = _settings
        if by is None or get_worker_info() is None:
            return usual(self, index)
        batch = [usual(self, index)]
        for tensor in _only_within(batch):
            if is_leaf(tensor) and tensor.nbytes >= by.smallest and _is_whole(tensor):
                message = _transit.lend(_drafts.pop(tensor, tensor), by, "torch", _waiting)
                if message is not None:
                    _messages[tensor] = message
        _kept.extend(_drafts.values())
        _drafts.clear()
        global _withdraws
        if not _withdraws:
            _withdraws = True
            util.Finalize(None, _waiting.withdraw, exitpriority=0)
        return batch.pop()

    return fetch


def _is_whole(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is all that uses its memory."""
    if _users(tensor) != _ONE_USER:
        return False
    draft = _drafts.get(tensor)
    if draft is not None:
        return covers(tensor, draft)
    # A storage that torch has not allocated is not resizable. Its memory may belong to an array of numpy.
    storage = tensor.untyped_storage()
    return storage.resizable() and storage.nbytes() == tensor.nbytes and not (tensor.is_conj() or tensor.is_neg())


def _users(tensor: torch.Tensor) -> tuple[int, int]:
    """Returns the numbers of references to a tensor's storage, in torch and in Python."""
    storage = tensor.untyped_storage()
    return torch._C._storage_Use_Count(storage._cdata), sys.getrefcount(storage)


def _only_within(container: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors within lists, tuples and dicts, if no object outside of `container` refers to them."""
    for value, references in _referents(container):
        if references == _ONE_REFERENCE:
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple, dict)):
                yield from _only_within(value)


def _referents(container: Any) -> list[tuple[Any, int]]:
    """Returns the values in a container, and the number of references to each."""
    values = gc.get_referents(container)
    references = [sys.getrefcount(value) for value in values]
    return list(zip(values, references, strict=True))


#: The numbers of references to an object that only one container holds, and to the storage of one tensor. They depend on the
#: interpreter and on torch.
((_, _ONE_REFERENCE),) = _referents([object()])
_ONE_USER = _users(torch.empty(1, device="cpu"))
