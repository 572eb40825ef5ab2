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
    assert client.create(2, "bfloat16").array.dtype == "uint16"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.zeros(2, "i4,f4"), "structures: give each field a tensor of its own"),
        (np.array([object()]), "Python objects, which other processes cannot read"),
        (np.array(["abc"]), "text"),
        (np.array([b"abc"]), "text"),
        ("text", "text"),
        (None, "Python objects"),
        ({"a": 1}, "publish it with put_dataset"),
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


#: Every text of one to three characters that numpy might accept, with and without a byte order, and all of numpy's
#: names.
TEXTS = sorted(
    {f"{order}{kind}{size}" for order in ("", "<", "=", "|") for kind in "?bBhHiIlLqQnNpPefdFDugc" for size in ("", 1, 2, 4, 8, 16)}
    | {name for name in np.sctypeDict if isinstance(name, str)}
    | {"half", "single", "double", "float", "int", "long", "complex", "bool", "bool_", "i8", "u8", "f16", "f4", "f2", "c8", "c16"}
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Data type alias:DeprecationWarning")
def test_texts_mean_what_numpy_says(client):
    wrong, taken = [], 0
    for text in TEXTS:
        try:
            expected = np.dtype(text)
        except TypeError:
            expected = None
        if expected is None or (expected.name not in NATIVE + FOREIGN):
            with pytest.raises(tensorlend.DTypeError):
                client.create(2, text)
            continue
        taken += 1
        found = client.create(2, text).dtype
        if found != expected:
            wrong.append((text, found, expected))
    assert not wrong and taken > 100
    assert [client.create(2, text).dtype for text in ("i8", "u8")] == ["int64", "uint64"]


def test_the_tools_short_names_are_explained(client):
    with pytest.raises(tensorlend.DTypeError, match='dtype "bf16" is unknown: numpy calls it "bfloat16"'):
        client.create(2, "bf16")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("float32", "float32"), ("float", "float32"), ("half", "float16"), ("double", "float64"), ("bfloat16", "bfloat16"),
        ("short", "int16"), ("int", "int32"), ("long", "int64"), ("uint8", "uint8"), ("bool", "bool"),
        ("cfloat", "complex64"), ("cdouble", "complex128"), ("float8_e5m2", "float8_e5m2"),
    ],
)  # fmt: skip
def test_torchs_names(client, text, name):
    assert client.create(2, f"torch.{text}").dtype.name == name


def test_torchs_objects(client):
    """Without torch: an object of a class of its module, which shows itself by that name."""

    class Stand:
        def __repr__(self):
            return "torch.float32"

    Stand.__module__ = "torch"
    assert client.create(2, Stand()).dtype == np.float32


def test_a_dtype_is_numpys(client):
    """In leases, drafts, listings and references."""
    client.put("x", np.zeros(2))
    client.put_dataset("d", {"a": np.zeros(2, "f4")})
    found = [client.get("x").dtype, client.create(2).dtype, client.info("x").dtype, client.share(np.zeros(2)).dtype]
    for dtype in found:
        assert dtype == np.float64 and dtype == "f8" and dtype == float and dtype != np.float32 and dtype != "f4"
        assert hash(dtype) == hash(np.dtype("float64")) and {np.dtype("float64"): 1}[dtype] == 1
        assert np.zeros(1, dtype).dtype == dtype and str(dtype) == "float64"
    assert client.info("d").members == {"a": (np.dtype("f4"), (2,))}


def test_a_dtype_without_ml_dtypes(client, monkeypatch):
    client.put("x", client.create(2, "bfloat16"))
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    dtype = client.get("x").dtype
    assert dtype == "bfloat16" and dtype != "float16" and dtype != np.float32 and str(dtype) == dtype.name == "bfloat16"
    assert (dtype.itemsize, dtype.kind, hash(dtype)) == (2, "V", hash(client.get("x").dtype))
    assert client.create(2, dtype).dtype == dtype
