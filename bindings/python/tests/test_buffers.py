"""The buffer protocol, numpy's array interface, and `__array__`."""

import ctypes
import gc

import numpy as np
import pytest
from places import Place

import tensorlend


class Buffer(ctypes.Structure):
    """`Py_buffer`."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]  # fmt: skip


SIMPLE, WRITABLE, FORMAT, ND, STRIDES = 0, 1, 4, 8, 0x10 | 8
C_CONTIGUOUS, F_CONTIGUOUS, ANY_CONTIGUOUS = 0x20 | STRIDES, 0x40 | STRIDES, 0x80 | STRIDES


class Got:
    """A buffer that was got with certain flags."""

    def __init__(self, value, flags):
        self.buffer = Buffer()
        pointer = ctypes.byref(self.buffer)
        get = ctypes.pythonapi.PyObject_GetBuffer
        get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
        assert get(value, pointer, flags) == 0

    def __enter__(self):
        return self.buffer

    def __exit__(self, *_):
        ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self.buffer))


@pytest.fixture
def lease(client):
    client.put("x", np.arange(6, dtype="int32").reshape(2, 3))
    return client.get("x")


def test_a_memoryview(lease):
    view = memoryview(lease)
    assert (view.format, view.itemsize, view.ndim, view.shape, view.strides) == ("i", 4, 2, (2, 3), (12, 4))
    assert (view.nbytes, view.readonly, view.c_contiguous, view.f_contiguous) == (24, True, True, False)
    assert view.tolist() == [[0, 1, 2], [3, 4, 5]] and view.obj is lease
    with pytest.raises(TypeError):
        view[0, 0] = 1


def test_writing(client, lease):
    for flags in [WRITABLE, WRITABLE | STRIDES | FORMAT]:
        with pytest.raises(BufferError, match='read-only: get it with mode="cow"'):
            Got(lease, flags)
    for writable in [client.get("x", mode="cow"), client.create((2, 3), "int32")]:
        with Got(writable, WRITABLE) as buffer:
            assert not buffer.readonly
        memoryview(writable)[1, 1] = 9
        assert np.asarray(writable)[1, 1] == 9
    assert lease.numpy()[1, 1] == 4


def test_what_was_not_asked_for_is_not_told(lease):
    with Got(lease, SIMPLE) as buffer:
        assert (buffer.len, buffer.ndim, buffer.readonly) == (24, 2, 1)
        assert buffer.format is None and not buffer.shape and not buffer.strides and buffer.suboffsets is None
    with Got(lease, ND | FORMAT) as buffer:
        assert buffer.format == b"i" and buffer.shape[:2] == [2, 3] and not buffer.strides
    with Got(lease, STRIDES) as buffer:
        assert buffer.strides[:2] == [12, 4]


def test_orders(client, lease):
    client.put("f", np.asfortranarray(np.arange(6).reshape(2, 3)))
    fortran = client.get("f")
    draft = client.create(3, "uint8", strides=[2])
    for value, flags in [(lease, C_CONTIGUOUS), (fortran, F_CONTIGUOUS), (lease, ANY_CONTIGUOUS), (fortran, ANY_CONTIGUOUS)]:
        with Got(value, flags):
            pass
    for value, flags in [(lease, F_CONTIGUOUS), (fortran, C_CONTIGUOUS), (draft, ANY_CONTIGUOUS), (fortran, SIMPLE), (draft, ND)]:
        with pytest.raises(BufferError, match="copy it"):
            Got(value, flags)
    assert bytes(memoryview(draft)) == bytes(3)


def test_a_buffer_keeps_the_memory(client):
    place = Place(client)
    place.draft.publish("x")
    lease = client.get("x")
    first, second = memoryview(lease), memoryview(lease)
    client.delete("x")
    lease.release()
    del lease
    first.release()
    gc.collect()
    assert place.stays() and second[0] == second[-1]
    second.release()
    gc.collect()
    assert place.comes_back()


def test_dimensions_and_their_absence(client):
    client.put("x", np.float32(2))
    view = memoryview(client.get("x"))
    assert (view.shape, view.strides, view.tolist()) == ((), (), 2.0)
    client.put("x", np.zeros((3, 0)))
    assert memoryview(client.get("x")).nbytes == 0


def test_files_and_sockets_take_it(lease, tmp_path):
    (tmp_path / "x").write_bytes(lease)
    assert (tmp_path / "x").read_bytes() == lease.numpy().tobytes() == bytes(lease)


def test_the_array_interface(client, lease):
    interface = lease.__array_interface__
    assert (interface["version"], interface["typestr"]) == (3, "<i4")
    assert (interface["shape"], interface["strides"], interface["data"][1]) == ((2, 3), (12, 4), True)
    assert client.get("x", mode="cow").__array_interface__["data"][1] is False

    class Theirs:
        def __init__(self, lease):
            self.lease = lease
            self.__array_interface__ = lease.__array_interface__

    array = np.asarray(Theirs(lease))
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]] and not array.flags.writeable
    client.put("y", Theirs(lease))
    assert client.get("y").numpy().tolist() == array.tolist()


@pytest.mark.parametrize(
    ("dtype", "typestr"),
    [("bool", "|b1"), ("uint8", "|u1"), ("int16", "<i2"), ("float16", "<f2"), ("complex64", "<c8"), ("bfloat16", "<u2")],
)
def test_typestr(client, dtype, typestr):
    with client.create(2, dtype, name="x"):
        pass
    assert client.get("x").__array_interface__["typestr"] == typestr


def test_once_its_address_was_given_out_a_lease_lasts_as_long_as_its_object(client):
    place = Place(client)
    place.draft.publish("x")
    lease = client.get("x")
    lease.__array_interface__  # noqa: B018
    client.delete("x")
    lease.release()
    with lease:
        pass
    assert place.stays() and lease.valid
    del lease
    assert place.comes_back()


def test_array(lease):
    assert np.asarray(lease).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not lease.__array__().flags.writeable
    assert np.asarray(lease, dtype="float64").dtype == "float64"
    assert lease.__array__(np.dtype("int32")).__array_interface__["data"] == lease.__array_interface__["data"]
    copy = lease.__array__(copy=True)
    copy[0, 0] = 9
    assert lease.numpy()[0, 0] == 0
    with pytest.raises(ValueError, match="needs a copy"):
        lease.__array__(np.dtype("float32"), copy=False)
    assert lease.__array__(np.dtype("float32"), copy=None).dtype == "float32"
    assert np.array(lease).flags.writeable and np.sum(lease) == 15 and (np.add(lease, 1)[0] == [1, 2, 3]).all()


def test_released_is_no_array_of_an_object(lease):
    lease.release()
    for use in [np.asarray, np.array, memoryview, np.from_dlpack]:
        with pytest.raises((tensorlend.ClosedError, BufferError), match="released: get the tensor again"):
            use(lease)
