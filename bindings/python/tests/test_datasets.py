"""Datasets: several tensors, seen together or not at all."""

from collections.abc import Mapping

import numpy as np
import pytest

import tensorlend


@pytest.fixture
def frame(client):
    image = client.create((2, 2), "uint8")
    image.array[:] = 7
    client.put_dataset("frame", {"image": image, "depth": np.arange(3.0)}, metadata={"n": 1}, timestamp=5)
    return client.get_dataset("frame")


def test_a_dataset_is_a_mapping(frame):
    assert isinstance(frame, Mapping)
    assert len(frame) == 2 and list(frame) == frame.keys() == ["image", "depth"]
    assert "image" in frame and "sound" not in frame and 7 not in frame
    assert frame["depth"].numpy().tolist() == [0, 1, 2]
    assert [lease.dtype for lease in frame.values()] == ["uint8", "float64"]
    assert {name: lease.shape for name, lease in frame.items()} == {"image": (2, 2), "depth": (3,)}
    assert frame.get("sound") is None and frame.get("sound", 3) == 3
    assert frame.get("image").numpy()[0, 0] == 7
    assert set(dict(frame)) == {"image", "depth"}
    assert "frame" in repr(frame)


def test_all_arrays_at_once(client, frame):
    image, depth = frame.numpy()
    assert image.tolist() == [[7, 7], [7, 7]] and depth.tolist() == [0, 1, 2] and not depth.flags.writeable
    assert image.__array_interface__["data"] == frame["image"].numpy().__array_interface__["data"]
    frame.release()
    client.delete("frame")
    assert image.tolist() == [[7, 7], [7, 7]]
    with pytest.raises(tensorlend.ClosedError, match="released: get it again"):
        frame.numpy()
    client.put_dataset("none", {})
    assert client.get_dataset("none").numpy() == ()
    client.put_dataset("one", {"x": np.zeros(3)})
    (mine,) = client.get_dataset("one", mode="cow").numpy()
    mine += 1
    assert mine.tolist() == [1, 1, 1] and client.get_dataset("one").numpy()[0].tolist() == [0, 0, 0]


def test_a_missing_tensor(frame):
    with pytest.raises(tensorlend.NotFoundError, match='the dataset "frame" has no tensor "sound": it has "image", "depth"$'):
        frame["sound"]
    with pytest.raises(KeyError):
        frame["sound"]


def test_the_whole_has_metadata_and_a_version(client, frame):
    assert (frame.metadata, frame.metadata_bytes, frame.timestamp) == ({"n": 1}, b'{"n":1}', 5)
    assert frame.version == client.version("frame") == frame["image"].version
    assert (frame.name, frame["image"].name, frame.valid) == ("frame", "image", True)


def test_releasing(client, frame):
    image = frame["image"]
    array = frame["depth"].numpy()
    frame.release()
    frame.release()
    for use in [lambda: frame["image"], lambda: len(frame), lambda: frame.metadata, lambda: list(frame)]:
        with pytest.raises(tensorlend.ClosedError, match="released: get it again"):
            use()
    assert not frame.valid and "released" in repr(frame)
    assert image.numpy()[0, 0] == 7 and array.tolist() == [0, 1, 2]
    with client.get_dataset("frame") as again:
        pass
    assert not again.valid


def test_private_copies(client):
    client.put_dataset("d", {"a": [1, 2], "b": [3.0], "empty": np.zeros((0, 2))}, metadata=b"x")
    mine = client.get_dataset("d", mode="cow")
    assert mine["a"].mode == "cow"
    mine["a"].numpy()[0] = 9
    assert mine["a"].numpy().tolist() == [9, 2]
    assert client.get_dataset("d")["a"].numpy().tolist() == [1, 2]
    assert mine.metadata_bytes == b"x" and mine.version == client.version("d")
    assert mine["empty"].numpy().shape == (0, 2)


def test_none_is_a_dataset_too(client):
    client.put_dataset("d", {}, metadata={"only": "this"})
    for mode in ["read", "cow"]:
        dataset = client.get_dataset("d", mode=mode)
        assert len(dataset) == 0 and dataset.metadata == {"only": "this"}
        assert dataset.version == client.version("d")


def test_what_cannot_be_one(client):
    with pytest.raises(TypeError):
        client.put_dataset("d", [1, 2])
    with pytest.raises(TypeError):
        client.put_dataset("d", {7: 1})
    with pytest.raises(tensorlend.ArgumentError, match="at least one byte"):
        client.put_dataset("d", {"": 1})
    with pytest.raises(tensorlend.DTypeError, match="structure"):
        client.put_dataset("d", {"a": 1, "b": np.zeros(2, "i4,f4")})
    with pytest.raises(tensorlend.ArgumentError, match="at most 64 KiB"):
        client.put_dataset("d", {"a": 1}, metadata=bytes(70000))
    assert client.list() == []


def test_a_mapping_that_fails_on_the_way(client):
    class Broken(dict):
        def items(self):
            yield "a", np.zeros(1 << 16)
            raise RuntimeError("no more")

    used = client.memory()[0]
    for _ in range(50):
        with pytest.raises(RuntimeError, match="no more"):
            client.put_dataset("d", Broken())
    assert client.memory()[0] == used and "d" not in client


def test_lasting(client):
    client.put_dataset("d", {"a": 1}, ttl=100, ephemeral=True)
    info = client.info("d")
    assert 90 < info.ttl <= 100 and info.ephemeral


@pytest.mark.parametrize(
    ("bad", "kind", "says"),
    [
        (np.array(["text"]), tensorlend.DTypeError, 'tensor "b" of the dataset: .*text'),
        (object(), tensorlend.DTypeError, 'tensor "b" of the dataset: .*Python objects'),
        (np.zeros(1 << 20), tensorlend.LimitError, 'tensor "b" of the dataset: .*memory limit'),
    ],
    ids=["text", "object", "large"],
)
def test_a_tensor_that_cannot_be_put_is_named(broker, bad, kind, says):
    with broker.connect(memory_limit=1 << 20) as client:
        with pytest.raises(kind, match=says):
            client.put_dataset("d", {"a": 1, "b": bad})
        with pytest.raises(kind, match=says):
            client.append("l", {"a": 1, "b": bad})


def test_a_tensor_that_numpy_refuses_is_named(client):
    with pytest.raises(ValueError, match="inhomogeneous") as caught:
        client.put_dataset("d", {"a": 1, "b": [[1], [1, 2]]})
    assert caught.value.__notes__ == ["while the dataset's tensor \"b\" was copied"]


def test_metadata_takes_scalars_of_numpy(client):
    given = {"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": np.arange(3), "e": [np.float64(1)], "f": np.str_("x")}
    client.put("x", 1, metadata=given)
    assert client.get("x").metadata == {"a": 0.5, "b": 3, "c": True, "d": [0, 1, 2], "e": [1.0], "f": "x"}
    client.put_dataset("d", {"a": 1}, metadata={"n": np.uint8(7)})
    assert client.get_dataset("d").metadata == {"n": 7}
    for value in (np.complex64(1), {1}, object(), np.datetime64("2020-01-01")):
        with pytest.raises(TypeError, match="cannot be written as JSON: give numbers"):
            client.put("x", 1, metadata={"a": value})
