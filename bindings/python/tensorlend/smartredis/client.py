"""The client's methods for tensors, datasets, keys and prefixes. Other modules contain the methods
for lists, administration and models.
"""

import os
from typing import Any

import numpy as np

import tensorlend
from tensorlend._masks import without_mask

from .config import ConfigOptions, Options
from .connection import Connection
from .context import SRObject
from .dataset import Content, Dataset
from .error import RedisConnectionError, RedisKeyError, RedisReplyError, RedisRuntimeError
from .keys import key_exists, poll_key, poll_name, tensor_at
from .lists import ListCalls
from .models import ModelCalls
from .nodes import NodeCalls
from .prefixes import value_key
from .snapshot import Array
from .util import Dtypes, api_call, typecheck

__all__ = ["Client"]


class Client(ListCalls, NodeCalls, ModelCalls, SRObject):
    """A client of the tensorlend daemon with the calls of SmartRedis 0.6.1.

    Either ``Client(config_options=None, logger_name="Default")``, which takes its options from ``config_options`` or
    the environment, or ``Client(cluster, address=None, logger_name="Default")``, which sets ``SSDB`` to the address.

    :raises RedisConnectionError: if ``SSDB`` is not set or malformed, or no daemon responds within ``SR_CONN_TIMEOUT``
    """

    def __init__(self, *a: Any, **kw: Any) -> None:
        legacy = isinstance(a[0], bool) if a else ("cluster" in kw or "address" in kw)
        if a and not legacy and a[0] is not None and not isinstance(a[0], ConfigOptions):
            raise TypeError(f"the first argument is a {type(a[0]).__name__}; it must be ConfigOptions, None or bool")
        # Look these two methods up at each call, because programs replace them to observe the construction of clients.
        connection = self.__address_construction(*a, **kw) if legacy else self.__standard_construction(*a, **kw)
        super().__init__(connection)

    def __address_construction(
        self, cluster: bool, address: str | None = None, logger_name: str = "Default"
    ) -> Connection:
        if address:
            os.environ["SSDB"] = address
        return _connect(None, logger_name, cluster)

    @staticmethod
    def __standard_construction(
        config_options: ConfigOptions | None = None, logger_name: str = "Default"
    ) -> Connection:
        return _connect(config_options, logger_name, None)

    def __str__(self) -> str:
        return self._connection.describe()

    @property
    def _connection(self) -> Connection:
        assert isinstance(self._srobject, Connection)
        return self._srobject

    @api_call
    def put_tensor(self, name: str, data: Array) -> None:
        """Copies an array to the daemon's memory.

        :param data: of any shape and strides; float64, float32, int8 to int64, uint8 or uint16
        :raises TypeError: for other types
        :raises RedisBadAllocError: if memory is exhausted
        """
        Dtypes.tensor_from_numpy(data)
        self._client.put(self._prefixes.tensor(name, reads=False), np.asarray(without_mask(data), order="C"))

    @api_call
    def get_tensor(self, name: str) -> Array:
        """Returns a copy of the name's present value. The caller owns the copy.

        :raises RedisRuntimeError: if there is no such tensor
        """
        return tensor_at(self._client, self._prefixes.tensor(name, reads=True))

    @api_call
    def delete_tensor(self, name: str) -> None:
        """Deletes a tensor, if it exists."""
        self._client.delete(self._prefixes.tensor(name, reads=True))

    @api_call
    def copy_tensor(self, src_name: str, dest_name: str) -> None:
        """Copies a tensor to another name.

        :raises RedisRuntimeError: if there is no such tensor
        """
        source = self._prefixes.tensor(src_name, reads=True)
        target = self._prefixes.tensor(dest_name, reads=False)
        try:
            self._client.copy(source, target)
        except tensorlend.NotFoundError:
            # The source may be a tensor of a dataset.
            self._client.put(target, tensor_at(self._client, source))

    @api_call
    def rename_tensor(self, old_name: str, new_name: str) -> None:
        """Gives a tensor another name, and replaces the previous value of that name.

        :raises RedisRuntimeError: if there is no such tensor
        """
        source = self._prefixes.tensor(old_name, reads=True)
        self._rename(source, self._prefixes.tensor(new_name, reads=False))

    @api_call
    def put_dataset(self, dataset: Dataset) -> None:
        """Copies a dataset to the daemon's memory. Readers see the whole dataset or the previous value.

        :raises RedisRuntimeError: if it is empty
        :raises RedisBadAllocError: if memory is exhausted
        """
        content = dataset.get_data()
        tensors, metadata = content.to_value()
        key = self._prefixes.dataset(content.name, reads=False)
        self._client.put_dataset(value_key(key), tensors, metadata=metadata)

    @api_call
    def get_dataset(self, name: str) -> Dataset:
        """Returns a copy of the dataset's present value.

        :raises RedisKeyError: if there is no such dataset
        """
        key = self._prefixes.dataset(name, reads=True)
        try:
            value = self._client.get_dataset(value_key(key))
        except tensorlend.NotFoundError as e:
            raise RedisKeyError(f"there is no dataset {name!r}, key {key!r}", key=key) from e
        return Dataset.from_pybind(Content.from_value(name, value))

    @api_call
    def delete_dataset(self, name: str) -> None:
        """Deletes a dataset.

        :raises RedisRuntimeError: if there is no such dataset
        """
        key = self._prefixes.dataset(name, reads=True)
        if not self._client.delete(value_key(key)):
            raise RedisRuntimeError(f"there is no dataset {name!r}, key {key!r}", key=key)

    @api_call
    def copy_dataset(self, src_name: str, dest_name: str) -> None:
        """Copies a dataset to another name.

        :raises RedisKeyError: if there is no such dataset
        """
        source = self._prefixes.dataset(src_name, reads=True)
        target = self._prefixes.dataset(dest_name, reads=False)
        try:
            self._client.copy(value_key(source), value_key(target))
        except tensorlend.NotFoundError as e:
            raise RedisKeyError(f"there is no dataset {src_name!r}, key {source!r}", key=source) from e

    @api_call
    def rename_dataset(self, old_name: str, new_name: str) -> None:
        """Gives a dataset another name, and replaces the previous value of that name.

        :raises RedisKeyError: if there is no such dataset
        """
        source = self._prefixes.dataset(old_name, reads=True)
        target = self._prefixes.dataset(new_name, reads=False)
        try:
            self._rename(value_key(source), value_key(target))
        except tensorlend.NotFoundError as e:
            raise RedisKeyError(f"there is no dataset {old_name!r}, key {source!r}", key=source) from e

    @api_call
    def tensor_exists(self, name: str) -> bool:
        """Returns whether the tensor exists. ``{dataset}.tensor`` names a tensor of a dataset."""
        return key_exists(self._client, self._prefixes.tensor(name, reads=True))

    @api_call
    def dataset_exists(self, name: str) -> bool:
        """Returns whether the dataset exists."""
        return self._client.exists(value_key(self._prefixes.dataset(name, reads=True)))

    @api_call
    def key_exists(self, key: str) -> bool:
        """Returns whether the key, with its prefix, has a value. A key names a tensor, a list,
        ``{name}.meta`` or ``{name}.tensor``.
        """
        return key_exists(self._client, key)

    @api_call
    def poll_key(self, key: str, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the key has a value, for at most ``num_tries`` times ``poll_frequency_ms``.
        Returns whether the key has a value.
        """
        return poll_key(self._client, key, poll_frequency_ms, num_tries)

    @api_call
    def poll_tensor(self, name: str, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the tensor exists, for at most ``num_tries`` times ``poll_frequency_ms``.
        Returns whether the tensor exists.
        """
        key = self._prefixes.tensor(name, reads=True)
        return poll_key(self._client, key, poll_frequency_ms, num_tries)

    @api_call
    def poll_dataset(self, name: str, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the dataset exists, for at most ``num_tries`` times ``poll_frequency_ms``.
        Returns whether the dataset exists.
        """
        key = value_key(self._prefixes.dataset(name, reads=True))
        return poll_name(self._client, key, poll_frequency_ms, num_tries, lambda: self._client.exists(key))

    @api_call
    def set_data_source(self, source_id: str) -> None:
        """Selects the prefix of ``SSKEYIN`` under which this client reads. The default is the first
        prefix.

        :raises RedisRuntimeError: if ``SSKEYIN`` does not contain it
        """
        self._prefixes.set_source(source_id)

    @api_call
    def use_tensor_ensemble_prefix(self, use_prefix: bool) -> None:
        """Sets whether tensors' names are prefixed. By default they are."""
        self._prefixes.tensors = use_prefix

    @api_call
    def use_dataset_ensemble_prefix(self, use_prefix: bool) -> None:
        """Sets whether datasets' names are prefixed. By default they are."""
        self._prefixes.datasets = use_prefix

    @api_call
    def use_list_ensemble_prefix(self, use_prefix: bool) -> None:
        """Sets whether lists' names are prefixed. By default they are."""
        self._prefixes.lists = use_prefix

    @api_call
    def use_model_ensemble_prefix(self, use_prefix: bool) -> None:
        """Sets whether models' and scripts' names are prefixed. By default they are not."""
        self._prefixes.models = use_prefix

    def _rename(self, source: str, target: str) -> None:
        # A rename to the same name must still raise an error if the tensor does not exist.
        if source != target or not self._client.exists(source):
            self._client.rename(source, target)


def _connect(config_options: ConfigOptions | None, logger_name: str, cluster: bool | None) -> Connection:
    typecheck(logger_name, "logger_name", str)
    try:
        options = Options() if config_options is None else config_options.get_data()
        return Connection(options, logger_name, cluster)
    except RedisReplyError as e:
        raise RedisConnectionError(str(e)) from e
