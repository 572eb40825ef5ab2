"""Who keeps what: nothing is reused beneath somebody who looks, and everything comes back."""

import gc
import weakref

import numpy as np
import pytest
from places import NBYTES, Place

import tensorlend


@pytest.fixture
def place(client):
    place = Place(client)
    place.draft.array[:] = 5
    return place


def test_an_array_keeps_its_lease(client, place):
    place.draft.publish("x")
    lease = client.get("x")
    gone = weakref.ref(lease)
    part = lease.numpy()[5:10]
    client.delete("x")
    del lease
    gc.collect()
    assert gone() is not None and place.stays() and (part == 5).all()
    del part
    gc.collect()
    assert gone() is None and place.comes_back()


def test_releasing_waits_for_those_who_look(client, place):
    place.draft.publish("x")
    with client.get("x") as lease:
        array = lease.numpy()
    assert not lease.valid
    with pytest.raises(tensorlend.ClosedError, match="released: get the tensor again"):
        lease.numpy()
    client.delete("x")
    assert place.stays() and (array == 5).all()
    del array
    assert place.comes_back()


def test_releasing_gives_back_at_once_what_nobody_looks_at(client, place):
    place.draft.publish("x")
    lease = client.get("x")
    client.delete("x")
    assert place.stays()
    lease.release()
    assert place.comes_back()


def test_an_overwritten_value_stays_for_its_readers(client, place):
    place.draft.publish("x")
    array = client.get("x").numpy()
    for number in range(100):
        client.put("x", np.full(NBYTES, number, "uint8"))
    assert place.stays() and (array == 5).all()


def test_one_tensor_of_a_dataset_keeps_all_of_it(client, place):
    client.put_dataset("d", {"a": place.draft, "b": 1})
    b = client.get_dataset("d")["b"].numpy()
    client.delete("d")
    assert place.stays()
    del b
    gc.collect()
    assert place.comes_back()


def test_a_message_keeps_its_tensor(client, place):
    stream = client.stream("s", capacity=1, policy="drop-oldest")
    subscription = client.subscribe("s", start="next")
    stream.send(place.draft)
    message = subscription.recv(10)
    stream.send(1)
    client.delete_stream("s")
    assert place.stays() and (message.numpy() == 5).all()
    del message, subscription
    stream.close()
    assert place.comes_back()


# Ways to end a draft whose array the program still holds.
ENDS = {
    "publish": lambda client, draft: draft.publish("x"),
    "put": lambda client, draft: client.put("x", draft),
    "dataset": lambda client, draft: client.put_dataset("x", {"other": 1, "this": draft}),
    "dataset, first": lambda client, draft: client.put_dataset("x", {"this": draft, "other": 1}),
    "list": lambda client, draft: client.append("l", draft),
    "list of datasets": lambda client, draft: client.append("l", {"other": 1, "this": draft}),
    "stream": lambda client, draft: client.stream("s").send(draft),
    "stream of datasets": lambda client, draft: client.stream("s").try_send({"other": 1, "this": draft}),
    "lasting": lambda client, draft: client.put("x", draft, ttl=100),
}


@pytest.mark.parametrize("end", ENDS)
def test_an_array_of_a_published_draft_is_read_only_and_stays(client, place, end):
    array = place.draft.array
    ENDS[end](client, place.draft)
    assert not array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    for name in client.list():
        client.delete(name.name)
    client.clear("l")
    client.delete_stream("s")
    gc.collect()
    assert place.stays() and (array == 5).all()
    del array
    gc.collect()
    assert place.comes_back()


FAILURES = {
    "name": lambda client, draft: draft.publish(""),
    "name of a dataset": lambda client, draft: client.put_dataset("", {"a": draft}),
    "name of a list": lambda client, draft: client.append("", {"a": draft}),
    "name of a member": lambda client, draft: client.put_dataset("x", {"a": draft, "": 1}),
    "time to live": lambda client, draft: client.put("x", draft, ttl=0),
}


