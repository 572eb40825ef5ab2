"""Queues: each item goes to one of several consumers."""

import asyncio
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest

import tensorlend


@pytest.fixture
def jobs(client):
    return client.queue("jobs")


def test_put_and_get(client, jobs):
    assert jobs.empty() and len(jobs) == 0 and jobs and jobs.name == "jobs" and jobs.maxsize == 0
    assert jobs.put([1, 2], metadata={"a": 1}, timestamp=3) == 0
    assert jobs.put({"u": 1, "v": 2.0}) == 1
    draft = client.create(2, "int8")
    draft.array[:] = 5
    assert jobs.put(draft) == 2
    assert (jobs.qsize(), jobs.claimed(), jobs.empty()) == (3, 0, False)
    first, second, third = (jobs.get() for _ in range(3))
    assert (first.number, first.numpy().tolist(), first.value.metadata, first.value.timestamp) == (0, [1, 2], {"a": 1}, 3)
    assert isinstance(second.value, tensorlend.Dataset) and third.numpy().tolist() == [5, 5]
    with pytest.raises(TypeError, match="the item is a dataset"):
        second.numpy()
    assert (jobs.qsize(), jobs.claimed()) == (0, 3)
    assert first.done() and second.done()
    third.give_back()
    for call in (first.done, third.done, third.give_back):
        with pytest.raises(tensorlend.ArgumentError, match="confirmed or given back already"):
            call()
    assert (jobs.qsize(), jobs.claimed()) == (1, 0)
    # The value outlives its item.
    assert first.numpy().tolist() == [1, 2]
    assert jobs.get(mode="cow").numpy().flags.writeable


def test_a_block_confirms_its_item_or_gives_it_back(jobs):
    jobs.put(1)
    with pytest.raises(ZeroDivisionError), jobs.get() as job:
        raise ZeroDivisionError
    assert jobs.qsize() == 1
    with jobs.get() as job:
        assert job.number == 0 and job.numpy() == 1
    assert (jobs.qsize(), jobs.claimed()) == (0, 0)
    jobs.put(2)
    with jobs.get() as job:
        job.give_back()
    assert jobs.qsize() == 1
    del job
    item = jobs.get()
    assert jobs.claimed() == 1
    del item
    assert (jobs.qsize(), jobs.claimed()) == (1, 0)


def test_next_confirms_an_item_and_claims_another(client, jobs):
    for number in range(4):
        jobs.put(number)
    job = jobs.get()
    job = jobs.next(job)
    assert (job.number, jobs.qsize(), jobs.claimed()) == (1, 2, 1)
    assert job.done()
    # The item has no claim any more, so this call only claims the next one.
    job = jobs.next(job, timeout=30, mode="cow")
    assert job.number == 2 and job.numpy().flags.writeable
    job = jobs.next(job)
    with pytest.raises(tensorlend.TimeoutError, match='queue "jobs"'):
        jobs.next(job, timeout=0)
    assert (jobs.qsize(), jobs.claimed()) == (0, 0)
    with pytest.raises(tensorlend.ArgumentError, match="confirmed or given back already"):
        job.done()


def test_a_loop_confirms_each_item_with_the_request_for_the_next_one(client, jobs):
    for number in range(6):
        jobs.put(number)
    seen = []
    for job in jobs.items(timeout=0):
        seen.append(int(job.numpy()))
        assert jobs.claimed() == 1
    assert seen == list(range(6)) and (jobs.qsize(), jobs.claimed()) == (0, 0)
    for number in range(6):
        jobs.put(number)
    # After an exception or a break, the last item returns to the queue, unless the program has confirmed it.
    with pytest.raises(ZeroDivisionError):
        for job in jobs.items():
            raise ZeroDivisionError
    del job
    assert (jobs.qsize(), jobs.claimed()) == (6, 0)
    for job in jobs.items():
        assert job.number == 6 and job.done()
        break
    del job
    assert (jobs.qsize(), jobs.claimed()) == (5, 0)
    items = jobs.items(timeout=0, prefetch=4)
    assert iter(items) is items and [next(items).number, next(items).number] == [7, 8]
    assert (jobs.qsize(), jobs.claimed()) == (1, 4)
    del items
    assert (jobs.qsize(), jobs.claimed()) == (4, 0)
    for prefetch in (0, 65):
        with pytest.raises(tensorlend.ArgumentError, match="from 1 to 64"):
            jobs.items(prefetch=prefetch)


