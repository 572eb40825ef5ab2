"""Ways for a trainer in torch to get its batches. Each is iterated once for an epoch, and yields (features, labels).

Names of what the producer publishes are told in src/shelf.rs.
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
    """The tensors of a lent dataset, where they lie, as they were published: features, labels. They keep the lease."""
    features, labels = dataset.torch()
    return features, labels


def names_of(client: tensorlend.Client, name: str, size: int | None) -> list[str]:
    """Names of the batches that the producer cut; of the whole without a size."""
    if size is None:
        return [name]
    rows = client.get_dataset(name)["labels"].shape[0]
    return [f"{name}/{size}/{batch}" for batch in range(-(-rows // size))]


class Lent:
    """Batches as the producer cut them: leased by their names, each time anew; so many at once."""

    def __init__(self, client: tensorlend.Client, name: str, size: int | None, at_once: int) -> None:
        self._client, self._at_once = client, at_once
        self._names = names_of(client, name, size)

    def __iter__(self) -> Iterator[Pair]:
        return self._client.batches(self._names, "torch", ahead=self._at_once)


class Got:
    """The same, one by one, as a program gets anything by its name."""

    def __init__(self, client: tensorlend.Client, name: str, size: int | None) -> None:
        self._get = client.get_dataset
        self._names = names_of(client, name, size)

    def __iter__(self) -> Iterator[Any]:
        for name in self._names:
            yield self._get(name).torch()


class Samples(Dataset[Pair]):
    """Samples one by one in this process's own memory, as most datasets have them."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor) -> None:
        self.features, self.labels = features, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Pair:
        return self.features[index], self.labels[index]


class LentSamples(Dataset[Any]):
    """What a producer published, for workers: each of them leases the whole, and cuts batches out of it.

    Lent memory is not passed on by fork, so every process looks it up for itself. Use it with `gather`.
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
    """Collates: copies the rows once, to where the trainer will find them."""
    (features, labels), indices = whole_and_indices
    chosen = torch.tensor(indices)
    # Tensors of `empty` are sent as they are.
    rows = torch.index_select(features, 0, chosen, out=empty((len(indices), *features.shape[1:]), features.dtype))
    return rows, torch.index_select(labels, 0, chosen, out=empty(len(indices), labels.dtype))


class Pickled:
    """What one writes without a loader: workers that put batches into a queue, which pickles them."""

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
    """How each loader is made. All of them yield the same batches in the same order."""
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
    """By reference: batches are parts of tensors that lie in this process. The floor."""

    def __init__(self, features: torch.Tensor, labels: torch.Tensor, size: int) -> None:
        self._features, self._labels, self._size = features, labels, size

    def __iter__(self) -> Iterator[Pair]:
        for at in range(0, len(self._labels), self._size):
            yield self._features[at : at + self._size], self._labels[at : at + self._size]


def close(loader: Loader) -> None:
    """Ends what a loader has besides this process."""
    end = getattr(loader, "close", None)
    if end is not None:
        end()


def owned(client: tensorlend.Client, name: str) -> Pair:
    """Samples in this process's own memory: a copy of what is published."""
    features, labels = show(client.get_dataset(name))
    return features.clone(), labels.clone()


def numbers(values: list[float]) -> bytes:
    """Losses to compare, to the last bit."""
    return np.array(values).tobytes()
