"""Streams in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from tensorlend import _native
from tensorlend._errors import ArgumentError, StreamEndedError, TimeoutError  # noqa: A004

#: Nobody wakes a subscriber whose producer was killed, nor one whose stream was opened anew: so it looks by itself.
_LOOK_AGAIN = 0.1


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
        left = _LOOK_AGAIN if deadline is None else min(_LOOK_AGAIN, deadline - loop.time())
        if left <= 0:
            raise TimeoutError(f"a message of stream {subscription.name!r} did not come within {timeout} s")
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
