"""Observations in two parts: arrays, which travel in slots, and the rest, which is pickled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import Space, spaces

#: Spaces whose observations are arrays. Scalars, text, graphs and sequences are pickled.
_ARRAYS = (spaces.Box, spaces.MultiBinary, spaces.MultiDiscrete)


def arrays_of(space: Space[Any]) -> int:
    """Returns the number of arrays in an observation of this space."""
    if isinstance(space, spaces.Dict):
        return sum(map(arrays_of, space.spaces.values()))
    if isinstance(space, spaces.Tuple):
        return sum(map(arrays_of, space.spaces))
    return int(isinstance(space, _ARRAYS))


def split(space: Space[Any], observation: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    """Appends an observation's arrays to `arrays`, and returns the rest of the observation.

    The arrays get the dtype of the space, as in gymnasium's shared memory. Raises ValueError if an
    array does not have the shape of the space.
    """
    if isinstance(space, spaces.Dict):
        return {name: split(part, observation[name], arrays) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(split(part, value, arrays) for part, value in zip(space.spaces, observation, strict=True))
    if not isinstance(space, _ARRAYS):
        return observation
    array = np.asarray(observation, dtype=space.dtype)
    if array.shape != space.shape:
        raise ValueError(
            f"an observation of shape {array.shape} in a space of shape {space.shape}: return observations of the shape "
            "that the environment's observation_space has"
        )
    arrays.append(array)
    return None


def join(space: Space[Any], rest: Any, arrays: Iterator[Any]) -> Any:
    """Returns the observation from the two parts that `split` made."""
    if isinstance(space, spaces.Dict):
        return {name: join(part, rest[name], arrays) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(join(part, value, arrays) for part, value in zip(space.spaces, rest, strict=True))
    return next(arrays) if isinstance(space, _ARRAYS) else rest
