"""Loaders of batches for a trainer in torch.

A trainer iterates a loader once for each epoch; the loader yields pairs (features, labels). The documentation of
src/shelf.rs lists the names that the producer publishes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from torch.utils.data import DataLoader, Dataset

import tensorlend
from tensorlend.torch import SharedLoader, empty

Pair = tuple[torch.Tensor, torch.Tensor]
Loader = Iterable[Any]


def show(dataset: tensorlend.Dataset) -> Pair:
    """Returns the tensors (features, labels) of a dataset without a copy. They keep the lease."""
    features, labels = dataset.torch()
    return features, labels


def names_of(client: tensorlend.Client, name: str, size: int | None) -> list[str]:
    """Returns the names of the producer's batches of this size; for None, the name of the whole data set."""
    if size is None:
        return [name]
    rows = client.get_dataset(name)["labels"].shape[0]
    return [f"{name}/{size}/{batch}" for batch in range(-(-rows // size))]


class Lent:
    """Leases the producer's batches by their names, again in each epoch, `at_once` batches in one call."""

    def __init__(self, client: tensorlend.Client, name: str, size: int | None, at_once: int) -> None:
        self._client, self._at_once = client, at_once
        self._names = names_of(client, name, size)

    def __iter__(self) -> Iterator[Pair]:
        return self._client.batches(self._names, "torch", ahead=self._at_once)


class Got:
    """Leases the producer's batches by their names, each with a call of `get_dataset`."""

    def __init__(self, client: tensorlend.Client, name: str, size: int | None) -> None:
        self._get = client.get_dataset
        self._names = names_of(client, name, size)

    def __iter__(self) -> Iterator[Any]:
        for name in self._names:
            yield self._get(name).torch()


class Samples(Dataset[Pair]):
    """Samples in this process's own memory, one for each index, like most torch datasets."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pair:
        return self.features[index], self.labels[index]


class LentSamples(Dataset[Any]):
    """Samples of a published dataset, for loader workers.

    Each worker leases the whole dataset and takes batches from it. A forked process does not inherit lent memory, so
    each worker connects and leases the dataset itself. An item is the whole dataset with the indices of a batch; pass
    `gather` as the collate function.
    """

    def __init__(self, address: list[str], name: str) -> None:
        self._address, self._name = address, name
        self._pid = 0
        with tensorlend.connect(address) as client:
            self._length = int(client.get_dataset(name)["labels"].shape[0])

    def __len__(self) -> int:
        return self._length

    def __getitems__(self, indices: list[int]) -> tuple[Pair, list[int]]:
        if self._pid != os.getpid():
            self._client = tensorlend.connect(self._address, label="samples")
            self._whole = show(self._client.get_dataset(self._name))
            self._pid = os.getpid()
        return self._whole, indices

    def __getstate__(self) -> dict[str, Any]:
        return {"_address": self._address, "_name": self._name, "_length": self._length, "_pid": 0}


def gather(whole_and_indices: tuple[Pair, list[int]]) -> Pair:
    """Collate function: copies the rows of a batch once, into shared memory from which the trainer reads them."""
    (features, labels), indices = whole_and_indices
    chosen = torch.tensor(indices)
    # `SharedLoader` sends tensors that `empty` made without another copy.
    rows = torch.index_select(features, 0, chosen, out=empty((len(indices), *features.shape[1:]), features.dtype))
    return rows, torch.index_select(labels, 0, chosen, out=empty(len(indices), labels.dtype))


class Pickled:
    """A loader without a library: workers pickle the batches and put them into a queue."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, size: int, workers: int = 1, ahead: int = 2) -> None:
        self._count = -(-len(labels) // size)
        self._workers = workers
        self._orders: list[Any] = [multiprocessing.SimpleQueue() for _ in range(workers)]
        self._queues: list[Any] = [multiprocessing.Queue(ahead) for _ in range(workers)]
        self._processes = []
        for worker, (order, queue) in enumerate(zip(self._orders, self._queues, strict=True)):
            job = (features, labels, size, range(worker, self._count, workers), order, queue)
            self._processes.append(multiprocessing.Process(target=self._work, args=job, daemon=True))
            self._processes[-1].start()

    @staticmethod
    def _work(features: torch.Tensor, labels: torch.Tensor, size: int, share: range, order: Any, queue: Any) -> None:
        torch.set_num_threads(1)
        while order.get():
            for batch in share:
                indices = range(batch * size, min((batch + 1) * size, len(labels)))
                stacked = (torch.stack([part[index] for index in indices]).numpy() for part in (features, labels))
                queue.put(pickle.dumps(tuple(stacked), pickle.HIGHEST_PROTOCOL))

    def __iter__(self) -> Iterator[Pair]:
        for order in self._orders:
            order.put(True)
        for batch in range(self._count):
            features, labels = pickle.loads(self._queues[batch % self._workers].get())
            yield torch.from_numpy(features), torch.from_numpy(labels)

    def close(self) -> None:
        for order in self._orders:
            order.put(False)
        for process in self._processes:
            process.join()


REFERENCE = "by reference, in process"
LENT = "tensorlend: batches by name, 16 at once"
LENT_1 = "tensorlend: batches by name"
GOT = "tensorlend: get_dataset by name"
HELD = "tensorlend: batches leased once"
SHARED = "tensorlend: SharedLoader, 1 worker"
SHARED_LENT = "tensorlend: SharedLoader over lent samples, 1 worker"
LOADER_0 = "DataLoader, 0 workers"
LOADER_4 = "DataLoader, 4 workers"
QUEUE = "pickled queue, 1 worker"


def by_name(
    client: tensorlend.Client, name: str, features: torch.Tensor, labels: torch.Tensor, size: int
) -> dict[str, Callable[[], Loader]]:
    """Returns for each loader's name a function that makes it. All loaders yield the same batches in the same order."""
    samples = Samples(features, labels)
    stay: dict[str, Any] = {"persistent_workers": True}
    address = [str(path) for path in client.address]
    return {
        REFERENCE: lambda: Slices(features, labels, size),
        LENT: lambda: Lent(client, name, size, 16),
        LENT_1: lambda: Lent(client, name, size, 1),
        GOT: lambda: Got(client, name, size),
        HELD: lambda: list(Lent(client, name, size, 16)),
        SHARED: lambda: SharedLoader(torch.utils.data.TensorDataset(features, labels), size, 1, client=client, **stay),
        SHARED_LENT: lambda: SharedLoader(LentSamples(address, name), size, 1, client=client, collate_fn=gather, **stay),
        QUEUE: lambda: Pickled(features, labels, size),
        LOADER_0: lambda: DataLoader(samples, size),
        LOADER_4: lambda: DataLoader(samples, size, num_workers=4, **stay),
    }


class Slices:
    """The reference loader: batches are slices of tensors in this process, which costs the least of all loaders."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, size: int) -> None:
        self._features, self._labels, self._size = features, labels, size

    def __iter__(self) -> Iterator[Pair]:
        for at in range(0, len(self._labels), self._size):
            yield self._features[at : at + self._size], self._labels[at : at + self._size]


def close(loader: Loader) -> None:
    """Ends the loader's worker processes, if it has any."""
    end = getattr(loader, "close", None)
    if end is not None:
        end()


def owned(client: tensorlend.Client, name: str) -> Pair:
    """Returns a copy of the published (features, labels) in this process's own memory."""
    features, labels = show(client.get_dataset(name))
    return features.clone(), labels.clone()


def numbers(values: list[float]) -> bytes:
    """Returns the bytes of the losses, to compare them bit by bit."""
    return np.array(values).tobytes()
