"""The methods for asyncio. Each is the twin of a call that waits: its name ends with _async, and its parameters, results and
errors are the same.

The build reads this file for the stub, so it imports nothing of the package.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

#: The summary of each twin's docstring, by the call that waits.
TWINS = {
    "Caller.call": "Awaits `call`. The event loop watches a descriptor. A thread waits only for the connection\n"
    "to a server. Cancelling abandons the server.",
    "Caller.recv": "Awaits `recv`. The event loop watches a descriptor. Cancelling ends the wait and loses no response.",
    "Caller.send": "Awaits `send`. A thread waits only for the connection to a server. Cancelling ends the wait\nfor a server.",
    "Client.run_model": "Awaits `run_model`, which runs in a thread of its own. Cancelling abandons the runner.",
    "Client.subscribe": "Awaits `subscribe`, which runs in a thread of its own. Cancelling ends the wait.",
    "Client.wait_for": "Awaits `wait_for`. All waits of the client share one thread. Cancelling ends the wait.",
    "Client.wait_length": "Awaits `wait_length`. All waits of the client share one thread. Cancelling ends the wait.",
    "Client.wait_newer": "Awaits `wait_newer`. All waits of the client share one thread. Cancelling ends the wait.",
    "Model.run": "Awaits `run`, which runs in a thread of its own. Cancelling abandons the runner.",
    "Queue.get": "Awaits `get`, which runs in a thread of its own. Cancelling ends the wait. An item that\n"
    "arrives after that is given back.",
    "Queue.next": "Awaits `next`, which runs in a thread of its own. Cancelling ends the wait, and leaves the\n"
    "confirmation as it is. An item that arrives after that is given back.",
    "Queue.put": "Awaits `put`, which runs in a thread of its own. Cancelling ends the wait.",
    "Queue.put_many": "Awaits `put_many`, which runs in a thread of its own. Cancelling ends the wait.",
    "Queue.put_object": "Awaits `put_object`, which runs in a thread of its own. Cancelling ends the wait.",
    "Server.recv": "Awaits `recv`. The event loop watches a descriptor. Cancelling ends the wait and loses no request.",
    "Stream.send": "Awaits `send`, which runs in a thread of its own. Cancelling ends the wait for room.",
    "Stream.wait_subscribers": "Awaits `wait_subscribers`, which runs in a thread of its own. Cancelling ends the wait.",
    "Subscription.recv": "Awaits `recv`. The subscription must be pollable. The event loop watches the descriptor, and no\n"
    "thread waits. Several tasks may wait. Each message goes to one of them, and a cancelled task takes\nno message.",
}


def docstring(call: str, text: str) -> str:
    """Returns the docstring of a twin: its summary, and the sections of its call's docstring without the examples."""
    sections = text[text.index("Parameters\n---") :].partition("\n\nExamples\n---")[0]
    return f"{TWINS[call]}\n\n{sections}"


def add_to(module: ModuleType) -> None:
    """Adds the twins to the classes of the compiled module."""
    for call in TWINS:
        kind, name = call.split(".")
        twin = _twin(call, getattr(getattr(module, kind), name))
        twin.__name__ += "_async"
        twin.__qualname__ += "_async"
        setattr(getattr(module, kind), twin.__name__, twin)


def _twin(call: str, work: Any) -> Any:
    @functools.wraps(work)
    def twin(self: Any, /, *arguments: Any, **options: Any) -> Any:
        # Not before the first wait: it imports asyncio.
        from tensorlend import _aio

        if call in _aio.AWAITED:
            return _aio.AWAITED[call](self, *arguments, **options)
        return _aio.in_thread(work, (self, *arguments), options)

    twin.__doc__ = docstring(call, work.__doc__)
    return twin
