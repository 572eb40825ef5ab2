"""Names of types, and the checks and the translation of errors that all calls of this package share."""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from types import GenericAlias
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

import tensorlend

from . import error

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T")

# Byte order is part of a numpy dtype's string, so that ">f8" is in neither table.
_TENSOR_TYPES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "uint8": "UINT8",
    "uint16": "UINT16",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
}
_SCALAR_TYPES = {
    "float64": "DOUBLE",
    "float32": "FLOAT",
    "uint32": "UINT32",
    "uint64": "UINT64",
    "int32": "INT32",
    "int64": "INT64",
}
_TYPES: dict[str, type] = {
    "DOUBLE": np.float64,
    "FLOAT": np.float32,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "STRING": str,
}

# The translations of exceptions. The first entry whose type matches is used.
_TRANSLATIONS: tuple[tuple[type[Exception], type[error.RedisReplyError]], ...] = (
    (tensorlend.TimeoutError, error.RedisTimeoutError),
    (tensorlend.DisconnectedError, error.RedisDatabaseError),
    (tensorlend.LimitError, error.RedisBadAllocError),
    (tensorlend.Error, error.RedisRuntimeError),
)


class Dtypes:
    """Names of element types: ``"DOUBLE"`` for float64, ``"FLOAT"`` for float32, and so on."""

    @staticmethod
    def tensor_from_numpy(array: npt.NDArray[Any]) -> str:
        """Returns the name of a tensor's element type.

        :raises TypeError: for a type that a tensor cannot hold: it can hold float64, float32, int8 to int64, uint8 and
            uint16, in the machine's byte order
        """
        return _named(array, _TENSOR_TYPES, "tensor")

    @staticmethod
    def metadata_from_numpy(array: npt.NDArray[Any]) -> str:
        """Returns the name of a metadata scalar's type.

        :raises TypeError: for a type that a scalar field cannot hold: it can hold float64, float32, int32, int64, uint32
            and uint64, in the machine's byte order
        """
        return _named(array, _SCALAR_TYPES, "metadata")

    @staticmethod
    def from_string(type_name: str) -> type:
        """Returns the numpy type with this name; ``str`` for ``"STRING"``.

        :raises TypeError: if no type has this name
        """
        try:
            return _TYPES[type_name]
        except KeyError:
            raise TypeError(f"{type_name!r} names no type; there are {', '.join(_TYPES)}") from None


def _named(array: npt.NDArray[Any], names: dict[str, str], kind: str) -> str:
    try:
        return names[str(array.dtype)]
    except KeyError:
        raise TypeError(f"{array.dtype} cannot be {kind}; use one of {', '.join(names)}") from None


def typecheck(arg: object, name: str, _type: type | tuple[type, ...]) -> None:
    """Checks the type of an argument.

    :raises TypeError: if ``arg`` is not of ``_type``, or of one of them
    """
    if not isinstance(arg, _type):
        wanted = " or ".join(each.__name__ for each in (_type if isinstance(_type, tuple) else (_type,)))
        raise TypeError(f"{name} is a {type(arg).__name__}; it must be {wanted}")


def init_default(default: _T, init_value: Any, expected_type: type | tuple[type, ...] | None = None) -> Any | _T:
    """Returns ``init_value``, or ``default`` if it is None.

    :raises TypeError: if it is not None and not of ``expected_type``
    """
    if init_value is None:
        return default
    if expected_type is not None:
        typecheck(init_value, "argument", expected_type)
    return init_value


def exception_handler(func: Callable[_P, _R]) -> Callable[_P, _R]:
    """Converts errors of ``tensorlend`` to errors of this package. Each error names the call that
    failed.
    """
    return _handled(func, [])


def api_call(func: Callable[_P, _R]) -> Callable[_P, _R]:
    """Checks the types of a call's arguments by its annotations, and converts errors as ``exception_handler`` does."""
    kinds = [(parameter.name, _kind(parameter.annotation)) for parameter in signature(func).parameters.values()]
    return _handled(func, [(at, name, kind) for at, (name, kind) in enumerate(kinds) if kind is not None])


def _kind(annotation: Any) -> type | None:
    """Returns the class of which an argument must be; None for unions, and for bytes, for which any buffer may stand."""
    kind = annotation.__origin__ if isinstance(annotation, GenericAlias) else annotation
    return kind if isinstance(kind, type) and kind not in (bytes, Parameter.empty) else None


def _handled(func: Callable[_P, _R], checks: list[tuple[int, str, type]]) -> Callable[_P, _R]:
    @wraps(func)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        for at, name, kind in checks:
            if at < len(args):
                if not isinstance(args[at], kind):
                    typecheck(args[at], name, kind)
            elif name in kwargs:
                typecheck(kwargs[name], name, kind)
        try:
            return func(*args, **kwargs)
        except error.RedisReplyError as e:
            if e.method:
                raise
            raise type(e)(str(e), _method(func, args), e.key) from e.__cause__
        except tensorlend.Error as e:
            raise _translated(e)(str(e), _method(func, args)) from e

    return call


def _method(func: Callable[..., object], args: tuple[object, ...]) -> str:
    # The client inherits most of its methods from its parts. Name the client's class in the error,
    # because the user knows this class.
    if "." not in func.__qualname__ or not args:
        return func.__name__
    owner = args[0] if isinstance(args[0], type) else type(args[0])
    return f"{owner.__name__}.{func.__name__}"


def _translated(e: Exception) -> type[error.RedisReplyError]:
    return next(ours for theirs, ours in _TRANSLATIONS if isinstance(e, theirs))
