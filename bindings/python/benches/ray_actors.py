"""A tensor from one actor of Ray to another: by Ray's object store, and by the transport of `tensorlend.ray`.

python benches/ray_actors.py [--rounds N] [--mode read]

A hop is from the call of the producer's method, which returns a tensor that exists already, until the driver has the reply of
the consumer, which has looked at a byte of each page. The contenders take turns. `torch` and `numpy` are Ray's object store: Ray
copies a tensor of torch by a pickle, and lets an array of numpy stand in the store.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import ray
import torch
from measure import PAGE, described, interleaved, parser, size, spread

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
    options = parser(__doc__, rounds=30)
    options.add_argument("--mode", choices=["cow", "read"], default="cow", help="of the receiver's tensors")
    arguments = options.parse_args()
    with tensorlend.embedded() as broker:
        tensorlend.ray.install(client=broker.connect(), mode=arguments.mode)
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2 << 30)
        Actor = actor()
        producer, consumer = Actor.remote(), Actor.remote()
        print(described(f"ray {ray.__version__}", f"torch {torch.__version__}"))
        print("| tensor | torch | numpy | lent | torch / lent | numpy / lent |\n|---|---:|---:|---:|---:|---:|")
        for nbytes in SIZES:

            def hop(name: str, nbytes: int = nbytes) -> float:
                began = time.perf_counter()
                looked = ray.get(consumer.look.remote(getattr(producer, name).remote(nbytes)))
                elapsed = time.perf_counter() - began
                # A sum of numpy's bytes is a whole number, too.
                assert looked == -(-nbytes // PAGE), looked
                return elapsed * 1e3

            times = interleaved(("torch", "numpy", "lent"), arguments.rounds, hop, warm=3)
            middle = {name: statistics.median(found) for name, found in times.items()}
            cells = [spread(found) for found in times.values()]
            ratios = [f"{middle[name] / middle['lent']:.2f}" for name in ("torch", "numpy")]
            print(f"| {size(nbytes)} | {' | '.join([*cells, *ratios])} |", flush=True)
        ray.shutdown()


if __name__ == "__main__":
    main()
