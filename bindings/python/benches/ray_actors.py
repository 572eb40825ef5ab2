"""A tensor from one actor of Ray to another: by Ray's object store, and by the transport of `tensorlend.ray`.

python benches/ray_actors.py [--rounds N] [--mode read]

A hop is from the call of the producer's method, which returns a tensor that exists already, until the driver has the reply of
the consumer, which has looked at a byte of each page. The contenders take turns. `torch` and `numpy` are Ray's object store: Ray
copies a tensor of torch by a pickle, and lets an array of numpy stand in the store.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

import ray
import torch
from measure import PAGE, machine, size

import tensorlend
import tensorlend.ray

SIZES = [1 << 20, 256 << 20]


def actor() -> Any:
    """The class of both actors. Ray checks the transport's name when it is defined."""

    @ray.remote(num_cpus=0)
    class Actor:
        def __init__(self) -> None:
            torch.set_num_threads(1)
            self.tensors: dict[int, Any] = {}

        def _tensor(self, nbytes: int) -> Any:
            if nbytes not in self.tensors:
                self.tensors[nbytes] = torch.ones(nbytes, dtype=torch.uint8)
            return self.tensors[nbytes]

        def torch(self, nbytes: int) -> Any:
            return self._tensor(nbytes)

        def numpy(self, nbytes: int) -> Any:
            return self._tensor(nbytes).numpy()

        @ray.method(tensor_transport="tensorlend")
        def lent(self, nbytes: int) -> Any:
            return self._tensor(nbytes)

        def look(self, value: Any) -> int:
            return int(value[::PAGE].sum())

    return Actor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--mode", choices=["cow", "read"], default="cow", help="of the receiver's tensors")
    arguments = parser.parse_args()
    with tensorlend.embedded() as broker:
        tensorlend.ray.install(client=broker.connect(), mode=arguments.mode)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30)
        Actor = actor()
        producer, consumer = Actor.remote(), Actor.remote()
        print(f"{machine()['machine']}, Python {machine()['python']}, ray {ray.__version__}, torch {torch.__version__}, load {os.getloadavg()}")
        print("| tensor | torch | numpy | lent | torch / lent | numpy / lent |\n|---|---:|---:|---:|---:|---:|")
        for nbytes in SIZES:
            times: dict[str, list[float]] = {"torch": [], "numpy": [], "lent": []}
            for number in range(arguments.rounds + 3):
                for name, found in times.items():
                    began = time.perf_counter()
                    looked = ray.get(consumer.look.remote(getattr(producer, name).remote(nbytes)))
                    elapsed = (time.perf_counter() - began) * 1e3
                    # A sum of numpy's bytes is a whole number, too.
                    assert looked == -(-nbytes // PAGE), looked
                    if number >= 3:
                        found.append(elapsed)
            middle = {name: statistics.median(found) for name, found in times.items()}
            cells = [f"{middle[name]:,.2f} ({min(found):,.2f} to {max(found):,.2f})" for name, found in times.items()]
            ratios = [f"{middle[name] / middle['lent']:.2f}" for name in ("torch", "numpy")]
            print(f"| {size(nbytes)} | {' | '.join([*cells, *ratios])} |", flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main()
