"""Streams, requests and responses in asyncio."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tensorlend import _native
from tensorlend._errors import ArgumentError, StreamEndedError, TimeoutError  # noqa: A004

_T = TypeVar("_T")

#: Interval at which a waiting subscriber polls, in seconds. No descriptor becomes readable if the producer was killed or has
#: opened its stream again.
_LOOK_AGAIN = 0.1


#: Threads in which coroutines wait, each with the object that ends its wait.
_waiting: dict[threading.Thread, _native.Cancel] = {}


@atexit.register
def _end_waits() -> None:
    """Ends the waits before the interpreter does.

    A thread that builds its exception while the interpreter ends would abort the process: Python then unwinds the thread
    through frames of Rust, which catch the unwinding."""
    for thread, cancel in list(_waiting.items()):
        cancel.cancel()
        thread.join(5)


async def recv(subscription: _native.Subscription, timeout: float | None = None) -> _native.Message:
    """Awaits the next message."""
    if not subscription.pollable:
        raise ArgumentError("subscribe with pollable=True to await messages")
    if timeout is not None and not timeout >= 0:
        raise ArgumentError(f"a timeout of {timeout} seconds: give 0 or more, or None for no limit")
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout
    while True:
        message = subscription.try_recv()
        if message is not None:
            return message
        subscription._check()
        left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - loop.time())
        if left <= 0:
            what = f"a message of stream {subscription.name!r}"
            raise TimeoutError(f"timed out after {timeout} s waiting for {what}: its producer has sent none")
        await _readable(loop, subscription.fileno(), left)


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int, seconds: float) -> None:
    ready: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await asyncio.wait([ready], timeout=seconds)
    finally:
        loop.remove_reader(descriptor)


async def messages(subscription: _native.Subscription) -> AsyncIterator[_native.Message]:
    """Yields the messages until the stream ends."""
    while True:
        try:
            message = await recv(subscription)
        except StreamEndedError:
            return
        yield message


def _in_slices(receive: Callable[[float | None], _T], timeout: float | None) -> _T:
    """Receives in slices of 0.1 s: only the beginning of a slice finds a request that a cancelled task gave back."""
    if timeout is not None and not timeout >= 0:
        return receive(timeout)
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, max(deadline - time.monotonic(), 0))
        try:
            return receive(left)
        except TimeoutError as error:
            if deadline is not None and time.monotonic() >= deadline:
                what = str(error).partition(" waiting for ")[2]
                raise TimeoutError(f"timed out after {timeout} s waiting for {what}") from None


async def in_thread(
    work: Callable[..., _T], arguments: Sequence[Any], options: Mapping[str, Any], late: Callable[[_T], object] | None
) -> _T:
    """Calls `work` in a thread of its own, and awaits its result.

    A pool would deadlock if all of its threads ran calls that wait for each other. Cancelling the coroutine ends the
    wait. If a result arrives after the cancellation, the coroutine passes it to `late` before it ends."""
    loop = asyncio.get_running_loop()
    if late is not None:
        work, arguments = _in_slices, (work, *arguments)
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
            # The loop has ended.
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
        yield await server.recv_async()
