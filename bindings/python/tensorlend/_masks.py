"""The refusal of masked arrays where a copy would drop the mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tensorlend._errors import DTypeError


def without_mask(array: Any) -> npt.NDArray[Any]:
    """Returns an array as `numpy.asarray` does. Raises DTypeError if elements of the array are masked."""
    # Importing numpy.ma takes time, and only subclasses have masks.
    if isinstance(array, np.ndarray) and type(array) is not np.ndarray and np.ma.is_masked(array):
        raise DTypeError(
            "elements of the array are masked, and the copy has no mask: pass array.filled(value), or data and mask as two arrays"
        )
    return np.asarray(array)
