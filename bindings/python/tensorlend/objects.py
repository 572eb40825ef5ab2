"""Objects in lent memory. One process writes an object, and every process reads it. See
docs/how-to/objects.md.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tensorlend import _native
from tensorlend._errors import ArgumentError, NotFoundError, UntrustedPickleError
from tensorlend._refs import client_for, get_version, where

if TYPE_CHECKING:
    # Do not import numpy with the package. numpy starts threads, which would receive the signals
    # of the daemon, one of the package's programs.
    from tensorlend._objects.decode import Decoder
    from tensorlend._objects.encode import Encoder
    from tensorlend._types import Metadata, Mode

__all__ = ["Frozen", "FrozenDict", "FrozenList", "UntrustedPickleError", "freeze"]

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


class _Source:
    """A reference to an object by name and version. Each process opens the object once, at its first access."""

    def __init__(
        self,
        address: tuple[str, ...],
        namespace: str | None,
        name: str,
        words: tuple[int, int],
        trust_pickle: bool,
        own: bool,
        mode: Mode,
    ) -> None:
        self.arguments = (address, namespace, name, words, trust_pickle, own, mode)
        self.name = name
        self.decoder: Decoder | None = None
        _sources.add(self)

    def open(self) -> Decoder:
        """Returns this process's decoder of the object."""
        decoder = self.decoder
        if decoder is None:
            address, namespace, name, words, trust, own, mode = self.arguments
            lease = get_version(client_for(address, namespace), name, words, mode)
            if lease is None:
                raise NotFoundError(f"{name!r} was overwritten after the object was sent: keep the name until its readers have it")
            decoder = self.decoder = _decoder(lease, trust, own)
        return decoder


_sources: weakref.WeakSet[_Source] = weakref.WeakSet()


def _in_child() -> None:
    # A child reads under its parent's lease. If the parent has none, the child takes its own
    # lease.
    for source in list(_sources):
        if source.decoder is not None and not source.decoder.is_leased():
            source.decoder = None


os.register_at_fork(after_in_child=_in_child)


