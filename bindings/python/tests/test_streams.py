"""Streams: every message, one producer, many subscribers."""

import select
import threading
import time

import numpy as np
import pytest

import tensorlend


def test_send_and_receive(client):
    with client.stream("s", capacity=4) as stream, client.subscribe("s", start="next") as subscription:
        assert stream.send([1, 2], metadata={"a": 1}, timestamp=3) == 0
        assert stream.send({"u": 1, "v": 2.0}, metadata=b"m", timestamp=4) == 1
        with stream.create(2, "int8") as draft:
            draft.array[:] = 5
            assert stream.send(draft) == 2
        first, second, third = (subscription.recv(10) for _ in range(3))
        assert (first.sequence, first.lost, first.timestamp) == (0, 0, 3)
        assert first.numpy().tolist() == [1, 2] and first.tensor.metadata == {"a": 1}
        assert first.value.name == "s"
        assert second.dataset["v"].numpy() == 2.0 and second.dataset.metadata_bytes == b"m"
        assert third.tensor.numpy().tolist() == [5, 5]
        assert "Message 2" in repr(third)
        with pytest.raises(TypeError, match="the message is one tensor"):
            first.dataset  # noqa: B018
        with pytest.raises(TypeError, match="the message is a dataset"):
            second.numpy()
        assert subscription.try_recv() is None
        assert (subscription.lost, subscription.position, subscription.name, subscription.pollable) == (0, 3, "s", False)
        assert (stream.sent, stream.capacity, stream.subscribers, stream.name) == (3, 4, 1, "s")
        assert client.streams() == [("s", 1)] and client.streams("t*") == []
        assert "s" in repr(stream) and "s" in repr(subscription)


def test_an_iterator_ends_with_the_stream(client):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    for number in range(5):
        stream.send(number)
    stream.close()
    stream.close()
    assert "closed" in repr(stream)
    assert [int(message.numpy()) for message in subscription] == [0, 1, 2, 3, 4]
    with pytest.raises(tensorlend.StreamEndedError):
        subscription.recv()
    with pytest.raises(tensorlend.StreamEndedError):
        subscription.try_recv()


def test_where_to_begin(client):
    stream = client.stream("s", capacity=4)
    for number in range(6):
        stream.send(number)
    first = {start: client.subscribe("s", start=start).try_recv() for start in ["oldest", "newest", "next"]}
    assert first["oldest"].sequence == 2 and first["newest"].sequence == 5 and first["next"] is None
    with pytest.raises(tensorlend.ArgumentError, match='use "newest", "oldest" or "next"'):
        client.subscribe("s", start="first")


def test_a_subscriber_may_write_for_itself(client):
    stream = client.stream("s")
    subscription = client.subscribe("s", mode="cow")
    stream.send([1, 2])
    array = subscription.recv(10).numpy()
    array[0] = 9
    assert array.tolist() == [9, 2]


def test_a_full_stream(client):
    stream = client.stream("s", capacity=2)
    subscription = client.subscribe("s", start="next")
    stream.send(0)
    stream.send(1)
    with pytest.raises(tensorlend.StreamFullError, match='"s"'):
        stream.try_send(2)
    for timeout in [0, 0.07]:
        with pytest.raises(tensorlend.TimeoutError, match='room in stream "s"'):
            stream.send(2, timeout)
    with pytest.raises(tensorlend.ArgumentError, match="give 0 or more"):
        stream.send(2, -1)
    assert subscription.recv().sequence == 0
    assert stream.try_send(2) == 2


def test_policies(client):
    error = client.stream("error", capacity=1, policy="error")
    dropping = client.stream("drop", capacity=1, policy="drop-oldest")
    lagging = [client.subscribe(name, start="next") for name in ["error", "drop"]]
    for stream in [error, dropping]:
        stream.send(0)
    with pytest.raises(tensorlend.StreamFullError):
        error.send(1)
    assert lagging[1].recv(10).sequence == 0
    assert [dropping.send(1), dropping.send(2), dropping.try_send(3)] == [1, 2, 3]
    message = lagging[1].recv(10)
    assert (message.sequence, message.lost, lagging[1].lost) == (3, 2, 2)
    with pytest.raises(tensorlend.ArgumentError, match='"block", "drop-oldest" or "error"'):
        client.stream("s", policy="wait")


def test_a_stream_that_cannot_be(client):
    with pytest.raises(tensorlend.ArgumentError, match="1 to 65536 messages"):
        client.stream("s", capacity=65537)
    with pytest.raises(tensorlend.ArgumentError, match="1 to 65536 messages, not 0"):
        client.stream("s", capacity=0)
    with pytest.raises(tensorlend.ArgumentError, match="at least one byte"):
        client.stream("")
    with pytest.raises(tensorlend.ArgumentError, match="the number -1 is out of range"):
        client.stream("s", capacity=-1)


def test_a_stream_has_one_producer(broker, client):
    stream, frames = client.stream("s"), client.subscribe("s", start="next")
    with broker.connect() as other:
        for second in [client, other]:
            with pytest.raises(tensorlend.ConflictError, match='a client produces stream "s" already: close the stream there'):
                second.stream("s")
        stream.send([1])
        assert frames.recv(30).numpy().tolist() == [1], "the first producer goes on"
        stream.close()
        with client.stream("s") as again:
            again.send([2])
            assert frames.recv(30).numpy().tolist() == [2]
        other.stream("s").close()


