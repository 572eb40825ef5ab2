"""A tensor from one actor of Ray to another: by Ray's object store, and by the transport of `tensorlend.ray`.

python benches/ray_actors.py [--rounds N] [--mode read]

A hop is from the call of the producer's method, which returns a tensor that exists already, until the driver has the reply of
the consumer, which has looked at a byte of each page. The contenders take turns. `torch` and `numpy` are Ray's object store: Ray
copies a tensor of torch by a pickle, and lets an array of numpy stand in the store.

python benches/ray_actors.py --microbenchmark [--rounds N] [--seconds S] [--mib N]

The rows of `ray microbenchmark` in which one client puts and gets, next to the same calls of tensorlend. Each turn makes calls for
some time, after two calls to warm up. The first two puts of the large array are a row of their own, because the kernel clears their
pages. The array has 800 MiB, as in Ray's program. `put` and `get` take an array, of one number in the small rows. tensorlend
replaces the value of one name at each put.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ray
from measure import PAGE, described, interleaved, markdown, parser, size, spread

import tensorlend

SIZES = [1 << 20, 256 << 20]


def actor() -> Any:
    """The class of both actors. Ray checks the transport's name when it is defined."""
    import torch

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


def rate(call: Callable[[], object], seconds: float) -> float:
    """Returns the calls per second, of about so many seconds, or with 0 that of a single call without those to warm up."""
    if seconds:
        call(), call()
    calls, began = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        if (elapsed := time.perf_counter() - began) > seconds:
            return calls / elapsed


def cells(row: str, unit: float, rates: dict[str, list[float]]) -> list[str]:
    """Returns a row of the table: the rates, and their ratios to Ray's."""
    middle = {name: statistics.median(found) for name, found in rates.items()}
    ratios = [f"{middle[name] / middle['ray']:.2f}" for name in ("object", "array")]
    return [row, *(spread(found, 0 if unit == 1 else 2, unit) for found in rates.values()), *ratios]


def microbenchmark(rounds: int, seconds: float, nbytes: int) -> None:
    """Prints the rows of `ray microbenchmark`."""
    with tensorlend.embedded('[pool]\nbytes_max = "4GiB"\n') as broker, broker.connect() as client:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=6 * nbytes + (256 << 20))
        array, number = np.zeros(nbytes // 8, np.int64), np.zeros(1, np.int64)
        reference = ray.put(0)
        client.put_object("object", 0)
        client.put("array", number)
        large: dict[str, Callable[[], object]] = {
            "ray": lambda: ray.put(array),
            "object": lambda: client.put_object("large object", array),
            "array": lambda: client.put("large array", array),
        }
        table: dict[str, tuple[float, dict[str, Callable[[], object]]]] = {
            "get calls per second": (
                1,
                {"ray": lambda: ray.get(reference), "object": lambda: client.get_object("object"), "array": lambda: client.get("array").numpy()},
            ),
            "put calls per second": (
                1,
                {"ray": lambda: ray.put(0), "object": lambda: client.put_object("object", 0), "array": lambda: client.put("array", number)},
            ),
            f"put, GB per second, {size(nbytes)}": (nbytes / 1e9, large),
        }
        print(described(f"ray {ray.__version__}", f"medians of {rounds} turns"))
        rows = []
        for row, (unit, calls) in table.items():
            if calls is large:
                firsts = {name: [rate(call, 0) for _ in range(2)] for name, call in large.items()}
                rows.append(cells(f"{row}, the first two", unit, firsts))
            rows.append(cells(row, unit, interleaved(calls, rounds, lambda name, calls=calls: rate(calls[name], seconds))))
        print(markdown(["one client", "Ray", "`put_object`, `get_object`", "`put`, `get`", "objects / Ray", "arrays / Ray"], rows))
        ray.shutdown()


def main() -> None:
    options = parser(__doc__, rounds=30)
    options.add_argument("--mode", choices=["cow", "read"], default="cow", help="of the receiver's tensors")
    options.add_argument("--microbenchmark", action="store_true", help="the rows of Ray's own benchmark")
    options.add_argument("--seconds", type=float, default=1.0, help="of a turn of --microbenchmark")
    options.add_argument("--mib", type=int, default=800, help="of the large array of --microbenchmark")
    arguments = options.parse_args()
    if arguments.microbenchmark:
        microbenchmark(arguments.rounds, arguments.seconds, arguments.mib << 20)
        return
    import torch

    import tensorlend.ray

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
