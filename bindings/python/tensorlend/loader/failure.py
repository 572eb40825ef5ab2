"""Exceptions that a worker sends to the trainer."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import Any


class _Text(str):
    """A text whose repr is the text itself. KeyError shows its argument's repr, which would escape
    the line breaks of a traceback.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Failure:
    """A caught exception, as its type and its traceback in text form."""

    #: The type, pickled by reference; None if it cannot be pickled.
    kind: bytes | None
    message: str

    @classmethod
    def of(cls, error: BaseException, where: str) -> Failure:
        """Returns the failure for an exception that was caught in `where`."""
        try:
            kind = pickle.dumps(type(error))
        except Exception:
            kind = None
        # Store only the text, because frames would keep the failed batch alive.
        text = "".join(traceback.format_exception(error))
        return cls(kind, f"Caught {type(error).__name__} in {where}.\nOriginal {text}")

    def to_bytes(self) -> bytes:
        """Returns the failure's bytes, to be sent."""
        return pickle.dumps((self.kind, self.message))

    @classmethod
    def from_bytes(cls, data: Any) -> Failure:
        """Returns the failure with these bytes."""
        return cls(*pickle.loads(data))

    def error(self) -> BaseException:
        """Returns an exception of the same type if this type can be made from one message.
        Otherwise returns a RuntimeError. The message is the traceback.
        """
        try:
            kind = pickle.loads(self.kind) if self.kind is not None else RuntimeError
            # Do not raise StopIteration, because it would end the iteration without an error.
            if issubclass(kind, StopIteration):
                return RuntimeError(self.message)
            error = kind(_Text(self.message) if issubclass(kind, KeyError) else self.message)
            if isinstance(error, BaseException):
                return error
        except Exception:
            pass
        return RuntimeError(self.message)
