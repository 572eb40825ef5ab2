"""Blocks of a KV cache as values: one tensor or one dataset, for each block of 16 tokens or for each chunk of 256.

python benches/kvcache.py [--tokens N] [--rounds N] [--json FILE]

A prompt's keys and values are in pages, for each layer an array, as an engine has them. Saving copies each page from all layers into values,
and looking up and loading are done by another client. The layouts take turns. Processor time of the calling thread: median and range of all
rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import machine, parser, spread, write

import tensorlend

BLOCK = 16
#: Layers, and bytes of a token in one layer: 2 (keys, values) x heads x 128 or 64 x 2 bytes.
MODELS = {"8B: 32 layers, 8 heads of 128": (32, 4096), "0.5B: 24 layers, 2 heads of 64": (24, 512)}
LAYOUTS = [("tensor", 1), ("dataset", 1), ("tensor", 16), ("dataset", 16)]


class Pages:
    """The pages of a prompt, and its values in one layout."""

    def __init__(self, model: tuple[int, int], tokens: int, kind: str, blocks: int) -> None:
        self.layers, per_token = model
        self.kind, self.blocks, self.page_bytes = kind, blocks, per_token * BLOCK
        self.count = tokens // BLOCK
        self.pages = [np.full((self.count, self.page_bytes), layer, np.uint8) for layer in range(self.layers)]
        # An engine's pages of one prompt are anywhere.
        self.table = np.random.default_rng(1).permutation(self.count)
        self.names = [f"kv/0123456789ab.0/{number:032x}" for number in range(self.count // blocks)]

    def save(self, client: Any) -> None:
        """Copies all pages into values."""
        for number, name in enumerate(self.names):
            table = self.table[number * self.blocks : (number + 1) * self.blocks]
            if self.kind == "tensor":
                with client.create((self.layers, self.blocks, self.page_bytes), np.uint8, name=name) as draft:
                    self._copy(table, [draft.array[layer] for layer in range(self.layers)], out=True)
            else:
                drafts = [client.create((self.blocks, self.page_bytes), np.uint8) for _ in range(self.layers)]
                self._copy(table, [draft.array for draft in drafts], out=True)
                client.put_dataset(name, {str(layer): draft for layer, draft in enumerate(drafts)})

    def look_up(self, client: Any) -> None:
        """Asks for all values."""
        assert all(client.exists(name) for name in self.names)

    def load(self, client: Any) -> None:
        """Copies all values into pages."""
        for number, name in enumerate(self.names):
            table = self.table[number * self.blocks : (number + 1) * self.blocks]
            if self.kind == "tensor":
                with client.get(name) as lease:
                    array = lease.numpy()
                    self._copy(table, [array[layer] for layer in range(self.layers)], out=False)
            else:
                self._copy(table, client.get_dataset(name).numpy(), out=False)

    def _copy(self, table: Any, values: Any, *, out: bool) -> None:
        for pages, value in zip(self.pages, values, strict=True):
            for index, page in enumerate(table):
                if out:
                    value[index] = pages[page]
                else:
                    pages[page] = value[index]


def timed_ms(work: Callable[[Any], None], client: Any) -> float:
    """Returns the processor time of one call."""
    begun = time.thread_time()
    work(client)
    return (time.thread_time() - begun) * 1e3


def main() -> None:
    """Prints a table."""
    options = parser(__doc__, rounds=9)
    options.add_argument("--tokens", type=int, default=2048)
    options.add_argument("--json")
    arguments = options.parse_args()
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    with tensorlend.embedded() as broker, broker.connect() as engine, broker.connect() as other:
        for model, shape in MODELS.items():
            for _ in range(arguments.rounds):
                for kind, blocks in LAYOUTS:
                    pages = Pages(shape, arguments.tokens, kind, blocks)
                    row = found.setdefault(model, {}).setdefault(f"{kind}, {blocks * BLOCK} tokens", {})
                    for step, work, client in (
                        ("save", pages.save, engine), ("look up", pages.look_up, other), ("load", pages.load, other), ("load again", pages.load, other),
                    ):  # fmt: skip
                        row.setdefault(step, []).append(timed_ms(work, client))
                    for name in pages.names:
                        engine.delete(name)
    print(machine())
    for model, rows in found.items():
        print(f"\n{model}, {arguments.tokens} tokens, ms")
        for layout, steps in rows.items():
            cells = [f"{step} {spread(ms)}" for step, ms in steps.items()]
            print(f"{layout:<22}" + "  ".join(cells))
    write(arguments.json, tokens=arguments.tokens, ms=found)


if __name__ == "__main__":
    main()
