"""DLPack, as any consumer may ask for it."""

import gc

import numpy as np
import pytest
from dlpack_structs import IS_COPIED, READ_ONLY, look, name
from places import Place

import tensorlend

VERSION = (1, 3)


@pytest.fixture
def lease(client):
    client.put("x", np.arange(6, dtype="int16").reshape(2, 3))
    return client.get("x")


class Consumed:
    """A tensor that gives out one capsule, as old consumers take it."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_):
        return self.capsule

    def __dlpack_device__(self):
        return (1, 0)


def test_a_versioned_capsule_tells_all(lease):
    capsule = lease.__dlpack__(max_version=VERSION)
    assert name(capsule) == b"dltensor_versioned"
    seen = look(capsule)
    tensor = seen.dl_tensor
    assert (seen.version.major, seen.flags) == (1, READ_ONLY)
    assert (tensor.device.device_type, tensor.device.device_id) == lease.__dlpack_device__() == (1, 0)
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (0, 16, 1)
    assert (tensor.ndim, tensor.shape[:2], tensor.strides[:2], tensor.byte_offset) == (2, [2, 3], [3, 1], 0)
    assert tensor.data == lease.__array_interface__["data"][0]


def test_flags(client, lease):
    flags = lambda what, **asked: look(what.__dlpack__(max_version=VERSION, **asked)).flags  # noqa: E731
    assert flags(lease) == flags(lease, copy=None) == flags(lease, copy=False) == READ_ONLY
    assert flags(lease, copy=True) == IS_COPIED
    assert flags(client.get("x", mode="cow")) == 0
    assert flags(client.create(3)) == 0
    assert flags(client.create(3), copy=True) == IS_COPIED


def test_an_old_capsule_cannot_say_that_it_is_read_only(client, lease):
    for asked in [{}, {"max_version": None}, {"max_version": (0, 8)}, {"copy": False}]:
        with pytest.raises(BufferError, match='supports no read-only tensors.*get it with mode="cow"'):
            lease.__dlpack__(**asked)
    for kept in [client.get("x", mode="cow"), client.create(3)]:
        assert name(kept.__dlpack__()) == name(kept.__dlpack__(max_version=(0, 8))) == b"dltensor"
    assert name(lease.__dlpack__(copy=True)) == b"dltensor"


def test_newer_consumers_are_given_what_there_is(lease):
    assert look(lease.__dlpack__(max_version=(2, 0))).version.major == 1


def test_streams_and_devices(lease):
    assert lease.__dlpack__(stream=None, max_version=VERSION, dl_device=(1, 0))
    for asked in [{"stream": 1}, {"stream": -1}, {"dl_device": (2, 0)}, {"dl_device": (2, 0), "copy": True}]:
        with pytest.raises(BufferError):
            lease.__dlpack__(max_version=VERSION, **asked)
    with pytest.raises((TypeError, ValueError)):
        lease.__dlpack__(max_version="1.3")
    with pytest.raises(TypeError):
        lease.__dlpack__(None)


def test_a_copy_is_apart(client, lease):
    copy = np.from_dlpack(lease, copy=True)
    assert copy.flags.writeable
    copy[0, 0] = 9
    assert lease.numpy()[0, 0] == 0
    client.put("f", np.asfortranarray(np.arange(6.0).reshape(2, 3)))
    assert np.from_dlpack(client.get("f"), copy=True).tolist() == [[0, 1, 2], [3, 4, 5]]
    draft = client.create(3, strides=[16])
    draft.array[:] = [1, 2, 3]
    assert np.from_dlpack(draft, copy=True).tolist() == [1, 2, 3]


def test_a_capsule_is_consumed_once(client):
    capsule = client.create(3).__dlpack__(max_version=VERSION)
    first = np.from_dlpack(Consumed(capsule))
    assert name(capsule) == b"used_dltensor_versioned"
    with pytest.raises(ValueError):
        np.from_dlpack(Consumed(capsule))
    with pytest.raises(Exception, match="(?i)capsule|dltensor"):
        client.put("x", Consumed(capsule))
    assert first.shape == (3,)


def test_a_capsule_keeps_the_memory_until_it_is_gone(client):
    place = Place(client)
    place.draft.publish("x")
    capsule = client.get("x").__dlpack__(max_version=VERSION)
    client.delete("x")
    assert place.stays()
    del capsule
    assert place.comes_back()


def test_a_consumed_capsule_keeps_the_memory_for_its_consumer(client):
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    array = np.from_dlpack(client.get("x"))
    client.delete("x")
    part = array[10:20]
    del array
    gc.collect()
    assert place.stays() and (part == 5).all() and not part.flags.writeable
    del part
    assert place.comes_back()


def test_nothing_has_no_address(client):
    client.put("x", np.zeros((0, 3)))
    tensor = look(client.get("x", mode="cow").__dlpack__(max_version=VERSION)).dl_tensor
    assert tensor.data is None and tensor.shape[:2] == [0, 3]
    # Except for read-only tensors: for null, numpy allocates its own memory and omits the flag.
    assert look(client.get("x").__dlpack__(max_version=VERSION)).dl_tensor.data is not None


def test_reading_what_others_lend(client):
    class Theirs:
        """No buffer protocol, no array interface."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **asked):
            return self.array.__dlpack__(**asked)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    for array in [np.arange(6.0).reshape(2, 3), np.arange(6)[::-2], np.zeros((0, 2)), np.array(3, "float32")]:
        client.put("x", Theirs(array))
        assert np.array_equal(client.get("x").numpy(), array)

    class Elsewhere(Theirs):
        def __dlpack_device__(self):
            return (10, 0)  # ROCm

    with pytest.raises(ValueError, match="device"):
        client.put("x", Elsewhere(np.arange(3)))

    class Broken(Theirs):
        def __dlpack__(self, **_):
            raise RuntimeError("not today")

    with pytest.raises(RuntimeError, match="not today"):
        client.put("x", Broken(np.arange(3)))

    class NoCapsule(Theirs):
        def __dlpack__(self, **_):
            return 7

    with pytest.raises((TypeError, ValueError)):
        client.put("x", NoCapsule(np.arange(3)))


def test_old_producers_are_read(client):
    class Old:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, stream=None):
            return self.array.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return (1, 0)

    client.put("x", Old(np.arange(4)))
    assert client.get("x").numpy().tolist() == [0, 1, 2, 3]


def test_released(lease):
    lease.release()
    with pytest.raises(tensorlend.ClosedError, match="released"):
        lease.__dlpack__(max_version=VERSION)


def test_what_is_empty_is_read_only_too(client):
    client.put("x", np.zeros((3, 0), "float32"))
    array = np.from_dlpack(client.get("x"))
    assert array.shape == (3, 0) and not array.flags.writeable
    assert np.from_dlpack(client.get("x", mode="cow")).flags.writeable


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 5)])
@pytest.mark.parametrize("dtype", ["bool", "int8", "float64", "complex64"])
def test_an_empty_tensor_of_a_dataset_is_read_only(client, shape, dtype):
    client.put_dataset("d", {"empty": np.zeros(shape, dtype), "other": [1.0]})
    lease = client.get_dataset("d")["empty"]
    assert look(lease.__dlpack__(max_version=VERSION)).flags == READ_ONLY
    array = np.from_dlpack(lease)
    assert (array.shape, array.dtype, array.flags.writeable) == (shape, np.dtype(dtype), False)
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0
