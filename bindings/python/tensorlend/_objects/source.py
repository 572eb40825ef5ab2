"""Published values by name and version, for objects that are pickled as references."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from tensorlend import _native
from tensorlend._errors import ArgumentError, NotFoundError
from tensorlend._refs import MESSAGE_TTL, client_for, get_version, where

if TYPE_CHECKING:
    from tensorlend._objects.decode import Decoder
    from tensorlend._types import Mode

#: Socket paths, namespace, name, version and mode.
Key = tuple[tuple[str, ...], "str | None", str, tuple[int, int], "Mode"]


#: Held while a value is published again. Only the process that shared a value takes it, and so no child of a fork.
_publishing = threading.Lock()

_LOG = logging.getLogger("tensorlend")


class Published:
    """One version of a name. Each process leases the value once, when it first reads it."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.leased: Any = None
        #: When this process last pickled a reference to the value, in monotonic time. `_forget` reads it.
        self._sent = [-MESSAGE_TTL]
        #: The client and the process that shared the value.
        self._sharer: tuple[_native.Client, int] | None = None

    @property
    def name(self) -> str:
        """The name."""
        return self.key[2]

    def value(self) -> Any:
        """Returns this process's lease or dataset of the value."""
        if self.leased is None:
            address, namespace, name, words, mode = self.key
            try:
                self.leased = get_version(client_for(address, namespace), name, words, mode)
            except NotFoundError:
                raise NotFoundError(
                    f"{name!r} no longer exists: a pickle of a shared object is a reference, and its memory ends with the process that shared "
                    "it, or with its name (a file needs a copy: copy.deepcopy)"
                ) from None
            if self.leased is None:
                raise NotFoundError(f"{name!r} was overwritten after the object was sent: keep the name until its readers have it")
        return self.leased

    def sending(self) -> Key:
        """Returns the key for a reference that this process pickles now."""
        self._sent[0] = time.monotonic()
        if self._sharer is not None and self._sharer[1] == os.getpid() and self.key[-1] == "read":
            self._keep_open(self._sharer[0])
        return self.key

    def shared_by(self, client: _native.Client) -> None:
        """Notes that this process has called `share`. So it is this process that keeps the value open to later receivers."""
        self._sharer = client, os.getpid()

    def _keep_open(self, client: _native.Client) -> None:
        """If the name has another value by now, publishes a copy under a name of this process, once."""
        with _publishing:
            try:
                version = client.version(self.name)
                if version is None or version.words != self.key[3]:
                    self._publish_again(client)
            except Exception as error:
                # The receiver reports that the name is missing.
                _LOG.warning("share: %r was replaced or deleted, and cannot be copied for other processes: %s", self.name, error)

    def _publish_again(self, client: _native.Client) -> None:
        name = own_name()
        # What `share` publishes is a dataset.
        version = client.put_dataset(name, {member: self.leased[member].numpy() for member in self.leased}, ephemeral=True)
        self.key = (*self.key[:2], name, version.words, self.key[-1])
        _published[self.key] = self
        self.own(client, name)

    def own(self, client: _native.Client, name: str) -> None:
        """Deletes the name when this process drops its last reference to the value."""
        weakref.finalize(self, _forget, client, name, os.getpid(), self._sent).atexit = False

    def lease(self, member: str | None) -> Any:
        """Returns the lease of a member of a dataset, or of the value if `member` is None."""
        value = self.value()
        if member is None:
            if isinstance(value, _native.Dataset):
                raise ArgumentError(f"{self.name!r} holds a dataset, not an object: use get_dataset")
            return value
        return value[member]


def own_name() -> str:
    """Returns a new name for an ephemeral value of this process."""
    return f"shared/{os.getpid()}/{secrets.token_hex(8)}"


def _forget(client: _native.Client, name: str, pid: int, sent: list[float]) -> None:
    """Deletes a name. If a reference was pickled a short time ago, waits until its receiver has opened it."""
    if pid != os.getpid() or client.closed:
        return
    left = sent[0] + MESSAGE_TTL - time.monotonic()
    if left > 0:
        timer = threading.Timer(left, _delete, (client, name))
        timer.daemon = True
        timer.start()
    else:
        _delete(client, name)


def _delete(client: _native.Client, name: str) -> None:
    try:
        client.delete(name)
    except Exception:
        # Ignore the error, because the name has ended with the daemon.
        return


#: The values that objects of this process use. All parts of a dataset have one lease.
_published: weakref.WeakValueDictionary[Key, Published] = weakref.WeakValueDictionary()


def published(key: Key) -> Published:
    """Returns this process's object of a published value."""
    found = _published.get(key)
    if found is None:
        found = _published[key] = Published(key)
    return found


def held(client: _native.Client, lease: Any, mode: Mode) -> Published:
    """Returns the published value of this lease or dataset, which it keeps."""
    value = published((*where(client), lease.name, lease.version.words, mode))
    value.leased = lease
    return value


def read_only(what: str, copied: str) -> ValueError:
    """Returns the error of a write to a shared array or tensor. `copied` is the expression of a copy."""
    return ValueError(
        f"this {what} is shared and read-only: write to a copy (mine = {copied}), or share the object with mode='cow', "
        "so that each process has a private copy of the pages that it changes"
    )


def checked(plain: Any) -> Any:
    """Returns a method that writes in place, and first calls `_check` of its object."""

    def in_place(self: Any, *arguments: Any, **named: Any) -> Any:
        self._check()
        return plain(self, *arguments, **named)

    return in_place


class Memory:
    """The bytes of a part in this process. Arrays have this object as their base, so that it lives as long as they do."""

    def __init__(self, value: Published, member: str) -> None:
        self.published = value
        self.member = member
        self._bytes: Any = value.lease(member).numpy()
        self.__array_interface__ = self._bytes.__array_interface__
        self.start: int = self.__array_interface__["data"][0]
        self.nbytes: int = self._bytes.nbytes


class Source:
    """An encoded object in a published value: the value itself, or a member of a dataset."""

    def __init__(self, of: Published, member: str | None, trust_pickle: bool, own: bool) -> None:
        self.published = of
        self._options = (member, trust_pickle, own)
        self.decoder: Decoder | None = None
        _sources.add(self)

    def sending(self) -> tuple[Any, ...]:
        """Returns the arguments of `source` for a reference that this process pickles now."""
        return (self.published.sending(), *self._options)

    def open(self) -> Decoder:
        """Returns this process's decoder of the object."""
        if self.decoder is None:
            from tensorlend._objects.decode import Decoder

            member, trust_pickle, own = self._options
            self.decoder = Decoder(self.published.lease(member), trust_pickle=trust_pickle, own=own)
        return self.decoder


def source(key: Key, member: str | None, trust_pickle: bool, own: bool) -> Source:
    """Returns the source with these arguments, which another process has sent."""
    return Source(published(key), member, trust_pickle, own)


_sources: weakref.WeakSet[Source] = weakref.WeakSet()


def _in_child() -> None:
    # A child reads under its parent's lease. If the parent has none, the child takes its own lease.
    for each in list(_sources):
        if each.decoder is not None and not each.decoder.is_leased():
            each.decoder = None
    for value in list(_published.values()):
        if value.leased is not None and not value.leased.valid:
            value.leased = None


os.register_at_fork(after_in_child=_in_child)
