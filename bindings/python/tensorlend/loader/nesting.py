"""The nesting of a batch's tensors, as lists, tuples and dicts whose innermost values are numbers
of leaves.

The same nesting always has the same bytes, so that the trainer parses them once and caches the
result. In JSON, a leaf is its number, a list is a list, a tuple is ``{"t": [...]}``, and a dict is
``{"d": [keys, values]}``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Literal

Builder = Callable[[list[Any]], Any]


class NotPlainError(Exception):
    """The batch contains a value that is neither a leaf nor a list, tuple or dict of them."""


def describe(batch: Any, leaf: Callable[[Any], int | None]) -> bytes:
    """Returns the bytes of a batch's nesting. `leaf` returns the number of a leaf, or None for another value. Raises
    NotPlainError if the batch has such values.
    """
    return json.dumps(_describe(batch, leaf), separators=(",", ":")).encode()


def _describe(value: Any, leaf: Callable[[Any], int | None]) -> Any:
    # Compare the exact type, because subclasses may hold more than their items.
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
    """Returns a function that nests a list of leaves as `describe` described it."""
    node = json.loads(described)
    # In the most common case, the batch is the list of leaves.
    if isinstance(node, list) and node == list(range(len(node))):
        return _same
    return _builder(node)


def word(described: bytes) -> Literal["one", "list", "tuple"] | None:
    """Returns "list" or "tuple" if the batch is a list or tuple of all leaves in their order.
    Returns "one" for a single leaf, and None for other nestings.
    """
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
