"""Arrays in messages between processes. Each array travels as a lease, under a name that no other message has.

Arrays of up to `MAIL_MAX` bytes travel in mailboxes, which are names that the sender uses again and again without a
request to the daemon. bindings/python/src/mailbox.rs has their steps. Other arrays, and arrays for which no mailbox is free, travel by
these steps. Sender S, receiver R, daemon D:

1. S copies the array into a draft.
2. S publishes it under a new name with a time to live. The name is not ephemeral, because S may end before R leases it.
3. S writes name and version into the message.
4. R leases the name, and checks the version. R copies a short array to which it may write, and ends the lease.
5. R deletes the name. From here on, only R holds the memory: D frees it with R's last view, or with R's session.

If S is killed before 2, D frees the draft with S's session. If S is killed between 2 and 3, or R before 5, or if no
process reads the message, the name ends with the program (see `_presence`), and at the latest at its time to live. Then D
frees the memory. If R is killed after 5, D frees the memory with R's session.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import util
from typing import TYPE_CHECKING, Any, Literal

from tensorlend import _native, _presence
from tensorlend._default import default_client
from tensorlend._errors import Error, NotFoundError
from tensorlend._refs import client_for, get_version, where

if TYPE_CHECKING:
    import numpy as np

    from tensorlend._types import Mode

#: Maximum number of received arrays that a process holds as leases. A client has 4096 leases. More
#: arrays are copied.
LEASES_MAX = 3072

#: Maximum bytes of an array in a mailbox. Requests are a small part of the time of a larger message.
MAIL_MAX = 4 << 20

#: Maximum bytes of an array that the receiver copies, if it may write to it. The page faults of a private mapping take longer. The
#: copy takes the place of the sender's memory, which has no other reader and is freed at once.
COPIES_MAX = 8 << 20

#: Maximum bytes of the arrays that a process has lent and that wait for their receivers. A message of a lent array is so short
#: that it fits into a pipe. So a pipe would not block a sender that is faster than its receivers, as it does if arrays are pickled.
WAITING_BYTES_MAX = 4 << 20

#: Maximum time in seconds for which a sender waits for its receivers. After that, it pickles the array.
_WAIT_SECONDS = 0.1
_POLL_SECONDS = 0.2e-3

#: A function that `python -m tensorlend.run` sets. Its arguments are the bytes of each value, and
#: whether the value was lent.
counter: Callable[[int, bool], None] | None = None

_LOG = logging.getLogger("tensorlend")

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Settings:
    """The arguments of `install`."""

    client: _native.Client
    smallest: int
    ttl: float
    mode: Mode


@dataclass
class _Message:
    """A lent value that a receiver may not have leased yet."""

    client: _native.Client
    name: str
    words: tuple[int, int]
    nbytes: int

    def waits(self) -> bool:
        """Returns whether no process has received it."""
        try:
            return self.client.version(self.name) == _native.Version.from_words(self.words)
        except Error:
            return False


@dataclass
class Waiting:
    """Messages of this process that may wait for their receivers."""

    messages: list[_Message] = field(default_factory=list)
    nbytes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    #: The number of messages at which received ones are dropped.
    many: int = 32
    #: Whether waiting was without effect, and no message was received since then. The messages that wait may be lost, so no sender
    #: waits for them again.
    stuck: bool = False

    def add(self, message: _Message) -> None:
        with self.lock:
            self.messages.append(message)
            self.nbytes += message.nbytes
            if len(self.messages) >= self.many:
                self._drop()
                self.many = 2 * len(self.messages) + 32

    def admits(self) -> bool:
        """Returns whether further values may be lent."""
        with self.lock:
            if self.nbytes > WAITING_BYTES_MAX:
                self._drop()
            return self.nbytes <= WAITING_BYTES_MAX

    def withdraw(self) -> None:
        """Deletes the values that no process has received."""
        for message in self.messages:
            try:
                if message.waits():
                    message.client.delete(message.name)
            except Error:
                # The daemon has ended, and the messages with it.
                continue

    def _drop(self) -> None:
        before = len(self.messages)
        self.messages = [message for message in self.messages if message.waits()]
        if len(self.messages) < before:
            self.stuck = False
        self.nbytes = sum(message.nbytes for message in self.messages)


_prefix = ""
_waiting = Waiting()
_numbers = itertools.count()
_held: weakref.WeakSet[Any] = weakref.WeakSet()
#: The clients of this process that have mailboxes.
_mailing: weakref.WeakSet[Any] = weakref.WeakSet()
#: Whether this process settles its mailboxes when it ends.
_is_settling = False


def _new_prefix() -> None:
    global _prefix, _waiting, _held, _mailing, _is_settling
    _prefix = ""
    # Forget inherited messages, leases and mailboxes, which belong to the parent.
    _waiting = Waiting()
    _held, _mailing, _is_settling = weakref.WeakSet(), weakref.WeakSet(), False


_new_prefix()
os.register_at_fork(after_in_child=_new_prefix)


def settings(client: _native.Client | None, smallest: int, ttl: float, mode: Mode) -> Settings:
    """Returns the arguments of `install` as checked settings."""
    if ttl <= 0:
        raise ValueError(f"a time to live of {ttl} seconds: give more than 0")
    client = client or default_client()
    _presence.try_join(client)
    return Settings(client, smallest, ttl, mode)


def is_plain(dtype: np.dtype[Any]) -> bool:
    """Returns whether lent memory can hold arrays of this dtype, and the message describe it."""
    return not dtype.hasobject and not dtype.metadata


def _prefix_of_process() -> str:
    global _prefix
    _prefix = _prefix or _presence.prefix()
    return _prefix


def new_name() -> str:
    """Returns a name that no other value has."""
    return f"{_prefix_of_process()}/{next(_numbers)}"


def count(nbytes: int, refusal: Exception | None = None) -> None:
    """Counts a value that was lent. With `refusal`, counts and logs a value that could not be lent."""
    if refusal is not None:
        _LOG.info("%s bytes travel as usual, not in lent memory: %s", nbytes, refusal)
    if counter is not None:
        counter(nbytes, refusal is None)


def _settle() -> None:
    for client in _mailing:
        client._settle_mail()


def _mail(client: _native.Client, value: Any, ttl: float) -> tuple[str, tuple[int, int], tuple[bytes, bytes]] | None:
    """Publishes a value in a mailbox. Returns None if no mailbox is free."""
    global _is_settling
    if client not in _mailing:
        if not _is_settling:
            _is_settling = True
            # A child of multiprocessing ends without the finalizers of its parent and without `atexit`. Receipts that arrived
            # before the end would be lost, and their arrays would last until their time to live.
            util.Finalize(None, _settle, exitpriority=0)
        _mailing.add(client)
    return client._mail(value, _prefix_of_process(), ttl)


class _Pickling(threading.local):
    """The state of the thread that pickles a message."""

    #: Whether the arrays of the message may be lent. None until the first array of a message.
    admits: bool | None = True


_pickling = _Pickling()


def pickled(dump: Callable[[], None]) -> None:
    """Calls a function that pickles a message. The arrays of one message are all lent, or all pickled."""
    outer, _pickling.admits = _pickling.admits, None
    try:
        dump()
    finally:
        _pickling.admits = outer


def admits() -> bool:
    """Returns whether the arrays of this message may be lent. Waits a moment until receivers have taken former messages."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while _pickling.admits is None:
        if _waiting.admits():
            _pickling.admits = True
        elif _waiting.stuck:
            _pickling.admits = False
        elif time.monotonic() > deadline:
            _LOG.info("no process has received the lent arrays of %s bytes that wait: further ones travel as pickles", _waiting.nbytes)
            _waiting.stuck = True
            _pickling.admits = False
        else:
            time.sleep(_POLL_SECONDS)
    return _pickling.admits


