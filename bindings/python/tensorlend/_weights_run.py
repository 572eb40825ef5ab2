"""Replaces `load_file` of safetensors in programs under `python -m tensorlend.run --weights`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import stat
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tensorlend import _safetensors
from tensorlend._default import default_client
from tensorlend._errors import DTypeError, Error

#: Minimum bytes of a file that is lent. For smaller files, the requests take longer than reading.
SMALLEST = 512 * 1024

#: A function that `python -m tensorlend.run` sets. Its arguments are the bytes of each loaded file,
#: and why the file could not be lent; None if it was lent.
counter: Callable[[int, str | None], None] | None = None

_LOG = logging.getLogger("tensorlend")

LoadFile = Callable[..., dict[str, Any]]


def install(module: ModuleType) -> None:
    """Replaces `load_file` of `safetensors.numpy` or `safetensors.torch`."""
    lend: LoadFile
    if module.__name__ == "safetensors.numpy":
        from tensorlend import _weights_numpy

        lend, dtypes = _weights_numpy.load_file, _weights_numpy.PLAIN_DTYPES
    else:
        from tensorlend import _weights_torch

        lend, dtypes = _weights_torch.load_file, _weights_torch.known_dtypes()
    replaced = replacement(module.load_file, lend, dtypes)
    # Start the daemon now, if none runs, so that the children of this process use the same daemon.
    with contextlib.suppress(Error):
        default_client()
    module.load_file = replaced  # type: ignore[attr-defined]


def replacement(original: LoadFile, lend: LoadFile, dtypes: frozenset[str]) -> LoadFile:
    """Returns a function with the signature of `original`. It loads files with `lend`, and with
    `original` those that `lend` cannot load.

    Parameters
    ----------
    original : callable
        `load_file` of safetensors.
    lend : callable
        `load_file` of tensorlend. Its argument is the path.
    dtypes : frozenset of str
        The types of elements that `lend` loads as `original` does.

    Returns
    -------
    callable
        The function.
    """
    signature = inspect.signature(original)

    @functools.wraps(original)
    def load_file(*arguments: Any, **named: Any) -> dict[str, Any]:
        path, size = _plain_call(signature, arguments, named)
        if path is None:
            return original(*arguments, **named)
        try:
            _check_dtypes(path, dtypes)
            tensors = lend(path)
        except Exception as error:
            # Any error: the program never sees an error that it would not see without tensorlend.
            refusal = str(error) or type(error).__name__
        else:
            _count(size, None)
            return tensors
        # Outside of the block: an error of `original` has no context, and no frame keeps lent memory.
        tensors = original(*arguments, **named)
        _LOG.info("safetensors itself has loaded %s: %s", os.fspath(path), refusal)
        _count(size, refusal)
        return tensors

    return load_file


def _plain_call(
    signature: inspect.Signature, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[str | os.PathLike[str] | None, int]:
    """Returns the path and the size of the file that a call loads. The path is None if the call is
    for the original function: for another device, another backend, a small file, or wrong arguments.
    """
    try:
        (_, path), *others = signature.bind(*arguments, **named).arguments.items()
        if not isinstance(path, str | os.PathLike) or any(value != signature.parameters[name].default for name, value in others):
            return None, 0
        status = os.stat(path)
    except (TypeError, ValueError, OSError):
        return None, 0
    return path if stat.S_ISREG(status.st_mode) and status.st_size >= SMALLEST else None, status.st_size


def _check_dtypes(path: str | os.PathLike[str], dtypes: frozenset[str]) -> None:
    """Raises an error before the file is read into lent memory, if it would be read without use."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = file.read(_safetensors.header_bytes(file.read(_safetensors.LENGTH_BYTES), size))
    for entry in _safetensors.parse(header, size - _safetensors.LENGTH_BYTES - len(header)):
        if entry.dtype not in dtypes:
            raise DTypeError(f"tensor {entry.name!r} has elements of type {entry.dtype}")


def _count(nbytes: int, refusal: str | None) -> None:
    if counter is not None:
        counter(nbytes, refusal)
