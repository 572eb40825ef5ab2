"""Datasets and helpers of the loader tests: in a module, so that spawned workers find them."""

import os
import random
import signal
import time
from collections import namedtuple

import numpy as np

from tensorlend.numpy import empty, get_worker_info

Point = namedtuple("Point", "x y")


class Nested:
    """Samples of every type that the loader collates."""

    def __init__(self, length=23):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if not 0 <= index < self.length:
            raise IndexError(index)
        picture = np.full((2, 3), index, np.float32)
        return {
            "picture": picture,
            "label": index,
            "share": index / 7,
            "even": index % 2 == 0,
            "name": f"sample {index}",
            "point": Point(np.int16(index), [np.uint8(index % 200), (picture[0], -index)]),
        }


class Numbers:
    """Pairs of an array and its index."""

    def __init__(self, length=40, shape=(4,), delay=0.0):
        self.length = length
        self.shape = shape
        self.delay = delay

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.delay)
        return np.full(self.shape, index, np.float32), index


class Drawing(Numbers):
    """Random numbers of both generators, which depend on the worker's seeds."""

    def __getitem__(self, index):
        return np.array([index, random.random(), np.random.random()])


class Failing(Numbers):
    """Raises for one index; `what` says what."""

    def __init__(self, what, at=13, length=40):
        super().__init__(length)
        self.what = what
        self.at = at

    def __getitem__(self, index):
        if index == self.at:
            if self.what == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.what == "exits":
                os._exit(7)
            if self.what == "sleeps":
                time.sleep(60)
            raise {"value": ValueError, "key": KeyError, "stop": StopIteration, "odd": OddError}[self.what](f"no {index}")
        return super().__getitem__(index)


class OddError(Exception):
    """A sample that does not fit into a message."""

    def __init__(self, one, two=None):
        if two is None and "Traceback" in one:
            raise TypeError("two is missing")
        super().__init__(one, two)


class Counted:
    """An iterable dataset: each worker yields its share of 0 to `length`."""

    def __init__(self, length=31, fail_at=None):
        self.length = length
        self.fail_at = fail_at

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            if number == self.fail_at:
                raise ValueError(f"no {number}")
            yield np.full(3, number)


class Told:
    """A worker's information about itself."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        info = get_worker_info()
        return np.array([info.id, info.num_workers, info.seed, info.dataset is self, os.getpid()], dtype=np.int64)


def both(batch):
    """A collate_fn that writes into slots itself, and returns one array twice and one that the loader must copy."""
    pictures = empty((len(batch), 4), "float32")
    for row, (picture, _) in zip(pictures, batch, strict=True):
        row[:] = picture
    labels = np.array([label for _, label in batch])
    return {"pictures": pictures, "again": pictures, "labels": labels[::-1], ("not", "plain"): None, "batch": Holder(labels)}


class Holder:
    """An object that no loader knows."""

    def __init__(self, labels):
        self.labels = labels


def reshaped(batch):
    """A collate_fn that gives a slot's array another shape in place."""
    out = empty((len(batch), 4), "float32")
    out[:] = [picture for picture, _ in batch]
    out.shape = (4, len(batch))
    return out


def fail_to_begin(worker):
    """A worker_init_fn."""
    raise OSError(f"worker {worker} cannot begin")


def mark(worker):
    """A worker_init_fn: sets what `marked` returns."""
    os.environ["MARKED"] = str(100 + worker)


def marked(batch):
    """A collate_fn that returns the arguments of the worker."""
    return np.array([int(os.environ["MARKED"])] * len(batch))


def same(one, other):
    """Compares batches: types, order of keys, dtypes, values."""
    assert type(one) is type(other), (type(one), type(other))
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif hasattr(one, "data_ptr"):
        assert one.dtype == other.dtype and one.shape == other.shape and one.equal(other), (one, other)
    else:
        assert one == other


def train_under_a_handler(pipe, method):
    """A trainer that is a child of multiprocessing, handles SIGTERM itself, and leaves an epoch unfinished."""
    from tensorlend.numpy import SharedLoader

    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    loader = SharedLoader(Numbers(4000, delay=0.01), 4, 2, multiprocessing_context=method, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    pipe.send(batches.worker_pids)
    # The process keeps the epoch until it ends.
    globals()["kept"] = loader, batches


def train_on_slow_samples(pipe, method):
    """As above, with a worker that takes long for a sample."""
    from tensorlend.numpy import SharedLoader

    signal.signal(signal.SIGTERM, lambda *_: None)
    batches = iter(SharedLoader(Failing("sleeps", at=4), 4, 1, multiprocessing_context=method))
    next(batches)
    pipe.send(batches.worker_pids)
    globals()["kept"] = batches


def signals(_index):
    """A collate_fn that returns the worker's signal handlers."""
    return np.array([signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, not signal.pthread_sigmask(signal.SIG_BLOCK, ())])
