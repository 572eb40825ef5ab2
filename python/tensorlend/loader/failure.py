"""Exceptions on their way from a worker to the trainer."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any


class _Text(str):
    """A KeyError shows its argument's repr: this one keeps the lines of a traceback apart."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Failure:
    """An exception that was caught: its type and its traceback as text."""

    #: The type, pickled by reference; None if it has no name to find it by.
    kind: bytes | None
    message: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """What was caught, and where that was."""
        try:
            kind = pickle.dumps(type(error))
        except Exception:
            kind = None
        # Only the text: frames would keep the batch that failed.
        text = "".join(traceback.format_exception(error))
        return cls(kind, f"Caught {type(error).__name__} in {where}.\nOriginal {text}")

    def to_bytes(self) -> bytes:
        """To be sent."""
        return pickle.dumps((self.kind, self.message))

    @classmethod
    def from_bytes(cls, data: Any) -> Failure:
        """As it was sent."""
        return cls(*pickle.loads(data))

    def error(self) -> BaseException:
        """An exception of the same type if that takes one message, otherwise a RuntimeError; its message is the traceback."""
        try:
            kind = pickle.loads(self.kind) if self.kind is not None else RuntimeError
            # It would end the iteration as if all had gone well.
            if issubclass(kind, StopIteration):
                return RuntimeError(self.message)
            error = kind(_Text(self.message) if issubclass(kind, KeyError) else self.message)
            if isinstance(error, BaseException):
                return error
        except Exception:
            pass
        return RuntimeError(self.message)
