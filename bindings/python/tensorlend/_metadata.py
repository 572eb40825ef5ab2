"""Converts metadata to JSON."""

from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Converts values for which JSON has no type. numpy scalars become numbers or texts, and numpy
    arrays become lists.
    """
    if isinstance(value, np.generic) and not isinstance(value, (np.complexfloating, np.void)):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(
        f"metadata of type {type(value).__name__} cannot be written as JSON: give numbers, text, lists and dicts, or bytes"
    )
