"""Batches as messages. A worker packs a batch, and the trainer unpacks it.

A message's metadata begin with a letter for its kind. Its leaves are the tensors of a dataset,
named "0", "1" ... in order. A single leaf is a tensor without a dataset.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorlend._native import Dataset, DeviceLease, Draft, Lease, Recipe
from tensorlend.loader import nesting
from tensorlend.loader.arena import Arena
from tensorlend.loader.failure import Failure

if TYPE_CHECKING:
    from tensorlend.loader.kit import Kit

#: A batch of lists, tuples and dicts of leaves. The kinds of the leaves, a space and the nesting follow the letter.
PLAIN = b"N"
#: Any other batch. The letter is followed by a pickle that refers to the leaves.
PICKLED = b"P"
#: Any other batch with a pickle that is too long for metadata. The last leaf contains the pickle.
PICKLED_LEAF = b"Q"
#: An exception. The only leaf contains its bytes.
FAILED = b"F"
#: The worker's iterable dataset has ended.
ENDED = b"E"

#: Maximum length in bytes of a pickle in metadata, which may have 64 KiB.
_METADATA_BYTES_MAX = 16 << 10
#: Maximum number of leaves. A dataset may have 4096 tensors, one of which may be the pickle.
_LEAVES_MAX = 4095
#: Maximum number of nestings that the trainer caches.
_KNOWN_MAX = 256

Content = Draft | Mapping[str, Draft]


class Packer:
    """Converts batches to messages."""

    def __init__(self, kit: Kit, arena: Arena) -> None:
        self._kit = kit
        self._arena = arena

    def batch(self, batch: Any) -> tuple[Content, bytes]:
        """Returns the value to send, and its metadata. Leaves in the arena are sent without a copy,
        and other leaves are copied.
        """
        leaves = _Leaves(self._kit, self._arena)
        try:
            nest = nesting.describe(batch, leaves.number)
            return self._content(leaves.drafts), b"%b%b %b" % (PLAIN, "".join(leaves.kinds).encode(), nest)
        except nesting.NotPlainError:
            pass
        data = leaves.pickled(batch)
        if len(data) < _METADATA_BYTES_MAX:
            return self._content(leaves.drafts), PICKLED + data
        return self._content([*leaves.drafts, self._bytes(data)]), PICKLED_LEAF

    def failure(self, failure: Failure) -> tuple[Content, bytes]:
        """Returns the value and metadata for an exception."""
        return self._bytes(failure.to_bytes()), FAILED

    def end(self) -> tuple[Content, bytes]:
        """Returns the value and metadata for the end of a dataset."""
        return {}, ENDED

    def _content(self, drafts: list[Draft]) -> Content:
        return drafts[0] if len(drafts) == 1 else {str(at): draft for at, draft in enumerate(drafts)}

    def _bytes(self, data: bytes) -> Draft:
        draft = self._arena.draft((len(data),), "uint8")
        draft.array[:] = np.frombuffer(data, np.uint8)
        return draft


class _Leaves:
    """The leaves of one batch, in the order in which they are found."""

    def __init__(self, kit: Kit, arena: Arena) -> None:
        self.drafts: list[Draft] = []
        self.kinds: list[str] = []
        self._kit = kit
        self._arena = arena
        # The number of each leaf by the value's id, with the value, so that no other object gets its id.
        self._known: dict[int, tuple[int, Any]] = {}

    def number(self, value: Any) -> int | None:
        """Returns the number of a leaf, which is the same each time the leaf occurs. Returns None
        if the value cannot be a leaf.
        """
        known = self._known.get(id(value))
        if known is not None:
            return known[0]
        kind = self._kit.kind(value)
        if kind is None or len(self.drafts) == _LEAVES_MAX:
            return None
        draft = self._arena.find(value)
        if draft is None or not self._kit.covers(value, draft):
            draft = self._arena.draft(*self._kit.spec(value))
            self._kit.copy(value, draft)
        number = len(self.drafts)
        self.drafts.append(draft)
        self.kinds.append(kind)
        self._known[id(value)] = (number, value)
        return number

    def pickled(self, batch: Any) -> bytes:
        """Returns the batch as a pickle that refers to the leaves."""
        leaves = self

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> tuple[str, int] | None:
                number = leaves.number(value)
                return None if number is None else (leaves.kinds[number], number)

        data = io.BytesIO()
        Pickler(data, pickle.HIGHEST_PROTOCOL).dump(batch)
        return data.getvalue()


class End:
    """Marks the end of a worker's batches."""


class Unpacker:
    """Converts messages to batches, whose arrays view the slots and hold the leases."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._known: dict[bytes, tuple[Callable[[Any], Any], Recipe | None]] = {}
        #: The recipe for messages like the last message. None if the last message was too complex
        #: for a recipe.
        self.recipe: Recipe | None = None

    def batch(self, value: Lease | DeviceLease | Dataset) -> Any:
        """Returns a batch, or `End`. Raises the worker's exception if the message contains one."""
        metadata = value.metadata_bytes
        known = self._known.get(metadata)
        letter = metadata[:1]
        if known is None and letter == PLAIN:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            known = self._known[metadata] = self._plain(metadata[1:]), self._recipe(metadata)
        if known is not None:
            plain, self.recipe = known
            return plain(value)
        if letter == PICKLED:
            return self._unpickled(metadata[1:], _leases(value))
        if letter == PICKLED_LEAF:
            *leases, data = _leases(value)
            return self._unpickled(data.numpy(), leases)
        if letter == FAILED:
            raise Failure.from_bytes(_leases(value)[0].numpy()).error()
        return End

    def _recipe(self, metadata: bytes) -> Recipe | None:
        kinds, nest = metadata[1:].split(b" ", 1)
        word = nesting.word(nest)
        if word is None or not self._kit.plain or set(kinds) != {ord("t")}:
            return None
        return Recipe(metadata, word)

    def _plain(self, described: bytes) -> Callable[[Any], Any]:
        kinds, nest = described.split(b" ", 1)
        build = nesting.builder(nest)
        shows = [self._kit.show(kind) for kind in kinds.decode()]
        if len(shows) == 1:
            (only,) = shows
            return lambda value: build([only(value)])
        if len(set(shows)) == 1:
            show = shows[0]
            return lambda value: build([show(lease) for lease in value.values()])
        return lambda value: build([show(lease) for show, lease in zip(shows, _leases(value), strict=True)])

    def _unpickled(self, data: Any, leases: list[Lease]) -> Any:
        kit = self._kit
        shown: dict[int, Any] = {}

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, reference: tuple[str, int]) -> Any:
                kind, number = reference
                if number not in shown:
                    shown[number] = kit.show(kind)(leases[number])
                return shown[number]

        return Unpickler(io.BytesIO(data)).load()


def _leases(value: Lease | DeviceLease | Dataset) -> list[Lease]:
    leases = list(value.values()) if isinstance(value, Dataset) else [value]
    host = [lease for lease in leases if isinstance(lease, Lease)]
    assert len(host) == len(leases), "batches are in host memory"
    return host
