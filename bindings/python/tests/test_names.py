"""Names: the latest value of something."""

import contextlib
import time

import numpy as np
import pytest
from waiting import eventually

import tensorlend


def test_put_and_get(client):
    array = np.arange(6, dtype="float32").reshape(2, 3)
    version = client.put("weights", array, metadata={"epoch": 3}, timestamp=7)
    lease = client.get("weights")
    assert np.array_equal(lease.numpy(), array)
    assert (lease.shape, lease.strides, lease.dtype) == ((2, 3), (12, 4), "float32")
    assert (lease.ndim, lease.size, lease.itemsize, lease.nbytes, len(lease)) == (2, 6, 4, 24, 2)
    assert (lease.metadata, lease.metadata_bytes) == ({"epoch": 3}, b'{"epoch":3}')
    assert (lease.timestamp, lease.name, lease.version) == (7, "weights", version)
    assert (lease.mode, lease.readonly, lease.valid, lease.device) == ("read", True, True, "cpu")
    assert "weights" in repr(lease)


@pytest.mark.parametrize(
    "value",
    [3, 2.5, True, 1j, [1, 2, 3], [[1.0], [2.0]], range(4), (1, 2), bytearray(b"abc"), memoryview(b"abcd"), b"bytes"],
    ids=lambda value: repr(value).split(" at 0x")[0],
)
def test_whatever_numpy_makes_an_array_of(client, value):
    client.put("x", value)
    expected = np.frombuffer(value, "uint8") if isinstance(value, bytes | bytearray | memoryview) else np.asarray(value)
    found = client.get("x").numpy()
    assert found.dtype == expected.dtype and np.array_equal(found, expected)


def test_a_value_stays_as_it_was_leased(client):
    client.put("x", [1, 2])
    before = client.get("x")
    client.put("x", [3, 4])
    assert before.numpy().tolist() == [1, 2]
    assert client.get("x").numpy().tolist() == [3, 4]
    assert before.version != client.get("x").version


def test_a_lease_can_be_put_again(client):
    client.put("x", np.arange(5))
    client.put("y", client.get("x"))
    assert client.get("y").numpy().tolist() == [0, 1, 2, 3, 4]


def test_names_that_cannot_be(client):
    for name, why in [("", "at least one byte"), ("a\0b", "control character"), ("a" * 256, "the longest has 255")]:
        with pytest.raises(tensorlend.ArgumentError, match=why):
            client.put(name, 1)
    with pytest.raises(TypeError):
        client.put(7, 1)
    with pytest.raises(ValueError):
        client.put("\udc80", 1)


def test_long_names_are_names(client):
    name = "ü" * 127
    client.put(name, 5)
    assert client.get(name).numpy() == 5
    assert [info.name for info in client.list()] == [name]


def test_a_name_that_is_not_there(client):
    for call in [client.get, client.get_dataset, client.get_value, client.info]:
        with pytest.raises(tensorlend.NotFoundError, match="nothing"):
            call("nothing")
    for call in [client.rename, client.copy]:
        with pytest.raises(KeyError, match="nothing"):
            call("nothing", "other")
    with pytest.raises(tensorlend.NotFoundError):
        client.get_into("nothing", bytearray(1))
    assert client.version("nothing") is None
    assert client.delete("nothing") is False
    assert not client.exists("nothing") and "nothing" not in client


def test_exists_version_delete(client):
    version = client.put("x", 1)
    assert client.exists("x") and "x" in client
    assert client.version("x") == version == client.info("x").version
    assert hash(client.version("x")) == hash(version)
    assert client.put("x", 1) != version
    assert client.delete("x") is True
    assert "x" not in client
    with pytest.raises(TypeError):
        7 in client  # noqa: B015


def test_rename_and_copy(client):
    client.put("x", [1])
    client.put("y", [2])
    client.rename("x", "y")
    assert client.get("y").numpy().tolist() == [1] and "x" not in client
    version = client.copy("y", "z")
    assert client.version("z") == version
    assert client.get("z").numpy().tolist() == [1]


def test_list_and_info(client):
    client.put("a/1", np.zeros((2, 3)), metadata=b"12345", timestamp=9)
    client.put_dataset("a/2", {"u": np.zeros(4, "int8"), "v": 1.0})
    client.put("b", 1)
    assert [info.name for info in client.list("a/*")] == ["a/1", "a/2"]
    assert len(client.list()) == 3 and client.list("z*") == []
    tensor, dataset = client.info("a/1"), client.info("a/2")
    assert (tensor.kind, tensor.dtype, tensor.shape, tensor.strides) == ("tensor", "float64", (2, 3), (24, 8))
    assert (tensor.nbytes, tensor.metadata_bytes, tensor.timestamp, tensor.members) == (48, 5, 9, {})
    assert (tensor.alive, tensor.ttl, tensor.ephemeral, tensor.label) == (True, None, False, "test")
    assert (dataset.kind, dataset.dtype, dataset.shape, dataset.strides) == ("dataset", None, None, None)
    assert dataset.members == {"u": ("int8", (4,)), "v": ("float64", ())}
    assert "a/1" in repr(tensor) and "dataset of 2" in repr(dataset)


