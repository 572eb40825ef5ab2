"""Writes Arrow data and data frames as Arrow's IPC stream into lent memory, and reads them without a copy."""

from __future__ import annotations

import contextlib
import importlib
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tensorlend._objects import library
from tensorlend._objects.layout import Frame

#: The key of the frequency of a frame's index in the metadata of the schema.
_FREQUENCY = b"tensorlend.freq"

#: The key that marks a series of pandas without a name in the metadata of the schema.
_UNNAMED = b"tensorlend.unnamed"

Written = tuple[Frame, int, Callable[[memoryview], None]]


def written(value: Any) -> Written | None:
    """Returns kind, length and writer of Arrow data or a frame. Returns None for other values, and
    for frames that Arrow cannot represent.
    """
    found = _table_of(value)
    if found is None:
        return None
    kind, table = found
    pa = library.arrow()

    counter = pa.MockOutputStream()
    _write(counter, table)

    def write(memory: memoryview) -> None:
        _write(pa.FixedSizeBufferWriter(pa.py_buffer(memory)), table)

    return kind, counter.size(), write


def _write(sink: Any, table: Any) -> None:
    pa = library.arrow()

    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=None)) as writer:
        writer.write(table)


def _table_of(value: Any) -> tuple[Frame, Any] | None:
    module = type(value).__module__.partition(".")[0]
    if module not in ("pyarrow", "pandas", "polars") or module not in sys.modules:
        return None
    try:
        pa = library.arrow()
    except ImportError:
        return None
    if isinstance(value, pa.Table):
        return Frame.TABLE, value
    if isinstance(value, pa.RecordBatch):
        return Frame.BATCH, value
    if isinstance(value, pa.Array):
        return Frame.ARRAY, pa.table({"": pa.chunked_array([value])})
    if isinstance(value, pa.ChunkedArray):
        return Frame.CHUNKED, pa.table({"": value})
    kind = type(value).__name__
    if module == "polars" and kind in ("DataFrame", "Series"):
        frame = value if kind == "DataFrame" else value.to_frame()
        if any(str(dtype) == "Object" for dtype in frame.dtypes):
            # polars would export the addresses of the objects.
            return None
        try:
            # polars exports its data through the Arrow C data interface.
            table = pa.table(frame)
        except pa.ArrowException:
            # Arrow has no integers of 128 bits.
            return None
        return Frame.POLARS if kind == "DataFrame" else Frame.SERIES, table
    if module == "pandas" and kind in ("DataFrame", "Series"):
        frame = value if kind == "DataFrame" else value.to_frame()
        if frame.columns.nlevels == 1 and frame.columns.inferred_type.startswith("mixed"):
            # Arrow would convert the labels to text, with a warning.
            return None
        try:
            table = pa.Table.from_pandas(frame)
            restored = _is_restored(frame, table)
        except (pa.ArrowException, TypeError, ValueError):
            # Arrow cannot represent columns of objects, or pandas cannot make the frame from Arrow's table.
            return None
        if not restored:
            return None
        table = _with_metadata(table, _FREQUENCY, frequency(frame.index))
        if kind == "DataFrame":
            return Frame.PANDAS, table
        return Frame.PANDAS_SERIES, _with_metadata(table, _UNNAMED, "yes" if value.name is None else None)
    return None


def _is_restored(frame: Any, table: Any) -> bool:
    """Returns whether pandas makes the same frame from its Arrow table. Arrow changes the types of some objects, for example
    lists, and of some labels.
    """
    pa = library.arrow()

    empty = _empty(table.schema).to_pandas()
    found, kept = ([*each.dtypes, *_index_types(each.index), *_index_types(each.columns)] for each in (empty, frame))
    # An Arrow table has the categories in its data, not in its schema.
    same = all(one == other or one.name == other.name == "category" for one, other in zip(found, kept, strict=True))
    nested = any(pa.types.is_nested(field.type) for field in table.schema)
    labels = empty.columns.equals(frame.columns) and getattr(frame.columns, "freq", None) is None
    # Arrow makes text of other names of an index.
    labels = labels and all(type(name) in (str, type(None)) for each in (frame.index, frame.columns) for name in each.names)
    marks = empty.flags == frame.flags and empty.attrs == frame.attrs
    return same and labels and not nested and marks and frequency(frame.index) is not None


def _index_types(index: Any) -> list[Any]:
    return list(index.dtypes) if index.nlevels > 1 else [index.dtype]


def frequency(index: Any) -> str | None:
    """Returns the text of the frequency of an index; empty if it has none, and None if no text describes the frequency."""
    freq = getattr(index, "freq", None)
    if freq is None or index.dtype.kind not in "mM":
        return ""
    offset = importlib.import_module("pandas.tseries.frequencies").to_offset
    try:
        return str(freq.freqstr) if offset(freq.freqstr) == freq else None
    except ValueError:
        return None


def _with_metadata(table: Any, key: bytes, text: str | None) -> Any:
    """Returns the table with a text that Arrow does not store of a frame. An empty text is not stored."""
    return table.replace_schema_metadata({**table.schema.metadata, key: text}) if text else table


