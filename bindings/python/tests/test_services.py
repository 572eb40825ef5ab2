"""Requests and answers: between processes, several on their way, in asyncio, and where one end is gone."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from children import in_child

import tensorlend

LONG = 60.0


@contextmanager
def serving(client: tensorlend.Client, service: str, answer: Callable[[tensorlend.Call], None]) -> Iterator[None]:
    """A thread that answers until the end of the block."""
    with client.serve(service) as server:

        def serve() -> None:
            try:
                with pytest.raises(tensorlend.ClosedError, match="closed"):
                    for call in server:
                        answer(call)
            finally:
                # After an error in this thread, the callers do not wait for it.
                server.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            server.close()
            thread.join(LONG)
            assert not thread.is_alive()


def double(call: tensorlend.Call) -> None:
    with call:
        call.respond(call.numpy() * 2)


def test_another_process_is_asked(client: tensorlend.Client, broker: tensorlend.Embedded) -> None:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with tensorlend.connect(broker.address) as own, own.serve("double") as server:
                os.write(writer, b"r")
                for _ in range(3):
                    double(server.recv(LONG))
        finally:
            os._exit(0)
    os.read(reader, 1)
    with client.caller("double") as caller:
        assert caller.service == "double"
        for number in range(3):
            answer = caller.call(np.full((4, 5), number, "f4"), LONG)
            np.testing.assert_array_equal(answer.numpy(), np.full((4, 5), 2 * number))
        # The server's process has ended, and there is no other server.
        os.waitpid(pid, 0)
        with pytest.raises(tensorlend.TimeoutError, match="a server of"):
            caller.call(np.zeros(1), 0.3)
    os.close(reader)
    os.close(writer)


def test_datasets_metadata_and_drafts(client: tensorlend.Client) -> None:
    def split(call: tensorlend.Call) -> None:
        request = call.dataset
        assert request.metadata == {"by": 2} and request.timestamp == 7
        with pytest.raises(TypeError):
            _ = call.tensor
        draft = client.create(3, "float32")
        draft.array[:] = request["a"].numpy() + request["b"].numpy()
        call.respond({"sum": draft, "first": request["a"].numpy()}, metadata={"done": True})
        assert not call.is_open
        with pytest.raises(tensorlend.ArgumentError, match="its response already: receive the next request"):
            call.respond(np.zeros(1))

    tensors = {"a": np.arange(3, dtype="f4"), "b": np.ones(3, "f4")}
    with serving(client, "split", split), client.caller("split", mode="cow") as caller:
        answer = caller.call(tensors, LONG, metadata={"by": 2}, timestamp=7)
        assert isinstance(answer, tensorlend.Dataset) and answer.metadata == {"done": True}
        np.testing.assert_array_equal(answer["sum"], [1, 2, 3])
        # Writes to this process's private copy.
        answer["first"].numpy()[:] = 5


def test_failures_say_why(client: tensorlend.Client) -> None:

    def refuse(call: tensorlend.Call) -> None:
        match int(call.numpy()):
            case 0:
                call.fail("there is no such image")
            case 1:
                with pytest.raises(ZeroDivisionError), call:
                    call.respond(np.array(1 // 0))
            case 2:
                with pytest.raises(tensorlend.DTypeError):
                    call.respond(np.array([object()]))
                # The call can still be answered.
                call.respond(np.ones(1))

    with serving(client, "refuse", refuse), client.caller("refuse") as caller:
        with pytest.raises(tensorlend.Error, match="there is no such image"):
            caller.call(0, LONG)
        with pytest.raises(tensorlend.Error, match="ZeroDivisionError: .*by zero"):
            caller.call(1, LONG)
        np.testing.assert_array_equal(caller.call(2, LONG), [1])


def test_a_request_that_is_forgotten_has_failed(client: tensorlend.Client) -> None:
    with client.serve("forgets") as server, client.caller("forgets") as caller:
        thread = threading.Thread(target=lambda: server.recv(LONG))
        thread.start()
        with pytest.raises(tensorlend.Error, match="dropped the request"):
            caller.call(3, LONG)
        thread.join(LONG)


def test_several_on_their_way(client: tensorlend.Client) -> None:
    with serving(client, "double", double), client.caller("double", capacity=4) as caller:
        assert [caller.send(np.array(number), LONG) for number in range(4)] == [0, 1, 2, 3]
        assert caller.outstanding == 4
        with pytest.raises(tensorlend.ArgumentError, match="more capacity"):
            caller.send(np.array(4), LONG)
        with pytest.raises(tensorlend.ArgumentError, match="no response yet"):
            caller.call(np.array(4), LONG)
        for number in range(4):
            answered, answer = caller.recv(LONG)
            assert (answered, int(answer.numpy())) == (number, 2 * number)
        with pytest.raises(tensorlend.ArgumentError, match="send one first"):
            caller.recv(LONG)


def test_a_server_that_hangs_is_given_up(client: tensorlend.Client) -> None:
    with client.serve("slow") as slow, client.caller("slow") as caller:
        taken: list[tensorlend.Call] = []
        thread = threading.Thread(target=lambda: taken.append(slow.recv(LONG)))
        thread.start()
        with pytest.raises(tensorlend.TimeoutError, match="a response from"):
            caller.call(1, 1)
        thread.join(LONG)
        assert slow.try_recv() is None and slow.callers <= 1
        with serving(client, "slow", double):
            # The caller prefers a different server to the one that timed out.
            assert int(caller.call(2, LONG).numpy()) == 4
        taken[0].respond(np.array(1))


def test_closed_ends(client: tensorlend.Client) -> None:
    server, caller = client.serve("s"), client.caller("s")
    raised: list[str] = []

    def call() -> None:
        try:
            caller.call(1)
        except tensorlend.ClosedError as error:
            raised.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    kept = server.recv(LONG)
    caller.close()
    thread.join(LONG)
    assert raised and "ended" in raised[0]
    # Its caller has ended: responding is not an error.
    kept.respond(np.zeros(1))
    server.close()
    for call_of in (server.recv, server.try_recv, lambda: server.callers, lambda: caller.call(1), lambda: caller.outstanding):
        with pytest.raises(tensorlend.ClosedError, match="closed"):
            call_of()
    with pytest.raises(tensorlend.ArgumentError, match="mode"):
        client.serve("s", mode="write")  # type: ignore[arg-type]
    with pytest.raises(tensorlend.ArgumentError, match="0 requests"):
        client.caller("s", capacity=0)


def test_a_forked_child_has_no_part_in_it(client: tensorlend.Client) -> None:
    def use() -> list[str]:
        said = []
        for use_it in (server.try_recv, lambda: caller.call(1, 1), lambda: call.respond(np.zeros(1))):
            try:
                use_it()
            except tensorlend.Error as error:
                said.append(str(error))
        return said

    with client.serve("s") as server, client.caller("s") as caller:
        thread = threading.Thread(target=lambda: caller.send(np.array(3), LONG))
        thread.start()
        call = server.recv(LONG)
        thread.join(LONG)
        said = in_child(use)
        assert len(said) == 3 and all("fork" in one for one in said), said
        # The end of the forked child's copy has not answered the call.
        call.respond(np.array(6))
        assert int(caller.recv(LONG)[1].numpy()) == 6


def test_in_asyncio(client: tensorlend.Client) -> None:
    async def serve(server: tensorlend.Server) -> None:
        async for call in server:
            await asyncio.sleep(0.01)
            double(call)

    async def ask(number: int) -> int:
        with client.caller("double") as caller:
            return int((await caller.call_async(np.array(number), LONG)).numpy())

    async def main() -> list[int]:
        with client.serve("double") as server:
            with pytest.raises(tensorlend.TimeoutError):
                await server.recv_async(0.1)
            serving = asyncio.create_task(serve(server))
            # More than the threads of asyncio's own pool.
            found = await asyncio.gather(*(ask(number) for number in range(24)))
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            return found

    assert asyncio.run(main()) == [2 * number for number in range(24)]


def test_cancelled_awaits(client: tensorlend.Client) -> None:
    async def main() -> None:
        with client.serve("s") as server, client.caller("s") as caller:
            waiting = asyncio.create_task(server.recv_async())
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            asking: asyncio.Task[Any] = asyncio.create_task(caller.call_async(np.array(1)))
            # A request that arrived while no task waited goes to the next task that awaits one.
            call = await server.recv_async(LONG)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            call.respond(np.array(2))
            asking = asyncio.create_task(caller.call_async(np.array(5), LONG))
            second = await server.recv_async(LONG)
            second.respond(second.numpy() + 1)
            assert int((await asking).numpy()) == 6

    asyncio.run(main())


def test_ctrl_c_ends_an_awaited_call(script: Any, broker: tensorlend.Embedded) -> None:
    """The thread that waits does not keep the program."""
    source = """
import asyncio, os, signal, sys, tensorlend
client = tensorlend.connect(sys.argv[1])

async def main():
    asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
    await client.caller("nobody").call_async(1)

try:
    asyncio.run(main())
except KeyboardInterrupt:
    print("interrupted")
"""
    assert script(source, str(broker.address), timeout=LONG).stdout == "interrupted\n"
