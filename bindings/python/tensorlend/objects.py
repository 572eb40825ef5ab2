"""Objects in lent memory. One process writes an object, and every process reads it. See
docs/how-to/share.md.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from tensorlend import _native
from tensorlend._errors import ArgumentError, UntrustedPickleError
from tensorlend._objects.source import Published, Source, held, source

if TYPE_CHECKING:
    # Do not import numpy with the package. numpy starts threads, which would receive the signals
    # of the daemon, one of the package's programs.
    from tensorlend._objects.decode import Decoder
    from tensorlend._types import Metadata, Mode

__all__ = ["Frozen", "FrozenDict", "FrozenList", "UntrustedPickleError"]

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


class Frozen(Generic[_T]):
    """An object in lent memory.

    Pickling sends the object's name and version, so that any process opens the object without a
    copy. `share` and `Client.get_object` return such objects.

    Parameters
    ----------
    source : object
        The published object.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def name(self) -> str:
        """The name under which the object is published."""
        return self._source.published.name

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

    def _plain(self) -> Any:
        return self.thaw()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.thaw(), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (type(self), self._source.sending())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class FrozenList(Frozen[Sequence[_T]], Sequence[_T]):
    """A list or a tuple in lent memory.

    An item is decoded at each access. A slice is a FrozenList of the same memory.

    Parameters
    ----------
    source : object
        The published object.
    positions : range or None, default None
        The items of a slice; None for all.
    """

    def __init__(self, source: Source, positions: range | None = None) -> None:
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
        return _unpickled, (type(self), self._source.sending(), self._positions)

    def __repr__(self) -> str:
        return f"<FrozenList {self.name!r} of {len(self)}>"


class FrozenDict(Frozen[dict[_K, _V]], Mapping[_K, _V]):
    """A dict in lent memory.

    A lookup finds the item by its key's hash, and decodes it. Iterates in the dict's order.

    Parameters
    ----------
    source : object
        The published object.
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
    return _written(client, obj, metadata, name=name, timestamp=timestamp, ttl=ttl, ephemeral=ephemeral).publish()


def _get(client: _native.Client, name: str, trust_pickle: bool, lazy: bool, mode: Mode) -> Any:
    """Returns an object for `Client.get_object`."""
    if lazy:
        return _opened(client, name, trust_pickle, mode)
    return _decoder(_leased(client, name, mode), trust_pickle, False).value()


def _leased(client: _native.Client, name: str, mode: Mode) -> Any:
    """Leases the bytes of an object."""
    value = client.get_value(name, mode=mode)
    if isinstance(value, _native.Dataset):
        raise ArgumentError(f"{name!r} holds a dataset, not an object: use get_dataset")
    return value


def _written(client: _native.Client, obj: Any, metadata: Metadata | None, **options: Any) -> _native.Draft:
    """Returns a draft of an object. `options` are those of `Client.create`."""
    from tensorlend._objects.encode import Encoder

    encoder = Encoder.of(obj) or Encoder.of_value(obj)
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
    return _written(client, obj, None)


def _value(lease: Any, trust_pickle: bool) -> Any:
    """Returns the object in a queue's item."""
    return _decoder(lease, trust_pickle, False).value()


def _decoder(lease: Any, trust_pickle: bool, own: bool) -> Decoder:
    from tensorlend._objects.decode import Decoder

    return Decoder(lease, trust_pickle=trust_pickle, own=own)


def _opened(client: _native.Client, name: str, trust_pickle: bool, mode: Mode) -> Frozen[Any]:
    """Opens an object through this client, and returns it as the type that other processes see."""
    lease = _leased(client, name, mode)
    return frozen(held(client, lease, mode), None, trust_pickle, False)


def frozen(value: Published, member: str | None, trust_pickle: bool, own: bool) -> Frozen[Any]:
    """Returns the object in a published value as its type. `own` says that the bytes are trusted, because this process or
    one of the same user published them.
    """
    found = Source(value, member, trust_pickle, own)
    kinds: dict[str, type[Frozen[Any]]] = {"LIST": FrozenList, "TUPLE": FrozenList, "DICT": FrozenDict}
    return kinds.get(found.open().kind.name, Frozen)(found)


def _unpickled(kind: type[Frozen[Any]], arguments: tuple[Any, ...], *positions: range) -> Frozen[Any]:
    return kind(source(*arguments), *positions)
