"""Tables that notebooks show for the objects of this package."""

from __future__ import annotations

import html
import types
from collections.abc import Iterable
from typing import Any

import numpy as np

from tensorlend import _native
from tensorlend._errors import Error

#: Maximum number of rows and of columns of a tensor that a table shows.
_CORNER = 4
#: Maximum number of names that a client's table shows.
_NAMES = 20


def size_text(number: int) -> str:
    """Formats a size in binary units."""
    size, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{number} B" if unit == "B" else f"{size:.1f} {unit}"


def _table(rows: Iterable[Iterable[object]], head: Iterable[str] = ()) -> str:
    def line(cells: Iterable[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    titles = tuple(head)
    top = f"<thead>{line(titles, 'th')}</thead>" if titles else ""
    return f"<table>{top}<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table>"


def _title(thing: object) -> str:
    return f"<pre>{html.escape(repr(thing))}</pre>"


def _corner(array: np.ndarray[Any, np.dtype[Any]]) -> str:
    """Returns the first values of an array, and their position in it."""
    where = (0,) * max(array.ndim - 2, 0) + (slice(_CORNER),) * min(array.ndim, 2)
    part = np.atleast_2d(array[where]) if array.size else np.empty((0, 0))
    rows = [[f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in part.tolist()]
    index = "".join(f"{at}, " if isinstance(at, int) else f":{_CORNER}, " for at in where).rstrip(", ")
    return (f"<p>values [{index}]:</p>" if array.ndim else "") + _table(rows)


def tensor(thing: _native.Lease | _native.Draft | _native.DeviceLease | _native.DeviceDraft) -> str:
    """Returns the table of a lease or a draft."""
    try:
        rows = [("dtype", thing.dtype), ("shape", thing.shape), ("size", size_text(thing.nbytes))]
        if isinstance(thing, (_native.DeviceLease, _native.DeviceDraft)):
            return _title(thing) + _table([*rows, ("device", thing.device)])
        array = thing.array if isinstance(thing, _native.Draft) else thing.numpy()
        return _title(thing) + _table(rows) + _corner(array)
    except Error:
        # The tensor was released or published, so its elements cannot be shown.
        return _title(thing)


def dataset(thing: _native.Dataset) -> str:
    """Returns the table of a dataset."""
    try:
        rows = [(name, lease.dtype, lease.shape, size_text(lease.nbytes)) for name, lease in thing.items()]
    except Error:
        return _title(thing)
    return _title(thing) + _table(rows, ("name", "dtype", "shape", "size"))


def properties(thing: object) -> str:
    """Returns the table of an object's public properties."""
    kind, rows = type(thing), []
    for name in vars(kind):
        # `outstanding` of a caller waits for its running call.
        is_shown = not name.startswith("_") and name != "outstanding"
        if not is_shown or not isinstance(getattr(kind, name), types.GetSetDescriptorType):
            continue
        try:
            rows.append((name, getattr(thing, name)))
        except (Error, TypeError):
            # The object was closed, or has no such property, as `tensor` of a message that is a dataset.
            continue
    return _title(thing) + _table(rows)


def client(thing: _native.Client) -> str:
    """Returns a client's table, with the first names of its namespace."""
    try:
        infos = thing.list()
    except Error:
        return _title(thing)
    rows = [(info.name, info.kind, info.dtype or "", "" if info.shape is None else info.shape, size_text(info.nbytes)) for info in infos[:_NAMES]]
    more = f"<p>and {len(infos) - _NAMES} more names</p>" if len(infos) > _NAMES else ""
    return _title(thing) + _table(rows, ("name", "kind", "dtype", "shape", "size")) + more