class Frozen(Generic[_T]):
    """An object in lent memory.

    Pickling sends the object's name and version, so that any process opens the object without a
    copy. `freeze` returns such objects.

    Parameters
    ----------
    source : object
        The published object, made by `freeze`.
    """

    def __init__(self, source: _Source) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The name under which the object is published."""
        return self._source.name

    @property
    def nbytes(self) -> int:
        """Length of the object in shared memory, in bytes."""
        return self._source.open().nbytes

    def thaw(self) -> _T:
        """Returns the whole object as it was frozen. Its arrays view the lent memory.

        Returns
        -------
        object
            The value.
        """
        value: _T = self._source.open().value()
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._source.arguments)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class FrozenList(Frozen[Sequence[_T]], Sequence[_T]):
    """A list or a tuple in lent memory.

    An item is decoded at each access. A slice is a FrozenList of the same memory.

    Parameters
    ----------
    source : object
        The published object, made by `freeze`.
    positions : range or None, default None
        The items of a slice; None for all.
    """

    def __init__(self, source: _Source, positions: range | None = None) -> None:
        super().__init__(source)
        self._positions = range(source.open().count) if positions is None else positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> FrozenList[_T]: ...
    def __getitem__(self, index: int | slice) -> Any:
        position = self._positions[index]
        if type(position) is range:
            return FrozenList(self._source, position)
        return (self._source.decoder or self._source.open()).row(position)

    def __getitems__(self, indices: Sequence[int]) -> list[_T]:
        """Returns several items. torch's DataLoader and this package's loader make each batch by
        one call of this method.
        """
        return (self._source.decoder or self._source.open()).rows(indices, self._positions)

    def __iter__(self) -> Iterator[_T]:
        for position in self._positions:
            yield (self._source.decoder or self._source.open()).row(position)

    def thaw(self) -> Sequence[_T]:
        """Returns the whole list or tuple as it was frozen. Its arrays view the lent memory.

        Returns
        -------
        list or tuple
            The value.
        """
        return tuple(self) if self._source.open().kind.name == "TUPLE" else list(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._source.arguments, self._positions)

    def __repr__(self) -> str:
        return f"<FrozenList {self.name!r} of {len(self)}>"


class FrozenDict(Frozen[dict[_K, _V]], Mapping[_K, _V]):
    """A dict in lent memory.

    A lookup finds the item by its key's hash, and decodes it. Iterates in the dict's order.

    Parameters
    ----------
    source : object
        The published object, made by `freeze`.
    """

    def __len__(self) -> int:
        return self._source.open().count

    def __iter__(self) -> Iterator[_K]:
        for number in range(len(self)):
            yield self._source.open().row(number)

    def _find(self, key: object) -> int | None:
        from tensorlend._objects.encode import key_hash

        try:
            hashed = key_hash(key)
        except ArgumentError:
            return None
        return self._source.open().find(hashed, key)

    def __getitem__(self, key: _K) -> _V:
        position = self._find(key)
        if position is None:
            raise KeyError(key)
        value: _V = self._source.open().row(len(self) + position)
        return value

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __repr__(self) -> str:
        return f"<FrozenDict {self.name!r} of {len(self)}>"


@overload
def freeze(obj: Mapping[_K, _V], *, client: _native.Client | None = None, trust_pickle: bool = False) -> FrozenDict[_K, _V]: ...
@overload
def freeze(obj: Sequence[_T] | Iterator[_T], *, client: _native.Client | None = None, trust_pickle: bool = False) -> FrozenList[_T]: ...
@overload
def freeze(obj: _T, *, client: _native.Client | None = None, trust_pickle: bool = False) -> Frozen[_T]: ...
def freeze(obj: Any, *, client: _native.Client | None = None, trust_pickle: bool = False) -> Any:
    """Copies an object into lent memory, once, and returns it as a read-only object that every process shares.

    A list, a tuple or an iterator becomes a FrozenList, and a dict a FrozenDict. Any other object
    becomes a Frozen, whose `thaw` returns the object. Pass the result to other processes, by fork
    or by pickle. They read the same memory. The memory stays while this process has the result, and
    while any process uses it. Then it is freed, even if a process is killed.

    Parameters
    ----------
    obj : object
        The object.
    client : Client or None, default None
        The client that publishes. None is the default client, of the running daemon or of a daemon
        in this process.
    trust_pickle : bool, default False
        Whether to pickle values that have no other encoding.

    Returns
    -------
    Frozen, FrozenList or FrozenDict
        The read-only object.

    Raises
    ------
    LimitError
        A limit of the daemon's configuration, of this client or of the machine is reached.
    """
    from tensorlend._default import default_client

    client = client or default_client()
    name = f"frozen/{os.getpid()}/{secrets.token_hex(8)}"
    encoder = _encoder(obj, may_pickle=trust_pickle, exact=False)
    version = _written(client, encoder, None, name=name, ephemeral=True).publish()
    frozen = _opened(client, name, trust_pickle, "read", version)
    weakref.finalize(frozen._source, _forget, client, name, os.getpid()).atexit = False
    return frozen


def _put(
    client: _native.Client,
    name: str,
    obj: Any,
    metadata: Metadata | None,
    timestamp: int,
    ttl: float | None,
    ephemeral: bool,
) -> _native.Version:
    """Publishes an object for `Client.put_object`."""
    encoder = _encoder(obj, may_pickle=True, exact=True)
    return _written(client, encoder, metadata, name=name, timestamp=timestamp, ttl=ttl, ephemeral=ephemeral).publish()


def _get(client: _native.Client, name: str, trust_pickle: bool, lazy: bool, mode: Mode) -> Any:
    """Returns an object for `Client.get_object`."""
    if lazy:
        return _opened(client, name, trust_pickle, mode, None)
    return _decoder(_leased(client, name, mode), trust_pickle, False).value()


def _leased(client: _native.Client, name: str, mode: Mode) -> Any:
    """Leases the bytes of an object."""
    value = client.get_value(name, mode=mode)
    if isinstance(value, _native.Dataset):
        raise ArgumentError(f"{name!r} holds a dataset, not an object: use get_dataset")
    return value


def _is_sequence(obj: Any) -> bool:
    if isinstance(obj, tuple):
        # Compare the exact type, because a named tuple is not a plain tuple.
        return type(obj) is tuple
    return isinstance(obj, (Sequence, Iterator)) and not isinstance(obj, (str, bytes, bytearray, memoryview))


def _is_mapping(obj: Any) -> bool:
    # A dataset of xarray is a mapping, and has more than its items.
    return isinstance(obj, Mapping) and type(obj).__module__.partition(".")[0] != "xarray"


def _encoder(obj: Any, *, may_pickle: bool, exact: bool) -> Encoder:
    """Returns the encoder of an object. With `exact`, only an object of exactly the type list,
    tuple or dict is encoded as such a collection.
    """
    from tensorlend._objects.encode import Encoder, is_key
    from tensorlend._objects.layout import Kind

    if type(obj) in (list, tuple) if exact else _is_sequence(obj):
        items: Iterable[Any] = obj
        return Encoder.of_items(items, Kind.TUPLE if type(obj) is tuple else Kind.LIST, may_pickle=may_pickle)
    if (type(obj) is dict and all(map(is_key, obj))) if exact else _is_mapping(obj):
        return Encoder.of_mapping(obj, may_pickle=may_pickle)
    return Encoder.of_value(obj, may_pickle=may_pickle)


def _written(client: _native.Client, encoder: Encoder, metadata: Metadata | None, **options: Any) -> _native.Draft:
    """Returns a draft of an object. `options` are those of `Client.create`."""
    if metadata is None:
        metadata = {"object": encoder.kind.name.lower(), "items": encoder.count, "pickle": encoder.has_pickle}
    draft: _native.Draft = client.create(encoder.measure(), "uint8", metadata=metadata, **options)
    try:
        with memoryview(draft) as memory:
            encoder.write(memory)
    except BaseException:
        draft.drop()
        raise
    return draft


def _draft(client: _native.Client, obj: Any) -> _native.Draft:
    """Returns a draft of an object, for a queue."""
    return _written(client, _encoder(obj, may_pickle=True, exact=True), None)


def _value(lease: Any, trust_pickle: bool) -> Any:
    """Returns the object in a queue's item."""
    return _decoder(lease, trust_pickle, False).value()


