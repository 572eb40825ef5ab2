"""Programs with torch's DataLoader. The program prints what trainer and workers see, also of each other's writes."""

import collections
import sys

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

torch.set_num_threads(1)
SIZE = 1 << 16
Pair = collections.namedtuple("Pair", "x y")


class Fresh(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"x": torch.full((SIZE,), float(index)), "y": index}


class Cached(Dataset):
    """Samples that the data set keeps, in a dict, a list and by themselves."""

    def __init__(self, kind):
        self.samples = [torch.full((SIZE,), float(index)) for index in range(4)]
        if kind == "dict":
            self.samples = [{"x": sample} for sample in self.samples]
        elif kind == "list":
            self.samples = [[sample] for sample in self.samples]
        elif kind == "view":
            self.whole = torch.stack(self.samples)
            self.samples = self.whole
        elif kind == "array":
            self.arrays = [np.full(SIZE, float(index)) for index in range(4)]
            self.samples = None
        elif kind == "storage":
            self.samples, self.storages = None, [sample.untyped_storage() for sample in self.samples]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if self.samples is not None:
            return self.samples[index]
        if hasattr(self, "arrays"):
            return {"x": torch.from_numpy(self.arrays[index])}
        return {"x": torch.empty(0).set_(self.storages[index])}


class Yielded(IterableDataset):
    """A generator that writes to what it has yielded."""

    def __iter__(self):
        x = torch.zeros(SIZE)
        for number in range(4):
            x += number
            yield x


def first(batch):
    """Returns the tensor in a batch."""
    while not isinstance(batch, torch.Tensor):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch))
    return batch


class Keeping:
    """A collate_fn that keeps its batches, or views of them. Each batch has the sum of the batch before the last one, to which
    the trainer has written by then.
    """

    def __init__(self, kind):
        self.kind, self.kept = kind, []

    def __call__(self, samples):
        before = float(first(self.kept[-2]).sum()) if len(self.kept) > 1 else -1.0
        batch = {**default_collate(samples), "before": before}
        x = batch["x"]
        self.kept.append({"batch": batch, "tensor": x, "view": x.view(-1)}[self.kind])
        return batch


def stacked(samples):
    return {"x": torch.stack([sample["x"] for sample in samples]), "rows": [sample["y"] for sample in samples]}


def views(samples):
    x = torch.stack([sample["x"] for sample in samples])
    return x, x[0], x.view(-1)


def paired(samples):
    x = default_collate([sample["x"] for sample in samples])
    return Pair(x, x)


def transposed(samples):
    return default_collate([sample["x"] for sample in samples]).t_()


def part(samples):
    return default_collate([sample["x"] for sample in samples])[1:]


def gradient(samples):
    return default_collate([sample["x"] for sample in samples]).requires_grad_()


def arrays(samples):
    return np.stack([sample["x"].numpy() for sample in samples])


def ragged(samples):
    try:
        return default_collate([torch.zeros(SIZE + number) for number in range(len(samples))])
    except RuntimeError as error:
        return str(error)


def mixed(samples):
    return default_collate([torch.ones(SIZE, dtype=torch.float64), torch.ones(SIZE)])


def show(title, loader, epochs=2):
    for epoch in range(epochs):
        for number, batch in enumerate(loader):
            if isinstance(batch, (str, np.ndarray)):
                print(title, epoch, number, batch[:60] if isinstance(batch, str) else batch.sum())
                continue
            tensor = first(batch)
            others = [float(other.detach().sum()) for other in batch if isinstance(other, torch.Tensor)] if isinstance(batch, tuple) else []
            print(title, epoch, number, tuple(tensor.shape), tensor.stride(), tensor.dtype, float(tensor.detach().sum()), others)
            if isinstance(batch, dict):
                print({key: value for key, value in batch.items() if key != "x"})
            with torch.no_grad():
                tensor += 1000
            if others:
                print([float(other.detach().sum()) for other in batch])


def main():
    context = sys.argv[1]
    options = {"num_workers": 1, "multiprocessing_context": context, "persistent_workers": True}
    for kind in ("plain", "dict", "list", "view", "array", "storage"):
        show(f"cached {kind}", DataLoader(Cached(kind), batch_size=None, **options))
    for kind in ("batch", "tensor", "view"):
        show(f"keeping {kind}", DataLoader(Fresh(), batch_size=2, collate_fn=Keeping(kind), prefetch_factor=1, **options))
    for collate in (default_collate, stacked, views, paired, transposed, part, gradient, arrays, ragged, mixed):
        show(collate.__name__, DataLoader(Fresh(), batch_size=2, collate_fn=collate, **options), 1)
    show("samples", DataLoader(Fresh(), batch_size=None, **options), 1)
    show("yielded", DataLoader(Yielded(), batch_size=2, **options), 1)
    show("tensors", DataLoader(TensorDataset(torch.ones(8, SIZE), torch.arange(8)), batch_size=2, **options), 1)


if __name__ == "__main__":
    main()
