"""Functions that collate samples into batches of numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tensorlend._masks import without_mask
from tensorlend.loader import arena


def empty(shape: Sequence[int] | int, dtype: npt.DTypeLike = "float64") -> npt.NDArray[Any]:
    """Returns an uninitialized array for a batch.

    In a worker, the array is in shared memory. If a `collate_fn` returns it, alone or within lists
    and dicts, the trainer receives the array without a copy. In other processes the result is that
    of `numpy.empty`.

    Parameters
    ----------
    shape : int or sequence of int
        Sizes, in elements.
    dtype : dtype, default "float64"
        Element type, as for `numpy.dtype`.

    Returns
    -------
    numpy.ndarray
        The array, with undefined elements.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    here = arena.current
    if here is None:
        return np.empty(shape, dtype)
    draft = here.draft(shape, np.dtype(dtype).name)
    view: npt.NDArray[Any] = draft.array
    here.own(view, draft)
    return view


def default_convert(sample: Any) -> Any:
    """Returns a sample unchanged. This is the collation of samples that are not batched."""
    return sample


def default_collate(batch: Sequence[Any]) -> Any:
    """Stacks samples into a batch.

    Arrays are stacked along a new first axis, and numbers become an array. Mappings, tuples and
    sequences are collated member by member. Text and bytes stay a list.

    Parameters
    ----------
    batch : sequence
        The samples.

    Returns
    -------
    object
        The batch, with the structure of one sample.

    Raises
    ------
    TypeError
        A sample has another type, or is an array with masked elements.
    ValueError
        The samples differ in their shapes or lengths.
    """
    first = batch[0]
    if isinstance(first, np.ndarray):
        return stack(batch)
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, (bool, int, float, complex, np.generic)):
        return np.asarray(batch)
    if isinstance(first, Mapping):
        members = {key: default_collate([sample[key] for sample in batch]) for key in first}
        return members if type(first) is dict else like(first, members)
    if isinstance(first, Sequence):
        if any(len(sample) != len(first) for sample in batch):
            raise ValueError("the samples of a batch differ in their number of members")
        columns = [default_collate(column) for column in zip(*batch, strict=True)]
        if hasattr(first, "_fields"):
            return type(first)(*columns)
        return columns if type(first) is list else like(first, columns)
    if hasattr(first, "__array__") or hasattr(first, "__dlpack__"):
        return stack(batch)
    raise TypeError(f"a batch is collated of arrays, numbers, text, mappings and sequences, but a sample is {type(first)}")


def like(first: Any, members: Any) -> Any:
    """Returns the members in an object of the type of `first`, if that type can be made from them alone."""
    try:
        return type(first)(members)
    except TypeError:
        return members


def stack(arrays: Sequence[Any]) -> npt.NDArray[Any]:
    """Stacks arrays of one shape along a new first axis, in the memory in which the trainer reads the batch."""
    arrays = [without_mask(array) for array in arrays]
    first = arrays[0]
    if any(array.shape != first.shape for array in arrays):
        raise ValueError(f"the arrays of a batch differ in shape: {sorted({array.shape for array in arrays})}")
    dtypes = {array.dtype for array in arrays}
    dtype = first.dtype if len(dtypes) == 1 else np.result_type(*dtypes)
    if dtype.kind not in "biufc":
        return np.stack(arrays)
    out = empty((len(arrays), *first.shape), dtype)
    if first.ndim == 0:
        out[:] = arrays
    else:
        # Concatenate along the first axis, which is many times faster than adding an axis to each array.
        np.concatenate(arrays, axis=0, out=out.reshape(len(arrays) * first.shape[0], *first.shape[1:]))
    return out


class ArrayDataset:
    """A dataset of arrays whose first axes are the samples.

    A sample is a tuple, or a dict if the arrays have names. The loader gathers a whole batch in one step.

    Parameters
    ----------
    *arrays : array_like
        The arrays, of equal length.
    **named : array_like
        Arrays by name, in place of `arrays`.

    Raises
    ------
    ValueError
        The arrays differ in length, or both kinds of arguments are given.

    Examples
    --------
    >>> ArrayDataset(image=np.zeros((10, 28, 28)), label=np.arange(10))[3]["label"]
    np.int64(3)
    """

    def __init__(self, *arrays: Any, **named: Any) -> None:
        if bool(arrays) == bool(named):
            raise ValueError("give arrays, or arrays by name")
        self.arrays = [without_mask(array) for array in (arrays or named.values())]
        self.names = list(named) or None
        if len({len(array) for array in self.arrays}) != 1:
            raise ValueError(f"the arrays differ in their number of samples: {[len(array) for array in self.arrays]}")

    def __len__(self) -> int:
        return len(self.arrays[0])

    def __getitem__(self, index: Any) -> Any:
        return self._named(tuple(array[index] for array in self.arrays))

    def gather(self, indices: Any) -> Any:
        """Returns the batch of several samples, as `default_collate` would make it.

        Parameters
        ----------
        indices : array_like
            The indices of the samples.

        Returns
        -------
        tuple or dict of numpy.ndarray
            The batch.

        Raises
        ------
        IndexError
            An index is out of range.
        """
        indices = np.asarray(indices)
        length = len(self)
        if indices.size and not (-length <= indices.min() and indices.max() < length):
            raise IndexError(f"an index is out of range for {length} samples")
        gathered = []
        for array in self.arrays:
            out = empty((len(indices), *array.shape[1:]), array.dtype)
            # The indices are valid, so pass "wrap". numpy then does not check them again, and
            # makes no second copy.
            gathered.append(np.take(array, indices, axis=0, out=out, mode="wrap"))
        return self._named(tuple(gathered))

    def _named(self, members: tuple[Any, ...]) -> Any:
        return members if self.names is None else dict(zip(self.names, members, strict=True))