def test_get_into(client):
    array = np.arange(6.0).reshape(2, 3)
    version = client.put("x", array)
    out = np.zeros((2, 3))
    assert client.get_into("x", out) == version
    assert np.array_equal(out, array)
    raw = bytearray(48)
    client.get_into("x", raw)
    assert bytes(raw) == array.tobytes()
    client.put("fortran", np.asfortranarray(array))
    client.get_into("fortran", out)
    assert np.array_equal(out, array)
    client.put("empty", np.zeros((0, 3)))
    client.get_into("empty", bytearray())


def test_get_into_what_does_not_fit(client):
    client.put("x", np.arange(6.0))
    with pytest.raises(tensorlend.ArgumentError, match="48 bytes, and the buffer has 24"):
        client.get_into("x", np.zeros(3))
    with pytest.raises(BufferError):
        client.get_into("x", bytes(48))
    with pytest.raises(BufferError):
        client.get_into("x", client.get("x"))
    with pytest.raises((BufferError, ValueError)):
        client.get_into("x", np.zeros(12)[::2])
    with pytest.raises(TypeError):
        client.get_into("x", 48)


def test_get_into_an_array_of_another_type_or_shape(client):
    client.put("x", np.arange(6.0).reshape(2, 3))
    for out in [np.zeros(12, "f4"), np.zeros((2, 3), "i8"), np.zeros((2, 3), "c8"), np.zeros((2, 3), "f4")]:
        with pytest.raises(tensorlend.DTypeError, match=f"has elements of float64, and `out` has elements of {out.dtype}"):
            client.get_into("x", out)
        assert not out.any()
    for out in [np.zeros((3, 2)), np.zeros(6)]:
        with pytest.raises(tensorlend.ArgumentError, match=r"has the shape \(2, 3\), and `out` has \("):
            client.get_into("x", out)
        assert not out.any()
    with pytest.raises(tensorlend.ArgumentError, match="holds a dataset, not a tensor"):
        client.put_dataset("d", {"a": 1})
        client.get_into("d", bytearray(8))


@pytest.mark.parametrize("dtype", ["int8", "bool"])
def test_get_into_checks_elements_of_one_byte(client, dtype):
    client.put("x", np.array([200, 2], np.uint8))
    out = np.zeros(2, dtype)
    with pytest.raises(tensorlend.DTypeError, match=f"has elements of uint8, and `out` has elements of {dtype}"):
        client.get_into("x", out)
    assert not out.any()


def test_a_stream_is_no_order_for_host_memory(client):
    """The calls would copy what the stream has not written yet."""
    array = np.ones(3)
    stream, jobs = client.stream("s"), client.queue("q")
    for call in [
        lambda: client.put("x", array, stream=1),
        lambda: client.put("x", client.create(3), stream=1),
        lambda: client.put("x", [1.0], stream=1),
        lambda: client.put_dataset("d", {"a": array}, stream=1),
        lambda: client.append("l", array, stream=1),
        lambda: stream.send(array, stream=1),
        lambda: jobs.put_many([array], stream=1),
    ]:
        with pytest.raises(tensorlend.ArgumentError, match="host memory: leave stream out, and if the stream writes this"):
            call()
    assert not client.names() and not client.lists()


def test_delete_by_pattern(broker, client):
    for name in ("run1/a", "run1/b", "run2/a"):
        client.put(name, 1)
    client.put_dataset("run1/d", {"x": 1})
    with broker.connect() as other:
        lease = other.get("run1/a")
        assert client.delete(glob="run1/*") == 3 and list(client) == ["run2/a"]
        assert lease.numpy() == 1
    assert client.delete(glob="run1/*") == 0
    assert client.delete("run2/*") is False and "run2/a" in client
    for arguments in [{}, {"name": "a", "glob": "b"}, {"glob": 1}]:
        with pytest.raises(TypeError):
            client.delete(**arguments)