def test_put_many(client, jobs):
    draft = client.create(2, "int8")
    draft.array[:] = 5
    draft.set_metadata({"a": 1})
    assert jobs.put_many([[1, 2], {"u": 1}, draft]) == range(3)
    assert jobs.put_many(number for number in range(3, 5)) == range(3, 5)
    assert jobs.put_many([]) == range(0) and jobs.qsize() == 5
    values = [job.value for job in jobs.items(timeout=0, prefetch=8)]
    assert values[0].numpy().tolist() == [1, 2] and values[1]["u"].numpy() == 1
    assert values[2].numpy().tolist() == [5, 5] and values[2].metadata == {"a": 1}
    assert [int(value.numpy()) for value in values[3:]] == [3, 4] and jobs.qsize() == 0
    with pytest.raises(tensorlend.ArgumentError, match="1 to 1024 items into queue \"jobs\", not 1025"):
        jobs.put_many([1] * 1025)
    with pytest.raises(tensorlend.DTypeError):
        jobs.put_many([1, "text"])
    assert jobs.qsize() == 0
    small = client.queue("jobs", maxsize=2)
    small.put(1)
    with pytest.raises(tensorlend.TimeoutError, match='queue "jobs"'):
        small.put_many([2, 3], timeout=0.01)
    with pytest.raises(tensorlend.ArgumentError, match="1 to 2 items"):
        small.put_many([2, 3, 4])
    assert jobs.qsize() == 1
    waiting = threading.Thread(target=small.put_many, args=([2, 3],))
    waiting.start()
    jobs.get(timeout=30).done()
    waiting.join()
    assert [int(job.numpy()) for job in jobs.items(timeout=0)] == [2, 3]


def test_producers_share_one_maximum(broker, client, jobs):
    client.queue("jobs", maxsize=2).put(1)
    with broker.connect() as other:
        with pytest.raises(tensorlend.ArgumentError, match='queue "jobs" has given it a maximum of 2 waiting items, and this one gives 3'):
            other.queue("jobs", maxsize=3).put(2)
        other.queue("jobs").put(2)
        with pytest.raises(tensorlend.TimeoutError, match='queue "jobs"'):
            other.queue("jobs").put(3, timeout=0.01)
        with pytest.raises(tensorlend.ArgumentError, match='1 to 2 items into queue "jobs", not 3: put them in parts'):
            other.queue("jobs").put_many([3, 4, 5])
        assert [int(job.numpy()) for job in jobs.items(timeout=0)] == [1, 2]
        other.queue("jobs", maxsize=3).put_many([1, 2, 3])


def test_objects(jobs):
    job = {"path": "a", "sizes": [1, 2], "array": np.arange(3)}
    jobs.put_object(job)
    jobs.put_object(complex)
    with jobs.get() as item:
        found = item.get_object()
    assert found["path"] == "a" and found["sizes"] == [1, 2] and found["array"].tolist() == [0, 1, 2]
    with jobs.get() as item:
        with pytest.raises(tensorlend.UntrustedPickleError):
            item.get_object()
        assert item.get_object(trust_pickle=True) is complex


def test_waits(client, jobs):
    with pytest.raises(tensorlend.TimeoutError, match='queue "jobs"'):
        jobs.get(timeout=0.01)
    small = client.queue("jobs", maxsize=1)
    small.put(1)
    with pytest.raises(tensorlend.TimeoutError, match='queue "jobs"'):
        small.put(2, timeout=0.1)
    thread = threading.Thread(target=lambda: small.put(2))
    thread.start()
    with jobs.get() as job:
        thread.join(30)
        assert not thread.is_alive() and job.numpy() == 1
    waiting = threading.Thread(target=lambda: jobs.get().done())
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive() and jobs.empty() and jobs.claimed() == 0


def test_async(jobs):
    async def work():
        getting = asyncio.ensure_future(jobs.get_async(30))
        await asyncio.sleep(0.1)
        assert await jobs.put_async([7]) == 0
        with await getting as job:
            assert job.numpy() == [7]
        assert await jobs.put_object_async({"a": 1}) == 1
        assert await jobs.put_many_async([3, 4]) == range(2, 4)
        late = asyncio.ensure_future(jobs.get_async())
        with await late as job:
            assert job.get_object() == {"a": 1}
        for number in (3, 4):
            with await jobs.get_async() as job:
                assert job.numpy() == number
        cancelled = asyncio.ensure_future(jobs.get_async())
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    asyncio.run(work())
    jobs.put(1)
    assert jobs.get(30).done()


def consume(address, claimed):
    jobs = tensorlend.connect(address).queue("jobs")
    job = jobs.get()
    claimed.send(job.number)
    claimed.recv()


def test_a_killed_consumers_item_comes_back(broker, jobs):
    for number in range(2):
        jobs.put(number)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=consume, args=(broker.address, theirs))
    process.start()
    assert ours.recv() == 0
    assert (jobs.qsize(), jobs.claimed()) == (1, 1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    # The returned item precedes the later one.
    second = jobs.get(30)
    if second.number == 1:
        # The daemon has not noticed the end yet.
        assert jobs.get(30).number == 0
    assert repr(second).startswith("<QueueItem ") and repr(jobs) == "<Queue 'jobs'>"


def test_a_queue_that_is_cleared(client, jobs):
    jobs.put(1)
    job = jobs.get()
    client.clear("jobs")
    assert job.done() is False
    assert jobs.empty()


def test_the_list_of_a_queue_has_the_items_that_are_not_confirmed(client, jobs):
    for number in range(200):
        jobs.put(number)
    items = [jobs.get() for _ in range(150)]
    for item in items[1:]:
        item.done()
    assert [int(value.numpy()) for value in client.get_all("jobs")] == [0, *range(150, 200)]
    assert client.length("jobs") == 200


def test_names_that_are_no_queue(client):
    with pytest.raises(tensorlend.ArgumentError):
        client.queue("")
