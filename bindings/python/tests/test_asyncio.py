"""Names, streams and requests in asyncio."""

import asyncio
import gc
import os
import threading
import time

import pytest
from waiting import LONG

import tensorlend
from tensorlend import _line


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


def test_async_with(broker):
    async def work():
        async with broker.connect() as client:
            client.put("x", 1)
            assert not client.closed
        return client

    assert asyncio.run(work()).closed


def test_recv_async(client, stream):
    subscription = subscribe(client)

    async def main():
        stream.send(1)
        assert (await subscription.recv_async()).numpy() == 1
        for timeout in [0, 0.05, 0.25]:
            began = time.monotonic()
            with pytest.raises(tensorlend.TimeoutError, match="waiting for a new message of stream 's'"):
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


def test_a_message_wakes_its_waiter(client, stream, monkeypatch):
    # A poll would find no message in time.
    monkeypatch.setattr(_line, "_POLL_SECONDS", LONG)
    monkeypatch.setattr(_line, "_POLL_SECONDS_MAX", LONG)
    subscription = subscribe(client)

    async def main():
        for number in range(20):
            task = asyncio.create_task(subscription.recv_async())
            await asyncio.sleep(0.01)
            stream.send(number)
            await task

    asyncio.run(asyncio.wait_for(main(), LONG / 2))


def test_waiting_costs_nothing(client, stream, monkeypatch):
    subscription = subscribe(client)
    polls, poll = [], _line._Loop.poll
    monkeypatch.setattr(_line._Loop, "poll", lambda self: polls.append(1) or poll(self))

    async def main():
        stream.send(0)
        await subscription.recv_async()
        polls.clear()
        with pytest.raises(tensorlend.TimeoutError):
            await subscription.recv_async(1)

    asyncio.run(main())
    # The pauses are 0.1 s at first, double each time, and are at most one second.
    assert 1 <= len(polls) < 100


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
        # The loop no longer watches the descriptor of the canceled wait.
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


#: Threads that the daemon of a test, which is in its process, may start in the meantime.
MORE = 10


def threads_here():
    return len(os.listdir("/proc/self/task"))


def test_a_thousand_tasks_wait_for_names_with_one_thread(client):
    names = [f"n/{number}" if number % 2 else f"n{number}" for number in range(1000)]

    async def main():
        first = asyncio.create_task(client.wait_for_async("first"))
        await asyncio.sleep(0)
        client.put("first", 0)
        await first
        before = threads_here()
        tasks = [asyncio.create_task(client.wait_for_async(name, LONG)) for name in names]
        await asyncio.sleep(0.01)
        assert threads_here() < before + MORE
        assert not any(task.done() for task in tasks)
        for number in reversed(range(len(names))):
            client.put(names[number], number)
        return [int(lease.numpy()) for lease in await asyncio.gather(*tasks)]

    assert asyncio.run(main()) == list(range(1000))


def test_waits_for_names_see_only_newer_values(client):
    seen = client.put("x", 1)

    async def main():
        newer, again, length = (
            asyncio.create_task(call)
            for call in [
                client.wait_newer_async("x", seen, LONG),
                client.wait_newer_async("x", seen, LONG),
                client.wait_length_async("l", 2, timeout=LONG),
            ]
        )
        await asyncio.sleep(0.01)
        client.delete("x")
        client.append("l", 1)
        await asyncio.sleep(0.01)
        assert not newer.done() and not again.done() and not length.done()
        again.cancel()
        client.put("x", 2)
        client.append("l", 1)
        assert int((await newer).numpy()) == 2 and await length == 2
        with pytest.raises(asyncio.CancelledError):
            await again
        with pytest.raises(tensorlend.TimeoutError, match=r'after 0.01 s waiting for "never": no process'):
            await client.wait_for_async("never", 0.01)
        with pytest.raises(tensorlend.TimeoutError, match="after 0.01 s waiting for list"):
            await client.wait_length_async("l", 3, timeout=0.01)

    asyncio.run(main())