def _decoder(lease: Any, trust_pickle: bool, own: bool) -> Decoder:
    from tensorlend._objects.decode import Decoder

    return Decoder(lease, trust_pickle=trust_pickle, own=own)


def _opened(
    client: _native.Client, name: str, trust_pickle: bool, mode: Mode, version: _native.Version | None
) -> Frozen[Any]:
    """Opens an object through this client, and returns it as the type that other processes see."""
    lease = _leased(client, name, mode)
    if version is not None and lease.version != version:
        raise NotFoundError(f"{name!r} was overwritten while it was frozen")
    # The bytes are trusted if this process has just published this version. No other process can
    # have written to them.
    own = version is not None
    source = _Source(*where(client), name, lease.version.words, trust_pickle, own, mode)
    decoder = source.decoder = _decoder(lease, trust_pickle, own)
    kinds: dict[str, type[Frozen[Any]]] = {"LIST": FrozenList, "TUPLE": FrozenList, "DICT": FrozenDict}
    return kinds.get(decoder.kind.name, Frozen)(source)


def _unpickled(kind: type[Frozen[Any]], arguments: tuple[Any, ...], *positions: range) -> Frozen[Any]:
    return kind(_Source(*arguments), *positions)


def _forget(client: _native.Client, name: str, pid: int) -> None:
    """Deletes the name of a frozen object when the process that froze it drops its last reference."""
    if pid == os.getpid() and not client.closed:
        try:
            client.delete(name)
        except Exception:
            # Ignore the error, because the name has ended with the daemon.
            return
