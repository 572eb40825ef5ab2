"""Datasets of ``tensorlend.smartredis``: their tensors, their fields, and as arrays of xarray."""

import sys
import threading

import numpy as np
import pytest
from .numbered import SCALAR_TYPES, TENSOR_TYPES, each_raises, numbered

from tensorlend.smartredis import Client, Dataset, DatasetConverter
from tensorlend.smartredis.error import RedisKeyError, RedisRuntimeError


def test_a_dataset_comes_back_with_all_its_fields(client: Client) -> None:
    dataset = Dataset("full")
    for dtype in TENSOR_TYPES:
        dataset.add_tensor(f"tensor {dtype}", np.arange(6, dtype=dtype).reshape(2, 3))
    for dtype in SCALAR_TYPES:
        for value in (0, 3):
            dataset.add_meta_scalar(f"scalar {dtype}", np.dtype(dtype).type(value))
    for text in ("one", "", "zwölf\0"):
        dataset.add_meta_string("texts", text)
    client.put_dataset(dataset)
    got = client.get_dataset("full")
    assert got.get_name() == "full"
    assert got.get_tensor_names() == [f"tensor {dtype}" for dtype in TENSOR_TYPES]
    for dtype in TENSOR_TYPES:
        name = f"tensor {dtype}"
        assert (got.get_tensor_type(name), got.get_tensor_dims(name)) == (np.dtype(dtype).type, [2, 3])
        np.testing.assert_array_equal(got.get_tensor(name), dataset.get_tensor(name))
    for dtype in SCALAR_TYPES:
        name = f"scalar {dtype}"
        assert got.get_metadata_field_type(name) == np.dtype(dtype).type
        assert got.get_meta_scalars(name).dtype == dtype and got.get_meta_scalars(name).tolist() == [0, 3]
    assert got.get_meta_strings("texts") == ["one", "", "zwölf\0"]
    assert got.get_metadata_field_type("texts") is str
    assert got.get_metadata_field_names() == dataset.get_metadata_field_names()


def test_scalars_are_exact(client: Client) -> None:
    dataset = Dataset("exact")
    floats = [0.1, -0.0, 5e-324, float("inf"), float("-inf"), float("nan")]
    for value in floats:
        dataset.add_meta_scalar("doubles", value)
        dataset.add_meta_scalar("floats", np.float32(value))
    for number in (2**64 - 1, 2**63):
        dataset.add_meta_scalar("big", np.uint64(number))
    dataset.add_meta_scalar("small", -(2**63))
    client.put_dataset(dataset)
    got = client.get_dataset("exact")
    for name, dtype in (("doubles", "float64"), ("floats", "float32")):
        assert got.get_meta_scalars(name).tobytes() == np.array(floats, dtype).tobytes()
    assert got.get_meta_scalars("big").tolist() == [2**64 - 1, 2**63]
    assert got.get_meta_scalars("small").tolist() == [-(2**63)]


@pytest.mark.parametrize("times", [1, 20_000], ids=["in the metadata", "in a tensor"])
def test_bytes_outside_utf_8_come_back(client: Client, times: int) -> None:
    """Programs in C++ and Fortran can store such bytes. A program in Python that gets the dataset can put it again."""
    text = b"caf\xe9 \xff".decode(errors="surrogateescape") * times
    dataset = Dataset("bytes")
    dataset.add_meta_string("text", text)
    client.put_dataset(dataset)
    got = client.get_dataset("bytes")
    assert got.get_meta_strings("text") == [text]
    client.put_dataset(got)
    assert client.get_dataset("bytes").get_meta_strings("text") == [text]


def test_a_dataset_of_fields_only_and_one_with_very_many(client: Client) -> None:
    with pytest.raises(RedisRuntimeError, match="empty"):
        client.put_dataset(Dataset("nothing"))
    few, many = Dataset("few"), Dataset("many")
    few.add_meta_string("text", "alone")
    for number in range(20_000):
        many.add_meta_scalar("numbers", number)
    client.put_dataset(few)
    client.put_dataset(many)
    assert client.get_dataset("few").get_meta_strings("text") == ["alone"]
    got = client.get_dataset("many")
    assert got.get_meta_scalars("numbers").tolist() == list(range(20_000))
    assert got.get_tensor_names() == []


def test_a_dataset_that_was_got_can_be_added_to_and_put_again(client: Client) -> None:
    client.put_dataset(numbered("grows", 1))
    got = client.get_dataset("grows")
    got.add_tensor("large", np.ones(1 << 20, np.uint8))
    got.add_meta_scalar("number", 2)
    client.put_dataset(got)
    again = client.get_dataset("grows")
    assert again.get_meta_scalars("number").tolist() == [1, 2]
    assert again.get_tensor_names() == ["values", "large"]
    again.get_tensor("large")[:] = 7
    client.put_dataset(again)
    client.put_dataset(numbered("grows", 3))
    assert (again.get_tensor("large") == 1).all()
    assert client.get_dataset("grows").get_tensor_names() == ["values"]


