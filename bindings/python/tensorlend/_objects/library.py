"""The optional libraries. msgpack, pyarrow and joblib have no type annotations."""

import importlib
from typing import Any


def _imported(name: str, need: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(need) from error


def arrow() -> Any:
    """Returns the module pyarrow."""
    return _imported("pyarrow", "Arrow data need the package pyarrow: pip install pyarrow")


def xarray() -> Any:
    """Returns the module xarray."""
    return _imported("xarray", "arrays and datasets of xarray need the package xarray: pip install xarray")


msgpack = _imported(
    "msgpack", "share of a list or a dict, put_object and get_object need the package msgpack: pip install 'tensorlend[objects]'"
)
