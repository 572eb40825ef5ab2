"""Drafts: tensors written where they will be read."""


import numpy as np
import pytest
from waiting import eventually

import tensorlend


def test_a_draft_is_published_on_leaving(client):
    with client.create((2, 3), "uint8", name="x", metadata={"a": 1}, timestamp=5) as draft:
        assert (draft.shape, draft.strides, draft.dtype, draft.ndim) == ((2, 3), (3, 1), "uint8", 2)
        assert (draft.size, draft.nbytes, draft.name, draft.is_open) == (6, 6, "x", True)
        assert "x" not in client
        draft.array[:] = 7
    assert not draft.is_open
    lease = client.get("x")
    assert lease.numpy().tolist() == [[7] * 3] * 2
    assert (lease.metadata, lease.timestamp) == ({"a": 1}, 5)


def test_a_draft_is_dropped_by_an_exception(client):
    with pytest.raises(ZeroDivisionError), client.create(3, name="x") as draft:
        1 / 0  # noqa: B018
    assert "x" not in client and not draft.is_open


def test_a_block_does_not_drop_what_was_written(client):
    with pytest.raises(tensorlend.ArgumentError, match="no name and was not published: create it with name="), client.create(3) as draft:
        draft[:] = 7
    draft.publish("x")
    assert client.get("x").numpy().tolist() == [7] * 3, "the draft stayed open"
    with client.create(3) as draft:
        draft.publish("y")
    with client.create(3) as draft:
        draft.drop()
    with pytest.raises(ZeroDivisionError), client.create(3) as draft:
        1 / 0  # noqa: B018
    assert not draft.is_open and client.names() == ["x", "y"]


def test_functions_of_numpy_write_into_a_draft(client):
    with client.create((2, 3), np.float32, name="x") as draft:
        found = np.add(np.ones((2, 3), "f4"), 2, out=draft)
        assert found is draft.array
        np.multiply(draft, draft, out=draft)
        assert np.add.reduce(draft, axis=None) == 54 and (np.arange(3) + draft).shape == (2, 3)
        np.exp(draft, out=draft, where=[[True, False, False]] * 2)
    assert client.get("x").numpy()[:, 1:].tolist() == [[9, 9]] * 2 and client.get("x")[0, 0] > 8000
    with pytest.raises(tensorlend.ClosedError):
        np.add(1, 2, out=draft)


def test_a_lifetime_of_a_draft_is_kept_or_refused(client):
    client.put("x", client.create(3, ttl=100, ephemeral=True))
    assert client.info("x").ephemeral and client.info("x").ttl > 90
    client.put("x", client.create(3, ttl=100), ttl=10)
    assert client.info("x").ttl <= 10
    stream, queue = client.stream("s"), client.queue("q")
    for call in [stream.send, queue.put, lambda draft: client.append("l", draft), lambda draft: client.put_dataset("d", {"a": draft})]:
        with pytest.raises(tensorlend.ArgumentError, match="created with ttl or ephemeral"):
            call(client.create(3, ttl=100))


def test_published_once(client):
    draft = client.create((), "int32")
    with pytest.raises(tensorlend.ArgumentError, match="needs one to be published"):
        draft.publish()
    draft.array[()] = 3
    version = draft.publish("x")
    assert client.version("x") == version
    for use in [lambda: draft.publish("x"), lambda: draft.array, lambda: draft.shape, lambda: memoryview(draft)]:
        with pytest.raises(tensorlend.ClosedError, match="published or dropped already"):
            use()
    assert "published or dropped" in repr(draft)


def test_dropping(client):
    used = client.memory()[0]
    draft = client.create(1 << 17)
    assert client.memory()[0] > used
    draft.drop()
    draft.drop()
    assert client.memory()[0] == used
    with pytest.raises(tensorlend.ClosedError, match="create another one"):
        draft.publish("x")


def test_metadata_and_timestamp_can_be_set_later(client):
    draft = client.create(3)
    draft.set_metadata(b"abc")
    draft.set_timestamp(11)
    draft.publish("x")
    assert (client.get("x").metadata_bytes, client.get("x").timestamp) == (b"abc", 11)
    with pytest.raises(tensorlend.ClosedError, match="already"):
        draft.set_metadata(b"")
    with pytest.raises(tensorlend.ArgumentError, match="at most 64 KiB"):
        client.create(3).set_metadata(bytes(70000))


@pytest.mark.parametrize("dtype", ["float128", "f16", "g", "3f4", "f4,i4", "object", "U3", "datetime64[s]", ">f4", "nonsense", "f32", "torch.nonsense", object, np.dtype(">f4")])
def test_dtypes_that_cannot_be(client, dtype):
    with pytest.raises(tensorlend.DTypeError, match="use one of bool, int8"):
        client.create(3, dtype)


@pytest.mark.parametrize("dtype", ["float32", np.float32, np.dtype("float32"), "<f4" and np.dtype("<f4")])
def test_dtypes_by_name_class_and_object(client, dtype):
    assert client.create(3, dtype).dtype == "float32"


