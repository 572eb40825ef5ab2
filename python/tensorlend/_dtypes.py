"""Element types that numpy lacks, where `ml_dtypes` is not installed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class ForeignDType:
    """bfloat16 or a float8, as `Lease.dtype` shows it without `ml_dtypes`: it has the attributes that identify a dtype of numpy.

    It equals its name, and dtypes with that name.
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