def lend(value: Any, by: Settings, library: str, waiting: Waiting | None = None) -> Reduced | None:
    """Publishes a value for one receiver. Returns the content of its message; None if the message must contain the value
    itself. Adds the message to `waiting`, or to the messages of this process that `admits` limits."""
    client, receipt, nbytes = by.client, None, value.nbytes
    try:
        _presence.join(client)
        mail = _mail(client, value, by.ttl) if nbytes <= MAIL_MAX else None
        if mail is None:
            name = new_name()
            words = client.put(name, value, ttl=by.ttl).words
        else:
            name, words, receipt = mail
    except Error as error:
        # There is no memory or no daemon, or the elements have another dtype.
        count(nbytes, error)
        return None
    count(nbytes)
    (_waiting if waiting is None else waiting).add(_Message(client, name, words, nbytes))
    mode = "copy" if by.mode == "cow" and nbytes <= COPIES_MAX else by.mode
    return take, (*where(client), name, words, mode, by.ttl, library, receipt)


def take(
    address: tuple[str, ...],
    namespace: str | None,
    name: str,
    words: tuple[int, int],
    mode: Mode | Literal["copy"],
    ttl: float,
    library: str,
    receipt: tuple[bytes, bytes] | None,
) -> Any:
    """Leases the array of a message that only this process receives, and confirms the receipt or deletes the array's name."""
    client = client_for(address, namespace)
    try:
        value = view(client, name, words, mode, library)
    except NotFoundError as error:
        raise NotFoundError(
            f"the array of a message is gone: it was received before, the program that sent it has ended, or the message waited "
            f"for more than {ttl:g} s (install(ttl=...) says how long it may)"
        ) from error
    _presence.try_join(client)
    if receipt is not None and _native._send_receipt(*receipt):
        return value
    try:
        # The sender may have received the receipt of a second receiver of the same message, and sent another message in this mailbox.
        if receipt is None or get_version(client, name, words, "read") is not None:
            client.delete(name)
    except Error:
        # Ignore a failed delete, because the name ends at its time to live.
        pass
    return value


def view(client: _native.Client, name: str, words: tuple[int, int], mode: Mode | Literal["copy"], library: str) -> Any:
    """Returns the value of a name if it has this version. The result is a view, or a copy if the mode is "copy" or this
    process holds many leases.
    """
    if len(_held) >= LEASES_MAX:
        mode = "copy"
    lease = get_version(client, name, words, "read" if mode == "copy" else mode)
    if lease is None:
        raise NotFoundError(f"{name!r} was overwritten")
    if mode == "copy":
        try:
            return lease.numpy().copy("K") if library == "numpy" else lease.torch().clone()
        finally:
            lease.release()
    _held.add(lease)
    return lease.numpy() if library == "numpy" else lease.torch()
