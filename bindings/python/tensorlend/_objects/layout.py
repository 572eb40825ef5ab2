"""The layout of an object in lent memory. The object is one uint8 tensor of header, rows, table of
rows, index and data.

A row is one value in msgpack. The table contains the offset of each row and the end of the last
row. The data contain the bytes of arrays, frames and buffers, each at a multiple of ALIGN. The
index of a dict has the sorted hashes of its keys, and the position of each. Numbers are
little-endian. Offsets of rows, table, index and data count from the header. Offsets in rows count
from the data.
"""

import enum
import re
import struct

from tensorlend._dtypes import NUMBERS

MAGIC = b"TLOBJECT"
VERSION = 1

#: The header: magic, version, kind, number of items, and the offsets of table, index, data and end.
#: One word is reserved.
HEADER = struct.Struct("<8sIIQQQQQQ")

ALIGN = 64

#: Maximum number of items of one list in msgpack. A longer list is split, so that a reader
#: allocates in proportion to the bytes that it reads.
LIST_MAX = 512

#: Maximum nesting of rows within rows: tuples, sets and long lists.
DEPTH_MAX = 16


class Kind(enum.IntEnum):
    """The kind of an object."""

    VALUE = 0
    LIST = 1
    TUPLE = 2
    DICT = 3


class Ext(enum.IntEnum):
    """Codes of the extensions, which are values for which msgpack has no type."""

    TUPLE = 1
    SET = 2
    FROZENSET = 3
    LONG_LIST = 4
    INTEGER = 5
    COMPLEX = 6
    SCALAR = 7
    ARRAY = 8
    TENSOR = 9
    ARROW = 10
    PICKLE = 11
    XARRAY = 12


class Frame(enum.IntEnum):
    """Kinds of Arrow data."""

    TABLE = 0
    BATCH = 1
    ARRAY = 2
    CHUNKED = 3
    PANDAS = 4
    POLARS = 5
    SERIES = 6
    PANDAS_SERIES = 7


#: The head of an array: offset, whether it is in Fortran order, number of dimensions, and length of
#: its dtype's name. The name and the shape follow.
ARRAY = struct.Struct("<QBBB")

#: The head of Arrow data: kind, offset, length.
ARROW = struct.Struct("<BQQ")

#: The head of a pickle, which is the number of its buffers. Offset and length of each buffer
#: follow, then the pickle.
PICKLE = struct.Struct("<I")

BUFFER = struct.Struct("<QQ")

COMPLEX = struct.Struct("<dd")

#: Length of a part of a long list, before the part.
PART = struct.Struct("<I")

#: numpy's dtypes with the same meaning on all machines, by `dtype.str`. They exclude objects and
#: structures.
DTYPE = re.compile(r"[<>|=][biufcSUV][1-9][0-9]{0,8}|[<>][mM]8(\[[0-9]{0,6}[A-Za-z]{1,2}\])?")

#: dtypes of the package ml_dtypes, by name.
FOREIGN_DTYPES = frozenset(
    {
        "bfloat16",
        "float8_e3m4",
        "float8_e4m3",
        "float8_e4m3b11fnuz",
        "float8_e4m3fn",
        "float8_e4m3fnuz",
        "float8_e5m2",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
    }
)

#: dtypes of torch, by name.
TORCH_DTYPES = NUMBERS | {"bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"}


def aligned(offset: int, to: int = ALIGN) -> int:
    """Returns the next multiple of `to`."""
    return -(-offset // to) * to
