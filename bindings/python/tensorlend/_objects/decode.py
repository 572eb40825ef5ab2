"""Reads objects from lent memory.

The bytes are untrusted, and their publisher may still write to them. So this module reads each
number once and checks it. It copies structures before it parses them.
"""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from tensorlend._errors import DamagedError, DTypeError, ForkedError, UntrustedPickleError
from tensorlend._native import Lease, _Rows
from tensorlend._objects import layout
from tensorlend._objects.layout import Ext, Kind

#: Maximum number of keys of a dict with the same hash. Only an attacker makes a dict with more of
#: them, to cause quadratic time.
_EQUAL_MAX = 64

#: The extension code of msgpack's own timestamp.
_TIMESTAMP = -1

#: Maximum number of bytes of a pickle in which the decoder searches for names.
_SEARCHED = 1 << 16


def _spread(keys: list[Any]) -> list[Any]:
    """Returns the keys of a set or a dict. Rejects more than `_EQUAL_MAX` keys of the same hash.
    With such keys, a publisher could make the construction take quadratic time.
    """
    if len(keys) > _EQUAL_MAX:
        hashes = sorted(map(hash, keys))
        if any(first == last for first, last in zip(hashes, hashes[_EQUAL_MAX:], strict=False)):
            raise ValueError(f"more than {_EQUAL_MAX} keys have the same hash")
    return keys


class _RaisedError(BaseException):
    """Wraps an error of an unpickled object, so that msgpack and the checks of this module pass it through."""


