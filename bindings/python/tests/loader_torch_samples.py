"""Datasets of the loader tests that are made of tensors: in a module, so that spawned workers find them."""

import random
from collections import namedtuple

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

import tensorlend.numpy
from tensorlend.torch import empty

Point = namedtuple("Point", "x y")


class Nested(Dataset):
    """Samples of everything that torch collates, with random numbers that depend on the worker's seeds."""

    def __init__(self, length=23):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return {
            "picture": torch.full((2, 3), float(index)),
            "half": torch.full((2,), index, dtype=torch.bfloat16),
            "array": np.full(3, index, np.int16),
            "scalar": np.float32(index / 3),
            "label": index,
            "share": index / 7,
            "even": index % 2 == 0,
            "name": f"sample {index}",
            "point": Point(torch.tensor(index), [torch.rand(2), (random.random(), np.random.rand(2))]),
        }


class Some(Dataset):
    """Samples fetched by the batch."""

    def __len__(self):
        return 17

    def __getitem__(self, index):
        raise AssertionError("not one by one")

    def __getitems__(self, indices):
        return [(torch.tensor([index]), index) for index in indices]


class Counted(IterableDataset):
    """Every worker has its share of 0 to `length`, by torch's worker info."""

    def __init__(self, length=31):
        self.length = length

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            yield torch.full((3,), number), torch.rand(1)


class Told(Dataset):
    """What a worker knows of itself, by either way of asking."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        torchs, ours = get_worker_info(), tensorlend.numpy.get_worker_info()
        assert torchs.dataset is self and ours.dataset is self
        return torch.tensor([torchs.id, torchs.num_workers, torchs.seed, ours.id, ours.num_workers, ours.seed])


class Failing(Dataset):
    """Raises for one index."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index == 13:
            raise self.kind(f"no {index}")
        return torch.tensor(index)


class Odd(Dataset):
    """Tensors that are not plain: they are pickled."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.eye(3).to_sparse() * index


def listed(batch):
    """A collate_fn that stacks nothing."""
    return batch


def own(batch):
    """A collate_fn that writes into a slot itself, and calls default_collate for the rest."""
    out = empty((len(batch), 2, 3))
    torch.stack([sample["picture"] for sample in batch], out=out)
    return {"all": out, "view": out[:1], "again": out, "rest": default_collate([sample["point"] for sample in batch])}


def resized(batch):
    """A collate_fn that gives a slot's tensor another shape in place."""
    out = empty((len(batch), 6))
    torch.stack([sample["picture"].reshape(6) for sample in batch], out=out)
    return out.t_()


def weighted(batch):
    """A collate_fn whose result needs a gradient."""
    return torch.stack([sample["picture"] for sample in batch]).requires_grad_()
