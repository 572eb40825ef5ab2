"""The optional libraries. msgpack, pyarrow and joblib have no type annotations."""

import importlib
from typing import Any


def arrow() -> Any:
    """Returns the module pyarrow."""
    try:
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise ImportError("Arrow data need the package pyarrow: pip install pyarrow") from error


def xarray() -> Any:
    """Returns the module xarray."""
    try:
        return importlib.import_module("xarray")
    except ImportError as error:
        raise ImportError("arrays and datasets of xarray need the package xarray: pip install xarray") from error


def _msgpack() -> Any:
    try:
        return importlib.import_module("msgpack")
    except ImportError as error:
        raise ImportError(
            "tensorlend.freeze, put_object and get_object need the package msgpack: pip install 'tensorlend[objects]'"
        ) from error


msgpack = _msgpack()
