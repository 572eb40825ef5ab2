"""The cost of calls of the package, compared with the least time that Python takes for the same work, in one process.

    python overhead.py [--out STEM]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorlend
from measure import Row, interleaved, parser, row, save

REFERENCE = "floor: numpy.copyto into warm memory"


def timed(call: Callable[[], object], repeat: int) -> float:
    began = time.perf_counter()
    for _ in range(repeat):
        call()
    return (time.perf_counter() - began) / repeat


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, default=Path("python-overhead"))
    arguments = options.parse_args()
    rows: list[Row] = []
    with tensorlend.embedded('[pool]\nbytes_max = "4GiB"\n') as broker, broker.connect() as client:
        for nbytes in (1 << 10, 1 << 16, 1 << 20, 1 << 24):
            array, warm, out = (np.ones(nbytes // 4, np.float32) for _ in range(3))
            client.put("array", array)
            calls: dict[str, Callable[[], object]] = {
                REFERENCE: lambda: np.copyto(warm, array),
                "put": lambda: client.put("array", array),
                "create and publish, nothing written": lambda: client.create(array.shape, "float32").publish("array"),
                "get": lambda: client.get("array"),
                "get and numpy()": lambda: client.get("array").numpy(),
                "get and numpy.asarray": lambda: np.asarray(client.get("array")),
                "get and numpy.from_dlpack": lambda: np.from_dlpack(client.get("array")),
                "get_into": lambda: client.get_into("array", out),
                "get, copy on write": lambda: client.get("array", mode="cow"),
            }
            repeat = max(3, min(2000, (1 << 27) // nbytes))
            taken = interleaved(calls, 11, lambda name: timed(calls[name], max(3, repeat // (20 if name.endswith("write") else 1))))
            rows += [row("one call", name, nbytes, took) for name, took in taken.items()]
    save(arguments.out, "What a call costs, from Python", rows, REFERENCE, [])


if __name__ == "__main__":
    main()
