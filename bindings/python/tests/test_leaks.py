"""Nothing leaks: memory stays flat over many rounds. TENSORLEND_LEAK_ROUNDS sets how many (default 20,000; 50,000 in a full run)."""

import gc
import os
import pathlib
import tracemalloc

import numpy as np
import pytest
from amounts import FULL

ROUNDS = int(os.environ.get("TENSORLEND_LEAK_ROUNDS", 50_000 if FULL else 20_000))
WARM = 5000 if FULL else 2000
# Maximum growth over all rounds, for the pools of the allocator and of libraries.
TRACED_BYTES_MAX, RESIDENT_BYTES_MAX = 64 << 10, 4 << 20


def resident() -> int:
    """Bytes of this process's own: not those that are shared."""
    for line in pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not tell what is anonymous")


def tensors(client, _):
    array = np.arange(100.0)

    def round_(number):
        client.put("x", array, metadata={"n": number})
        lease = client.get("x")
        assert lease.shape == (100,) and lease.metadata["n"] == number

    return round_


def views(client, _):
    def round_(number):
        with client.create(100, name="x") as draft:
            draft.array[:] = number
        lease = client.get("x")
        assert lease.numpy()[99] == np.from_dlpack(lease)[0] == memoryview(lease)[5] == np.asarray(lease)[7] == number
        lease.__array_interface__  # noqa: B018

    return round_


def datasets(client, _):
    array = np.arange(10)

    def round_(number):
        client.put_dataset("d", {"a": array, "b": number})
        dataset = client.get_dataset("d")
        assert dataset["b"].numpy() == number and len(dataset.items()) == 2

    return round_


def batches(client, _):
    for name in "abc":
        client.put_dataset(name, {"x": np.arange(10), "y": 7})

    def round_(number):
        with client.batches(list("abc"), "numpy", ahead=2) as some:
            x, y = next(some)
        assert x[9] == 9 and y == 7

    return round_


def messages(client, request):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    request.addfinalizer(subscription.close)
    array = np.arange(10)

    def round_(number):
        stream.send(array, timestamp=number)
        message = subscription.recv(10)
        assert message.timestamp == number and message.numpy()[9] == 9

    return round_


def failures(client, _):
    def round_(number):
        for call in [lambda: client.get("nothing"), lambda: client.put("x", object()), lambda: client.create(-1)]:
            try:
                call()
            except Exception:
                pass

    return round_


@pytest.mark.parametrize("kind", [tensors, views, datasets, batches, messages, failures])
def test_flat(client, request, kind):
    round_ = kind(client, request)
    rounds = ROUNDS // 10 if kind is failures else ROUNDS
    for number in range(WARM):
        round_(number)
    tracemalloc.start()
    try:
        for number in range(WARM):
            round_(number)
        gc.collect()
        traced, before, slots = tracemalloc.get_traced_memory()[0], resident(), client.memory()
        for number in range(rounds):
            round_(number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - traced, resident() - before
    finally:
        tracemalloc.stop()
    print(f"{kind.__name__}: {rounds} rounds, traced {grown[0]:+} bytes, resident {grown[1]:+} bytes, slots {client.memory()}")
    assert grown[0] < TRACED_BYTES_MAX and grown[1] < RESIDENT_BYTES_MAX
    assert client.memory()[1] == slots[1], "more segments than after the first rounds"