class Decoder:
    """An object in lent memory. Arrays that it returns view the memory and keep it alive."""

    def __init__(self, lease: Lease, *, trust_pickle: bool, own: bool) -> None:
        self._lease = lease
        self.nbytes = lease.nbytes
        self._name = lease.name
        self._trust = trust_pickle
        self._own = own
        memory = self._bytes_of(lease)
        try:
            self._read_header(lease, memory)
        except (struct.error, ValueError, OverflowError) as error:
            raise self._damaged(error) from error

    def _bytes_of(self, lease: Lease) -> memoryview:
        if str(lease.dtype) != "uint8" or lease.ndim != 1 or lease.nbytes < layout.HEADER.size:
            raise DTypeError(f"{self._name!r} is a tensor of {lease.dtype}, not an object: use get, or publish it with put_object")
        return memoryview(lease).cast("B")

    def _read_header(self, lease: Lease, memory: memoryview) -> None:
        magic, version, kind, count, table, index, data, end, _ = layout.HEADER.unpack_from(memory)
        if magic != layout.MAGIC:
            raise DTypeError(f"{self._name!r} is a tensor, not an object: use get, or publish it with put_object")
        if version != layout.VERSION:
            raise DamagedError(f"{self._name!r} is an object of format {version}, and this package reads format {layout.VERSION}")
        self.kind = Kind(kind)
        self.count: int = count
        rows = 2 * count if self.kind is Kind.DICT else count
        middle = index + 8 * count
        within = layout.HEADER.size <= table <= index <= data <= end <= len(memory)
        if not within or table + 8 * (rows + 1) > index or (self.kind is Kind.VALUE and count != 1):
            raise ValueError("its tables do not fit into it")
        self._rows = _Rows(lease, table, rows)
        self._hashes = self._positions = memory[:0].cast("Q")
        if self.kind is Kind.DICT:
            if middle + 8 * count > data:
                raise ValueError("its index does not fit into it")
            self._hashes, self._positions = memory[index:middle].cast("Q"), memory[middle : middle + 8 * count].cast("Q")
        self._data_at: int = data
        self._data = memory[data:end]

    def _damaged(self, error: BaseException | str) -> DamagedError:
        return DamagedError(f"the object {self._name!r} has an invalid record, which its publisher wrote wrongly: {error}")

    # Rows

    def is_leased(self) -> bool:
        """Returns whether this process may still read the object."""
        return self._lease.valid

    def row(self, number: int) -> Any:
        """Returns the value of a row. `number` must be the number of a row in the table."""
        try:
            return self._rows.row(number, self._extension)
        except (UntrustedPickleError, ImportError, ForkedError):
            raise
        except _RaisedError as raised:
            assert raised.__cause__ is not None
            raise raised.__cause__ from None
        except Exception as error:
            raise self._damaged(f"row {number}: {type(error).__name__}: {error}") from error

    def rows(self, indices: Sequence[int], positions: range) -> list[Any]:
        """Returns the values of several rows. `indices` are positions in the range `positions`,
        which contains row numbers.
        """
        indices = list(indices)
        try:
            return self._rows.rows(indices, (positions.start, positions.step, len(positions)), self._extension)
        except (Exception, _RaisedError):
            # Decode the rows one by one, so that the exception names the faulty row.
            return [self.row(positions[index]) for index in indices]

    def find(self, hashed: int, key: Any) -> int | None:
        """Returns the position of a key in a dict; None if the dict does not have the key."""
        import bisect

        at = bisect.bisect_left(self._hashes, hashed)
        for near in range(at, min(at + _EQUAL_MAX, self.count)):
            if self._hashes[near] != hashed:
                return None
            position = self._positions[near]
            if position >= self.count:
                raise self._damaged("its index names a key that it does not have")
            if self.row(position) == key:
                return position
        return None

    def value(self) -> Any:
        """Returns the whole object."""
        count = self.count
        if self.kind is Kind.VALUE:
            return self.row(0)
        if self.kind is Kind.DICT:
            try:
                keys = _spread([self.row(number) for number in range(count)])
            except (TypeError, ValueError) as error:
                raise self._damaged(error) from error
            return {key: self.row(count + number) for number, key in enumerate(keys)}
        items = [self.row(number) for number in range(count)]
        return items if self.kind is Kind.LIST else tuple(items)

    def _unpack(self, data: bytes, depth: int) -> Any:
        return self._rows.decode(data, depth, self._extension)

    def _list(self, data: bytes, depth: int) -> list[Any]:
        items = self._unpack(data, depth)
        if type(items) is not list:
            raise ValueError("a row has a value where a list must be")
        return items

    def _extension(self, depth: int, code: int, data: bytes) -> Any:
        if code == Ext.ARRAY:
            return self._array(data)
        if depth == layout.DEPTH_MAX and (0 <= code <= Ext.LONG_LIST or code == Ext.XARRAY):
            raise ValueError(f"nested deeper than {layout.DEPTH_MAX}")
        if code == Ext.TENSOR:
            return self._tensor(data)
        if code == Ext.LONG_LIST:
            return self._long_list(data, depth + 1)
        if code == Ext.SET:
            return set(_spread(self._list(data, depth + 1)))
        if code == Ext.FROZENSET:
            return frozenset(_spread(self._list(data, depth + 1)))
        if code == Ext.INTEGER:
            return int.from_bytes(data, "little", signed=True)
        if code == Ext.COMPLEX:
            return complex(*layout.COMPLEX.unpack(data))
        if code == Ext.SCALAR:
            return self._scalar(data)
        if code == Ext.ARROW:
            return self._frame(data)
        if code == Ext.XARRAY:
            from tensorlend._objects import labels

            return labels.made(self._list(data, depth + 1))
        if code == Ext.PICKLE:
            return self._unpickled(data)
        if code == _TIMESTAMP:
            from tensorlend._objects.library import msgpack

            return msgpack.Timestamp.from_bytes(data)
        raise ValueError(f"unknown extension {code}")

    def _long_list(self, data: bytes, depth: int) -> list[Any]:
        items: list[Any] = []
        at = 0
        while at < len(data):
            (nbytes,) = layout.PART.unpack_from(data, at)
            at += layout.PART.size
            items += self._list(data[at : at + nbytes], depth)
            at += nbytes
        return items

    # Data

    def _span(self, offset: int, nbytes: int) -> memoryview:
        if offset > len(self._data) or nbytes > len(self._data) - offset:
            raise ValueError(f"{nbytes} bytes at {offset} lie outside of it")
        return self._data[offset : offset + nbytes]

    @staticmethod
    def _described(data: bytes) -> tuple[int, bool, bytes, tuple[int, ...]]:
        """Returns offset, order of axes, name of the dtype, and shape of an array or a tensor."""
        offset, fortran, ndim, length = layout.ARRAY.unpack_from(data)
        at = layout.ARRAY.size + length
        return offset, bool(fortran), data[layout.ARRAY.size : at], struct.unpack_from(f"<{ndim}Q", data, at)

    def _array(self, data: bytes) -> Any:
        offset, fortran, name, shape = self._described(data)
        # numpy raises ValueError if the array does not lie within the memory.
        return np.ndarray(shape, _dtype(name), self._data, offset if 0 not in shape else 0, order="F" if fortran else "C")

    def _scalar(self, data: bytes) -> Any:
        length = data[0]
        (value,) = np.frombuffer(data, _dtype(data[1 : 1 + length]), offset=1 + length)
        return value

    def _tensor(self, data: bytes) -> Any:
        try:
            import torch
        except ImportError as error:
            raise ImportError(f"the object {self._name!r} holds tensors of torch, which is not installed: {error}") from error
        offset, _, word, shape = self._described(data)
        name = word.decode("ascii")
        if name not in layout.TORCH_DTYPES:
            raise ValueError(f"unknown dtype {name!r}")
        dtype = getattr(torch, name)
        nbytes = dtype.itemsize
        for length in shape:
            nbytes *= length
        self._span(offset, nbytes)
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        start = self._data_at + offset
        return self._lease.torch()[start : start + nbytes].view(dtype).reshape(shape)

    def _frame(self, data: bytes) -> Any:
        kind, offset, nbytes = layout.ARROW.unpack(data)
        from tensorlend._objects import arrow

        return arrow.read(kind, self._span(offset, nbytes), own=self._own)

    def _unpickled(self, data: bytes) -> Any:
        (count,) = layout.PICKLE.unpack_from(data)
        start = layout.PICKLE.size + count * layout.BUFFER.size
        if start > len(data):
            raise ValueError("a pickle has more buffers than it names")
        if not self._trust:
            raise UntrustedPickleError(
                f"the object {self._name!r} has a pickle in it, {_names(data[start:])}: pass trust_pickle=True if you trust its publisher "
                "and every client that may publish this name, since unpickling runs what they chose"
            )
        spans = layout.BUFFER.iter_unpack(data[layout.PICKLE.size : start])
        buffers = [self._span(offset, nbytes) for offset, nbytes in spans]
        try:
            return pickle.loads(data[start:], buffers=buffers)
        except Exception as error:
            raise _RaisedError from error


@functools.lru_cache(1024)
def _dtype(name: bytes) -> np.dtype[Any]:
    word = name.decode("ascii")
    if word in layout.FOREIGN_DTYPES:
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError(f"it holds {word}, which numpy has by the package ml_dtypes: pip install ml_dtypes") from error
        foreign: np.dtype[Any] = np.dtype(getattr(ml_dtypes, word))
        return foreign
    if not layout.DTYPE.fullmatch(word):
        raise ValueError(f"unknown dtype {word!r}")
    return np.dtype(word)


def _names(text: bytes) -> str:
    """Returns the names that a pickle would import, without running the pickle."""
    found: list[str] = []
    strings: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(io.BytesIO(text[:_SEARCHED])):
            if opcode.name == "GLOBAL":
                found.append(str(argument).replace(" ", "."))
            elif opcode.name == "STACK_GLOBAL":
                found.append(".".join(strings[-2:]))
            elif isinstance(argument, str):
                strings = [*strings[-1:], argument]
    except Exception:
        found.append("others")
    names = list(dict.fromkeys(name[:80] for name in found))
    return f"which would import {', '.join(names[:8])}{' and more' if len(names) > 8 else ''}" if names else "which would import nothing"
