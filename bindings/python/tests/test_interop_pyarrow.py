"""pyarrow, both ways."""

import gc

import numpy as np
import pytest
from places import Place

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def test_tensors(client):
    for array in [np.arange(6.0).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3))]:
        client.put("x", pa.Tensor.from_numpy(array))
        lease = client.get("x")
        assert np.array_equal(lease.numpy(), array) and lease.numpy().strides == array.strides
        tensor = pa.Tensor.from_numpy(lease.numpy())
        assert tensor.shape == (2, 3) and np.array_equal(tensor.to_numpy(), array)
        assert tensor.to_numpy().ctypes.data == lease.numpy().ctypes.data


def test_buffers(client):
    client.put("x", pa.py_buffer(b"abcdef"))
    lease = client.get("x")
    assert (lease.dtype, lease.shape) in [("int8", (6,)), ("uint8", (6,))]
    buffer = pa.py_buffer(lease)
    assert buffer.to_pybytes() == b"abcdef" and not buffer.is_mutable
    assert buffer.address == lease.__array_interface__["data"][0]
    assert pa.py_buffer(client.get("x", mode="cow")).is_mutable


def test_arrays_in_place(client):
    client.put("x", np.arange(1000, dtype="int32"))
    column = pa.Array.from_buffers(pa.int32(), 1000, [None, pa.py_buffer(client.get("x"))])
    assert column.sum().as_py() == 499500 if hasattr(column, "sum") else column[999].as_py() == 999
    client.put("y", column)
    assert client.get("y").numpy().tolist() == list(range(1000))


def test_arrays_of_a_lease(client):
    client.put("x", np.arange(1000, dtype="int32"))
    lease = client.get("x")
    array = pa.array(lease)
    assert array.type == pa.int32() and array.to_pylist() == list(range(1000))
    assert array.buffers()[1].address == lease.__array_interface__["data"][0], "it is no copy"
    assert pa.array(lease, pa.float64()).type == pa.float64() and pa.chunked_array([lease]).length() == 1000
    client.put("flags", [True, False])
    assert pa.array(client.get("flags")).to_pylist() == [True, False]
    client.put("matrix", np.zeros((2, 2)))
    with pytest.raises(pa.ArrowInvalid, match="1-dimensional"):
        pa.array(client.get("matrix"))


def test_a_buffer_keeps_the_memory(client):
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    buffer = pa.py_buffer(client.get("x"))[10:20]
    client.delete("x")
    gc.collect()
    assert place.stays() and buffer.to_pybytes() == b"\5" * 10
    del buffer
    gc.collect()
    assert place.comes_back()


def test_shared_tables(client):
    table = pa.table({"a": [1, 2, 3], "b": [1.5, 2.5, 3.5]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    client.put("table", sink.getvalue())
    assert pa.ipc.open_stream(pa.py_buffer(client.get("table"))).read_all() == table
