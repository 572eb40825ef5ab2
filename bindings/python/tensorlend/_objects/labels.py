"""Describes arrays and datasets of xarray as plain values and arrays, and makes them of such a description."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import numpy as np

from tensorlend._errors import ArgumentError
from tensorlend._objects import library
from tensorlend._objects.arrow import frequency


def described(value: Any) -> list[Any] | None:
    """Returns the description of a DataArray or a Dataset. Returns None for other values, and for those with arrays or indexes
    that the description cannot represent.
    """
    xarray: Any = sys.modules["xarray"]
    data: Any
    if type(value) is xarray.DataArray:
        data = _variable(value.name, value.variable, "")
        description = [data, value.name]
    elif type(value) is xarray.Dataset:
        data = {name: _variable(name, array.variable, "") for name, array in value.data_vars.items()}
        description = [data, dict(value.attrs)]
    else:
        return None
    freqs = {name: freq for name, (_, _, freq) in _indexes(value).items()}
    coords = {name: _variable(name, array.variable, freqs.get(name, "")) for name, array in value.coords.items()}
    description.append(coords)
    variables = [*coords.values(), *(data.values() if type(data) is dict else [data])]
    if any(type(array) is not np.ndarray or array.dtype.hasobject or freq is None for _, array, _, freq in variables):
        return None
    try:
        same = _indexes(made(description)) == _indexes(value)
    except (TypeError, ValueError):
        # An index of several levels is not made of its variables alone.
        return None
    return description if same else None


def _variable(name: Any, variable: Any, freq: str | None) -> tuple[Any, ...]:
    if variable.chunks is not None:
        raise ArgumentError(f"obj: the variable {name!r} of xarray is chunked, so its data are not in memory: call obj.load() first")
    return variable.dims, variable.data, dict(variable.attrs), freq


def _indexes(value: Any) -> dict[Any, tuple[Any, ...]]:
    """Returns type, dtype and frequency of each index."""
    found = {}
    for name, index in value.xindexes.items():
        labels = getattr(index, "index", None)
        found[name] = (type(index), getattr(labels, "dtype", None), None if labels is None else frequency(labels))
    return found


def made(description: list[Any]) -> Any:
    """Returns the array or the dataset of a description. Its arrays are those of the description."""
    xarray = library.xarray()
    data, label, variables = description
    coords = {name: _shown(*variable) for name, variable in variables.items()}
    if type(data) is dict:
        return xarray.Dataset({name: _shown(*variable) for name, variable in data.items()}, coords, label)
    # Unlike Dataset, DataArray copies its coordinates.
    key = object()
    array = xarray.Dataset({key: _shown(*data)}, coords)[key]
    array.name = label
    return array


def _shown(dims: Any, data: Any, attrs: Any, freq: str) -> tuple[Any, ...]:
    if freq:
        data = importlib.import_module("pandas").Index(data, copy=False)
        # Another version of pandas may have other names of frequencies.
        with contextlib.suppress(ValueError):
            data.freq = freq
    return dims, data, attrs
