"""What many names hold, one after the other, some of it leased ahead."""

import gc
import signal
import subprocess
import sys

import numpy as np
import pytest
from children import in_child
from places import Place

import tensorlend


def publish(client, count, value=lambda number: number):
    """Datasets b/0, b/1 ... of an array of five and a label; their names."""
    names = [f"b/{number}" for number in range(count)]
    for number, name in enumerate(names):
        client.put_dataset(name, {"rows": np.full(5, value(number), "float32"), "label": np.int64(value(number))})
    return names


def numbers(batches):
    """Of batches that `publish` made."""
    return [int(label) for _, label in batches]


@pytest.mark.parametrize("ahead", [1, 3, 16, 100])
@pytest.mark.parametrize("count", [0, 1, 3, 16, 17, 40])
def test_all_of_them_in_their_order(client, ahead, count):
    names = publish(client, count)
    batches = list(client.batches(names, "numpy", ahead=ahead))
    assert all(type(batch) is tuple and len(batch) == 2 for batch in batches)
    assert numbers(batches) == list(range(count))
    for number, (rows, _) in enumerate(batches):
        assert rows.dtype == np.float32 and rows.tolist() == [number] * 5 and not rows.flags.writeable


def test_their_number(client):
    for number in range(3):
        client.put(f"n/{number}", number)
    batches = client.batches([f"n/{number}" for number in range(3)], "numpy")
    assert len(batches) == 3 and int(next(batches)) == 0 and len(batches) == 2
    assert [int(value) for value in batches] == [1, 2] and len(batches) == 0 and batches
    with pytest.raises(TypeError, match="no length, because their names have none"):
        len(client.batches(name for name in ["n/0"]))


def test_nothing_is_copied(client):
    (name,) = publish(client, 1)
    ((rows, label),) = client.batches([name], "numpy")
    lease = client.get_dataset(name)
    for array, member in [(rows, "rows"), (label, "label")]:
        assert array.__array_interface__["data"] == lease[member].numpy().__array_interface__["data"]


def test_leases_tensors_and_several_names(client):
    publish(client, 1)
    client.put("x", np.arange(3))
    client.put("y", np.arange(4), metadata={"n": 1})
    lease, dataset, both = client.batches(["x", "b/0", ("x", "y")])
    assert isinstance(lease, tensorlend.Lease) and lease.name == "x"
    assert isinstance(dataset, tensorlend.Dataset) and list(dataset) == ["rows", "label"]
    assert type(both) is tuple and both[1].metadata == {"n": 1}
    assert next(client.batches(["x"], "numpy")).tolist() == [0, 1, 2]
    x, (rows, label) = next(client.batches([["x", "b/0"]], "numpy"))
    assert (x.tolist(), rows.tolist(), int(label)) == ([0, 1, 2], [0] * 5, 0)


def test_names_are_drawn_as_they_are_needed(client):
    names = publish(client, 10)
    drawn = []

    def draw():
        for name in names:
            drawn.append(name)
            yield name

    batches = client.batches(draw(), "numpy", ahead=4)
    assert not drawn
    taken = [len(drawn) for _ in batches]
    assert taken == [4, 4, 4, 4, 8, 8, 8, 8, 10, 10]
    assert next(batches, None) is None and iter(batches) is batches


def test_what_is_ahead_was_leased(client):
    """A value that is replaced when its batch is ahead comes all the same; one that is not, does not."""
    names = publish(client, 6)
    batches = client.batches(names, "numpy", ahead=3)
    next(batches)
    publish(client, 6, lambda number: 100 + number)
    assert numbers(batches) == [1, 2, 103, 104, 105]
    batches = client.batches(names, "numpy", ahead=1)
    next(batches)
    publish(client, 6)
    assert numbers(batches) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("library", [None, "numpy"])
def test_a_batch_keeps_its_memory(client, library):
    place = Place(client)
    place.draft.array[:] = 5
    place.draft.publish("x")
    publish(client, 1)
    batches = client.batches(["b/0", "x"], library)
    next(batches)
    client.delete("x")
    # The loader has read this value ahead.
    assert place.stays()
    batch = next(batches)
    del batches
    assert place.stays() and bool((np.asarray(batch) == 5).all())
    del batch
    gc.collect()
    assert place.comes_back()


@pytest.mark.parametrize("end", ["close", "with", "drop"])
def test_what_is_ahead_is_given_back(client, end):
    place = Place(client)
    place.draft.publish("x")
    publish(client, 1)
    batches = client.batches(["b/0", "x"], "numpy")
    kept = next(batches)
    client.delete("x")
    assert place.stays()
    if end == "close":
        batches.close()
        assert next(batches, None) is None
        batches.close()
    elif end == "with":
        with batches:
            pass
    del batches
    assert place.comes_back()
    assert numbers([kept]) == [0]


def test_each_batch_ends_by_itself(client):
    """Of what is taken together each tensor gives back its own."""
    place = Place(client)
    place.draft.publish("x")
    publish(client, 2)
    first, x, last = client.batches(["b/0", "x", "b/1"], "numpy")
    client.delete("x")
    assert place.stays()
    del x
    assert place.comes_back()
    assert numbers([first, last]) == [0, 1]


def test_a_missing_name_is_told_when_it_is_its_turn(client):
    names = publish(client, 5)
    client.delete("b/2")
    batches = client.batches(names, "numpy")
    assert numbers([next(batches), next(batches)]) == [0, 1]
    with pytest.raises(tensorlend.NotFoundError, match='"b/2"'):
        next(batches)
    # The loop skipped the failed batch.
    assert numbers(batches) == [3, 4]