@pytest.mark.parametrize("end", ["client", "broker"])
def test_the_end_of_client_or_daemon_ends_waits_for_names_and_requests(broker, client, end):
    server = client.serve("s")

    async def main():
        tasks = [
            asyncio.create_task(call)
            for call in [client.wait_for_async("x"), client.wait_length_async("l", 1), server.recv_async()]
        ]
        await asyncio.sleep(0.01)
        {"client": client, "broker": broker}[end].close()
        for task in tasks:
            with pytest.raises(tensorlend.DisconnectedError):
                await task

    asyncio.run(main())


def test_each_message_goes_to_one_of_many_tasks(client, stream):
    subscription = subscribe(client)
    found = []

    async def consume():
        async for message in subscription:
            found.append(int(message.numpy()))
            await asyncio.sleep(0)

    async def main():
        before = threads_here()
        tasks = [asyncio.create_task(consume()) for _ in range(50)]
        await asyncio.sleep(0.01)
        assert threads_here() < before + MORE
        for number in range(300):
            await stream.send_async(number, LONG)
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        stream.close()
        await asyncio.gather(*tasks)

    asyncio.run(main())
    assert sorted(found) == list(range(300))


def test_tasks_of_two_loops_share_a_subscription(client, stream):
    subscription = subscribe(client)
    found = [[], []]

    async def consume(into):
        async for message in subscription:
            into.append(int(message.numpy()))
            await asyncio.sleep(0)

    async def main(into):
        await asyncio.gather(*(consume(into) for _ in range(3)))

    threads = [threading.Thread(target=lambda into=into: asyncio.run(main(into))) for into in found]
    for thread in threads:
        thread.start()
    for number in range(200):
        stream.send(number)
    stream.close()
    for thread in threads:
        thread.join(LONG)
    assert sorted(found[0] + found[1]) == list(range(200))


def test_cancelled_tasks_lose_no_message(client, stream):
    """Each cancellation hits between the moment a message wakes the task and the moment the task takes it."""
    subscription = subscribe(client)
    found = []

    async def consume():
        found.append(int((await subscription.recv_async(LONG)).numpy()))

    async def main():
        for number in range(100):
            tasks = [asyncio.create_task(consume()) for _ in range(3)]
            await asyncio.sleep(0)
            stream.send(number)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            tasks[0].cancel()
            if number % 2:
                tasks[1].cancel()
            while len(found) <= number:
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        stream.close()
        with pytest.raises(tensorlend.StreamEndedError):
            while True:
                found.append(int((await subscription.recv_async()).numpy()))

    asyncio.run(main())
    assert found == list(range(100))


def test_cancelled_tasks_lose_no_request(client):
    server, caller = client.serve("s"), client.caller("s", capacity=64)

    async def main():
        found = []
        for number in range(40):
            tasks = [asyncio.create_task(server.recv_async(LONG)) for _ in range(2)]
            await asyncio.sleep(0)
            await caller.send_async(number, LONG)
            for _ in range(number % 4):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            for task in tasks:
                if not task.cancelled():
                    call = task.result()
                    found.append(int(call.numpy()))
                    call.respond(-number)
            while len(found) <= number:
                call = await server.recv_async(LONG)
                found.append(int(call.numpy()))
                call.respond(-number)
            waiting = asyncio.create_task(caller.recv_async(LONG))
            await asyncio.sleep(0)
            if waiting.cancel():
                await asyncio.wait([waiting])
            response = await caller.recv_async(LONG) if waiting.cancelled() else waiting.result()
            assert int(response[1].numpy()) == -number
        return found

    assert asyncio.run(main()) == list(range(40))


