"""Buffers of Arrow as parts of a shared object. Arrow data over such buffers are pickled as references to them."""

from __future__ import annotations

import copyreg
import functools
import io
import pickle
import sys
import weakref
from typing import Any

import numpy as np

from tensorlend._objects import library
from tensorlend._objects.source import Key, Memory, published

pa = library.arrow()

#: The parts that buffers of this process view. A buffer keeps its part, so that an address in a part is one of its bytes.
_memories: weakref.WeakSet[Memory] = weakref.WeakSet()


def described(value: Any) -> np.ndarray[Any, Any] | None:
    """Returns the bytes of a buffer on the CPU; None for other values."""
    return np.frombuffer(value, np.uint8) if isinstance(value, pa.Buffer) and value.is_cpu else None


def buffer(memory: Memory, offset: int = 0, nbytes: int | None = None) -> Any:
    """Returns a buffer that views bytes of a part."""
    _register()
    _memories.add(memory)
    view: Any = np.asarray(memory)
    return pa.py_buffer(view[offset : None if nbytes is None else offset + nbytes])


@functools.cache
def _register() -> None:
    """Makes picklers use `_reduced` for all types that have buffers."""
    kinds: list[Any] = [pa.ChunkedArray, pa.RecordBatch, pa.Array]
    for kind in kinds:
        copyreg.pickle(kind, _reduced)
        kinds.extend(kind.__subclasses__())
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        for kind in (pandas.arrays.ArrowExtensionArray, pandas.arrays.ArrowStringArray):
            copyreg.pickle(kind, _reduced_column)


def _part_of(value: Any) -> Memory | None:
    return next((part for part in _memories if part.start <= value.address < part.start + part.nbytes), None)


def _is_shared(value: Any) -> bool:
    arrays = value.chunks if isinstance(value, pa.ChunkedArray) else value.columns if isinstance(value, pa.RecordBatch) else [value]
    return any(each is not None and _part_of(each) for array in arrays for each in array.buffers())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, 5)
        # Without `_reduced`.
        self.dispatch_table = {}

    def persistent_id(self, obj: Any) -> Any:
        """Returns the position of a buffer in a part; None for other values."""
        part = _part_of(obj) if isinstance(obj, pa.Buffer) else None
        if part is None or part.published.key[-1] != "read":
            return None
        return part.published.sending(), part.member, obj.address - part.start, obj.size


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: tuple[Key, str, int, int]) -> Any:
        """Returns a buffer at a position."""
        key, member, offset, nbytes = pid
        return buffer(Memory(published(key), member), offset, nbytes)


def _reduced(value: Any) -> Any:
    if not _is_shared(value):
        return value.__reduce__()
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return _loaded, (file.getvalue(),)


def _reduced_column(column: Any) -> Any:
    """Reduces a column of pandas. Its own reduction copies the buffers."""
    if not _is_shared(column._pa_array):
        return column.__reduce_ex__(4)
    return copyreg.__newobj__, (type(column),), {**column.__dict__, "_pa_array": column._pa_array.chunks, "_cache": {}}  # type: ignore[attr-defined]


def _loaded(text: bytes) -> Any:
    return _Unpickler(io.BytesIO(text)).load()