def test_a_name_that_comes_in_time(client):
    names = publish(client, 5)
    client.delete("b/2")
    batches = client.batches(names, "numpy")
    next(batches)
    publish(client, 5, lambda number: 100 + number)
    assert numbers(batches) == [1, 102, 103, 104]


def test_several_names_of_which_one_is_missing(client):
    place = Place(client)
    place.draft.publish("x")
    publish(client, 1)
    batches = client.batches(["b/0", ("x", "y"), "b/0"], "numpy")
    next(batches)
    with pytest.raises(tensorlend.NotFoundError, match='"y"'):
        next(batches)
    client.delete("x")
    # No lease of the failed batch remains.
    assert place.comes_back()
    assert numbers(batches) == [0]


def test_names_that_raise(client):
    publish(client, 2)

    def draw(error):
        yield "b/0"
        yield "b/1"
        raise error

    batches = client.batches(draw(ZeroDivisionError("names")), "numpy")
    assert numbers([next(batches), next(batches)]) == [0, 1]
    with pytest.raises(ZeroDivisionError, match="names"):
        next(batches)
    assert next(batches, None) is None
    # An interrupt is raised at once, and no batch is lost.
    batches = client.batches(draw(KeyboardInterrupt()), "numpy")
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert numbers(batches) == [0, 1]


def test_names_that_are_none(client):
    publish(client, 1)
    batches = client.batches(["b/0", 7, ("b/0", 7), "", "b/0"], "numpy")
    assert numbers([next(batches)]) == [0]
    for error in (TypeError, TypeError, tensorlend.ArgumentError):
        with pytest.raises(error):
            next(batches)
    assert numbers(batches) == [0]


def test_names_that_take_batches_themselves(client):
    publish(client, 2)

    def draw():
        yield "b/0"
        with pytest.raises(ValueError, match="another call takes from these batches"):
            next(batches)
        with pytest.raises(ValueError, match="another call takes from these batches"):
            batches.close()
        yield "b/1"

    batches = client.batches(draw(), "numpy")
    assert numbers(batches) == [0, 1]


def test_arguments(client):
    with pytest.raises(tensorlend.ArgumentError, match='library "jax": use "numpy", "torch" or None'):
        client.batches([], "jax")
    with pytest.raises(tensorlend.ArgumentError, match="ahead"):
        client.batches([], ahead=0)
    with pytest.raises(tensorlend.ArgumentError, match="mode"):
        client.batches([], mode="write")
    with pytest.raises(TypeError):
        client.batches(7)
    with pytest.raises(TypeError, match="give a list"):
        client.batches("b/0")
    with pytest.raises(TypeError):
        next(iter(client.batches([b"x"])))


def test_private_copies(client):
    names = publish(client, 3)
    for rows, _ in client.batches(names, "numpy", mode="cow"):
        rows += 1
    assert [rows.tolist() for rows, _ in client.batches(names, "numpy")] == [[number] * 5 for number in range(3)]


def test_more_than_can_be_leased(client):
    """What cannot be leased ahead is an error only when it is its turn."""
    client.put("x", np.arange(3))
    kept, batches = [], client.batches(("x" for _ in range(10_000)), "numpy")
    with pytest.raises(tensorlend.LimitError):
        kept.extend(batches)
    assert len(kept) > 4000
    most = len(kept)
    kept.clear()
    assert sum(1 for _ in batches) == 10_000 - most - 1


def test_no_lease_is_left(client):
    """More than can be held at once."""
    client.put("x", np.arange(3))
    assert sum(int(x[2]) for x in client.batches(("x" for _ in range(10_000)), "numpy")) == 20_000


PRODUCER = """
import os, signal, sys
import numpy as np, tensorlend
client = tensorlend.connect(sys.argv[1])
for number in range(40):
    client.put_dataset(f"b/{number}", {"rows": np.full(5, number, "float32"), "label": np.int64(number)})
print(flush=True)
sys.stdin.read()
"""


def test_a_producer_that_is_killed(broker, client):
    command = [sys.executable, "-c", PRODUCER, broker.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as producer:
        producer.stdout.readline()
        batches = client.batches((f"b/{number}" for number in range(40)), "numpy")
        kept = [next(batches)]
        producer.send_signal(signal.SIGKILL)
        producer.wait(60)
    kept.extend(batches)
    assert numbers(kept) == list(range(40))
    assert all(rows.tolist() == [number] * 5 for number, (rows, _) in enumerate(kept))


def test_a_forked_child_gets_none(client):
    names = publish(client, 3)
    batches = client.batches(names, "numpy")
    next(batches)

    def look():
        with pytest.raises(tensorlend.Error, match="fork"):
            next(batches)
        # The client makes new batches for the child.
        return numbers(client.batches(names, "numpy"))

    assert in_child(look) == [0, 1, 2]
    assert numbers(batches) == [1, 2]


def test_a_client_that_is_closed(broker):
    client = broker.connect()
    names = publish(client, 3)
    batches = client.batches(names, "numpy", ahead=1)
    client.close()
    with pytest.raises(tensorlend.DisconnectedError):
        client.batches(names)
    assert numbers(batches) == [0, 1, 2]


def test_cycles_are_found(client):
    """Names that know the batches that they are for."""
    place = Place(client)
    place.draft.publish("x")
    publish(client, 1)

    def draw():
        yield "b/0"
        yield "x"
        yield held[0]

    held = []
    held.append(client.batches(draw(), "numpy", ahead=2))
    next(held[0])
    client.delete("x")
    assert place.stays()
    del held, draw
    gc.collect()
    assert place.comes_back()
