"""Splits an object into a pickle and large parts, and makes an object from a pickle and shared parts."""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np

from tensorlend._errors import ArgumentError
from tensorlend._objects.encode import Encoder, ValuePickler, by_value, copier, itself
from tensorlend._objects.layout import Kind
from tensorlend._objects.source import Key, Memory, Published, checked, published, read_only

if TYPE_CHECKING:
    from tensorlend import _native

#: The member that has the pickle.
OBJECT = "object"
#: Minimum length in bytes of an array, a tensor or a buffer that becomes a part.
LARGE_BYTES = 16 << 10
#: Minimum length in bytes of a list, a tuple or a dict that becomes a part, as estimated from SAMPLE items. In one of fewer
#: than MANY items, arrays and tensors that become parts themselves do not count.
LARGE_LIST_BYTES = 256 << 10
SAMPLE = 16
MANY = 1000
#: Minimum length in bytes of the rest of an object of which the log has a warning.
PRIVATE_BYTES = 1 << 20
#: Maximum number of parts. What follows stays in the pickle.
PARTS_MAX = 1000


_LOG = logging.getLogger("tensorlend")


class SharedArray(np.ndarray[Any, Any]):
    """An array in shared memory. It is pickled as a reference to this memory, also a slice of it. Results of calculations
    are plain arrays.
    """

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        return array[()] if array.shape == () else np.asarray(array)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        memory = self._memory()
        if memory is None or memory.published.key[-1] != "read":
            return np.asarray(self).__reduce_ex__(protocol)
        offset = self.__array_interface__["data"][0] - memory.start
        return _array, (memory.published.sending(), memory.member, offset, self.dtype, self.shape, self.strides)

    def _plain(self) -> Any:
        return np.asarray(self)

    def _memory(self) -> Memory | None:
        base: Any = self.base
        while isinstance(base, np.ndarray):
            base = base.base
        return base if type(base) is Memory else None

    def setflags(self, *arguments: Any, **named: Any) -> None:
        """Sets the flags of this view. Shared memory that is read-only stays so."""
        if arguments[:1] == (True,) or named.get("write"):
            self._check()
        super().setflags(*arguments, **named)

    def _check(self) -> None:
        if not self.flags.writeable:
            raise read_only("array", "array.copy()")


for _name in "setitem iadd isub imul itruediv ifloordiv imod ipow ilshift irshift iand ixor ior imatmul".split():
    setattr(SharedArray, f"__{_name}__", checked(getattr(np.ndarray, f"__{_name}__")))


