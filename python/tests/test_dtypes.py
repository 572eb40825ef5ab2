"""Element types: what numpy has, what ml_dtypes adds, and what cannot be lent."""

import ctypes
import struct

import numpy as np
import pytest

import tensorlend

NATIVE = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip
FOREIGN = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e4m3b11fnuz",
           "float8_e3m4", "float8_e4m3", "float8_e8m0fnu"]  # fmt: skip


@pytest.mark.parametrize("dtype", NATIVE)
def test_native_types(client, dtype):
    array = np.arange(-3, 3).astype(dtype) if dtype not in ("uint8", "uint16", "uint32", "uint64") else np.arange(6, dtype=dtype)
    client.put("x", array)
    lease = client.get("x")
    assert lease.dtype == dtype == client.info("x").dtype
    assert lease.itemsize == array.itemsize
    found = lease.numpy()
    assert found.dtype == array.dtype and np.array_equal(found, array)
    with client.create(6, dtype, name="y") as draft:
        draft.array[:] = array
    assert np.array_equal(client.get("y").numpy(), array)


@pytest.mark.parametrize("name", FOREIGN)
def test_types_of_ml_dtypes(client, name):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    dtype = np.dtype(getattr(ml_dtypes, name))
    array = np.array([0.5, 1, 2, 4], dtype)
    client.put("x", array)
    lease = client.get("x")
    assert lease.dtype == name and lease.shape == (4,)
    found = lease.numpy()
    assert found.dtype == dtype and not found.flags.writeable
    assert found.astype("float32").tolist() == [0.5, 1, 2, 4]
    unsigned = np.asarray(lease)
    assert unsigned.dtype == f"uint{8 * dtype.itemsize}" and unsigned.tobytes() == array.tobytes()
    with client.create(4, dtype, name="y") as draft:
        assert draft.array.dtype == dtype
        draft.array[:] = array
    assert client.get("y").numpy().tobytes() == array.tobytes()
    with client.create(4, name, name="z") as draft:
        draft.array[:] = 1
    mine = client.get("z", mode="cow").numpy()
    mine[0] = 2
    assert mine.astype("float32").tolist() == [2, 1, 1, 1]
    client.put("fortran", np.asfortranarray(array.reshape(2, 2)))
    assert client.get("fortran").numpy().tobytes() == array.tobytes()
    out = np.zeros(4, dtype)
    client.get_into("x", out.view(unsigned.dtype))
    assert out.tobytes() == array.tobytes()


def test_without_ml_dtypes_there_are_unsigned_integers(client, monkeypatch):
    with client.create(2, "bfloat16", name="x") as draft:
        np.asarray(draft)[:] = 0x3F80
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    assert client.get("x").numpy().tolist() == [0x3F80] * 2
    with client.create(2, "bfloat16") as draft:
        assert draft.array.dtype == "uint16"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.zeros(2, "i4,f4"), "structures: give each field a tensor of its own"),
        (np.array([object()]), "Python objects, which other processes cannot read"),
        (np.array(["abc"]), "text"),
        (np.array([b"abc"]), "text"),
        ("text", "text"),
        (None, "Python objects"),
        ({"a": 1}, "Python objects"),
        (object(), "Python objects"),
        (np.array(["2020-01-01"], "datetime64[s]"), "datetime64"),
        (np.array([1], "timedelta64[s]"), "timedelta64"),
        (np.zeros(2, ">f4"), "byte order"),
        (np.zeros(2, ">i8"), "byte order"),
        ((ctypes.c_longdouble * 2)(), "cannot be lent"),
        (np.zeros(2, "clongdouble"), "cannot be lent"),
        (np.zeros(2, "longdouble"), "cannot be lent"),
        (np.zeros(2, "V5"), "cannot be lent"),
    ],
    ids=lambda value: repr(value).split(" at 0x")[0][:30],
)
def test_what_cannot_be_lent(client, value, says):
    with pytest.raises(tensorlend.DTypeError, match=says) as caught:
        client.put("x", value)
    assert isinstance(caught.value, TypeError)
    assert "x" not in client


def test_big_endian_bytes_have_no_order(client):
    client.put("x", np.array([1, 2], ">u1"))
    assert client.get("x").numpy().tolist() == [1, 2]


def test_ragged_lists_are_numpys_error(client):
    with pytest.raises(ValueError, match="inhomogeneous"):
        client.put("x", [[1], [1, 2]])


@pytest.mark.parametrize("format", "?bBhHiIlLqQnNefd")
def test_formats_of_struct(client, format):
    size = struct.calcsize(format)
    view = memoryview(bytes(4 * size)).cast(format) if format != "e" else np.zeros(4, "e").data
    client.put("x", view)
    assert client.get("x").itemsize == size and client.get("x").shape == (4,)


def test_ctypes(client):
    client.put("x", ((ctypes.c_int16 * 3) * 2)((1, 2, 3), (4, 5, 6)))
    assert client.get("x").numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    class Pair(ctypes.Structure):
        _fields_ = [("a", ctypes.c_int), ("b", ctypes.c_float)]

    with pytest.raises(tensorlend.DTypeError, match="structures"):
        client.put("y", (Pair * 2)())
