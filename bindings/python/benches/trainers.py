"""Batches of accelerate's loaders: as torch's DataLoader sends them, and as leases.

python benches/trainers.py [--rounds N]

An epoch of pictures (float32, 3x224x224, batches of 16 and of 1) by two forked workers, which persist, through
`Accelerator.prepare`. The program reads a byte of each page of a batch. The contenders take turns.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import accelerate
import torch
from measure import PAGE, described, interleaved, parser, spread

import tensorlend
import tensorlend.accelerate
import tensorlend.torch

BATCHES = 60


class Pictures(torch.utils.data.Dataset[Any]):
    """Pictures that are in memory already."""

    def __init__(self) -> None:
        self.pictures = torch.rand(64, 3, 224, 224)

    def __len__(self) -> int:
        return 16 * BATCHES

    def __getitem__(self, index: int) -> Any:
        return self.pictures[index % 64], index


def loader(accelerator: Any, size: int) -> Any:
    dataset = torch.utils.data.Subset(Pictures(), range(size * BATCHES))
    usual: Any = torch.utils.data.DataLoader(
        dataset, size, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    return accelerator.prepare(usual)


def epoch(batches: Any) -> float:
    """Milliseconds for each batch."""
    began = time.perf_counter()
    for pictures, _ in batches:
        pictures.reshape(-1)[:: PAGE // 4].sum()
    return (time.perf_counter() - began) / BATCHES * 1e3


def main() -> None:
    arguments = parser(__doc__, rounds=15).parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    accelerator = accelerate.Accelerator(cpu=True)
    with tensorlend.embedded() as broker:
        client = broker.connect()
        print(described(f"torch {torch.__version__}"))
        print("| batch | torch | tensorlend.run | install() | install(mode=\"read\") |\n|---|---:|---:|---:|---:|")
        for size in (1, 16):
            loaders = {"torch": loader(accelerator, size)}
            tensorlend.torch.install(client=client)
            # Its workers inherit the setting when they start.
            loaders["run"] = loader(accelerator, size)
            epoch(loaders["run"])
            tensorlend.torch.uninstall()
            for mode in ("cow", "read"):
                tensorlend.accelerate.install(client=client, mode=mode)  # type: ignore[arg-type]
                loaders[mode] = loader(accelerator, size)
            tensorlend.accelerate.uninstall()
            times = interleaved(loaders, arguments.rounds, lambda name: epoch(loaders[name]))
            base = statistics.median(times["torch"])
            cells = [f"{spread(found)}, {statistics.median(found) / base:.2f}" for found in times.values()]
            print(f"| {size * 3 * 224 * 224 * 4 / (1 << 20):.1f} MiB | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
