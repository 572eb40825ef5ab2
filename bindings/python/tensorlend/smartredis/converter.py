"""Converts datasets to xarray. Fields of the dataset state which tensors are data, and which fields
and tensors describe the data.

Fields of the dataset itself describe this: ``_xarray_data_names`` has the names of all described tensors, and for each of them
``_xarray_NAME_dim_names``, ``_coord_names`` and ``_attr_names`` have names with commas between them, or ``null``.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .dataset import Dataset
from .error import RedisRuntimeError
from .util import typecheck

if TYPE_CHECKING:
    import xarray as xr
else:
    # The first call that needs xarray imports it.
    xr = None

__all__ = ["DatasetConverter"]

_DATA_NAMES = "_xarray_data_names"
_NOTHING = "null"

Names = str | list[str] | None


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _requires_xarray(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Makes a call raise RedisRuntimeError if xarray cannot be imported. Tests of SmartRedis expect
    this text and this function's name.
    """

    @functools.wraps(call)
    def checked(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        global xr
        try:
            import xarray as xr
        except ImportError as e:
            raise RedisRuntimeError(
                "Optional package xarray must be installed; Consider running `pip install tensorlend[xarray]`, "
                "which replaces smartredis[xarray]"
            ) from e
        return call(*args, **kwargs)

    return checked


class DatasetConverter:
    """Describes the tensors of a dataset, and converts them to xarray's arrays."""

    @staticmethod
    def add_metadata_for_xarray(
        dataset: Dataset,
        data_names: str | list[str],
        dim_names: str | list[str],
        coord_names: Names = None,
        attr_names: Names = None,
    ) -> None:
        """Describes tensors.

        :param data_names: the tensors
        :param dim_names: the string fields that hold the names of their dimensions, in order
        :param coord_names: the tensors that are their coordinates; each is described by a call of its own
        :param attr_names: the string fields that are their attributes
        :raises TypeError: if names are not a text or a list of texts
        """
        typecheck(dataset, "dataset", Dataset)
        described = {
            "dim": _checked(dim_names, "dim_names"),
            "coord": _checked(coord_names, "coord_names") if coord_names else [],
            "attr": _checked(attr_names, "attr_names") if attr_names else [],
        }
        for name in _checked(data_names, "data_names"):
            dataset.add_meta_string(_DATA_NAMES, name)
            for kind, names in described.items():
                dataset.add_meta_string(_field(name, kind), ",".join(names) or _NOTHING)

    @staticmethod
    @_requires_xarray
    def transform_to_xarray(dataset: Dataset) -> "dict[str, xr.DataArray]":
        """Returns the described tensors by name, except those that are coordinates of another tensor.

        :raises RedisRuntimeError: if xarray is not installed, or the dataset is not described
        """
        typecheck(dataset, "dataset", Dataset)
        described = dataset.get_meta_strings(_DATA_NAMES)
        coordinates = {name: [c for c in _names(dataset, name, "coord") if c in described] for name in described}
        of_others = {c for name, names in coordinates.items() for c in names if c != name}
        return {
            name: xr.DataArray(
                name=name,
                data=dataset.get_tensor(name),
                dims=_dims(dataset, name),
                coords={c: (_dims(dataset, c), dataset.get_tensor(c), _attrs(dataset, c)) for c in coordinates[name]},
                attrs=_attrs(dataset, name),
            )
            for name in described
            if name not in of_others
        }


def _checked(names: object, called: str) -> list[str]:
    if isinstance(names, str):
        return [names]
    typecheck(names, called, list)
    assert isinstance(names, list)
    for name in names:
        typecheck(name, f"one of {called}", str)
    return names


def _field(name: str, kind: str) -> str:
    return f"_xarray_{name}_{kind}_names"


def _names(dataset: Dataset, name: str, kind: str) -> list[str]:
    joined = dataset.get_meta_strings(_field(name, kind))[0]
    return [] if joined == _NOTHING else joined.split(",")


def _dims(dataset: Dataset, name: str) -> list[str]:
    return [dataset.get_meta_strings(field)[0] for field in _names(dataset, name, "dim")]


def _attrs(dataset: Dataset, name: str) -> dict[str, Any]:
    return {field: dataset.get_meta_strings(field)[0] for field in _names(dataset, name, "attr")}
