"""Names of dtypes, and substitutes of numpy dtypes for element types that numpy lacks, if `ml_dtypes` is not installed."""

from __future__ import annotations

from dataclasses import dataclass

#: The dtypes of numbers that numpy and torch have under the same name.
NUMBERS = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)


@dataclass(frozen=True, eq=False)
class ForeignDType:
    """The value of `Lease.dtype` for bfloat16 and float8 without `ml_dtypes`. The object has the
    attributes that identify a numpy dtype.

    The object compares equal to its name, and to dtypes with that name.
    """

    name: str
    itemsize: int
    kind: str = "V"

    def __eq__(self, other: object) -> bool:
        name = other if isinstance(other, str) else getattr(other, "name", None) or getattr(other, "__name__", None)
        return name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"dtype({self.name})"