def test_fields_keep_their_type() -> None:
    dataset = numbered("typed", 1)
    each_raises(
        RedisRuntimeError,
        [
            lambda: dataset.add_meta_scalar("number", 1.5),
            lambda: dataset.add_meta_string("number", "text"),
            lambda: dataset.get_meta_strings("number"),
            lambda: dataset.get_meta_scalars("absent"),
            lambda: dataset.add_tensor("values", np.zeros(1)),
            lambda: dataset.add_tensor("", np.zeros(1)),
        ],
    )
    each_raises(
        RedisKeyError,
        [
            lambda: dataset.get_tensor("absent"),
            lambda: dataset.get_tensor_type("absent"),
            lambda: dataset.get_tensor_dims("absent"),
            lambda: dataset.get_metadata_field_type("absent"),
        ],
    )
    for value in (True, "text", np.int16(1), np.zeros(2), 1j, None):
        with pytest.raises(TypeError):
            dataset.add_meta_scalar("scalar", value)  # type: ignore[arg-type]


def test_a_dataset_that_does_not_exist(client: Client) -> None:
    each_raises(
        RedisKeyError,
        [
            lambda: client.get_dataset("absent"),
            lambda: client.copy_dataset("absent", "b"),
            lambda: client.rename_dataset("absent", "b"),
        ],
        match="absent",
    )
    client.put_tensor("tensor", np.ones(1))
    each_raises(RedisKeyError, [lambda: client.copy_dataset("tensor", "b")], match="tensor")
    with pytest.raises(RedisRuntimeError, match="absent"):
        client.delete_dataset("absent")


def test_datasets_are_copied_renamed_and_deleted(client: Client) -> None:
    client.put_dataset(numbered("a", 1))
    client.copy_dataset("a", "b")
    client.rename_dataset("a", "c")
    client.rename_dataset("c", "c")
    assert [client.dataset_exists(name) for name in "abc"] == [False, True, True]
    client.delete_dataset("b")
    assert not client.dataset_exists("b")
    assert client.get_dataset("c").get_name() == "c"


def test_readers_see_all_of_a_dataset_or_none(client: Client) -> None:
    client.put_dataset(numbered("whole", 0))
    ends = threading.Event()

    def write() -> None:
        writer, number = Client(), 0
        while not ends.is_set():
            number += 1
            writer.put_dataset(numbered("whole", number))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            got = client.get_dataset("whole")
            assert (got.get_tensor("values") == got.get_meta_scalars("number")[0]).all()
    finally:
        ends.set()
        thread.join()


def test_datasets_become_arrays_of_xarray(client: Client) -> None:
    xarray = pytest.importorskip("xarray")
    wind = np.random.default_rng(1).random((4, 3))
    dataset = Dataset("wind")
    for name, tensor in (("speed", wind), ("east", np.arange(4.0)), ("north", np.arange(3.0))):
        dataset.add_tensor(name, tensor)
    for name, text in (("dim east", "x"), ("dim north", "y"), ("unit", "m/s"), ("degrees", "deg")):
        dataset.add_meta_string(name, text)
    describe = DatasetConverter.add_metadata_for_xarray
    describe(dataset, "speed", ["dim east", "dim north"], ["east", "north"], "unit")
    describe(dataset, ["east"], "dim east", attr_names="degrees")
    describe(dataset, "north", "dim north")
    client.put_dataset(dataset)
    arrays = DatasetConverter.transform_to_xarray(client.get_dataset("wind"))
    expected = xarray.DataArray(
        wind,
        name="speed",
        dims=["x", "y"],
        coords={"east": ("x", np.arange(4.0), {"degrees": "deg"}), "north": ("y", np.arange(3.0))},
        attrs={"unit": "m/s"},
    )
    assert list(arrays) == ["speed"] and arrays["speed"].identical(expected)
    for names in ({"speed"}, 5, ["speed", 5]):
        with pytest.raises(TypeError):
            describe(dataset, names, "dim east")  # type: ignore[arg-type]


def test_without_xarray_the_error_is_the_originals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xarray", None)
    monkeypatch.setattr("tensorlend.smartredis.converter.xr", None)
    with pytest.raises(RedisRuntimeError, match=r"Optional package xarray must be installed; Consider running .* smartredis\[xarray\]"):
        DatasetConverter.transform_to_xarray(Dataset("wind"))