def test_a_client_is_a_mapping_of_its_names(client):
    assert len(client) == 0 and list(client) == [] and client, "a client without names is still true"
    client.put("b", [1])
    client.put_dataset("a", {"u": 1})
    assert len(client) == 2 and list(client) == ["a", "b"] == client._ipython_key_completions_() and "b" in client
    assert client["b"].numpy().tolist() == [1] and client["a"]["u"].numpy() == 1
    with pytest.raises(KeyError, match="nothing"):
        client["nothing"]
    assert client.get("nothing", default=None) is None and client.get("nothing", default=3, dtype=float) == 3
    assert client.get("b", default=None).numpy().tolist() == [1]
    with pytest.raises(tensorlend.NotFoundError):
        client.get("nothing")
    with pytest.raises(tensorlend.ArgumentError, match="holds a dataset"):
        client.get("a", default=None)


def test_modes(client):
    client.put("x", [1, 2])
    assert client.get("x", mode="cow").mode == "cow"
    for call in [client.get, client.get_value, client.get_dataset]:
        with pytest.raises(tensorlend.ArgumentError, match='use "read" or "cow"'):
            call("x", mode="write")


def test_a_dataset_is_not_a_tensor(client):
    client.put_dataset("d", {"u": 1})
    client.put("t", 1)
    with pytest.raises(tensorlend.ArgumentError, match="holds a dataset, not a tensor: use get_dataset"):
        client.get("d")
    with pytest.raises(tensorlend.ArgumentError, match="holds a tensor, not a dataset: use get"):
        client.get_dataset("t")
    assert isinstance(client.get_value("d"), tensorlend.Dataset)
    assert isinstance(client.get_value("t"), tensorlend.Lease)


def test_metadata(client):
    for given in [{}, {"ä": [1, None]}, b"\xff\0", None]:
        client.put("x", 1, metadata=given)
        lease = client.get("x")
        if isinstance(given, bytes):
            assert lease.metadata_bytes == given
            with pytest.raises(tensorlend.ArgumentError, match="read metadata_bytes"):
                lease.metadata  # noqa: B018
        else:
            assert lease.metadata == (given or {})
    client.put("x", 1, metadata=bytes(65536))
    assert len(client.get("x").metadata_bytes) == 65536
    with pytest.raises(tensorlend.ArgumentError, match="at most 65536"):
        client.put("x", 1, metadata=bytes(65537))
    with pytest.raises(TypeError, match="JSON"):
        client.put("x", 1, metadata={"a": object()})


def test_a_time_to_live(client):
    client.put("x", 1, ttl=0.3)
    assert 0 < client.info("x").ttl <= 0.3
    eventually("the end of the name", lambda: "x" not in client)
    for ttl in [0, -1, float("nan")]:
        with pytest.raises(tensorlend.ArgumentError, match="time to live"):
            client.put("x", 1, ttl=ttl)


def test_an_ephemeral_name_ends_with_its_client(broker, client):
    with broker.connect() as other:
        other.put("x", 1, ephemeral=True)
        assert client.info("x").ephemeral
    eventually("the end of the name", lambda: "x" not in client)


def test_wait_newer_counts_from_what_was_seen(client):
    version = client.put("x", 1)
    lease = client.wait_newer("x")
    for seen in [version, lease]:
        with pytest.raises(tensorlend.TimeoutError, match='timed out after .* waiting for .*"x"'):
            client.wait_newer("x", seen, 0.01)
    client.put_dataset("x", {"u": 1})
    dataset = client.wait_newer("x", lease)
    assert isinstance(dataset, tensorlend.Dataset)
    with pytest.raises(TimeoutError):
        client.wait_newer("x", dataset, timeout=0)
    with pytest.raises(TypeError, match="a Version, a Lease, a DeviceLease or a Dataset"):
        client.wait_newer("x", 7)


def test_waiting_has_an_end(client):
    began = time.monotonic()
    for timeout in [0, 0.01, 0.12]:
        with pytest.raises(tensorlend.TimeoutError):
            client.wait_for("x", timeout)
    assert 0.13 <= time.monotonic() - began
    for timeout in [-1, float("nan")]:
        with pytest.raises(tensorlend.ArgumentError, match="give 0 or more, or None"):
            client.wait_for("x", timeout)
    client.put("x", 1)
    assert client.wait_for("x", float("inf")).numpy() == 1


def test_sharing_by_a_reference(client):
    ref = client.share(np.arange(3), metadata={"n": 1})
    assert (ref.shape, ref.dtype) == ((3,), "int64") and ref.name in client
    assert ref.get().metadata == {"n": 1}
    taken = ref.take(mode="cow")
    assert ref.name not in client
    assert taken.numpy().tolist() == [0, 1, 2]
    assert ref.delete() is False
    with pytest.raises(tensorlend.NotFoundError):
        ref.get()
    assert client.share(1, ttl=100).delete() is True


