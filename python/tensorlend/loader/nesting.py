"""How the tensors of a batch are nested: lists, tuples and dicts whose innermost values are numbers of leaves.

The same nesting always has the same bytes, so that the trainer looks at them once and then knows them by heart. In JSON:
a leaf is its number, a list is a list, a tuple is ``{"t": [...]}``, a dict is ``{"d": [keys, values]}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

Builder = Callable[[list[Any]], Any]


class NotPlainError(Exception):
    """There is something else in it."""


def describe(batch: Any, leaf: Callable[[Any], int | None]) -> bytes:
    """The bytes of a batch's nesting; `leaf` gives the number of a leaf. Raises NotPlainError if it holds anything else."""
    return json.dumps(_describe(batch, leaf), separators=(",", ":")).encode()


def _describe(value: Any, leaf: Callable[[Any], int | None]) -> Any:
    # Types that derive from these may hold more than their items.
    kind = type(value)
    if kind is list:
        return [_describe(item, leaf) for item in value]
    if kind is tuple:
        return {"t": [_describe(item, leaf) for item in value]}
    if kind is dict:
        if not all(type(key) is str for key in value):
            raise NotPlainError
        return {"d": [list(value), [_describe(item, leaf) for item in value.values()]]}
    number = leaf(value)
    if number is None:
        raise NotPlainError
    return number


def builder(described: bytes) -> Builder:
    """What nests a fresh list of leaves as described."""
    node = json.loads(described)
    # By far the most common: the list is used as it is.
    if isinstance(node, list) and node == list(range(len(node))):
        return _same
    return _builder(node)


def word(described: bytes) -> Literal["one", "list", "tuple"] | None:
    """For all leaves in their order in a list or a tuple, or a leaf alone."""
    node = json.loads(described)
    if node == 0:
        return "one"
    items = node.get("t") if isinstance(node, dict) else node
    if not isinstance(items, list) or items != list(range(len(items))):
        return None
    return "list" if node is items else "tuple"


def _same(leaves: list[Any]) -> list[Any]:
    return leaves


def _builder(node: Any) -> Builder:
    if isinstance(node, int):
        return lambda leaves: leaves[node]
    if isinstance(node, list):
        items = [_builder(item) for item in node]
        return lambda leaves: [item(leaves) for item in items]
    if "t" in node:
        items = [_builder(item) for item in node["t"]]
        return lambda leaves: tuple([item(leaves) for item in items])
    keys, values = node["d"]
    pairs = [(key, _builder(value)) for key, value in zip(keys, values, strict=True)]
    return lambda leaves: {key: value(leaves) for key, value in pairs}
