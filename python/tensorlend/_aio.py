"""Streams, requests and answers in asyncio."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from tensorlend import _native
from tensorlend._errors import ArgumentError, StreamEndedError, TimeoutError  # noqa: A004

_T = TypeVar("_T")

#: Nobody wakes a subscriber whose producer was killed, nor one whose stream was opened anew: so it looks by itself.
_LOOK_AGAIN = 0.1


#: Threads that wait for a coroutine, each with what ends its wait.
_waiting: dict[threading.Thread, Callable[[], None]] = {}


@atexit.register
def _end_waits() -> None:
    """Ends the waits before the interpreter does. A thread that builds its exception while the interpreter ends would abort the
    process: Python unwinds such a thread through frames of Rust, which catch it."""
    for thread, interrupt in list(_waiting.items()):
        interrupt()
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
    """All messages until the stream ends."""
    while True:
        try:
            message = await recv(subscription)
        except StreamEndedError:
            return
        yield message


async def in_thread(
    work: Callable[..., _T], arguments: Sequence[Any], options: Mapping[str, Any] | None, interrupt: Callable[[], None]
) -> _T:
    """Awaits what waits in a thread: one of its own, since a pool's would run out with as many that wait for each other. Where the
    awaiting is cancelled, `interrupt` ends it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def tell(result: _T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work(*arguments, **(options or {}))
        except BaseException as raised:
            error = raised
        # The loop may be gone.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(tell, result, error)
        _waiting.pop(thread, None)

    thread = threading.Thread(target=run, name="tensorlend", daemon=True)
    _waiting[thread] = interrupt
    thread.start()
    try:
        return await done
    except asyncio.CancelledError:
        interrupt()
        raise


async def request(server: _native.Server, timeout: float | None = None) -> _native.Call:
    """Awaits the next request. One that comes when nobody awaits it any more is kept for the next."""
    cancelled = threading.Event()
    if timeout is not None and not timeout >= 0:
        raise ArgumentError(f"a timeout of {timeout} seconds: give 0 or more, or None for no limit")
    loop = asyncio.get_running_loop()
    deadline = None if timeout is None else loop.time() + timeout

    def wait() -> _native.Call:
        while True:
            left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, max(deadline - loop.time(), 0))
            try:
                call = server.recv(left)
            except TimeoutError:
                if cancelled.is_set() or (deadline is not None and loop.time() >= deadline):
                    raise
                continue
            if cancelled.is_set():
                server._keep(call)
            return call

    return await in_thread(wait, (), None, cancelled.set)


async def requests(server: _native.Server) -> AsyncIterator[_native.Call]:
    """All requests, until the server is closed."""
    while True:
        yield await request(server)