def test_names_whose_values_cannot_be_described(tmp_path):
    config = f"""
        [pool]
        bytes_max = "24MiB"
        segment_bytes = "1MiB"
        spare_segments = 0
        [spill]
        directory = "{tmp_path}"
        bytes_max = "64MiB"
    """
    names = []
    with tensorlend.embedded(config) as broker:
        # Values of clients that have ended fill the pool and the disk.
        with contextlib.suppress(tensorlend.LimitError):
            for number in range(100):
                with broker.connect() as owner:
                    owner.put_dataset(f"d{number:02}", {"a": np.zeros(6 << 20, "u1")})
                names.append(f"d{number:02}")
        with broker.connect() as client:
            assert len(names) < 100 and client.names() == names and client.names("d0?") == names[:10]
            with pytest.warns(RuntimeWarning, match="of the names cannot be described and are left out"):
                assert len(client.list()) < len(names)


def test_many_names_at_once(client):
    for number in range(150):
        client.put(f"n/{number}", np.full(3, number), timestamp=number)
    client.put_dataset("both", {"x": np.arange(2)})
    names = [f"n/{number}" for number in range(150)]
    leases = client.get_many(names)
    assert [lease.name for lease in leases] == names
    assert [lease.numpy().tolist() for lease in leases] == [[number] * 3 for number in range(150)]
    assert [lease.timestamp for lease in leases] == list(range(150))
    lease, dataset, again = client.get_many(("n/1", "both", "n/1"), mode="cow")
    assert lease.mode == "cow" and isinstance(dataset, tensorlend.Dataset) and again.version == lease.version
    assert client.get_many([]) == []


def test_many_names_of_which_one_fails(client):
    client.put("a", 1)
    with pytest.raises(tensorlend.NotFoundError, match="missing"):
        client.get_many(["a", "missing", "also missing"])
    with pytest.raises(tensorlend.ArgumentError):
        client.get_many(["a", ""])
    with pytest.raises(tensorlend.LimitError):
        client.get_many(["a"] * 5000)
    # The failed calls hold no lease.
    assert len(client.get_many(["a"] * 4000)) == 4000
    for names in ["a", 1, ["a", 1]]:
        with pytest.raises(TypeError):
            client.get_many(names)


def masked(mask):
    return np.ma.MaskedArray([1.0, 2.0], mask=mask)


def test_a_mask_is_not_dropped(client):
    client.put("x", masked([False, False]))
    client.put("y", np.ma.MaskedArray([1.0, 2.0]))
    assert client.get("x").numpy().tolist() == client.get("y").numpy().tolist() == [1.0, 2.0]
    stream = client.stream("s")
    for call in [lambda array: client.put("z", array), lambda array: client.put_dataset("d", {"a": array}), stream.send]:
        with pytest.raises(tensorlend.DTypeError, match=r"are masked, and a tensor has no mask: pass array.filled\(value\)"):
            call(masked([False, True]))
    assert "z" not in client and "d" not in client
    client.put_object("z", masked([False, True]))
    assert client.get_object("z", trust_pickle=True).mask.tolist() == [False, True]


@pytest.mark.parametrize(
    ("library", "make"),
    [
        ("pandas", lambda pandas: pandas.DataFrame({"a": [1, 2]})),
        ("pandas", lambda pandas: pandas.Series([1, 2], index=["x", "y"])),
        ("polars", lambda polars: polars.DataFrame({"a": [1, 2]})),
        ("pyarrow", lambda pyarrow: pyarrow.table({"a": [1, 2]})),
        ("xarray", lambda xarray: xarray.DataArray([1, 2], dims=["x"], coords={"x": [10, 20]})),
        ("xarray", lambda xarray: xarray.Dataset({"a": ("x", [1, 2])})["a"]),
    ],
    ids=["DataFrame", "Series", "polars", "pyarrow", "xarray", "Dataset"],
)
def test_labels_are_not_dropped(client, library, make):
    value = make(pytest.importorskip(library, reason=f"{library} is not installed"))
    for call in [lambda: client.put("x", value), lambda: client.put_dataset("x", {"a": value}), lambda: client.append("x", value)]:
        with pytest.raises(tensorlend.DTypeError, match=r"has labels, which are no part of a tensor: publish it with put_object, or"):
            call()
    assert len(client) == 0 and client.length("x") == 0
    if library == "pandas":
        client.put("x", value.to_numpy())
        assert client.get("x").numpy().ravel().tolist() == [1, 2]
