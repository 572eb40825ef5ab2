"""The asynchronous calls for asyncio."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tensorlend import _native
from tensorlend._errors import ArgumentError, ClosedError, StreamEndedError, TimeoutError  # noqa: A004
from tensorlend._line import Event, deadline_of, running, take

_T = TypeVar("_T")

#: Interval at which a task polls for a caller that another thread uses, in seconds.
_BUSY = 0.001

#: Threads that wait for coroutines, each with the object that ends its wait.
_waiting: dict[threading.Thread, _native.Cancel] = {}


@atexit.register
def _end_waits() -> None:
    """Ends all waits before the interpreter ends.

    Otherwise a thread could raise its exception while the interpreter ends. Python then unwinds the
    thread through frames of Rust, which catch the unwinding, and the process aborts.
    """
    for thread, cancel in list(_waiting.items()):
        cancel.cancel()
        thread.join(5)


async def entered(client: _native.Client) -> _native.Client:
    """Enters `async with client`."""
    return client


async def left(client: _native.Client) -> None:
    """Leaves `async with client`, which closes the client."""
    await asyncio.to_thread(client.close)


class _NotHere(Exception):
    """The time is over, or the name belongs to another machine."""


async def wait_newer(
    client: _native.Client, name: str, seen: Any = None, timeout: float | None = None, *, mode: str = "read", dtype: Any = None
) -> _native._AnyValue:
    """Awaits a value of a name."""
    loop, deadline = asyncio.get_running_loop(), deadline_of(timeout)

    def tell(wakeups: _native._Wakeups, number: int) -> _native._Ticket:
        ticket = client._tell_newer(wakeups, number, name, seen)
        if ticket is None:
            raise _NotHere
        return ticket

    try:
        found: _native._AnyValue = await take(
            Event(client, tell), lambda: client._try_newer(name, seen, mode, dtype), deadline, _NotHere
        )
        return found
    except _NotHere:
        left = None if deadline is None else max(deadline - loop.time(), 0)
    try:
        return await in_thread(client.wait_newer, (name, seen, left), {"mode": mode, "dtype": dtype})
    except TimeoutError as error:
        raise _after(timeout, error) from None


async def wait_for(
    client: _native.Client, name: str, timeout: float | None = None, *, mode: str = "read", dtype: Any = None
) -> _native._AnyValue:
    """Awaits the first value of a name."""
    return await wait_newer(client, name, None, timeout, mode=mode, dtype=dtype)


async def wait_length(
    client: _native.Client, name: str, length: int, op: str = ">=", timeout: float | None = None
) -> int:
    """Awaits a length of a list."""
    event = Event(client, lambda wakeups, number: client._tell_length(wakeups, number, name, length, op))
    try:
        return await take(event, lambda: client._try_length(name, length, op), deadline_of(timeout), _NotHere)
    except _NotHere:
        pass
    try:
        return client.wait_length(name, length, op, 0)  # type: ignore[arg-type]
    except TimeoutError as error:
        raise _after(timeout, error) from None


def _after(timeout: float | None, error: Exception) -> TimeoutError:
    """Returns the error of a wait whose last part timed out."""
    what = str(error).partition(" waiting for ")[2]
    return TimeoutError(f"timed out after {timeout} s waiting for {what}")


def _late(timeout: float | None, what: str) -> Callable[[], TimeoutError]:
    return lambda: TimeoutError(f"timed out after {timeout} s waiting for {what}")


async def recv(subscription: _native.Subscription, timeout: float | None = None) -> _native.Message:
    """Awaits the next message."""
    if not subscription.pollable:
        raise ArgumentError("subscribe with pollable=True to await messages")
    late = _late(timeout, f"a new message of stream {subscription.name!r}")
    return await take(subscription, subscription.try_recv, deadline_of(timeout), late)


async def recv_request(server: _native.Server, timeout: float | None = None) -> _native.Call:
    """Awaits the next request."""
    late = _late(timeout, f"a request to {server.service!r}: no client has called it")
    return await take(server, server._try_recv, deadline_of(timeout), late)


async def recv_response(caller: _native.Caller, timeout: float | None = None) -> tuple[int, _native._AnyValue]:
    """Awaits the response to the oldest request in flight."""
    return await _response(caller, timeout, deadline_of(timeout))


async def _response(
    caller: _native.Caller, timeout: float | None, deadline: float | None
) -> tuple[int, _native._AnyValue]:
    what = f"a response from {caller.service!r}: its server is busy or hangs, and may still respond"
    return await take(caller, caller._try_recv, deadline, _late(timeout, what))


class _Turn:
    """The right to use a caller for one call."""

    def __init__(self, caller: _native.Caller) -> None:
        self._caller = caller

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Turn) and other._caller is self._caller

    def __hash__(self) -> int:
        return hash(self._caller)

    def _news(self) -> bool:
        self._caller._news()
        return True

    def _descriptor(self) -> None:
        """Returns no descriptor. A call that ends wakes the next call of its loop, and loops poll
        for the calls of other loops.
        """


async def call(
    caller: _native.Caller, value: Any, timeout: float | None = None, **options: Any
) -> _native._AnyValue:
    """Sends a request, and awaits its response."""
    deadline = deadline_of(timeout)
    turn = None
    if not caller._reserve():
        turn = _Turn(caller)
        late = _late(timeout, f"the caller of {caller.service!r}: another task has a request in flight")
        await take(turn, lambda: caller._reserve() or None, deadline, late)
    try:
        await _send(caller, value, timeout, deadline, options, alone=True)
        try:
            return (await _response(caller, timeout, deadline))[1]
        except (asyncio.CancelledError, TimeoutError, GeneratorExit):
            with contextlib.suppress(ClosedError):
                caller.give_up()
            raise
    finally:
        caller._unreserve()
        # A task that is destroyed may end without a running loop.
        with contextlib.suppress(RuntimeError):
            running().wake(turn or _Turn(caller))


async def send(caller: _native.Caller, value: Any, timeout: float | None = None, **options: Any) -> int:
    """Sends a request."""
    return await _send(caller, value, timeout, deadline_of(timeout), options, alone=False)


async def _send(
    caller: _native.Caller,
    value: Any,
    timeout: float | None,
    deadline: float | None,
    options: Mapping[str, Any],
    alone: bool,
) -> int:
    """Sends a request. If `alone` is true, no other request may be in flight."""
    loop = asyncio.get_running_loop()
    while (connected := caller._connected(alone)) is None:
        # Another thread uses the caller. Its calls end soon, or wait for a server.
        if deadline is not None and loop.time() >= deadline:
            raise _late(timeout, f"the caller of {caller.service!r}: another thread uses it")()
        await asyncio.sleep(_BUSY)
    if connected:
        # The server may have ended in the meantime.
        with contextlib.suppress(TimeoutError):
            return caller.send(value, 0, **options)
    left = None if deadline is None else max(deadline - loop.time(), 0)
    unwanted = (lambda _: caller.give_up()) if alone else None
    try:
        return await in_thread(caller.send, (value, left), options, unwanted)
    except TimeoutError as error:
        raise _after(timeout, error) from None


async def messages(subscription: _native.Subscription) -> AsyncIterator[_native.Message]:
    """Yields the messages until the stream ends."""
    while True:
        try:
            message = await recv(subscription)
        except StreamEndedError:
            return
        yield message


async def in_thread(
    work: Callable[..., _T],
    arguments: Sequence[Any],
    options: Mapping[str, Any],
    late: Callable[[_T], object] | None = None,
) -> _T:
    """Calls `work` in a separate thread, and awaits its result.

    A pool would deadlock if all of its threads ran calls that wait for each other. Cancelling the coroutine ends the
    wait. If a result arrives after the cancellation, the coroutine passes it to `late` before it ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()
    ended: asyncio.Future[None] = loop.create_future()
    cancel = _native.Cancel()

    def unwanted(result: _T) -> None:
        if late is not None:
            late(result)

    def tell(result: Any, error: BaseException | None) -> None:
        if error is not None:
            if not done.done():
                done.set_exception(error)
        elif not done.done():
            done.set_result(result)
        else:
            unwanted(result)
        if not ended.done():
            ended.set_result(None)

    def run() -> None:
        result, error = None, None
        try:
            result = cancel.run(work, tuple(arguments), dict(options))
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            # Drop the result, because the event loop has ended.
            if error is None:
                with contextlib.suppress(Exception):
                    unwanted(result)  # type: ignore[arg-type]
        _waiting.pop(thread, None)

    thread = threading.Thread(target=run, name="tensorlend", daemon=True)
    _waiting[thread] = cancel
    thread.start()
    try:
        return await done
    except asyncio.CancelledError:
        cancel.cancel()
        if late is not None:
            await asyncio.shield(ended)
            if not done.cancelled() and done.exception() is None:
                # The result arrived in the same iteration of the event loop as the cancellation.
                late(done.result())
        raise


async def requests(server: _native.Server) -> AsyncIterator[_native.Call]:
    """Yields the requests until the server is closed."""
    while True:
        yield await recv_request(server)


#: The twins of calls that need no thread of their own.
AWAITED: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "Caller.call": call,
    "Caller.recv": recv_response,
    "Caller.send": send,
    "Client.wait_for": wait_for,
    "Client.wait_length": wait_length,
    "Client.wait_newer": wait_newer,
    "Server.recv": recv_request,
    "Subscription.recv": recv,
}
