"""DLPack's C exchange table, as a library written in C calls it."""

import ctypes

import numpy as np
import pytest
from dlpack_structs import READ_ONLY, DLManagedTensorVersioned, exchange_api
from places import Place

import tensorlend


@pytest.fixture
def api():
    return exchange_api(tensorlend.Lease)


def managed(api, value):
    out = ctypes.POINTER(DLManagedTensorVersioned)()
    status = api.managed_tensor_from_py_object_no_sync(value, ctypes.byref(out))
    assert status == 0
    return out


def test_the_table(api):
    assert (api.version.major, api.version.minor) == (1, 3)
    assert api.managed_tensor_allocator and api.managed_tensor_to_py_object_no_sync


def test_a_lease_becomes_a_managed_tensor(client, api):
    client.put("x", np.arange(6, dtype="int32").reshape(2, 3))
    lease = client.get("x")
    out = managed(api, lease)
    seen = out.contents
    assert (seen.version.major, seen.flags) == (1, READ_ONLY)
    assert seen.dl_tensor.shape[:2] == [2, 3] and seen.dl_tensor.dtype.bits == 32
    values = ctypes.cast(seen.dl_tensor.data, ctypes.POINTER(ctypes.c_int32))
    assert values[:6] == [0, 1, 2, 3, 4, 5]
    seen.deleter(out)


def test_its_deleter_ends_the_lease(client, api):
    place = Place(client)
    place.draft.publish("x")
    out = managed(api, client.get("x"))
    client.delete("x")
    assert place.stays()
    out.contents.deleter(out)
    assert place.comes_back()


def test_its_deleter_needs_no_interpreter(client, api):
    """It may be called by a thread that Python does not know."""
    client.put("x", np.arange(6))
    out = managed(api, client.get("x"))
    libc = ctypes.CDLL(None)
    thread = ctypes.c_ulong()
    start = ctypes.cast(out.contents.deleter, ctypes.c_void_p)
    assert libc.pthread_create(ctypes.byref(thread), None, start, out) == 0
    assert libc.pthread_join(thread, None) == 0


def test_failures_are_exceptions(client, api):
    client.put("x", 1)
    lease = client.get("x")
    lease.release()
    with pytest.raises(tensorlend.ClosedError, match="released"):
        managed(api, lease)
    with pytest.raises((TypeError, BufferError)):
        managed(api, 7)


def test_host_memory_has_no_stream(api):
    out = ctypes.c_void_p(7)
    assert api.current_work_stream(1, 0, ctypes.byref(out)) == 0 and out.value is None
    with pytest.raises(tensorlend.ArgumentError, match="host memory"):
        api.current_work_stream(2, 0, ctypes.byref(out))