def test_python_types_are_dtypes(client):
    names = [client.create(3, kind).dtype for kind in [None, float, int, bool, complex]]
    assert names == ["float64", "float64", "int64", "bool", "complex128"]


def test_shapes(client):
    assert client.create(4).shape == (4,)
    assert client.create([2, 3]).shape == (2, 3)
    assert client.create(np.int64(5)).shape == (5,)
    assert client.create(()).shape == ()
    assert client.create((0, 4)).array.shape == (0, 4)
    assert client.create((1,) * 16).ndim == 16
    for shape in [-1, (2, -3)]:
        with pytest.raises(tensorlend.ArgumentError, match="sizes are 0 or more"):
            client.create(shape)
    with pytest.raises(tensorlend.ArgumentError, match="more than 16 dimensions"):
        client.create((1,) * 17)
    with pytest.raises(tensorlend.ArgumentError, match="overflow"):
        client.create((1 << 62, 1 << 62))
    with pytest.raises(TypeError):
        client.create("abc")
    with pytest.raises(tensorlend.LimitError):
        client.create(1 << 50)


def test_strides(client):
    draft = client.create((2, 3), "int16", strides=(2, 4))
    draft.array[:] = [[1, 2, 3], [4, 5, 6]]
    assert draft.array.flags.f_contiguous and draft.strides == draft.array.strides == (2, 4)
    draft.publish("x")
    assert client.get("x").strides == (2, 4)
    assert client.get("x").numpy().tolist() == [[1, 2, 3], [4, 5, 6]]
    gaps = client.create((3,), "uint8", strides=[4])
    gaps.array[:] = 9
    gaps.publish("gaps")
    assert client.get("gaps").numpy().strides == (4,)
    with pytest.raises(tensorlend.ArgumentError, match="outside its bytes"):
        client.create((3,), "uint8", strides=[-1])
    with pytest.raises(tensorlend.ArgumentError):
        client.create((3,), "uint8", strides=[1, 1])


def test_put_takes_a_draft(client):
    draft = client.create(3, "int8")
    draft.array[:] = 4
    version = client.put("x", draft, metadata={"a": 1})
    assert client.version("x") == version and not draft.is_open
    assert client.get("x").metadata == {"a": 1}


def test_a_draft_stays_with_its_owner_when_something_else_is_wrong(client):
    draft, closed = client.create(3), client.create(3)
    closed.drop()
    stream = client.stream("s", capacity=1, policy="error")
    with client.subscribe("s", start="next"):
        stream.send(0)
        wrong = [
            (TypeError, lambda: client.put("x", draft, metadata={"a": object()})),
            (tensorlend.ArgumentError, lambda: client.put("x", draft, metadata=bytes(70000))),
            (tensorlend.ArgumentError, lambda: client.put("x", draft, ttl=-1)),
            (tensorlend.DTypeError, lambda: client.put_dataset("x", {"a": draft, "b": object()})),
            (tensorlend.ClosedError, lambda: client.put_dataset("x", {"a": draft, "b": closed})),
            (TypeError, lambda: client.put_dataset("x", {"a": draft, 7: 1})),
            (tensorlend.DTypeError, lambda: client.append("x", {"a": draft, "b": "text"})),
            (tensorlend.StreamFullError, lambda: stream.try_send(draft)),
        ]
        for error, call in wrong:
            with pytest.raises(error):
                call()
            assert draft.is_open
    draft.publish("x")


def test_a_draft_of_another_client_is_refused(broker, client):
    other = broker.connect()
    draft = other.create(3)
    for call in [lambda: client.put("x", draft), lambda: client.put_dataset("x", {"a": draft})]:
        with pytest.raises(tensorlend.ArgumentError, match="made by another client"):
            call()
    with pytest.raises(tensorlend.ArgumentError, match="made by another client"):
        client.stream("s").send(draft)
    assert draft.is_open


def test_a_draft_that_was_published_keeps_no_session(broker, client):
    other = broker.connect()
    with other.create(3, name="x", ephemeral=True) as draft:
        pass
    other.close()
    eventually("the end of the session", lambda: client.stat()["clients"] == 1 and "x" not in client)
    assert not draft.is_open


def test_the_same_draft_twice_in_a_dataset(client):
    draft = client.create(3)
    with pytest.raises(tensorlend.ClosedError, match="already"):
        client.put_dataset("x", {"a": draft, "b": draft})
    assert "x" not in client


def test_the_array_is_one_and_the_same(client):
    draft = client.create((2, 2))
    assert draft.array is draft.array
    assert draft.array.flags.writeable
    draft.array[0, 0] = 3
    assert memoryview(draft)[0, 0] == 3


@pytest.mark.parametrize("strides", [(8,), (24, 8, 8), ()])
def test_strides_are_as_many_as_dimensions(client, strides):
    with pytest.raises(tensorlend.ArgumentError, match=r"with strides of \(.*\) bytes: it needs one stride for each dimension"):
        client.create((2, 3), strides=strides)
