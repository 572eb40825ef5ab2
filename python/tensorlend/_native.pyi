"""The compiled part of tensorlend: the client library for Rust, as Python holds it."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CapsuleType, TracebackType
from typing import Any, Literal, SupportsIndex, final

import numpy as np
import numpy.typing as npt

__version__: str

type Mode = Literal["read", "cow"]
type Metadata = Mapping[str, Any] | bytes

class Error(Exception):
    """What any call of this package can raise; the subclasses are also the built-in exceptions that fit."""

class NotFoundError(Error, KeyError): ...
class TimeoutError(Error, __builtins__.TimeoutError): ...  # type: ignore[name-defined]
class DisconnectedError(Error, ConnectionError): ...
class LimitError(Error, MemoryError): ...
class StreamFullError(Error): ...
class StreamEndedError(Error): ...
