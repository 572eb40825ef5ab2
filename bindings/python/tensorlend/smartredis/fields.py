"""The metadata fields of a dataset. Each field is a list of scalars of one type, or of strings."""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from .error import RedisRuntimeError
from .snapshot import Array
from .util import Dtypes

__all__ = ["Fields"]

Value = int | float | str


class Fields:
    """Fields by name, in the order of their creation. In JSON each field is ``{"type": "DOUBLE",
    "values": [0.5, "nan"]}``. Values for which JSON has no number are texts.
    """

    def __init__(self) -> None:
        self._types: dict[str, str] = {}
        self._values: dict[str, list[Value]] = {}

    def __len__(self) -> int:
        return len(self._types)

    def __contains__(self, name: str) -> bool:
        return name in self._types

    def names(self) -> list[str]:
        return list(self._types)

    def type_of(self, name: str) -> str:
        return self._types[name]

    def add(self, name: str, kind: str, value: Value) -> None:
        """:raises RedisRuntimeError: if the field has another type"""
        known = self._types.setdefault(name, kind)
        if known != kind:
            raise RedisRuntimeError(f"the field {name!r} holds {known}; {kind} cannot be added to it")
        self._values.setdefault(name, []).append(value)

    def scalars(self, name: str) -> Array:
        """:raises RedisRuntimeError: if there is no such field, or it holds strings"""
        kind, values = self._find(name)
        if kind == "STRING":
            raise RedisRuntimeError(f"the field {name!r} holds strings: get_meta_strings returns them")
        return np.array(values, dtype=Dtypes.from_string(kind))

    def strings(self, name: str) -> list[str]:
        """:raises RedisRuntimeError: if there is no such field, or it holds scalars"""
        kind, values = self._find(name)
        if kind != "STRING":
            raise RedisRuntimeError(f"the field {name!r} holds {kind}: get_meta_scalars returns them")
        return cast("list[str]", list(values))

    def to_json(self) -> dict[str, Any]:
        return {
            name: {"type": kind, "values": [_to_json(value) for value in self._values[name]]}
            for name, kind in self._types.items()
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "Fields":
        """:raises RedisRuntimeError: if :meth:`to_json` did not write them"""
        fields = cls()
        try:
            for name, field in stored.items():
                kind = str(field["type"])
                convert = str if kind == "STRING" else float if kind in ("DOUBLE", "FLOAT") else int
                fields._types[name] = kind
                fields._values[name] = [convert(value) for value in field["values"]]
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise RedisRuntimeError(f"the dataset's metadata is not what this package writes: {e!r}") from e
        return fields

    def _find(self, name: str) -> tuple[str, list[Value]]:
        if name not in self._types:
            raise RedisRuntimeError(f"there is no field {name!r}")
        return self._types[name], self._values[name]


def _to_json(value: Value) -> Value:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
