"""Writes objects into lent memory."""

from __future__ import annotations

import copyreg
import functools
import hashlib
import io
import pickle
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensorlend._errors import ArgumentError
from tensorlend._objects import layout
from tensorlend._objects.layout import Ext, Kind, aligned
from tensorlend._objects.library import msgpack

#: Minimum length in bytes of a pickled object's buffer that is written outside of the pickle.
_BUFFER_MIN = 1024

#: Minimum length in bytes of an array that is written once, although several rows refer to it.
_KNOWN_BYTES = 1 << 10

#: Length in bytes of the pieces in which rows are collected. Each piece is freed after it is
#: written.
_PIECE = 1 << 20

_COLLECTIONS: dict[type, Ext] = {tuple: Ext.TUPLE, set: Ext.SET, frozenset: Ext.FROZENSET}


@dataclass(slots=True)
class _Part:
    """A piece of the data: its offset, and the function that writes its bytes."""

    offset: int
    nbytes: int
    write: Callable[[memoryview], None]


class _LongList:
    """A list that is too long for one list in msgpack."""

    __slots__ = ("items",)

    def __init__(self, items: list[Any]) -> None:
        self.items = items


class ValuePickler(pickle.Pickler):
    """Pickles shared objects by value, not by reference, because the pickle may outlive what they refer to."""

    def __init__(self, file: io.BytesIO, table: dict[type, Any], buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> None:
        super().__init__(file, 5, buffer_callback=buffer_callback)
        self.dispatch_table = table

    def reducer_override(self, obj: Any) -> Any:
        """Returns the reduction of a shared object's value."""
        plain = getattr(type(obj), "_plain", None)
        if plain is None:
            return NotImplemented
        value = plain(obj)
        return (itself, (value,)) if type(value) in (list, tuple, dict) else value.__reduce_ex__(5)


def by_value() -> dict[type, Any]:
    """Returns the reductions of `copyreg` without those that write references."""
    ours = "tensorlend._objects.buffers"
    return {kind: reduce for kind, reduce in copyreg.dispatch_table.items() if getattr(reduce, "__module__", "") != ours}


def itself(obj: Any) -> Any:
    """Returns its argument."""
    return obj


class Encoder:
    """An object before it is written: its rows, and the arrays to which the rows refer."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        #: Whether the object contains a pickle.
        self.has_pickle = False
        self._pieces: list[bytearray] = [bytearray()]
        self._rows = layout.HEADER.size
        self._offsets = array("Q", [self._rows])
        self._hashes = array("Q")
        self._parts: list[_Part] = []
        self._data = 0
        self._packers: list[Any] = []
        #: The arrays that were added, and their extensions, by identity.
        self._known: dict[int, tuple[Any, Any]] = {}

    @classmethod
    def of(cls, obj: Any) -> Encoder | None:
        """Returns the encoder of a list, a tuple, or a dict whose keys can be looked up; None for other objects."""
        if type(obj) in (list, tuple):
            return cls.of_items(obj, Kind.TUPLE if type(obj) is tuple else Kind.LIST)
        if type(obj) is dict and all(map(is_key, obj)):
            return cls.of_mapping(obj)
        return None

    @classmethod
    def of_value(cls, value: Any) -> Encoder:
        """Returns the encoder of one value."""
        encoder = cls(Kind.VALUE)
        encoder._row(value)
        return encoder

    @classmethod
    def of_items(cls, items: Iterable[Any], kind: Kind) -> Encoder:
        """Returns the encoder of a list or a tuple."""
        encoder = cls(kind)
        for item in items:
            encoder._row(item)
        return encoder

    @classmethod
    def of_mapping(cls, mapping: Mapping[Any, Any]) -> Encoder:
        """Returns the encoder of a dict."""
        encoder = cls(Kind.DICT)
        pairs = list(mapping.items())
        for key, _ in pairs:
            encoder._hashes.append(key_hash(key))
            encoder._row(key)
        for _, value in pairs:
            encoder._row(value)
        return encoder

    @property
    def count(self) -> int:
        """The number of items."""
        rows = len(self._offsets) - 1
        return rows // 2 if self.kind is Kind.DICT else rows

    @functools.cached_property
    def _by_value(self) -> dict[type, Any]:
        return by_value()

    # Rows

    def _row(self, value: Any) -> None:
        parts, data = len(self._parts), self._data
        try:
            packed = self._pack(value, 0)
        except ArgumentError:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            # msgpack cannot encode the value. It is nested too deeply, contains itself, or has
            # text that is not valid Unicode.
            self._drop(parts, data)
            packed = self._packer(0).pack(self._pickled(value, str(error)))
        if len(self._pieces[-1]) + len(packed) > _PIECE and self._pieces[-1]:
            self._pieces.append(bytearray())
        self._pieces[-1] += packed
        self._rows += len(packed)
        self._offsets.append(self._rows)

    def _packer(self, depth: int) -> Any:
        if depth > layout.DEPTH_MAX:
            raise RecursionError(f"tuples, sets or long lists nested deeper than {layout.DEPTH_MAX}")
        while len(self._packers) <= depth:
            level = len(self._packers)
            self._packers.append(msgpack.Packer(default=lambda value, level=level: self._foreign(value, level), strict_types=True))
        return self._packers[depth]

    def _packed(self, value: Any, depth: int) -> bytes:
        # Pack a list with the value, and omit the list's head. So the writer accepts one level of
        # nesting less than the reader.
        packed: bytes = self._packer(depth).pack([value])
        return packed[1:]

    def _pack(self, value: Any, depth: int) -> bytes:
        parts, data = len(self._parts), self._data
        packed = self._packed(value, depth)
        if len(packed) > layout.LIST_MAX and _has_long_list(value):
            # Drop the arrays that the first attempt added.
            self._drop(parts, data)
            packed = self._packed(_cut(value), depth)
        return packed

    def _foreign(self, value: Any, depth: int) -> Any:
        """Returns the extension for a value for which msgpack has no type."""
        kind = type(value)
        if kind in _COLLECTIONS:
            return _ext(_COLLECTIONS[kind], self._pack(list(value), depth + 1))
        if kind is _LongList:
            return _ext(Ext.LONG_LIST, b"".join(self._chunks(value.items, depth + 1)))
        if kind is int:
            return _ext(Ext.INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        if kind is complex:
            return _ext(Ext.COMPLEX, layout.COMPLEX.pack(value.real, value.imag))
        if hasattr(kind, "_plain"):
            # A shared object: its own memory may end before this one.
            plain = value._plain()
            return plain if type(plain) in (list, dict) else self._foreign(plain, depth)
        if kind is np.ndarray:
            return self._array(value)
        if isinstance(value, np.generic):
            return self._scalar(value)
        return self._tensor(value) or self._frame(value) or self._labelled(value, depth) or self._pickled(value)

    def _chunks(self, items: list[Any], depth: int) -> Iterable[bytes]:
        for at in range(0, len(items), layout.LIST_MAX):
            packed = self._pack(items[at : at + layout.LIST_MAX], depth)
            yield layout.PART.pack(len(packed)) + packed

    # Data

    def _drop(self, parts: int, data: int) -> None:
        """Forgets the parts that were added since there were `parts` parts with `data` bytes."""
        del self._parts[parts:]
        self._data = data
        self._known.clear()

    def _add(self, nbytes: int, write: Callable[[memoryview], None]) -> int:
        offset = self._data
        if nbytes:
            self._parts.append(_Part(offset, nbytes, write))
            self._data = aligned(offset + nbytes)
        return offset

    def _array(self, value: np.ndarray[Any, Any]) -> Any:
        name = _dtype_name(value.dtype)
        if name is None:
            return self._pickled(value)
        if id(value) in self._known:
            return self._known[id(value)][1]
        fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        offset = self._add(value.nbytes, copier(value.T if fortran else value))
        head = layout.ARRAY.pack(offset, fortran, value.ndim, len(name)) + name
        extension = _ext(Ext.ARRAY, head + array("Q", value.shape).tobytes())
        if value.nbytes >= _KNOWN_BYTES:
            self._known[id(value)] = value, extension
        return extension

    def _scalar(self, value: np.generic) -> Any:
        name = _dtype_name(value.dtype)
        if name is None or type(value) is not value.dtype.type:
            return self._pickled(value)
        return _ext(Ext.SCALAR, bytes([len(name)]) + name + value.tobytes())

    def _tensor(self, value: Any) -> Any:
        """Returns the extension for a plain tensor of torch; None for other values."""
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return None
        name = str(value.dtype).removeprefix("torch.")
        plain = value.layout is torch.strided and value.device.type == "cpu" and not value.requires_grad
        if not plain or name not in layout.TORCH_DTYPES:
            return None
        flat = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy()
        offset = self._add(flat.nbytes, copier(flat))
        word = name.encode()
        return _ext(
            Ext.TENSOR, layout.ARRAY.pack(offset, 0, value.dim(), len(word)) + word + array("Q", value.shape).tobytes()
        )

    def _frame(self, value: Any) -> Any:
        """Returns the extension for Arrow data and frames; None for other values."""
        if not any(module in sys.modules for module in ("pyarrow", "pandas", "polars")):
            return None
        from tensorlend._objects import arrow

        written = arrow.written(value)
        if written is None:
            return None
        kind, nbytes, write = written
        return _ext(Ext.ARROW, layout.ARROW.pack(kind, self._add(nbytes, write), nbytes))

    def _labelled(self, value: Any, depth: int) -> Any:
        """Returns the extension for an array or a dataset of xarray; None for other values."""
        if "xarray" not in sys.modules:
            return None
        from tensorlend._objects import labels

        description = labels.described(value)
        return None if description is None else _ext(Ext.XARRAY, self._pack(description, depth + 1))

    def _pickled(self, value: Any, why: str | None = None) -> Any:
        buffers: list[memoryview] = []

        def taken(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _BUFFER_MIN:
                return True
            buffers.append(raw)
            return False

        file = io.BytesIO()
        ValuePickler(file, self._by_value, taken).dump(value)
        text = file.getvalue()
        self.has_pickle = True
        head = layout.PICKLE.pack(len(buffers))
        for buffer in buffers:
            head += layout.BUFFER.pack(self._add(buffer.nbytes, copier(np.frombuffer(buffer, np.uint8))), buffer.nbytes)
        return _ext(Ext.PICKLE, head + text)

    # Writing

    @property
    def _index_bytes(self) -> int:
        return 16 * len(self._hashes)

    def measure(self) -> int:
        """Returns the length of the object in memory."""
        return self._data_at + self._data

    @property
    def _table(self) -> int:
        return aligned(self._rows, 8)

    @property
    def _index(self) -> int:
        return self._table + 8 * len(self._offsets)

    @property
    def _data_at(self) -> int:
        return aligned(self._index + self._index_bytes)

    def write(self, memory: memoryview) -> None:
        """Writes the object into memory of the measured length. Must be called at most once."""
        end = self.measure()
        header = (layout.MAGIC, layout.VERSION, self.kind, self.count, self._table, self._index, self._data_at, end, 0)
        layout.HEADER.pack_into(memory, 0, *header)
        at = layout.HEADER.size
        self._pieces.reverse()
        while self._pieces:
            piece = self._pieces.pop()
            memory[at : at + len(piece)] = piece
            at += len(piece)
        memory[self._table : self._index] = self._offsets.tobytes()
        if self._hashes:
            hashes = np.asarray(self._hashes)
            order = np.argsort(hashes, kind="stable").astype("<u8")
            middle = self._index + 8 * len(hashes)
            memory[self._index : middle] = memoryview(hashes[order].astype("<u8").tobytes())
            memory[middle : self._index + self._index_bytes] = memoryview(order.tobytes())
        for part in self._parts:
            start = self._data_at + part.offset
            part.write(memory[start : start + part.nbytes])
        self._parts.clear()


def _ext(code: Ext, data: bytes) -> Any:
    return msgpack.ExtType(int(code), data)


def copier(source: np.ndarray[Any, Any]) -> Callable[[memoryview], None]:
    def copy(memory: memoryview) -> None:
        np.ndarray(source.shape, source.dtype, memory)[...] = source

    return copy


def _dtype_name(dtype: np.dtype[Any]) -> bytes | None:
    """Returns the name of a dtype in the layout. Returns None if the layout has no name, so that
    the array must be pickled.
    """
    if dtype.name in layout.FOREIGN_DTYPES:
        return dtype.name.encode()
    if dtype.hasobject or dtype.names is not None or dtype.subdtype is not None or dtype.metadata or dtype.type is np.void:
        return None
    return dtype.str.encode() if layout.DTYPE.fullmatch(dtype.str) else None


def _has_long_list(value: Any) -> bool:
    stack = [value]
    while stack:
        value = stack.pop()
        if type(value) is list:
            if len(value) > layout.LIST_MAX:
                return True
            stack.extend(item for item in value if type(item) in (list, dict))
        elif type(value) is dict:
            stack.extend(item for item in value.values() if type(item) in (list, dict))
    return False


def _cut(value: Any) -> Any:
    """Returns the value with each long list replaced by a `_LongList`."""
    if type(value) is list:
        if len(value) > layout.LIST_MAX:
            return _LongList(value)
        return [_cut(item) for item in value]
    if type(value) is dict:
        return {key: _cut(item) for key, item in value.items()}
    return value


def key_hash(key: Any) -> int:
    """Returns the hash of a dict's key. Equal keys have equal hashes, in every process."""
    text = msgpack.packb(_canonical(key), strict_types=True)
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def is_key(key: Any) -> bool:
    """Returns whether a frozen dict can look up this key."""
    if type(key) is tuple:
        return all(map(is_key, key))
    return type(key) in (str, bytes, int, float, bool, type(None))


_BASES: tuple[Any, ...] = (str, bytes, int)


def _kind(key: Any) -> Any:
    """Returns the type of a key, or the base type whose keys it equals, as for an `enum.IntEnum`."""
    for base in _BASES:
        if isinstance(key, base) and type(key).__hash__ is base.__hash__:
            return base
    return type(key)


def _canonical(key: Any) -> Any:
    if isinstance(key, np.generic):
        key = key.item()
    kind = _kind(key)
    if kind is str:
        try:
            return str.encode(key).decode()
        except UnicodeEncodeError:
            return str.encode(key, "utf-8", "surrogatepass")
    if kind in (bytes, type(None)):
        return key
    if kind is complex and not key.imag:
        kind, key = float, key.real
    if kind is float and not key.is_integer():
        return key
    if kind in (bool, int, float):
        number = int(key)
        return number if -(1 << 63) <= number < 1 << 63 else str(number).encode()
    if kind is tuple:
        return [_canonical(part) for part in key]
    raise ArgumentError(
        f"a frozen dict finds its items by text, bytes, numbers and tuples of them, and this key is a {kind.__name__}: "
        "use a list"
    )
