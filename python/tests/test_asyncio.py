"""Streams in asyncio."""

import asyncio
import threading
import time

import pytest

import tensorlend


@pytest.fixture
def stream(client):
    return client.stream("s", capacity=64)


def subscribe(client, name="s"):
    return client.subscribe(name, start="next", pollable=True)


def test_async_for_ends_with_the_stream(client, stream):
    subscription = subscribe(client)

    def produce():
        for number in range(100):
            stream.send(number)
            time.sleep(0.0005)
        stream.close()

    async def consume():
        thread = threading.Thread(target=produce)
        thread.start()
        found = [int(message.numpy()) async for message in subscription]
        thread.join()
        return found

    assert asyncio.run(asyncio.wait_for(consume(), 60)) == list(range(100))


def test_recv_async(client, stream):
    subscription = subscribe(client)

    async def main():
        stream.send(1)
        assert (await subscription.recv_async()).numpy() == 1
        for timeout in [0, 0.05, 0.25]:
            began = time.monotonic()
            with pytest.raises(tensorlend.TimeoutError, match="waiting for a message of stream 's'"):
                await subscription.recv_async(timeout)
            assert timeout <= time.monotonic() - began
        for timeout in [-1, float("nan")]:
            with pytest.raises(tensorlend.ArgumentError, match="give 0 or more"):
                await subscription.recv_async(timeout)
        asyncio.get_running_loop().call_later(0.05, stream.send, 2)
        assert (await subscription.recv_async(timeout=30)).numpy() == 2
        stream.close()
        with pytest.raises(tensorlend.StreamEndedError):
            await subscription.recv_async()

    asyncio.run(main())


def test_it_needs_a_descriptor(client, stream):
    subscription = client.subscribe("s")

    async def main():
        with pytest.raises(tensorlend.ArgumentError, match="pollable=True"):
            await subscription.recv_async()
        with pytest.raises(tensorlend.ArgumentError, match="pollable=True"):
            async for _ in subscription:
                pass

    asyncio.run(main())


def test_two_subscriptions_at_once(client, stream):
    other = client.stream("t", capacity=64)

    async def consume(subscription):
        return [message.sequence async for message in subscription]

    async def main():
        tasks = [asyncio.create_task(consume(subscribe(client, name))) for name in ["s", "t", "s"]]
        await asyncio.sleep(0.02)
        for _ in range(20):
            stream.send(0)
            other.send(1)
            await asyncio.sleep(0.001)
        stream.close()
        other.close()
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    assert asyncio.run(main()) == [list(range(20))] * 3


def test_a_message_wakes_its_waiter_at_once(client, stream):
    subscription = subscribe(client)

    async def main():
        waits = []
        for number in range(20):
            task = asyncio.create_task(subscription.recv_async(30))
            await asyncio.sleep(0.01)
            began = time.monotonic()
            stream.send(number)
            await task
            waits.append(time.monotonic() - began)
        return min(waits)

    # A poll every 0.1 s would find each message 0.09 s late.
    assert asyncio.run(main()) < 0.05


def test_waiting_costs_nothing(client, stream):
    subscription = subscribe(client)

    async def main():
        stream.send(0)
        await subscription.recv_async()
        began = time.process_time()
        with pytest.raises(tensorlend.TimeoutError):
            await subscription.recv_async(1)
        return time.process_time() - began

    assert asyncio.run(main()) < 0.3


def test_cancelling(client, stream):
    subscription = subscribe(client)

    async def main():
        task = asyncio.create_task(subscription.recv_async())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(subscription.recv_async(), 0.05)
        stream.send(5)
        assert (await subscription.recv_async(30)).numpy() == 5
        # The loop watches nothing that was cancelled.
        assert not asyncio.get_running_loop().remove_reader(subscription.fileno())

    asyncio.run(main())


def test_the_loop_goes_on_meanwhile(client, stream):
    subscription = subscribe(client)

    async def main():
        task, ticks = asyncio.create_task(subscription.recv_async()), 0
        for _ in range(50):
            await asyncio.sleep(0.002)
            ticks += 1
        stream.send(0)
        await task
        return ticks

    assert asyncio.run(main()) == 50


def test_a_subscription_that_is_closed_meanwhile(client, stream):
    subscription = subscribe(client)

    async def main():
        task = asyncio.create_task(subscription.recv_async())
        await asyncio.sleep(0.02)
        subscription.close()
        with pytest.raises(tensorlend.ClosedError, match="closed"):
            await asyncio.wait_for(task, 10)

    asyncio.run(main())


@pytest.mark.parametrize("end", ["client", "broker"])
def test_the_end_of_client_or_daemon_ends_an_awaited_message(broker, client, end):
    stream = client.stream("s")
    subscription = client.subscribe("s", start="next", pollable=True)

    async def main():
        asyncio.get_running_loop().call_later(0.2, {"client": client, "broker": broker}[end].close)
        with pytest.raises(tensorlend.DisconnectedError, match="connect again"):
            await subscription.recv_async()

    asyncio.run(main())
    stream.close()
