"""Waits of an event loop. The loop sleeps on descriptors, and one native thread of each client
waits for names and lists.

docs/adr/event-loops.md explains why no wakeup is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from tensorlend import _native
from tensorlend._errors import ArgumentError

_T = TypeVar("_T")

#: Interval in seconds at which a loop with waiting tasks polls their objects. No descriptor becomes
#: readable if a producer was killed or has opened its stream again, or if the client was closed.
#: The interval doubles up to the second value while no task begins a wait, so that idle
#: tasks take no processor time.
_POLL_SECONDS = 0.1
_POLL_SECONDS_MAX = 1.0

#: Number of wakeups by a descriptor without a message. After these, a queue of tasks relies on
#: polling until the next message.
_FALSE_WAKEUPS = 64


class Source(Protocol):
    """An object from which tasks take messages. It may also have a method `_tell`, as Event has."""

    def _news(self) -> bool:
        """Returns whether there may be a message. Raises if none will come: the object or its client was closed, or the daemon
        has ended.
        """
        ...

    def _descriptor(self) -> _native._Descriptor | None:
        """Returns a descriptor that a message makes readable."""


class Event:
    """A change of a name or a list, which one task awaits."""

    def __init__(
        self, client: _native.Client, tell: Callable[[_native._Wakeups, int], _native._Ticket | None]
    ) -> None:
        self._check = client._check
        #: Makes the client's waiting thread report a number when there may be a change. The thread polls after this call, so it
        #: finds a change that came after the task's poll.
        self._tell = tell

    def _news(self) -> bool:
        self._check()
        return False

    def _descriptor(self) -> None:
        """Returns no descriptor."""


def deadline_of(timeout: float | None) -> float | None:
    """Returns the time of the running loop at which a wait ends."""
    if timeout is None:
        return None
    if not timeout >= 0:
        raise ArgumentError(f"a timeout of {timeout} seconds: give 0 or more, or None for no limit")
    return asyncio.get_running_loop().time() + timeout


def _end(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def _sleep(ready: asyncio.Future[None], deadline: float | None) -> None:
    """Waits for `ready`, or until the deadline."""
    if deadline is None:
        await ready
        return
    timer = asyncio.get_running_loop().call_at(deadline, _end, ready)
    try:
        await ready
    finally:
        timer.cancel()


class _Line:
    """The queue of one loop's tasks that wait for one object. A wakeup goes to the first task.

    A task that was woken polls the object. The task wakes the next task when it has taken a message
    or stops waiting. It returns to the front of the queue when it has found nothing. So as long as
    tasks wait, either the descriptor is watched or a woken task will run.
    """

    def __init__(self, owner: Source, loop: _Loop) -> None:
        self.owner = owner
        self.loop = loop
        self.users = 0
        self.false_wakeups = 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._descriptor: _native._Descriptor | None = None
        self._watching: Callable[[], asyncio.AbstractEventLoop | None] = lambda: None

    def join(self, ready: asyncio.Future[None], in_front: bool) -> None:
        """Adds a task whose poll has found nothing."""
        self._waiting[ready] = None
        if in_front:
            self._waiting.move_to_end(ready, last=False)
        if self._descriptor is None and self.false_wakeups < _FALSE_WAKEUPS:
            self._descriptor = self.owner._descriptor()
            if self._descriptor is not None:
                loop = ready.get_loop()
                self._watching = ref(loop)
                loop.add_reader(self._descriptor.fileno(), self._readable)
        if hasattr(self.owner, "_tell"):
            self.loop.tell(self.owner)

    def leave(self, ready: asyncio.Future[None]) -> None:
        """Removes a task."""
        self._waiting.pop(ready, None)
        if not self._waiting:
            self._unwatch()

    def wake_next(self) -> None:
        """Wakes the first sleeping task."""
        while self._waiting:
            ready, _ = self._waiting.popitem(last=False)
            if not ready.done() and not ready.get_loop().is_closed():
                ready.set_result(None)
                return
        self._unwatch()

    def poll(self) -> None:
        """Wakes a task if the object has news. Wakes all tasks if the object has ended."""
        try:
            if not self.owner._news():
                return
            rounds = 1
        except Exception:
            # Each task polls again, and raises the error itself.
            rounds = len(self._waiting)
        self.false_wakeups = 0
        # The object may have another descriptor now.
        self._unwatch()
        for _ in range(rounds):
            self.wake_next()

    def _readable(self) -> None:
        # The descriptor stays readable until a poll has found nothing. So do not watch it until
        # then.
        self._unwatch()
        self.false_wakeups += 1
        self.wake_next()

    def _unwatch(self) -> None:
        if self._descriptor is not None:
            # A task that is destroyed may end without a running loop.
            loop = self._watching()
            if loop is not None and not loop.is_closed():
                loop.remove_reader(self._descriptor.fileno())
            self._descriptor = None


class _Loop:
    """The waits of one event loop."""

    def __init__(self) -> None:
        self.wakeups = _native._Wakeups()
        self._numbers = itertools.count()
        self._lines: dict[Source, _Line] = {}
        #: Waits of native threads, and the objects by the numbers of these waits. They outlast the queue of tasks, so that a
        #: server needs no new wait for each request.
        self._tickets: WeakKeyDictionary[Source, _native._Ticket] = WeakKeyDictionary()
        self._told: WeakValueDictionary[int, Source] = WeakValueDictionary()
        self._timer: asyncio.TimerHandle | None = None
        self._interval = _POLL_SECONDS
        asyncio.get_running_loop().add_reader(self.wakeups.fileno(), self._take)

    def tell(self, owner: Any) -> None:
        """Wakes a task of the object's queue when the object's native thread finds news."""
        if owner not in self._tickets:
            number = next(self._numbers)
            ticket = owner._tell(self.wakeups, number)
            if ticket is not None:
                self._tickets[owner], self._told[number] = ticket, owner

    def _take(self) -> None:
        for number in self.wakeups.take():
            owner = self._told.pop(number, None)
            if owner is not None:
                self._tickets.pop(owner, None)
                self.wake(owner)

    def line(self, owner: Source) -> _Line:
        """Returns the queue of tasks of an object. Each user must call `quit`."""
        line = self._lines.get(owner)
        if line is None:
            line = self._lines[owner] = _Line(owner, self)
        line.users += 1
        if self._timer is None or self._interval > _POLL_SECONDS:
            self._poll_in(_POLL_SECONDS)
        return line

    def quit(self, line: _Line) -> None:
        """Ends the use of a queue of tasks."""
        line.users -= 1
        if line.users == 0:
            del self._lines[line.owner]

    def wake(self, owner: Source) -> None:
        """Wakes the first task that waits for the object."""
        line = self._lines.get(owner)
        if line is not None:
            line.wake_next()

    def _poll_in(self, interval: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._interval = interval
        self._timer = asyncio.get_running_loop().call_later(interval, self.poll)

    def poll(self) -> None:
        """Polls all awaited objects, and wakes the tasks whose objects have news or have ended."""
        for line in list(self._lines.values()):
            line.poll()
        if self._lines:
            self._poll_in(min(2 * self._interval, _POLL_SECONDS_MAX))
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()

#: The lock for changes of `_loops`, which loops of several threads make. A signal handler or a finalizer that closes a client
#: takes it in the thread that has it.
_changing = threading.RLock()


def _forget_loops() -> None:
    global _changing
    # Another thread of the parent may have had the lock.
    _changing = threading.RLock()
    _loops.clear()


os.register_at_fork(after_in_child=_forget_loops)


def running() -> _Loop:
    """Returns the waits of the running loop."""
    loop = asyncio.get_running_loop()
    waits = _loops.get(loop)
    if waits is None:
        waits = _Loop()
        with _changing:
            # A loop that was closed with waiting tasks would never be freed, because their futures
            # refer to it.
            for closed in [other for other in _loops if other.is_closed()]:
                del _loops[closed]
            _loops[loop] = waits
    return waits


def poll_all() -> None:
    """Makes all loops poll, because a client was closed."""
    with _changing:
        loops = list(_loops.items())
    for loop, waits in loops:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(waits.poll)


async def take(
    owner: Source, poll: Callable[[], _T | None], deadline: float | None, timed_out: Callable[[], Exception]
) -> _T:
    """Awaits the result of `poll`. Takes nothing after the task was cancelled, and returns a taken
    result at once.
    """
    found = poll()
    if found is not None:
        return found
    owner._news()
    loop, line, in_front = asyncio.get_running_loop(), running().line(owner), False
    try:
        while True:
            if deadline is not None and loop.time() >= deadline:
                raise timed_out()
            ready: asyncio.Future[None] = loop.create_future()
            try:
                line.join(ready, in_front)
                await _sleep(ready, deadline)
            finally:
                line.leave(ready)
            found = poll()
            if found is not None:
                line.false_wakeups = 0
                return found
            owner._news()
            in_front = True
    finally:
        # A task that stops waiting may have been woken. So it wakes the next task, because there
        # may be more messages.
        line.wake_next()
        line.loop.quit(line)
