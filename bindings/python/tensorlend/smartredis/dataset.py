"""Datasets, which contain tensors and metadata fields under one name. Readers see all of a dataset
or nothing.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

import tensorlend
from tensorlend._masks import without_mask

from .context import Context, SRObject
from .error import RedisKeyError, RedisRuntimeError
from .fields import Fields
from .snapshot import Array, copied
from .util import Dtypes, api_call, typecheck

__all__ = ["Content", "Dataset"]

# Fields that exceed the 64 KiB of a value's metadata are the bytes of this tensor, which programs do not see.
_SPILLED = ".fields"
_METADATA_BYTES_MAX = 60 * 1024


class Content(Context):
    """The tensors and fields of a dataset."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        self.tensors: dict[str, Array] = {}
        self.fields = Fields()

    def get_name(self) -> str:
        return self.name

    @classmethod
    def from_value(cls, name: str, value: tensorlend.Dataset) -> "Content":
        """Returns the content of a leased dataset."""
        content = cls(name)
        metadata: Any = value.metadata
        with value:
            content.tensors = {member: copied(lease) for member, lease in value.items()}
        spilled = content.tensors.pop(_SPILLED, None)
        if spilled is not None:
            metadata = json.loads(spilled.tobytes())
        # A dataset without fields was published with tensorlend's own client.
        fields = metadata.get("fields", {}) if isinstance(metadata, Mapping) else {}
        content.fields = Fields.from_json(fields)
        return content

    def to_value(self) -> tuple[dict[str, Array], bytes]:
        """Returns the tensors and the metadata to publish. The metadata is JSON in ASCII, so a text may contain the codes
        that stand for bytes outside UTF-8.

        :raises RedisRuntimeError: if it is empty
        """
        if not self.tensors and not len(self.fields):
            raise RedisRuntimeError(f"the dataset {self.name!r} is empty: add a tensor or a field first")
        written = json.dumps({"fields": self.fields.to_json()}).encode()
        if len(written) <= _METADATA_BYTES_MAX:
            return self.tensors, written
        return {**self.tensors, _SPILLED: np.frombuffer(written, np.uint8)}, b"{}"

    def tensor(self, name: str) -> Array:
        """:raises RedisKeyError: if there is no such tensor"""
        try:
            return self.tensors[name]
        except KeyError:
            raise RedisKeyError(f"the dataset {self.name!r} has no tensor {name!r}", key=name) from None


class Dataset(SRObject):
    """Tensors and metadata fields under one name.

    A dataset is in this process's private memory. ``Client.put_dataset`` and ``Client.get_dataset``
    copy it.

    :param name: its name
    """

    def __init__(self, name: str) -> None:
        typecheck(name, "name", str)
        super().__init__(Content(name))

    @staticmethod
    def from_pybind(dataset: Content) -> "Dataset":
        """Returns a dataset with this content."""
        typecheck(dataset, "dataset", Content)
        new = Dataset(dataset.name)
        new.set_data(dataset)
        return new

    @api_call
    def get_data(self) -> Content:
        """Returns the content."""
        return self._content

    @api_call
    def set_data(self, dataset: Content) -> None:
        """Replaces the content."""
        self._srobject = dataset

    @api_call
    def get_name(self) -> str:
        """Returns the dataset's name, without prefixes."""
        return self._content.name

    @api_call
    def add_tensor(self, name: str, data: Array) -> None:
        """Adds a copy of an array.

        :param data: of any shape and strides; float64, float32, int8 to int64, uint8 or uint16
        :raises TypeError: for other types
        :raises RedisRuntimeError: if there is a tensor of this name, or the name is empty or reserved
        """
        Dtypes.tensor_from_numpy(data)
        if not name or name == _SPILLED:
            raise RedisRuntimeError(f"{name!r} cannot be the name of a tensor")
        if name in self._content.tensors:
            raise RedisRuntimeError(f"the dataset {self._content.name!r} has a tensor {name!r} already", key=name)
        self._content.tensors[name] = np.array(without_mask(data), order="C")

    @api_call
    def get_tensor(self, name: str) -> Array:
        """Returns a writable copy of a tensor.

        :raises RedisKeyError: if there is no such tensor
        """
        return np.array(self._content.tensor(name))

    @api_call
    def get_tensor_type(self, name: str) -> type:
        """Returns the numpy type of a tensor's elements.

        :raises RedisKeyError: if there is no such tensor
        """
        return self._content.tensor(name).dtype.type

    @api_call
    def get_tensor_names(self) -> list[str]:
        """Returns the names of all tensors, in the order in which they were added."""
        return list(self._content.tensors)

    @api_call
    def get_tensor_dims(self, name: str) -> list[int]:
        """Returns a tensor's shape.

        :raises RedisKeyError: if there is no such tensor
        """
        return list(self._content.tensor(name).shape)

    @api_call
    def add_meta_scalar(self, name: str, data: int | float | np.generic | Array) -> None:
        """Appends a number to a field. Creates the field if it does not exist.

        :param data: a Python number, a numpy scalar or an array of one element; its type is the field's: float64,
            float32, int32, int64, uint32 or uint64
        :raises TypeError: for more than one number, or other types
        :raises RedisRuntimeError: if the field has another type
        """
        array = np.asarray(data)
        if array.size != 1:
            raise TypeError(f"{array.size} values are not a scalar")
        self._content.fields.add(name, Dtypes.metadata_from_numpy(array), array.item())

    @api_call
    def add_meta_string(self, name: str, data: str) -> None:
        """Appends a text to a field. Creates the field if it does not exist.

        :raises RedisRuntimeError: if the field holds numbers
        """
        self._content.fields.add(name, "STRING", data)

    @api_call
    def get_meta_scalars(self, name: str) -> Array:
        """Returns the numbers of a field as a one-dimensional array of the field's type.

        :raises RedisRuntimeError: if there is no such field, or it holds texts
        """
        return self._content.fields.scalars(name)

    @api_call
    def get_meta_strings(self, name: str) -> list[str]:
        """Returns the texts of a field.

        :raises RedisRuntimeError: if there is no such field, or it holds numbers
        """
        return self._content.fields.strings(name)

    @api_call
    def get_metadata_field_names(self) -> list[str]:
        """Returns the names of all fields."""
        return self._content.fields.names()

    @api_call
    def get_metadata_field_type(self, name: str) -> type:
        """Returns the numpy type of a field, or ``str``.

        :raises RedisKeyError: if there is no such field
        """
        if name not in self._content.fields:
            raise RedisKeyError(f"the dataset {self._content.name!r} has no field {name!r}", key=name)
        return Dtypes.from_string(self._content.fields.type_of(name))

    def __str__(self) -> str:
        content = self._content
        tensors = [f"  {name}: {array.dtype} {list(array.shape)}" for name, array in content.tensors.items()]
        fields = [f"  {name}: {content.fields.type_of(name)}" for name in content.fields.names()]
        return "\n".join(
            [f"Dataset {content.name}", "tensors:", *(tensors or ["  none"]), "fields:", *(fields or ["  none"])]
        )

    @property
    def _content(self) -> Content:
        assert isinstance(self._srobject, Content)
        return self._srobject
