"""Loads files of weights as torch tensors in lent memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch

from tensorlend import _weights
from tensorlend._errors import DTypeError
from tensorlend._safetensors import DTYPES

if TYPE_CHECKING:
    from tensorlend._native import Client


def known_dtypes() -> frozenset[str]:
    """Returns the types of elements that this version of torch has."""
    return frozenset(name for name, dtype in DTYPES.items() if hasattr(torch, dtype))


def load_file(
    path: str | os.PathLike[str], *, client: Client | None = None, timeout: float | None = None
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file. One process of the machine reads the file, and all
    other processes map it.

    The first call on the machine reads the file into lent memory and publishes it. Later calls,
    also of other processes, lease that memory. A file that was replaced or written to is read
    again. Tensors of the old file stay as they are. Writing to a tensor copies the written pages,
    for this process alone.

    Parameters
    ----------
    path : str or path-like
        The file.
    client : Client or None, default None
        The client; None for the default client: of the running daemon, or of one in this process.
    timeout : float or None, default None
        Maximum wait in seconds for another process that reads the file. None waits for as long as reading a file of this
        size can take, and then reads it in this process.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors on the CPU, in the order of the file. Each tensor has a storage of its own. All
        of them view one lease, which ends with the last tensor.

    Raises
    ------
    ArgumentError
        The file is no valid safetensors file, or somebody writes to it.
    DTypeError
        A tensor has elements that this version of torch lacks.
    LimitError
        The daemon has no memory left for the file.
    TimeoutError
        Another process, which has locked the file, has not read it in time.
    """
    return _tensors(_weights.load(path, client, "cow", timeout))


def load_weights(name: str, *, client: Client | None = None, timeout: float | None = None) -> dict[str, torch.Tensor]:
    """Returns the tensors of weights that have a name, without a file.

    Weights that are published under the name later do not change these tensors.

    Parameters
    ----------
    name : str
        The name by which `tensorlend.weights.publish` has published them.
    client : Client or None, default None
        As in `load_file`.
    timeout : float or None, default None
        Maximum wait in seconds for the first weights of this name. None does not wait.

    Returns
    -------
    dict of str to torch.Tensor
        The tensors on the CPU, as `load_file` returns them.

    Raises
    ------
    NotFoundError
        The name has no weights.
    ArgumentError
        The value of this name is no file of weights.
    DTypeError
        A tensor has elements that this version of torch lacks.
    TimeoutError
        Nobody has published weights in time.
    """
    return _tensors(_weights.load_named(name, client, "cow", timeout))


def _tensors(weights: _weights.Weights) -> dict[str, torch.Tensor]:
    tensors = {}
    for entry in weights.tensors:
        dtype = getattr(torch, DTYPES[entry.dtype], None)
        if dtype is None:
            raise DTypeError(f"tensor {entry.name!r} has elements of type {entry.dtype}, which torch {torch.__version__} lacks: upgrade it")
        if entry.begin == entry.end:
            tensors[entry.name] = torch.empty(entry.shape, dtype=dtype)
        else:
            # Give each tensor a storage of its own. Programs that save tensors treat tensors of
            # one storage as parts of one tensor.
            tensors[entry.name] = torch.from_numpy(weights.bytes[entry.begin : entry.end]).view(dtype).view(entry.shape)
    return tensors


def load_state_dict(
    model: torch.nn.Module,
    path: str | os.PathLike[str],
    *,
    strict: bool = True,
    assign: bool = True,
    client: Client | None = None,
    timeout: float | None = None,
) -> Any:
    """Loads a safetensors file into a model. The model's parameters then are the lent memory.

    Parameters
    ----------
    model : torch.nn.Module
        The model. Create it under `torch.device("meta")`, so that it has no memory of its own.
    path : str or path-like
        The file, as in `load_file`.
    strict : bool, default True
        Whether the file and the model must have the same names.
    assign : bool, default True
        Whether the model takes the lent tensors as its own. False copies them into the model's memory, so that nothing is shared.
    client : Client or None, default None
        As in `load_file`.
    timeout : float or None, default None
        As in `load_file`.

    Returns
    -------
    NamedTuple
        The missing and the unexpected names, as `torch.nn.Module.load_state_dict` returns them.

    Raises
    ------
    RuntimeError
        Names or shapes differ from the model's.
    """
    return model.load_state_dict(load_file(path, client=client, timeout=timeout), strict=strict, assign=assign)
