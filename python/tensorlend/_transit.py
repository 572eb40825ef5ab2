"""Arrays in messages between processes: each travels as a lease, under a name of its own.

The steps of one message. Sender S, receiver R, daemon D:

1. S copies the array into a draft.
2. S publishes it under a new name with a time to live. It is not ephemeral: S may end before R looks.
3. S writes name and version into the message.
4. R leases the name, and checks the version.
5. R deletes the name. The memory is R's alone from here on: it is freed with R's last view, or R's session.

S killed before 2: D frees the draft with S's session. S killed between 2 and 3, R killed before 5, a message that nobody reads: the name ends
by its time to live, and the memory with it. R killed after 5: D frees the memory with R's session. So the time to live is the longest that a
message may wait, and the longest that a lost one takes memory.
"""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tensorlend import _native
from tensorlend._errors import Error, NotFoundError
from tensorlend._refs import client_for, get_version, where

if TYPE_CHECKING:
    from tensorlend._types import Mode

#: Received arrays that a process holds as leases. Further ones are copied, since a client has 4096 leases.
LEASES_MAX = 3072

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Settings:
    """What `install` was called with."""

    client: _native.Client
    smallest: int
    ttl: float
    mode: Mode


_prefix = ""
_numbers = itertools.count()
_held: weakref.WeakSet[Any] = weakref.WeakSet()


def _new_prefix() -> None:
    global _prefix, _held
    _prefix = f"transit/{os.getpid()}/{secrets.token_hex(6)}"
    # What a forked child inherits is the parent's.
    _held = weakref.WeakSet()


_new_prefix()
os.register_at_fork(after_in_child=_new_prefix)


def settings(client: _native.Client | None, smallest: int, ttl: float, mode: Mode) -> Settings:
    """Returns checked settings."""
    from tensorlend._default import default_client

    if ttl <= 0:
        raise ValueError(f"a time to live of {ttl} seconds: give more than 0")
    return Settings(client or default_client(), smallest, ttl, mode)


def lend(value: Any, by: Settings, library: str) -> Reduced | None:
    """Publishes a value for one receiver, and returns what its message holds; None if it must travel in the message itself."""
    name = f"{_prefix}/{next(_numbers)}"
    client = by.client
    try:
        words = client.put(name, value, ttl=by.ttl).words
    except Error:
        # No memory left, no daemon, or elements that cannot be lent.
        return None
    return take, (*where(client), name, words, by.mode, by.ttl, library)


def take(
    address: tuple[str, ...],
    namespace: str | None,
    name: str,
    words: tuple[int, int],
    mode: Mode,
    ttl: float,
    library: str,
) -> Any:
    """Returns the array of a message, whose only receiver this is."""
    client = client_for(address, namespace)
    copies = len(_held) >= LEASES_MAX
    try:
        lease = get_version(client, name, words, "read" if copies else mode)
        if lease is None:
            raise NotFoundError(f"{name!r} was overwritten")
    except NotFoundError as error:
        raise NotFoundError(
            f"the array of a message is gone: it was received before, or the message waited for more than {ttl:g} s "
            "(install(ttl=...) says how long it may)"
        ) from error
    try:
        client.delete(name)
    except Error:
        # Its time to live ends it.
        pass
    if copies:
        array = lease.numpy().copy() if library == "numpy" else lease.torch().clone()
        lease.release()
        return array
    _held.add(lease)
    return lease.numpy() if library == "numpy" else lease.torch()