def test_calls_take_no_thread_once_connected(client):
    server = client.serve("s")
    callers = [client.caller("s") for _ in range(8)]

    async def serve():
        async for call in server:
            call.respond(call.numpy() + 1)

    async def ask(caller, number):
        return int((await caller.call_async(number, LONG)).numpy())

    async def main():
        serving = asyncio.create_task(serve())
        assert await asyncio.gather(*(ask(caller, 0) for caller in callers)) == [1] * 8
        while any(thread.name == "tensorlend" for thread in threading.enumerate()):
            await asyncio.sleep(0.01)
        before = threads_here()
        # Several tasks on one caller take turns.
        tasks = [asyncio.create_task(ask(callers[number % 8], number)) for number in range(200)]
        await asyncio.sleep(0)
        assert threads_here() < before + MORE
        assert await asyncio.gather(*tasks) == list(range(1, 201))
        assert threads_here() < before + MORE
        serving.cancel()
        # The caller disconnects from its server, and the next call succeeds.
        with pytest.raises(tensorlend.TimeoutError, match="after 0.01 s waiting for a response"):
            await callers[0].call_async(1, 0.01)

    asyncio.run(main())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_was_closed_with_tasks_that_wait_takes_no_message(client, stream):
    subscription = subscribe(client)
    loop = asyncio.new_event_loop()
    left = [loop.create_task(subscription.recv_async()), loop.create_task(subscription.recv_async()), loop.create_task(client.wait_for_async("x"))]
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    stream.send(1)
    client.put("x", 2)

    async def main():
        found = await subscription.recv_async(LONG), await client.wait_for_async("x", LONG)
        return int(found[0].numpy()), int(found[1].numpy())

    assert asyncio.run(main()) == (1, 2)
    del left, loop
    gc.collect()


def test_the_interpreter_ends_with_tasks_that_wait(script, broker):
    source = """
import asyncio, os, sys, tensorlend
client = tensorlend.connect(sys.argv[1])
stream = client.stream("s")
subscription = client.subscribe("s", start="next", pollable=True)
server = client.serve("v")
async def main():
    tasks = [asyncio.create_task(call) for call in
        [client.wait_for_async("x"), client.wait_length_async("l", 1), subscription.recv_async(), server.recv_async()]]
    await asyncio.sleep(0.01)
    print("waits", flush=True)
    if sys.argv[2] == "exit":
        raise SystemExit(0)
    if sys.argv[2] == "fork":
        child = os.fork()
        if child == 0:
            try:
                subscription.try_recv()
            except tensorlend.Error:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        client.put("x", 1)
        stream.send(1)
        await asyncio.gather(tasks[0], tasks[2])
asyncio.run(main())
"""
    for how in ["exit", "return", "fork"]:
        assert script(source, str(broker.address), how).stdout == "waits\n"


def test_idle_tasks_are_polled_less_and_less(client, monkeypatch):
    """A loop polls for what wakes no descriptor. The interval grows while nothing happens, and a new wait resets it."""
    monkeypatch.setattr(_line, "_POLL_SECONDS", 0.001)
    monkeypatch.setattr(_line, "_POLL_SECONDS_MAX", 0.006)
    intervals = []

    async def main():
        task = asyncio.create_task(client.wait_for_async("never"))
        await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        later = loop.call_later

        def call_later(delay, *arguments):
            intervals.append(delay)
            return later(delay, *arguments)

        monkeypatch.setattr(loop, "call_later", call_later)
        while len(intervals) < 5:
            await asyncio.sleep(0)
        assert intervals[:5] == [0.002, 0.004, 0.006, 0.006, 0.006]
        intervals.clear()
        other = asyncio.create_task(client.wait_for_async("nothing"))
        await asyncio.sleep(0)
        assert intervals[-1:] == [0.001]
        for one in (task, other):
            one.cancel()

    asyncio.run(asyncio.wait_for(main(), LONG))


def test_closing_a_client_does_not_wait_for_a_poll(client, stream, monkeypatch):
    monkeypatch.setattr(_line, "_POLL_SECONDS", LONG)
    monkeypatch.setattr(_line, "_POLL_SECONDS_MAX", LONG)
    subscription = subscribe(client)

    async def main():
        asyncio.get_running_loop().call_later(0.05, threading.Thread(target=client.close).start)
        waits = [client.wait_for_async("never"), subscription.recv_async(), client.wait_length_async("list", 1)]
        ends = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(end) for end in ends] == [tensorlend.DisconnectedError] * 3

    asyncio.run(asyncio.wait_for(main(), LONG / 2))