@pytest.mark.parametrize("end", FAILURES)
def test_an_array_of_a_draft_that_could_not_be_published_stays(client, place, end):
    array = place.draft.array
    with pytest.raises(tensorlend.Error):
        FAILURES[end](client, place.draft)
    assert place.stays() and (array == 5).all()
    if place.draft.is_open:
        place.draft.drop()
    del array
    gc.collect()
    assert place.comes_back()


@pytest.mark.parametrize("kind", ["tensor", "dataset"])
def test_an_array_of_a_draft_that_found_no_room_stays(client, place, kind):
    stream = client.stream("s", capacity=1)
    subscription = client.subscribe("s", start="next")
    stream.send(0)
    array = place.draft.array
    with pytest.raises(tensorlend.TimeoutError):
        stream.send(place.draft if kind == "tensor" else {"a": place.draft, "b": 1}, 0)
    assert place.stays() and (array == 5).all()
    del array
    subscription.close()
    gc.collect()
    if place.draft.is_open:
        place.draft.drop()
    assert place.comes_back()


def test_an_array_of_a_dropped_draft_stays_and_is_its_owners(client, place):
    array = place.draft.array
    place.draft.drop()
    assert place.stays()
    array[:] = 6
    del array
    gc.collect()
    assert place.comes_back()


def test_a_draft_that_is_forgotten_comes_back(client, place):
    gone = weakref.ref(place.draft)
    array = place.draft.array
    del place.draft
    gc.collect()
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None and place.comes_back()


def test_what_a_failed_dataset_had_comes_back(client):
    used = client.memory()[0]
    for _ in range(30):
        with pytest.raises(tensorlend.DTypeError):
            client.put_dataset("x", {"a": np.zeros(NBYTES), "b": "text"})
    assert client.memory()[0] == used


def test_private_copies_are_private(broker, client):
    other = broker.connect()
    client.put("x", np.zeros(NBYTES, "uint8"))
    mine, theirs = client.get("x", mode="cow"), other.get("x", mode="cow")
    mine.numpy()[:] = 1
    assert not theirs.numpy().any() and not other.get("x").numpy().any()
    theirs.numpy()[10] = 7
    assert (mine.numpy() == 1).all()
    kept = mine.numpy()
    mine.release()
    client.put("x", np.full(NBYTES, 9, "uint8"))
    assert (kept == 1).all()


def test_a_private_copy_keeps_the_pages_that_it_did_not_write(client, place):
    place.draft.publish("x")
    array = client.get("x", mode="cow").numpy()
    array[0] = 1
    client.delete("x")
    assert place.stays() and array[0] == 1 and (array[1:] == 5).all()
    del array
    gc.collect()
    assert place.comes_back()


def test_leases_have_an_end(client):
    client.put("x", 1)
    held = []
    with pytest.raises(tensorlend.LimitError, match="4096"):
        for _ in range(5000):
            held.append(client.get("x"))
    assert len(held) == 4096
    held.pop()
    assert client.get("x").numpy() == 1


def test_an_array_of_a_draft_that_could_not_be_pinned_stays(client, place):
    array = place.draft.array
    client.put("x", 1)
    held = [client.get("x") for _ in range(4096)]
    with pytest.raises(tensorlend.LimitError, match="4096"):
        place.draft.publish("y")
    assert "y" not in client and not place.draft.is_open
    assert place.stays() and (array == 5).all()
    held.clear()
    del array
    gc.collect()
    assert place.comes_back()


def test_collecting_finds_no_cycle(client):
    gc.collect()
    gc.disable()
    try:
        client.put("x", np.zeros(10))
        lease, draft = client.get("x"), client.create(10)
        array, other = lease.numpy(), draft.array
        gone = [weakref.ref(one) for one in [lease, draft]]
        del lease, draft, array, other
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
