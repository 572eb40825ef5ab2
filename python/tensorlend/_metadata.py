"""Metadata as JSON."""

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """What JSON has for something that it does not know: a number or text for a scalar of numpy, a list for an array of it."""
    if isinstance(value, np.generic) and not isinstance(value, (np.complexfloating, np.void)):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(
        f"metadata of type {type(value).__name__} cannot be written as JSON: give numbers, text, lists and dicts, or bytes"
    )