def read(kind: int, memory: memoryview, *, own: bool) -> Any:
    """Returns the data in memory.

    If `own` is true, this process or the process that passed it the object published the data, and
    the result views all data. Any other publisher may write to the memory at any time, even after a
    check. So this function copies and checks the description of its data. It views only columns of
    plain numbers, without offsets, nulls or bits.
    """
    frame = Frame(kind)
    pa = library.arrow()
    if own:
        return _shown(frame, pa.ipc.open_stream(pa.py_buffer(memory)).read_all())
    parts = list(_parts(memory))
    table = pa.ipc.open_stream(_file(parts)).read_all()
    if not all(_is_plain(column) for column in table.columns):
        table = pa.ipc.open_stream(_file([bytes(part) for part in parts])).read_all()
        table.validate(full=True)
    else:
        # Compares lengths with the sizes of buffers, without reading data.
        table.validate()
    if not table.num_rows:
        # Arrow aborts the process when it converts some columns without chunks.
        table = pa.Table.from_batches([_empty(table.schema)])
    return _shown(frame, table)


def _empty(schema: Any) -> Any:
    pa = library.arrow()

    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _is_plain(column: Any) -> bool:
    pa = library.arrow()

    kind = column.type
    plain = pa.types.is_primitive(kind) and not pa.types.is_boolean(kind)
    return plain and all(chunk.buffers()[0] is None for chunk in column.chunks)


def _parts(memory: memoryview) -> Iterator[bytes | memoryview]:
    """Yields a copy of the description of each message, and the message's data."""
    at = 0
    while at + 8 <= len(memory):
        mark, length = struct.unpack_from("<II", memory, at)
        head = bytes(memory[at : at + 8 + length])
        if mark != 0xFFFFFFFF or len(head) < 8 + length:
            raise ValueError("its Arrow data are invalid")
        if length == 0:
            yield struct.pack("<II", mark, length)
            return
        if struct.unpack_from("<II", head) != (mark, length):
            raise ValueError("its Arrow data are being changed")
        body = _checked(head[8:])
        at += len(head)
        if body > len(memory) - at:
            raise ValueError("its Arrow data are incomplete")
        yield head
        yield memory[at : at + body]
        at += body


def _checked(metadata: bytes) -> int:
    """Returns the length of a message's data. The data must not be compressed (Arrow's Message.fbs)."""
    message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    header, kind = message.table(2), message.byte(1)
    if kind == 2 and header is not None:
        header = header.table(1)
    if kind in (2, 3) and header is not None and header.field(3) is not None:
        raise ValueError("its Arrow data are compressed, so that their length is not limited")
    return message.number(3)


def _file(parts: list[bytes | memoryview]) -> Any:
    pa = library.arrow()

    return pa.PythonFile(_Parts(parts), mode="r")


class _Parts:
    """A file object over the parts of a stream. It returns whole parts without a copy."""

    closed = False

    def __init__(self, parts: list[bytes | memoryview]) -> None:
        self._parts = [memoryview(part) for part in reversed(parts)]

    def _take(self, nbytes: int) -> list[memoryview]:
        taken = []
        while nbytes and self._parts:
            part = self._parts.pop()
            if len(part) > nbytes:
                self._parts.append(part[nbytes:])
                part = part[:nbytes]
            if part:
                taken.append(part)
            nbytes -= len(part)
        return taken

    def read(self, nbytes: int = -1) -> bytes:
        """Returns a copy of the next bytes."""
        return b"".join(self._take(nbytes if nbytes >= 0 else sum(map(len, self._parts))))

    def read_buffer(self, nbytes: int) -> Any:
        """Returns the next bytes, without a copy if one part contains them."""
        pa = library.arrow()

        taken = self._take(nbytes)
        return pa.py_buffer(taken[0] if len(taken) == 1 else b"".join(taken))

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._parts.clear()


def _shown(frame: Frame, table: Any) -> Any:
    if frame is Frame.TABLE:
        return table
    if frame is Frame.BATCH:
        return table.to_batches()[0] if table.num_rows else _empty(table.schema)
    if frame is Frame.CHUNKED:
        return table.column(0)
    if frame is Frame.ARRAY:
        column = table.column(0)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if frame in (Frame.PANDAS, Frame.PANDAS_SERIES):
        shown = table.to_pandas(split_blocks=True)
        metadata = table.schema.metadata or {}
        if _FREQUENCY in metadata:
            # Another version of pandas may have other names of frequencies.
            with contextlib.suppress(ValueError):
                shown.index.freq = metadata[_FREQUENCY].decode()
        if frame is Frame.PANDAS:
            return shown
        # The list has the label as Python's own number.
        return shown.iloc[:, 0].rename(None if _UNNAMED in metadata else shown.columns.tolist()[0])
    polars = importlib.import_module("polars")
    data = polars.from_arrow(table, rechunk=False)
    return data if frame is Frame.POLARS else data.to_series(0)


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - int(struct.unpack_from("<i", data, at)[0])
        if self._fields < 0:
            raise ValueError("its Arrow data are invalid")

    def field(self, number: int) -> int | None:
        """Returns the position of a field; None if the table has no such field."""
        length: int = struct.unpack_from("<H", self._data, self._fields)[0]
        place = 4 + 2 * number
        if place + 2 > length:
            return None
        offset: int = struct.unpack_from("<H", self._data, self._fields + place)[0]
        return self._at + offset if offset else None

    def byte(self, number: int) -> int:
        at = self.field(number)
        return 0 if at is None else self._data[at]

    def number(self, number: int) -> int:
        at = self.field(number)
        value = 0 if at is None else int(struct.unpack_from("<q", self._data, at)[0])
        if value < 0:
            raise ValueError("its Arrow data are invalid")
        return value

    def table(self, number: int) -> _Table | None:
        at = self.field(number)
        return None if at is None else _Table(self._data, at + struct.unpack_from("<I", self._data, at)[0])