def _array(key: Key, member: str, offset: int, dtype: Any, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
    """Returns the array that another process has pickled."""
    memory: Any = np.asarray(Memory(published(key), member))
    return np.ndarray(shape, dtype, memory, offset, strides).view(SharedArray)


class Split:
    """An object, split into a pickle and parts. A list, a tuple, a dict or an iterator is one part.

    Parameters
    ----------
    obj : object
        The object.
    keep : bool
        Whether objects that cannot be pickled, such as lambdas, stay in this process. The result of `join` then has them.
    """

    def __init__(self, obj: Any, *, keep: bool) -> None:
        #: Length and writer of each part. The name of a part is its position.
        self._parts: list[tuple[int, Callable[[memoryview], None]]] = []
        self.kept: list[Any] = []
        if hasattr(type(obj), "_plain"):
            # An object that was shared before.
            obj = obj._plain()
        file = io.BytesIO()
        pickler = _Splitter(file, self, obj, keep)
        try:
            pickler.dump(obj)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ArgumentError(f"other processes cannot unpickle this object: {error}") from error
        self._text = file.getvalue()
        if len(self._text) >= PRIVATE_BYTES:
            _LOG.warning(
                "share: %.1f MiB of this object are copied into each process: they are in no array, tensor or Arrow buffer, and in no "
                "list or dict of plain values",
                len(self._text) / (1 << 20),
            )

    def add(self, nbytes: int, write: Callable[[memoryview], None]) -> str:
        """Adds a part, and returns its name."""
        self._parts.append((nbytes, write))
        return str(len(self._parts) - 1)

    @property
    def has_room(self) -> bool:
        """Whether one more part is allowed."""
        return len(self._parts) < PARTS_MAX

    def write(self, client: _native.Client) -> dict[str, _native.Draft]:
        """Writes the pickle and the parts, and returns their drafts by name."""
        text = np.frombuffer(self._text, np.uint8)
        members = {OBJECT: (text.nbytes, copier(text))}
        members |= {str(number): part for number, part in enumerate(self._parts)}
        drafts: dict[str, _native.Draft] = {}
        try:
            for name, (nbytes, write) in members.items():
                draft: Any = client.create(nbytes, "uint8")
                drafts[name] = draft
                with memoryview(draft) as memory:
                    write(memory)
        except BaseException:
            for draft in drafts.values():
                draft.drop()
            raise
        self._parts.clear()
        return drafts

    def join(self, value: Published) -> Any:
        """Returns the object with its published parts."""
        return Joiner(self._text, value, self.kept).load()


def digest(drafts: dict[str, _native.Draft]) -> str:
    """Returns a digest of the contents of drafts."""
    found = hashlib.blake2b(digest_size=16)
    for name, draft in drafts.items():
        with memoryview(draft) as memory:
            found.update(f"{name} {memory.nbytes} ".encode())
            found.update(memory)
    return found.hexdigest()


class _Splitter(ValuePickler):
    """Pickles an object without its large parts.

    A part of a list, a tuple, a dict or a tensor has another type, which only the program's own values may have: the object
    itself, attributes of plain objects, and items of these. The containers that `__reduce_ex__` returns stay as they are,
    because the code that restores the object demands their types.
    """

    def __init__(self, file: io.BytesIO, split: Split, top: Any, keep: bool) -> None:
        super().__init__(file, by_value())
        self._split = split
        self._top = top
        self._keep = keep
        #: The identities of the program's own values.
        self._values = {id(top)}
        self._found: dict[int, Any] = {}
        #: Keeps the objects whose identities are known: a later object could have the identity of an earlier one.
        self._objects: list[Any] = []

    def persistent_id(self, obj: Any) -> Any:
        """Returns the description of a part, or of an object that stays in this process; None for others."""
        found = self._found.get(id(obj))
        if found is None:
            found = self._described(obj)
            if found is not None:
                self._found[id(obj)] = found
                self._objects.append(obj)
        return found

    def _described(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is _Kept:
            return self._kept(obj.obj)
        if kind in (np.ndarray, np.memmap, SharedArray):
            return self._array(obj)
        if self._keep and (kind is types.FunctionType or isinstance(obj, type)) and "<" in obj.__qualname__:
            return self._kept(obj)
        module = kind.__module__.partition(".")[0]
        if module == "pyarrow":
            return self._buffer(obj)
        if id(obj) not in self._values:
            return None
        if kind in (list, tuple, dict) or obj is self._top and is_iterator(obj):
            return self._collection(obj)
        if module in ("torch", "tensorlend"):
            return self._tensor(obj)
        if module == "polars" and obj is self._top:
            # polars has no buffers that can be replaced.
            encoder = Encoder.of_value(obj)
            return "object", self._split.add(encoder.measure(), encoder.write)
        return None

    def reducer_override(self, obj: Any) -> Any:
        """Returns the reduction of an object. An object without one stays in this process."""
        if isinstance(obj, (type, types.FunctionType, types.BuiltinFunctionType)):
            return NotImplemented
        kind = type(obj)
        reduced: Any = super().reducer_override(obj)
        if reduced is not NotImplemented:
            self._own(reduced[1])
            return reduced
        reduce = self.dispatch_table.get(kind)
        try:
            reduced = reduce(obj) if reduce else obj.__reduce_ex__(5)
        except Exception:
            if not self._keep:
                raise
            return itself, (_Kept(obj),)
        is_plain = all(getattr(kind, name) is getattr(object, name) for name in ("__reduce_ex__", "__reduce__"))
        if isinstance(obj, dict):
            self._own(obj.values())
        elif isinstance(obj, (list, tuple)):
            self._own(obj)
        if is_plain and reduce is None and isinstance(getattr(kind, "__setstate__", itself), types.FunctionType):
            state: Any = reduced[2] if len(reduced) > 2 else None
            for attributes in state if type(state) is tuple else (state,):
                if type(attributes) is dict:
                    self._objects.append(attributes)
                    self._own(attributes.values())
        return reduced

    def _own(self, values: Iterable[Any]) -> None:
        self._values.update(map(id, values))

    def _kept(self, obj: Any) -> Any:
        self._split.kept.append(obj)
        return "kept", len(self._split.kept) - 1

    def _collection(self, obj: Any) -> Any:
        if obj is self._top or self._split.has_room and _is_large(obj):
            encoder = Encoder.of_items(obj, Kind.LIST) if is_iterator(obj) else Encoder.of(obj)
            if encoder is not None:
                return "object", self._split.add(encoder.measure(), encoder.write)
        self._own(obj.values() if type(obj) is dict else obj)
        return None

    def _is_part(self, obj: Any, nbytes: int) -> bool:
        return nbytes >= (1 if obj is self._top else LARGE_BYTES) and self._split.has_room

    def _array(self, obj: np.ndarray[Any, Any]) -> Any:
        if obj.dtype.hasobject or not self._is_part(obj, obj.nbytes):
            return None
        fortran = obj.flags.f_contiguous and not obj.flags.c_contiguous
        member = self._split.add(obj.nbytes, copier(np.asarray(obj.T if fortran else obj)))
        return "array", member, obj.dtype, obj.shape, fortran

    def _tensor(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        from tensorlend._objects import tensors

        found = tensors.described(obj)
        if found is None or not self._is_part(obj, found[0].nbytes):
            return None
        flat, dtype, shape = found
        return "tensor", self._split.add(flat.nbytes, copier(flat)), dtype, shape

    def _buffer(self, obj: Any) -> Any:
        from tensorlend._objects import buffers

        flat = buffers.described(obj)
        if flat is None or not self._is_part(obj, flat.nbytes):
            return None
        return "buffer", self._split.add(flat.nbytes, copier(flat))


def is_iterator(obj: Any) -> bool:
    """Returns whether an object is an iterator of Python itself, not of a class that the program defines."""
    return isinstance(obj, Iterator) and type(obj).__module__ in ("builtins", "itertools")


def _is_large(items: Any) -> bool:
    """Returns whether a list, a tuple or a dict is large and has only items that rows contain by value."""
    values = items.values() if type(items) is dict else items
    # Random positions, because the lengths of items may have a period.
    positions = set(random.Random(0).sample(range(len(items)), min(SAMPLE, len(items))))
    sample = [item for at, item in enumerate(values) if at in positions]
    sizes = [_bytes_of(item, 0) for item in sample]
    if len(items) < MANY and None not in sizes:
        sizes = [0 if hasattr(item, "dtype") and (size or 0) >= LARGE_BYTES else size for item, size in zip(sample, sizes, strict=True)]
    return bool(sample) and None not in sizes and sum(filter(None, sizes)) * len(items) >= LARGE_LIST_BYTES * len(sample)


def _bytes_of(value: Any, depth: int) -> int | None:
    """Estimates the length of a value; None if a row would contain it as a pickle."""
    if isinstance(value, (bool, int, float, str, bytes, np.generic)) or value is None:
        return sys.getsizeof(value)
    if isinstance(value, np.ndarray):
        return None if value.dtype.hasobject else value.nbytes
    if type(value).__name__ in ("Tensor", "SharedTensor"):
        return int(value.nbytes)
    if type(value) not in (list, tuple, dict) or depth == 4:
        return None
    total = sys.getsizeof(value)
    for item in islice(value.values() if type(value) is dict else value, SAMPLE):
        nbytes = _bytes_of(item, depth + 1)
        if nbytes is None:
            return None
        total += nbytes
    return total


class _Kept:
    """Marks an object that stays in this process, for the pickler."""

    def __init__(self, obj: Any) -> None:
        self.obj = obj


class Joiner(pickle.Unpickler):
    """Makes an object from its pickle and its published parts."""

    def __init__(self, text: Any, value: Published, kept: list[Any]) -> None:
        super().__init__(io.BytesIO(text))
        self._value = value
        self._kept = kept
        self._made: dict[str, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        """Returns a part, or an object that stayed in this process."""
        if pid[0] == "kept":
            return self._kept[pid[1]]
        if pid[1] not in self._made:
            self._made[pid[1]] = self._part(*pid)
        return self._made[pid[1]]

    def _part(self, kind: str, member: str, *details: Any) -> Any:
        if kind == "object":
            from tensorlend.objects import frozen

            return frozen(self._value, member, True, True)
        if kind == "buffer":
            from tensorlend._objects import buffers

            return buffers.buffer(Memory(self._value, member))
        if kind == "tensor":
            from tensorlend._objects import tensors

            return tensors.tensor(self._value.key, member, *details)
        dtype, shape, fortran = details
        array = np.asarray(Memory(self._value, member)).view(dtype)
        return (array.reshape(shape[::-1]).T if fortran else array.reshape(shape)).view(SharedArray)
