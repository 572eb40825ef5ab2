"""Leases and datasets that pickle sends to other processes."""

import copy
import pickle

import numpy as np
import pytest

import tensorlend


def again(value):
    return pickle.loads(pickle.dumps(value))


def test_a_client_connects_anew(broker):
    client = tensorlend.connect(broker.address, label="camera", memory_limit=1 << 30, request_timeout=2.5)
    client.put("x", [1])
    others = [again(client), copy.copy(client)]
    for other in others:
        assert other is not client and other._options == client._options
        assert other.get("x").numpy().tolist() == [1]
    assert client.stat()["clients"] == 3
    other.put("y", 1)
    assert client.info("y").label == "camera"


def test_a_version(client):
    version = client.put("x", 1)
    assert again(version) == version and hash(again(version)) == hash(version)
    assert again(version) != client.put("x", 1)
    assert tensorlend.Version.from_words(version.words) == version
    assert version != 3 and repr(version) == repr(again(version))


def test_a_lease_is_leased_anew(client):
    client.put("x", np.arange(5), metadata={"a": 1}, timestamp=3)
    lease = again(client.get("x"))
    assert lease.numpy().tolist() == [0, 1, 2, 3, 4]
    assert (lease.name, lease.metadata, lease.timestamp, lease.version) == ("x", {"a": 1}, 3, client.version("x"))
    assert again(lease).numpy().tolist() == [0, 1, 2, 3, 4]


def test_a_private_copy_is_as_it_was_published(client):
    client.put("x", [1, 2])
    mine = client.get("x", mode="cow")
    mine.numpy()[0] = 9
    theirs = again(mine)
    assert theirs.mode == "cow" and theirs.numpy().tolist() == [1, 2]


def test_a_lease_on_a_member(client):
    client.put_dataset("d", {"a": [1], "b": [2]})
    lease = again(client.get_dataset("d")["b"])
    assert lease.numpy().tolist() == [2] and lease.name == "b"


@pytest.mark.parametrize("end", ["overwrite", "delete", "dataset"])
def test_an_overwritten_name_is_not_found(client, end):
    client.put("x", 1)
    text = pickle.dumps(client.get("x"))
    if end == "overwrite":
        client.put("x", 1)
        with pytest.raises(tensorlend.NotFoundError, match="overwritten after a lease on it was sent.*Client.share"):
            pickle.loads(text)
    elif end == "delete":
        client.delete("x")
        with pytest.raises(tensorlend.NotFoundError):
            pickle.loads(text)
    else:
        client.put_dataset("x", {"a": 1})
        with pytest.raises(tensorlend.Error):
            pickle.loads(text)


def test_a_message_and_an_item_are_copied(client):
    stream = client.stream("s")
    subscription = client.subscribe("s")
    stream.send([1, 2], metadata={"a": 1})
    client.append("l", [3, 4])
    message = again(subscription.recv(10).tensor)
    assert message.numpy().tolist() == [1, 2] and message.metadata == {"a": 1}
    assert again(client.get_all("l")[0]).numpy().tolist() == [3, 4]
    copies = client.list("ref/*")
    assert len(copies) == 2 and all(0 < info.ttl <= 60 for info in copies)


def test_a_reference(client):
    ref = again(client.share([1, 2]))
    assert ref.get().numpy().tolist() == [1, 2] and ref.get(mode="cow").mode == "cow"
    assert ref.take().numpy().tolist() == [1, 2]
    with pytest.raises(tensorlend.NotFoundError):
        ref.take()


def test_a_released_lease_cannot_be_sent(client):
    client.put("x", 1)
    lease = client.get("x")
    lease.release()
    with pytest.raises(tensorlend.ClosedError, match="released"):
        pickle.dumps(lease)


def test_what_belongs_to_a_process_cannot_be_sent(broker, client):
    stream = client.stream("s")
    for value in [broker, client.create(3), stream, client.subscribe("s")]:
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(value)


def test_a_dataset_is_leased_anew(client):
    client.put_dataset("d", {"a": np.arange(3), "b": [2.0]}, metadata={"step": 1}, timestamp=7)
    found = again(client.get_dataset("d"))
    assert type(found) is tensorlend.Dataset and list(found) == ["a", "b"] and found["a"].numpy().tolist() == [0, 1, 2]
    assert (found.name, found.metadata, found.timestamp, found.version) == ("d", {"step": 1}, 7, client.version("d"))
    assert again(found)["b"].numpy().tolist() == [2.0]
    mine = client.get_dataset("d", mode="cow")
    mine["a"].numpy()[0] = 9
    assert again(mine)["a"].mode == "cow" and again(mine)["a"].numpy().tolist() == [0, 1, 2]
    text = pickle.dumps(found)
    client.put_dataset("d", {"a": 1})
    with pytest.raises(tensorlend.NotFoundError, match="overwritten"):
        pickle.loads(text)


def test_a_message_of_several_tensors_is_copied(client):
    stream = client.stream("s")
    subscription = client.subscribe("s")
    stream.send({"a": [1, 2], "b": [3]}, metadata={"step": 1}, timestamp=7)
    client.append("l", {"a": [4]})
    message = again(subscription.recv(10).dataset)
    assert message["a"].numpy().tolist() == [1, 2] and (message.metadata, message.timestamp) == ({"step": 1}, 7)
    assert again(client.get_all("l")[0])["a"].numpy().tolist() == [4]
    copies = client.list("ref/*")
    assert len(copies) == 2 and all(0 < info.ttl <= 60 for info in copies)
    dataset = client.get_all("l")[0]
    dataset.release()
    with pytest.raises(tensorlend.ClosedError, match="released"):
        pickle.dumps(dataset)
