"""Counts a trainer's allocations and synchronisations on a GPU, by the allocator of its batches.

    python examples/training/device.py --mnist FOLDER

The study's full batch of 56,000 rows gets to the device in three ways. Torch copies it into memory of cudaMalloc, or
into memory of its asynchronous allocator, or a tensorlend daemon lends it in memory of the daemon's asynchronous
allocator. Torch's profiler counts the calls. If torch finds no CUDA device, or the daemon lends none, the program
prints the reason and no figure. Nobody has run it on a real GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from model import Trainer

import tensorlend

ROWS = 56_000
#: The calls that the program counts, by their names in CUDA's runtime and driver.
CALLS = {
    "allocations": ("cudaMalloc", "cudaMallocAsync", "cuMemCreate", "cuMemAllocAsync", "cuMemAllocFromPoolAsync"),
    "frees": ("cudaFree", "cudaFreeAsync", "cuMemRelease", "cuMemFreeAsync"),
    "synchronisations": ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cuStreamSynchronize"),
    "copies": ("cudaMemcpyAsync", "cudaMemcpy"),
}
#: The ways, each with the variables that choose torch's own allocator. Torch reads them at its start, so each way runs
#: in a process of its own.
WAYS = {
    "torch, cudaMalloc": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "torch, cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    "tensorlend: async slots": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}
CONFIG = '[cuda]\ndevices = ["all"]\nallocator = "async"\n'


def missing() -> str | None:
    """Returns why this machine cannot run the measurement, or None if it can."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    with tensorlend.embedded(CONFIG) as broker, broker.connect() as client:
        return None if client.devices() else f"the broker lends no device: {client.stat()['device']}"


def measure(mnist: Path, epochs: int) -> dict[str, Any]:
    """Returns the counts by way, or the reason for their absence under the key "skipped"."""
    why = missing()
    if why is not None:
        return {"skipped": why}
    counts = {}
    for way, environment in WAYS.items():
        command = [sys.executable, __file__, "--mnist", str(mnist), "--epochs", str(epochs), "--way", way]
        done = subprocess.run(command, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True)
        counts[way] = json.loads(done.stdout)
    return {"device": torch.cuda.get_device_name(), "epochs": epochs, "ways": counts}


def count(way: str, mnist: Path, epochs: int) -> dict[str, float]:
    """Measures one way in this process. Returns the number of calls of each kind, the seconds, and the last loss."""
    import numpy as np

    pictures = np.fromfile(mnist / "train-images-idx3-ubyte", np.uint8, offset=16).reshape(-1, 784)[:ROWS]
    labels = np.fromfile(mnist / "train-labels-idx1-ubyte", np.uint8, offset=8)[:ROWS]
    features, classes = torch.from_numpy(pictures).float() / 255, torch.from_numpy(labels).long()
    with tensorlend.embedded(CONFIG) as broker, broker.connect(label="trainer") as client:
        if way.startswith("tensorlend"):
            client.put("features", features.cuda())
            client.put("labels", classes.cuda())

            def batch() -> tuple[torch.Tensor, torch.Tensor]:
                return client.get("features").torch(), client.get("labels").torch()
        else:

            def batch() -> tuple[torch.Tensor, torch.Tensor]:
                return features.cuda(), classes.cuda()

        trainer = Trainer(784, 10)
        trainer.model.cuda()
        # The first step compiles kernels and allocates; it is not counted.
        trainer.learn(*batch())
        torch.cuda.synchronize()
        began = time.perf_counter()
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            for _ in range(epochs):
                trainer.learn(*batch())
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        calls = {event.key: event.count for event in profiler.key_averages()}
        told: dict[str, float] = {what: sum(calls.get(name, 0) for name in names) for what, names in CALLS.items()}
        return {**told, "seconds": seconds, "loss": trainer.losses[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way is not None:
        print(json.dumps(count(given.way, given.mnist, given.epochs)))
        return
    found = measure(given.mnist, given.epochs)
    print(f"skipped: {found['skipped']}" if "skipped" in found else json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
