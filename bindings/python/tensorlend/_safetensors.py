"""Headers of safetensors files: https://github.com/huggingface/safetensors#format.

A file has the header's length (8 bytes, little endian), the header (JSON), and the tensors' bytes, in C order and without gaps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

#: Maximum length of a header in bytes, the same as in the format's own library.
HEADER_MAX = 100_000_000
#: Length in bytes of the field that contains the header's length. The field precedes the header.
LENGTH_BYTES = 8
#: Bits of an element. The format also has elements of 4 and 6 bits, which neither numpy nor torch can view.
BITS = {
    **dict.fromkeys(["BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"], 8),
    **dict.fromkeys(["U16", "I16", "F16", "BF16"], 16),
    **dict.fromkeys(["U32", "I32", "F32"], 32),
    **dict.fromkeys(["U64", "I64", "F64", "C64"], 64),
}
#: Names of the types of elements, which numpy, `ml_dtypes` and torch share.
DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip


class HeaderError(ValueError):
    """The file is not a valid safetensors file."""


@dataclass(frozen=True)
class Entry:
    """A tensor of a file. `begin` and `end` are offsets in bytes from the end of the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def itemsize(self) -> int:
        """Size of an element in bytes."""
        return BITS[self.dtype] // 8


def header_bytes(prefix: bytes, size: int) -> int:
    """Returns the length of the header of a file of `size` bytes. `prefix` is the file's first 8
    bytes.
    """
    if len(prefix) != LENGTH_BYTES or size < LENGTH_BYTES:
        raise HeaderError(f"it has {size} bytes, fewer than the length of a header takes")
    length = int.from_bytes(prefix, "little")
    if length > min(HEADER_MAX, size - LENGTH_BYTES):
        raise HeaderError(f"its header of {length} bytes is longer than the file, or than {HEADER_MAX} bytes")
    return length


def parse(header: bytes, data_bytes: int) -> list[Entry]:
    """Returns the tensors of a header, in the order of their bytes. `data_bytes` is the number of bytes after the
    header.

    Raises HeaderError for headers that the format does not allow: overlapping tensors, gaps, lengths that do not match
    the shape, and duplicate names.
    """
    entries = _entries(header)
    at = 0
    for entry in entries:
        if entry.begin != at:
            raise HeaderError(f"tensor {entry.name!r} begins at byte {entry.begin}, and the one before it ends at {at}")
        at = entry.end
    if at != data_bytes:
        raise HeaderError(f"its tensors have {at} bytes, and the file has {data_bytes}")
    return entries


def parse_placed(header: bytes, size: int) -> list[Entry]:
    """Returns the tensors of a lent file of `size` bytes. Their offsets count from the start of the lent memory, and
    there may be gaps between aligned tensors.
    """
    entries = _entries(header)
    at = LENGTH_BYTES + len(header)
    for entry in entries:
        if entry.begin < at or entry.begin % entry.itemsize:
            raise HeaderError(f"tensor {entry.name!r} overlaps another one, or is not aligned")
        at = entry.end
    if at > size:
        raise HeaderError(f"its tensors end at byte {at}, and it has {size}")
    return entries


def _entries(header: bytes) -> list[Entry]:
    """Returns the tensors of a header, in the order of their bytes. The length of each must match its shape."""
    try:
        fields = json.loads(header.decode("utf-8"), object_pairs_hook=_object)
    except HeaderError:
        raise
    except (ValueError, RecursionError) as error:
        raise HeaderError(f"its header is no JSON ({error})") from error
    if not isinstance(fields, dict):
        raise HeaderError("its header is no JSON object")
    metadata = fields.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise HeaderError("its __metadata__ does not consist of strings")
    return sorted((_entry(name, entry) for name, entry in fields.items()), key=lambda entry: (entry.begin, entry.end))


def written(entries: Iterable[Entry]) -> bytes:
    """Returns the bytes of a header, without the length field."""
    fields = {e.name: {"dtype": e.dtype, "shape": e.shape, "data_offsets": (e.begin, e.end)} for e in entries}
    return json.dumps(fields, separators=(",", ":")).encode()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise HeaderError("its header has a name twice")
    return fields


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _entry(name: str, fields: Any) -> Entry:
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise HeaderError(f"tensor {name!r} needs dtype, shape and data_offsets, and nothing else")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise HeaderError(f"tensor {name!r} has elements of type {dtype!r}, which cannot be viewed")
    if not isinstance(shape, list) or len(shape) > 64 or not all(map(_is_size, shape)):
        raise HeaderError(f"tensor {name!r} has an invalid shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise HeaderError(f"tensor {name!r} has invalid offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * BITS[dtype] // 8:
        raise HeaderError(f"tensor {name!r} has {end - begin} bytes, which do not fit {dtype} of shape {shape}")
    return Entry(name, dtype, tuple(shape), begin, end)
