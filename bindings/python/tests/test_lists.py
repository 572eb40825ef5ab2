"""Lists: what many producers collect, in one order."""

import threading
import time

import numpy as np
import pytest

import tensorlend


def test_append_and_read(client):
    assert client.append("l", [1, 2], metadata={"a": 1}, timestamp=3) == 0
    assert client.append("l", {"u": 1, "v": 2.0}, metadata=b"m") == 1
    draft = client.create(2, "int8")
    draft.array[:] = 5
    assert client.append("l", draft) == 2
    assert client.length("l") == 3 and client.lists("*") == [("l", 3)]
    first, second, third = client.get_all("l")
    assert (first.numpy().tolist(), first.metadata, first.timestamp, first.name) == ([1, 2], {"a": 1}, 3, "l")
    assert isinstance(second, tensorlend.Dataset) and second["v"].numpy() == 2.0 and second.metadata_bytes == b"m"
    assert third.numpy().tolist() == [5, 5]


def test_ranges(client):
    for number in range(5):
        client.append("l", number)
    values = lambda start, stop: [int(v.numpy()) for v in client.get_range("l", start, stop)]  # noqa: E731
    assert values(1, 3) == [1, 2] and values(3, 99) == [3, 4] and values(2, 2) == []
    mine = client.get_range("l", 0, 1, mode="cow")[0]
    mine.numpy()[()] = 9
    assert values(0, 1) == [0]
    with pytest.raises(OverflowError):
        client.get_range("l", -1, 3)
    with pytest.raises(tensorlend.ArgumentError, match='use "read" or "cow"'):
        client.get_all("l", mode="")


def test_append_names(client):
    client.put("a", 1)
    client.put_dataset("b", {"u": 2})
    assert client.append_names("l", ["a", "b", "a"]) == 0
    assert client.append_names("l", ["b"]) == 3
    client.put("a", 9)
    assert client.get_all("l")[2].numpy() == 1
    with pytest.raises(tensorlend.NotFoundError, match="nothing"):
        client.append_names("l", ["a", "nothing"])
    with pytest.raises(tensorlend.ArgumentError, match="at most 1024 items, not 1025"):
        client.append_names("l", ["a"] * 1025)
    assert client.length("l") == 4


def test_a_list_that_is_not_there(client):
    assert client.length("l") == 0 and client.clear("l") is False and client.lists() == []
    for call in [lambda: client.get_all("l"), lambda: client.rename_list("l", "m")]:
        with pytest.raises(tensorlend.NotFoundError, match='no list named "l"'):
            call()


def test_clear_and_rename(client):
    client.append("l", 1)
    kept = client.get_all("l")[0]
    client.rename_list("l", "m")
    assert client.length("l") == 0 and client.length("m") == 1
    assert client.clear("m") is True
    assert client.length("m") == 0 and kept.numpy() == 1


def test_what_cannot_be_appended(client):
    with pytest.raises(tensorlend.DTypeError):
        client.append("l", object())
    with pytest.raises(tensorlend.ArgumentError, match="at least one byte"):
        client.append("", 1)
    assert client.length("l") == 0


def test_waiting_for_a_length(client):
    def produce():
        for number in range(3):
            time.sleep(0.02)
            client.append("l", number)

    thread = threading.Thread(target=produce)
    thread.start()
    assert client.wait_length("l", 3, timeout=30) >= 3
    thread.join()
    assert client.wait_length("l", 3, "==") == 3 and client.wait_length("l", 5, "<=") == 3
    with pytest.raises(tensorlend.TimeoutError, match='list "l"'):
        client.wait_length("l", 4, timeout=0.01)
    with pytest.raises(tensorlend.ArgumentError, match='use ">=", "==" or "<="'):
        client.wait_length("l", 4, "<")
    with pytest.raises(tensorlend.ArgumentError, match="give 0 or more"):
        client.wait_length("l", 4, timeout=-1)


def test_many_producers_one_order(client):
    def produce(who):
        for number in range(50):
            client.append("l", np.array([who, number]))

    threads = [threading.Thread(target=produce, args=(who,)) for who in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    found = [tuple(value.numpy().tolist()) for value in client.get_all("l")]
    assert sorted(found) == [(who, number) for who in range(4) for number in range(50)]
    for who in range(4):
        assert [number for w, number in found if w == who] == list(range(50))
