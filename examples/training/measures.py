"""What is timed. Contenders take turns within one run, so that a busy machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import loaders
import torch
from model import Trainer

#: Batches whose mean is one sample of what a loader adds.
WINDOW = 16


@dataclass
class Run:
    """One loader's epochs at one batch size."""

    batch: int
    loader: str
    epochs_s: list[float] = field(default_factory=list)
    #: Of each epoch: seconds in `next`.
    next_s: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0
    #: Whether the losses are those of the reference, to the last bit.
    same: bool = False


def epoch(loader: loaders.Loader, trainer: Trainer) -> tuple[float, float]:
    """Seconds of an epoch, and of those the ones in `next`."""
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
    """`count` epochs of each loader, in turns. Each teaches a network of its own; all begin alike. The first epoch of each
    starts workers, and stands first."""
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
    """One loader beside the reference, batch by batch in turns: microseconds of a batch, each sample the mean of `WINDOW`."""

    batch: int
    loader: str
    batches: int
    #: Of the reference.
    reference_us: float
    #: `next` alone, of the reference and of the loader: median, least and most.
    reference_next_us: list[float]
    next_us: list[float]
    #: Differences of neighbours: median, and the quartiles.
    more_us: list[float]


def pair(
    name: str,
    make: Callable[[], loaders.Loader],
    reference: loaders.Loader,
    trainer: Callable[[], Trainer],
    size: int,
    count: int,
) -> Pair:
    """What a loader adds to a batch. Neighbours in time are compared, so that what else runs on the machine hits both."""
    loader = make()
    ours, theirs = _Turns(loader, trainer()), _Turns(reference, trainer())
    # The first epoch starts workers, and touches pages for the first time.
    for _ in range(len(list(reference))):
        ours.turn()
        theirs.turn()
    ours.clear()
    theirs.clear()
    for turn in range(count):
        # Who comes second finds weights and code of the other in the caches: both come second equally often.
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
    """A loader and its network, one batch at a time, epoch after epoch."""

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
    """Means of so many neighbours: some loaders do the work for several batches at once."""
    return [statistics.fmean(values[at : at + WINDOW]) for at in range(0, len(values) - WINDOW + 1, WINDOW)]


def _told(seconds: list[float]) -> list[float]:
    return [statistics.median(seconds) * 1e6, min(seconds) * 1e6, max(seconds) * 1e6]


def curve(loader: loaders.Loader, trainer: Trainer, count: int) -> list[float]:
    """Losses of `count` epochs."""
    for _ in range(count):
        for batch in loader:
            trainer.learn(*batch)
    return trainer.losses


def by_epoch(losses: list[float], count: int) -> list[float]:
    """Mean losses of `count` epochs."""
    size = len(losses) // count
    return [float(f"{statistics.fmean(losses[at : at + size]):.6g}") for at in range(0, len(losses), size)]


class First:
    """The first rows of what is published, as one batch: the study's."""

    def __init__(self, whole: Callable[[], loaders.Pair], rows: int) -> None:
        self._whole, self._rows = whole, rows

    def __iter__(self) -> Iterator[loaders.Pair]:
        features, labels = self._whole()
        yield features[: self._rows], labels[: self._rows]


def threads() -> None:
    """One thread for torch, as everywhere here."""
    torch.set_num_threads(1)
