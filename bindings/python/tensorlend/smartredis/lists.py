"""Aggregation lists, which contain the keys of datasets in the order in which they were appended.

A list holds keys, not values, so that readers get the latest value of each dataset.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

import tensorlend

from .calls import Calls
from .dataset import Content, Dataset
from .error import RedisRuntimeError
from .logging import LLInfo, log_warning
from .prefixes import dataset_name, value_key
from .util import api_call

__all__ = ["ListCalls"]

# Maximum number of leases on items at a time. A client has 4096 leases.
_ITEMS_AT_ONCE = 1024


class ListCalls(Calls):
    """The client's calls on lists."""

    @api_call
    def append_to_list(self, list_name: str, dataset: Dataset) -> None:
        """Appends a dataset's key to a list. ``put_dataset`` publishes the dataset itself."""
        key = self._prefixes.dataset(dataset.get_name(), reads=False)
        self._client.append(self._prefixes.list(list_name, reads=False), np.frombuffer(key.encode(), np.uint8))

    @api_call
    def get_list_length(self, list_name: str) -> int:
        """Returns the number of datasets in a list; 0 if the list does not exist."""
        return self._client.length(self._prefixes.list(list_name, reads=True))

    @api_call
    def poll_list_length(self, name: str, list_length: int, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the list has ``list_length`` datasets, for at most ``num_tries`` times
        ``poll_frequency_ms``. Returns whether the list has this length.

        :raises ValueError: for a length below 0
        """
        return self._poll(name, list_length, poll_frequency_ms, num_tries, "==")

    @api_call
    def poll_list_length_gte(self, name: str, list_length: int, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the list has at least ``list_length`` datasets, for at most ``num_tries``
        times ``poll_frequency_ms``. Returns whether the list has this length.

        :raises ValueError: for a length below 0
        """
        return self._poll(name, list_length, poll_frequency_ms, num_tries, ">=")

    @api_call
    def poll_list_length_lte(self, name: str, list_length: int, poll_frequency_ms: int, num_tries: int) -> bool:
        """Waits until the list has at most ``list_length`` datasets, for at most ``num_tries``
        times ``poll_frequency_ms``. Returns whether the list has this length.

        :raises ValueError: for a length below 0
        """
        return self._poll(name, list_length, poll_frequency_ms, num_tries, "<=")

    @api_call
    def get_datasets_from_list(self, list_name: str) -> list[Dataset]:
        """Returns the latest values of all datasets of a list. A deleted dataset is empty.

        :raises ValueError: for an empty name
        """
        return self.get_dataset_list_range(list_name, 0, -1)

    @api_call
    def get_dataset_list_range(self, list_name: str, start_index: int, end_index: int) -> list[Dataset]:
        """Returns the datasets from one index to another, both included. Index -1 is the last
        dataset. Indices beyond the end are ignored.

        :raises ValueError: for an empty name
        """
        _check_names(list_name)
        key = self._prefixes.list(list_name, reads=True)
        length = self._client.length(key)
        first = max(start_index + length if start_index < 0 else start_index, 0)
        last = min(end_index + length if end_index < 0 else end_index, length - 1)
        return [self._dataset(item) for item in self._items(key, first, last + 1)]

    @api_call
    def copy_list(self, src_name: str, dest_name: str) -> None:
        """Copies a list, and replaces the previous value of the other name.

        :raises RedisRuntimeError: if there is no such list
        :raises ValueError: for an empty name
        """
        _check_names(src_name, dest_name)
        if src_name == dest_name:
            return
        source = self._prefixes.list(src_name, reads=True)
        target = self._prefixes.list(dest_name, reads=False)
        items = list(self._items(source, 0, self._client.length(source)))
        if not items:
            raise RedisRuntimeError(f"there is no list {src_name!r}, key {source!r}", key=source)
        self._client.clear(target)
        for item in items:
            self._client.append(target, np.frombuffer(item.encode(), np.uint8))

    @api_call
    def rename_list(self, src_name: str, dest_name: str) -> None:
        """Gives a list another name, and replaces the previous value of that name.

        :raises RedisRuntimeError: if there is no such list
        :raises ValueError: for an empty name
        """
        _check_names(src_name, dest_name)
        source = self._prefixes.list(src_name, reads=True)
        target = self._prefixes.list(dest_name, reads=False)
        if src_name != dest_name and source != target:
            self._client.rename_list(source, target)

    @api_call
    def delete_list(self, list_name: str) -> None:
        """Deletes a list, if it exists. Does not delete its datasets."""
        self._client.clear(self._prefixes.list(list_name, reads=True))

    def _poll(self, name: str, list_length: int, poll_frequency_ms: int, num_tries: int, op: Literal[">=", "==", "<="]) -> bool:
        if list_length < 0:
            raise ValueError(f"list_length is {list_length}; it must be at least 0")
        if num_tries <= 0:
            return False
        seconds = max(poll_frequency_ms, 0) * num_tries / 1000
        try:
            self._client.wait_length(self._prefixes.list(name, reads=True), list_length, op, seconds)
        except tensorlend.TimeoutError:
            return False
        return True

    def _items(self, key: str, start: int, stop: int) -> Iterator[str]:
        """Returns the keys of a list's datasets."""
        for at in range(start, stop, _ITEMS_AT_ONCE):
            try:
                items = self._client.get_range(key, at, min(at + _ITEMS_AT_ONCE, stop))
            except tensorlend.NotFoundError:
                # The list was cleared after its length was read.
                return
            for item in items:
                with item:
                    if isinstance(item, tensorlend.Dataset):
                        raise RedisRuntimeError(f"the list {key!r} holds values that were not appended as datasets")
                    yield item.numpy().tobytes().decode()

    def _dataset(self, key: str) -> Dataset:
        name = dataset_name(key)
        try:
            value = self._client.get_dataset(value_key(key))
        except tensorlend.NotFoundError:
            log_warning(self._connection.context, LLInfo, f"the dataset {key} is in a list, but was deleted")
            return Dataset(name)
        return Dataset.from_pybind(Content.from_value(name, value))


def _check_names(*names: str) -> None:
    if not all(names):
        raise ValueError("the name of a list cannot be empty")
