"""Sends torch's tensors through torch.multiprocessing as leases."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch
import torch.multiprocessing
from torch.multiprocessing import reductions
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from tensorlend import _transit
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

_usual_collate = default_collate_fn_map[torch.Tensor]


def install(*, client: Client | None = None, smallest: int = SMALLEST, ttl: float = TTL, mode: Mode = "cow") -> None:
    """Sends CPU tensors through torch.multiprocessing and DataLoader as leases. Also sends arrays
    as `tensorlend.multiprocessing.install` does.

    The receiver's tensor is a private copy-on-write view of the sent tensor. Neither side sees
    later writes of the other side. Torch still sends tensors that share their memory: those of
    `share_memory_()`, parameters, and those that require a gradient. It also sends tensors of fewer
    than `smallest` bytes, sparse tensors, and tensors on devices.

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
        "cow" for private copies on write; "read" for read-only memory, which is faster.
    """
    global _settings
    _install_arrays(client=client, smallest=max(smallest, SMALLEST_ARRAY), ttl=ttl, mode=mode)
    _settings = _transit.settings(client, smallest, ttl, mode)
    ForkingPickler.register(torch.Tensor, _reduce)
    default_collate_fn_map[torch.Tensor] = _collate


def uninstall() -> None:
    """Undoes `install`. Tensors travel as torch sends them again, and arrays as pickles. Messages
    in flight can still be received.
    """
    global _settings
    _settings = None
    _uninstall_arrays()
    ForkingPickler.register(torch.Tensor, reductions.reduce_tensor)
    default_collate_fn_map[torch.Tensor] = _usual_collate


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _is_expanded(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor takes less memory than its elements."""
    return tensor.nbytes > tensor.untyped_storage().nbytes()


def _is_shared(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_shared())  # type: ignore[no-untyped-call]


def _reduce(tensor: torch.Tensor) -> Any:
    by = _settings
    if by is not None and _is_plain(tensor) and tensor.nbytes >= by.smallest and not _is_expanded(tensor) and not _is_shared(tensor):
        reduced = _transit.lend(tensor, by, "torch")
        if reduced is not None:
            return reduced
    return reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]


def _collate(batch: Any, *, collate_fn_map: Any = None) -> Any:
    """Stacks tensors in a worker, without allocating the batch in /dev/shm as torch's own function does."""
    if _settings is None or get_worker_info() is None or not all(map(_is_plain, batch)):
        return _usual_collate(batch, collate_fn_map=collate_fn_map)
    if sum(tensor.nbytes for tensor in batch) < _settings.smallest:
        return _usual_collate(batch, collate_fn_map=collate_fn_map)
    return torch.stack(batch, 0)
