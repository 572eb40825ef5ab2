"""Measures the time of loaders. Loaders take turns within one run, so that a busy machine slows all of them down."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import loaders
import torch
from model import Trainer

#: One sample of a loader's time is the mean over this many batches.
WINDOW = 16


@dataclass
class Run:
    """The results of one loader at one batch size."""

    batch: int
    loader: str
    epochs_s: list[float] = field(default_factory=list)
    #: Seconds in `next`, for each epoch.
    next_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    #: Whether the losses are equal to those of the reference bit by bit.
    same: bool = False


def epoch(loader: loaders.Loader, trainer: Trainer) -> tuple[float, float]:
    """Trains one epoch. Returns the seconds of the whole epoch and the seconds within `next`."""
    began = time.perf_counter()
    inside = 0.0
    batches = iter(loader)
    while True:
        asked = time.perf_counter()
        batch = next(batches, None)
        inside += time.perf_counter() - asked
        if batch is None:
            return time.perf_counter() - began, inside
        trainer.learn(*batch)


def epochs(
    make: dict[str, Callable[[], loaders.Loader]],
    trainer: Callable[[], Trainer],
    test: loaders.Pair,
    batch: int,
    count: int,
) -> list[Run]:
    """Measures `count` epochs of each loader, in turns.

    Each loader trains a network of its own; all networks start with the same weights. The first epoch of each loader
    includes the start of its workers.
    """
    runs = {name: Run(batch, name) for name in make}
    made = {name: build() for name, build in make.items()}
    trainers = {name: trainer() for name in make}
    for _ in range(count):
        for name, loader in made.items():
            whole, inside = epoch(loader, trainers[name])
            runs[name].epochs_s.append(whole)
            runs[name].next_s.append(inside)
    reference = next(iter(trainers.values())).losses
    for name, run in runs.items():
        run.losses = trainers[name].losses
        run.accuracy = trainers[name].accuracy(*test)
        run.same = loaders.numbers(run.losses) == loaders.numbers(reference)
        loaders.close(made[name])
    return list(runs.values())


@dataclass
class Pair:
    """A loader compared with the reference, batch by batch in turns.

    All times are in microseconds for a batch; each sample is the mean over `WINDOW` batches.
    """

    batch: int
    loader: str
    batches: int
    #: The whole batch with the reference: the median.
    reference_us: float
    #: `next` alone, of the reference and of the loader: median, minimum and maximum.
    reference_next_us: list[float]
    next_us: list[float]
    #: The whole batch, loader minus reference, of samples taken side by side: median, lower and upper quartile.
    more_us: list[float]


def pair(
    name: str,
    make: Callable[[], loaders.Loader],
    reference: loaders.Loader,
    trainer: Callable[[], Trainer],
    size: int,
    count: int,
) -> Pair:
    """Measures the time that a loader adds to a batch.

    It compares batches that ran one after the other, so that other load on the machine slows both of them down.
    """
    loader = make()
    ours, theirs = _Turns(loader, trainer()), _Turns(reference, trainer())
    # The first epoch starts workers and takes page faults, so it is not measured.
    for _ in range(len(list(reference))):
        ours.turn()
        theirs.turn()
    ours.clear()
    theirs.clear()
    for turn in range(count):
        # The second program finds the data of the first one in the caches, so both run second equally often.
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        first.turn()
        second.turn()
    loaders.close(loader)
    whole = _windows(theirs.whole)
    quartiles = statistics.quantiles([(a - b) * 1e6 for a, b in zip(_windows(ours.whole), whole, strict=True)], n=4)
    return Pair(
        size,
        name,
        count,
        statistics.median(whole) * 1e6,
        _told(_windows(theirs.inside)),
        _told(_windows(ours.inside)),
        [quartiles[1], quartiles[0], quartiles[2]],
    )


class _Turns:
    """A loader with its network, which trains one batch for each call of `turn`, epoch after epoch."""

    def __init__(self, loader: loaders.Loader, trainer: Trainer) -> None:
        self._batches = self._forever(loader)
        self._trainer = trainer
        self.clear()

    @staticmethod
    def _forever(loader: loaders.Loader) -> Iterator[Any]:
        while True:
            yield from loader

    def clear(self) -> None:
        self.whole: list[float] = []
        self.inside: list[float] = []

    def turn(self) -> None:
        asked = time.perf_counter()
        batch = next(self._batches)
        got = time.perf_counter()
        self._trainer.learn(*batch)
        del batch
        self.inside.append(got - asked)
        self.whole.append(time.perf_counter() - asked)


def _windows(values: list[float]) -> list[float]:
    """Returns the means of `WINDOW` consecutive values: some loaders do the work for several batches at once."""
    return [statistics.fmean(values[at : at + WINDOW]) for at in range(0, len(values) - WINDOW + 1, WINDOW)]


def _told(seconds: list[float]) -> list[float]:
    return [statistics.median(seconds) * 1e6, min(seconds) * 1e6, max(seconds) * 1e6]


def curve(loader: loaders.Loader, trainer: Trainer, count: int) -> list[float]:
    """Trains `count` epochs. Returns the loss of each batch."""
    for _ in range(count):
        for batch in loader:
            trainer.learn(*batch)
    return trainer.losses


def by_epoch(losses: list[float], count: int) -> list[float]:
    """Returns the mean loss of each of the `count` epochs."""
    size = len(losses) // count
    return [float(f"{statistics.fmean(losses[at : at + size]):.6g}") for at in range(0, len(losses), size)]


class First:
    """A loader whose only batch is the first `rows` rows of a published data set, like the study's batch."""

    def __init__(self, whole: Callable[[], loaders.Pair], rows: int) -> None:
        self._whole, self._rows = whole, rows

    def __iter__(self) -> Iterator[loaders.Pair]:
        features, labels = self._whole()
        yield features[: self._rows], labels[: self._rows]


def threads() -> None:
    """Limits torch to one thread, like every measurement in this folder."""
    torch.set_num_threads(1)