def test_a_stream_that_is_not_there(client):
    with pytest.raises(tensorlend.NotFoundError, match='no stream named "s"'):
        client.subscribe("s")
    with pytest.raises(tensorlend.TimeoutError, match='waiting for .*"s"'):
        client.subscribe("s", wait=0.06)
    assert client.delete_stream("s") is False
    threading.Timer(0.1, lambda: opened.append(client.stream("s"))).start()
    opened = []
    assert client.subscribe("s", wait=30).name == "s"
    assert client.delete_stream("s") is True


def test_closed_ends(client):
    stream, subscription = client.stream("s"), None
    subscription = client.subscribe("s")
    subscription.close()
    subscription.close()
    for use in [subscription.recv, subscription.try_recv, lambda: subscription.lost, lambda: next(subscription)]:
        with pytest.raises(tensorlend.ClosedError, match="closed: subscribe again"):
            use()
    stream.close()
    for use in [lambda: stream.send(1), lambda: stream.try_send(1), lambda: stream.sent]:
        with pytest.raises(tensorlend.ClosedError, match='"s" was closed in this process: open it again'):
            use()


def test_waiting_for_subscribers(client):
    stream = client.stream("s")
    with pytest.raises(tensorlend.TimeoutError):
        stream.wait_subscribers(1, 0.06)
    kept = []
    threading.Timer(0.1, lambda: kept.append(client.subscribe("s"))).start()
    stream.wait_subscribers(1, 30)
    assert stream.subscribers == 1


def test_what_cannot_be_sent(client):
    stream = client.stream("s")
    for value in ["text", object(), None]:
        with pytest.raises(tensorlend.DTypeError):
            stream.send(value)
    with pytest.raises(tensorlend.ArgumentError, match="at most 64 KiB"):
        stream.send(1, metadata=bytes(70000))
    with pytest.raises(TypeError):
        stream.send({1: 2})
    assert stream.sent == 0
    with pytest.raises(tensorlend.DTypeError):
        stream.create(3, "nonsense")


def test_a_descriptor(client):
    stream = client.stream("s")
    plain, pollable = client.subscribe("s"), client.subscribe("s", pollable=True)
    with pytest.raises(tensorlend.ArgumentError, match="pollable=True"):
        plain.fileno()
    assert pollable.try_recv() is None
    assert select.select([pollable], [], [], 0) == ([], [], [])
    stream.send(1)
    assert select.select([pollable], [], [], 10)[0] == [pollable]
    assert pollable.try_recv().numpy() == 1


def test_many_messages_between_threads(client):
    stream, count = client.stream("s", capacity=16), 2000
    subscriptions = [client.subscribe("s", start="next") for _ in range(2)]

    def produce():
        for number in range(count):
            stream.send(np.full(10, number))
        stream.close()

    thread = threading.Thread(target=produce)
    thread.start()
    sums = [0, 0]

    def consume(which):
        for message in subscriptions[which]:
            array = message.numpy()
            assert (array == message.sequence).all()
            sums[which] += int(array[0])

    consumers = [threading.Thread(target=consume, args=(which,)) for which in range(2)]
    [one.start() for one in consumers]
    [one.join(60) for one in [thread, *consumers]]
    assert sums == [count * (count - 1) // 2] * 2


def test_messages_of_one_subscription_are_shared_by_its_threads(client):
    stream, taken = client.stream("s", capacity=64), []
    subscription = client.subscribe("s", start="next")

    def consume():
        while True:
            try:
                taken.append(subscription.recv(30).sequence)
            except tensorlend.StreamEndedError:
                return

    threads = [threading.Thread(target=consume) for _ in range(3)]
    [thread.start() for thread in threads]
    for number in range(500):
        stream.send(number)
    stream.close()
    [thread.join(60) for thread in threads]
    assert sorted(taken) == list(range(500))


def test_a_subscription_that_another_thread_waits_on_can_be_looked_at_and_closed(client):
    client.stream("s")
    stream = client.stream("t")
    subscription = client.subscribe("t", start="next")
    ended = []

    def consume():
        try:
            subscription.recv()
        except tensorlend.ClosedError as error:
            ended.append(str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.1)
    assert subscription.try_recv() is None and subscription.position == 0
    subscription.close()
    thread.join(10)
    assert ended == ["the subscription was closed: subscribe again"]
    stream.send(1)


def test_a_stream_that_another_thread_waits_on_can_be_closed(client):
    stream = client.stream("s", capacity=1)
    subscription = client.subscribe("s", start="next")
    stream.send(0)
    ended = []

    def produce():
        try:
            stream.send(1)
        except tensorlend.ClosedError as error:
            ended.append(str(error))

    thread = threading.Thread(target=produce)
    thread.start()
    time.sleep(0.1)
    stream.close()
    thread.join(10)
    assert ended == ['the stream "s" was closed in this process: open it again']
    assert [message.sequence for message in subscription] == [0]


def test_short_waits_beside_a_long_one_take_as_long_as_they_say(client):
    client_stream = client.stream("s")
    subscription = client.subscribe("s", start="next")
    thread = threading.Thread(target=lambda: pytest.raises(tensorlend.Error, subscription.recv, 3))
    thread.start()
    time.sleep(0.1)
    for timeout in [0.0, 0.02, 0.2]:
        began = time.monotonic()
        with pytest.raises(tensorlend.TimeoutError):
            subscription.recv(timeout)
        assert timeout <= time.monotonic() - began
    client_stream.close()
    thread.join(10)
