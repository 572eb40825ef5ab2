"""Datasets that say which one they are, and calls that fail alike."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tensorlend.smartredis import Dataset

SSDB = "127.0.0.1:6379"
TENSOR_TYPES = ["float64", "float32", "int8", "int16", "int32", "int64", "uint8", "uint16"]
SCALAR_TYPES = ["float64", "float32", "int32", "int64", "uint32", "uint64"]


def numbered(name: str, number: int) -> Dataset:
    dataset = Dataset(name)
    dataset.add_tensor("values", np.full(3, number, np.float32))
    dataset.add_meta_scalar("number", number)
    return dataset


def numbers(datasets: list[Dataset]) -> list[int]:
    return [int(dataset.get_meta_scalars("number")[0]) for dataset in datasets]


def each_raises(error: type[Exception], calls: Sequence[Callable[[], object]], match: str | None = None) -> None:
    for call in calls:
        with pytest.raises(error, match=match):
            call()
