"""Objects with labels: series of pandas, and arrays and datasets of xarray."""

import functools
import importlib

import numpy as np
import pytest
from places import address, is_in

import tensorlend
from tensorlend import share

pytest.importorskip("msgpack", reason="msgpack is not installed")


def test_series_of_pandas(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    days = pd.date_range("2020-01-01", periods=2, freq="D")
    plain = [
        pd.Series(np.arange(5.0), name="a"), pd.Series([1, 2]), pd.Series([1, 2], name=0), pd.Series([1, 2], name=("a", 1)), pd.Series([], dtype=float),
        pd.Series(["a", None], index=["x", "y"]), pd.Series(["b", "a"], dtype="category", name="c"), pd.Series(days.tz_localize("Asia/Tokyo"), name="t"),
        pd.Series([1, 2], index=days), pd.Series([1, None], dtype="Int64"), pd.Series([1, 2], index=pd.MultiIndex.from_product([[1], ["a", "b"]], names=["p", "q"])),
    ]  # fmt: skip
    # The last two have intervals, and an index whose name is a tuple.
    pickled = [
        pd.Series([{1}, 2]), pd.Series([1 + 2j]), pd.Series([1, 2]).set_flags(allows_duplicate_labels=False),
        pd.cut(pd.Series([1.0, 2.0]), 2), pd.DataFrame({("a", 1): [1], ("a", 2): [2]}).set_index(("a", 1))[("a", 2)],
    ]  # fmt: skip
    for series in plain + pickled:
        series.attrs = {"unit": "m"}
        client.put_object("x", series)
        assert client.get_value("x").metadata["pickle"] == any(series is one for one in pickled), series
        found = client.get_object("x", trust_pickle=True)
        pd.testing.assert_series_equal(found, series, check_freq=True, check_flags=True)
        assert found.attrs == series.attrs and type(found.name) is type(series.name)
    client.put_object("x", plain[0])
    numbers = client.get_object("x").to_numpy()
    assert is_in(client.get_value("x"), address(numbers)) and not numbers.flags.writeable


def test_attributes_that_arrow_would_change_in_a_frame_of_pandas_are_kept(client):
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    for attrs in ({"size": (1, 2)}, {1: 2}):
        frame = pd.DataFrame({"a": [1]})
        frame.attrs = attrs
        client.put_object("x", frame)
        assert client.get_object("x", trust_pickle=True).attrs == attrs


def samples_of_xarray(xarray):
    pd = importlib.import_module("pandas")
    days = pd.date_range("2020-01-01", periods=2, freq="D")
    coords = {"x": ("x", [1, 2], {"long": "X"}), "s": 3.5, "lat": (("x", "y"), np.ones((2, 3)))}
    attrs = {"unit": "m", "array": np.arange(3), "size": (1,)}
    array = xarray.DataArray(np.arange(6.0).reshape(2, 3), coords, ("x", "y"), "q", attrs)
    vector = functools.partial(xarray.DataArray, [1, 2], dims="x")
    plain = [
        array, array.T, array.x, xarray.DataArray(5), vector(coords={"x": days}), vector(coords={"x": ["a", "b"]}), xarray.Dataset(),
        xarray.Dataset({"a": array, "b": ("x", [1, 2], {"n": 1})}, attrs={"title": "t"}),
    ]  # fmt: skip
    # Indexes that are not made of the coordinates alone, and types that numpy does not have.
    pickled = [
        array.drop_indexes("x"), array.stack(z=("x", "y")), vector(coords={"x": days.tz_localize("Asia/Tokyo")}),
        vector(coords={"x": pd.Categorical(["a", "b"])}), xarray.DataArray(np.array([{}, 1], object)),
    ]  # fmt: skip
    return plain, pickled


def test_arrays_and_datasets_of_xarray(client):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    plain, pickled = samples_of_xarray(xarray)
    for value in plain + pickled:
        client.put_object("x", value)
        assert client.get_value("x").metadata["pickle"] == any(value is one for one in pickled), value
        found = client.get_object("x", trust_pickle=True)
        assert type(found) is type(value) and found.identical(value) and set(found.xindexes) == set(value.xindexes)
        for name, index in value.xindexes.items():
            assert found.xindexes[name].equals(index)
            assert getattr(found.indexes[name], "freq", None) == getattr(value.indexes[name], "freq", None)
    for value in plain[0], plain[-1]:
        client.put_object("x", value)
        found = client.get_object("x")
        variables = [found.lat.values, *([found.values] if value is plain[0] else [found["a"].values, found["b"].values])]
        assert all(is_in(client.get_value("x"), address(array)) and not array.flags.writeable for array in variables)
        assert share(value, client=client).identical(value)


def test_chunked_arrays_of_xarray_are_refused(client):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")

    class Chunked:
        """An array whose data are not in memory, as dask makes it."""

        shape, dtype, ndim, size, chunks = (2,), np.dtype(float), 1, 2, ((1, 1),)

        def __array_function__(self, *_):
            return NotImplemented

        def __array_ufunc__(self, *_):
            return NotImplemented

        def __getitem__(self, _):
            return self

    for value in (xarray.DataArray(Chunked(), dims="x", name="a"), [xarray.Dataset({"a": ("x", Chunked())})]):
        with pytest.raises(tensorlend.ArgumentError, match=r"obj: the variable 'a' of xarray is chunked.*call obj.load\(\) first"):
            client.put_object("x", value)
    assert "x" not in client


def test_reading_imports_pandas_and_xarray_for_their_objects_alone(broker, client, script):
    xarray = pytest.importorskip("xarray", reason="xarray is not installed")
    client.put_object("plain", [np.arange(3), {"a": 1}])
    client.put_object("array", xarray.DataArray([1, 2], dims="x"))
    script(
        """
import sys, tensorlend
client = tensorlend.connect(sys.argv[1])
client.get_object("plain")
assert not {"pandas", "xarray"} & set(sys.modules)
assert client.get_object("array").dims == ("x",)
""",
        str(broker.address),
    )
