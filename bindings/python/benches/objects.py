"""A dataset in eight worker processes: time until each worker has it, time to the first batch, memory of all, items a second.

The program of https://github.com/pytorch/pytorch/issues/13246: workers read a list[dict] of annotations, collate batches and send them to the trainer.
With a plain list every look at an item writes its reference count, so that a forked worker copies the list page by page.
Under forkserver and spawn each worker receives a pickle of the dataset, as in https://github.com/facebookresearch/spdl/issues/1594.

python benches/objects.py [--data arrays] [--items N] [--rounds N] [--torch] [--methods ...] [--contenders ...] [--skip ...] [--json FILE]

`--data arrays` takes an object with arrays of numpy in place of the list: structures of 64 atoms, 1 KiB each. The default
of 204,800 items has 200 MiB, and `--items 2097152` has 2 GiB.

The contenders `arrow` (a file of Arrow, mapped into memory) and `datasets` (a dataset of Hugging Face, also mapped) need the
packages pyarrow and datasets, and take part only if named. `--skip "spawn, plain list"` leaves that run out: with 2 GiB of
items, it needs 25 GiB of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import again, daemon, described, family, interleaved, markdown, parser, pss, spread, write

WORKERS = 8
BATCH = 64
CONTENDERS = {"dicts": ["plain list", "pickles in an array", "shared"], "arrays": ["plain object", "shared"]}
#: Default numbers of items.
ITEMS = {"dicts": 150_000, "arrays": 200 << 10}
#: Maximum number of items of the bare loop over single items.
BARE_MAX = 20_000
METHODS = ["fork", "forkserver", "spawn"]


def annotation(number: int) -> dict[str, Any]:
    """An item, such as the annotations of COCO have."""
    return {
        "id": number,
        "path": f"/datasets/coco/train2017/{number:012d}.jpg",
        "caption": f"annotation {number}: " + "a man rides a wave on top of a surfboard " * 2,
        "label": number % 80,
        "box": [number * 0.5, 1.0, 2.0, number * 0.25],
        "size": [640, 480],
    }


def generate(items: int) -> Iterator[dict[str, Any]]:
    for number in range(items):
        yield annotation(number)


class Structures(Sequence[dict[str, Any]]):
    """Structures of 64 atoms, in arrays: what a dataset for a potential holds."""

    def __init__(self, items: int) -> None:
        self._positions = np.random.default_rng(0).random((items, 64, 3), np.float32)
        self._types = np.full((items, 64), 6, np.int32)
        self._energies = np.arange(items, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._energies)

    def __getitem__(self, index: Any) -> Any:
        return {"positions": self._positions[index], "types": self._types[index], "energy": self._energies[index]}


class Pickled(Sequence[dict[str, Any]]):
    """Each item as a pickle, all in one array: what detectron2 and others do."""

    def __init__(self, items: Iterator[dict[str, Any]]) -> None:
        texts = [np.frombuffer(pickle.dumps(item), np.uint8) for item in items]
        self._ends = np.cumsum([0] + [len(text) for text in texts])
        self._data = np.concatenate(texts)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, index: Any) -> Any:
        return pickle.loads(memoryview(self._data[self._ends[index] : self._ends[index + 1]]))


class Arrow(Sequence[dict[str, Any]]):
    """A table in a file that each process maps into its memory."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self._path = path
        self._table = pa.ipc.open_file(pa.memory_map(path)).read_all()

    def __reduce__(self) -> Any:
        return Arrow, (self._path,)

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, index: Any) -> Any:
        return self._table.slice(index, 1).to_pylist()[0]

    def __getitems__(self, indices: list[int]) -> Any:
        return self._table.take(indices).to_pylist()


def arrow(source: Iterator[dict[str, Any]], path: str) -> Arrow:
    """Writes the items into a file of Arrow."""
    import pyarrow as pa

    batches = iter(lambda: list(itertools.islice(source, 10_000)), [])
    first = pa.RecordBatch.from_pylist(next(batches))
    with pa.ipc.new_file(path, first.schema) as file:
        file.write_batch(first)
        for rows in batches:
            file.write_batch(pa.RecordBatch.from_pylist(rows, first.schema))
    return Arrow(path)


def made(data: str, contender: str, items: int, folder: str) -> Any:
    """The dataset. Its files, if it has any, are in the folder."""
    if data == "arrays":
        structures = Structures(items)
        if contender == "plain object":
            return structures
        from tensorlend import share

        return share(structures)
    if contender == "datasets":
        import datasets

        datasets.disable_progress_bars()
        rows = {"items": items}
        return datasets.Dataset.from_generator(generate, gen_kwargs=rows, cache_dir=folder, keep_in_memory=False)
    source = generate(items)
    if contender == "plain list":
        return list(source)
    if contender == "arrow":
        return arrow(source, f"{folder}/items.arrow")
    if contender == "pickles in an array":
        return Pickled(source)
    from tensorlend import share

    return share(source)


def collated(rows: list[dict[str, Any]]) -> tuple[Any, Any, Any]:
    """A batch."""
    if "energy" in rows[0]:
        positions, types = (np.stack([row[key] for row in rows]) for key in ("positions", "types"))
        return positions, types, np.array([row["energy"] for row in rows])
    boxes = np.array([row["box"] for row in rows], np.float32)
    return boxes, np.array([row["label"] for row in rows]), [len(row["caption"]) for row in rows]


def look(row: dict[str, Any]) -> None:
    """Reads a part of an item."""
    len(row["caption"] if "caption" in row else row["types"])


def work(data: Any, number: int, batches: Any, begin: Any, end: Any) -> None:
    """A worker: its share of the items in random order, by batches. The first batch at once, and the time when it had the dataset."""
    received = time.perf_counter()
    share = np.random.default_rng(number).permutation(np.arange(number, len(data), WORKERS))
    # As torch's DataLoader does.
    several = getattr(data, "__getitems__", None) or (lambda indices: [data[index] for index in indices])
    for at in range(0, len(share), BATCH):
        batches.put((received, *collated(several(share[at : at + BATCH].tolist()))))
        if at == 0:
            begin.wait()
    began = time.perf_counter()
    for index in share[:BARE_MAX].tolist():
        look(data[index])
    batches.put((time.perf_counter() - began) / max(len(share[:BARE_MAX]), 1))
    end.wait()


class Rows:
    """The dataset of torch's DataLoader."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Any:
        row = self.data[index]
        return np.array(row["box"], np.float32), row["label"], len(row["caption"])


def run_torch(contender: str, method: str, items: int, folder: str) -> dict[str, Any]:
    """One run with torch's DataLoader, in this process."""
    import torch

    torch.set_num_threads(1)
    data = made("dicts", contender, items, folder)
    gc.collect()
    alone = pss(os.getpid())
    began = time.perf_counter()
    loader = torch.utils.data.DataLoader(
        Rows(data),  # type: ignore[arg-type]
        batch_size=BATCH,
        shuffle=True,
        num_workers=WORKERS,
        multiprocessing_context=method,
    )
    first = total = 0.0
    count = 0
    for number, (_, labels, _) in enumerate(loader):
        count += len(labels)
        if number == 0:
            first = time.perf_counter() - began
            began = time.perf_counter()
        if number == len(loader) - WORKERS - 1:
            rate = (count - BATCH) / (time.perf_counter() - began)
            total = pss(*family())
    began = time.perf_counter()
    several = random.Random(0).sample(range(items), min(items, BARE_MAX))
    for index in several:
        look(data[index])
    bare = (time.perf_counter() - began) / len(several)
    return {"alone": alone, "total": total, "first": first, "rate": rate, "bare_us": bare * 1e6}


def run(kind: str, contender: str, method: str, items: int, folder: str) -> dict[str, Any]:
    """One run, in this process."""
    began = time.perf_counter()
    data = made(kind, contender, items, folder)
    gc.collect()
    build = time.perf_counter() - began
    alone = pss(os.getpid())
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["numpy", "tensorlend"])
    # As torch's DataLoader, each worker prefetches two batches: more would count as memory of the data.
    batches, begin, end = context.Queue(2 * WORKERS), context.Barrier(WORKERS + 1), context.Barrier(WORKERS + 1)
    began = time.perf_counter()
    workers = [context.Process(target=work, args=(data, number, batches, begin, end)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    firsts = [batches.get()]
    first = time.perf_counter() - began
    firsts += [batches.get() for _ in range(WORKERS - 1)]
    # The processes have the same clock.
    received = max(message[0] for message in firsts) - began
    count = sum(len(message[2]) for message in firsts)
    begin.wait()
    began = time.perf_counter()
    before = count
    bare, rate = [], 0.0
    while len(bare) < WORKERS:
        message = batches.get()
        if isinstance(message, float):
            bare.append(message)
            continue
        count += len(message[2])
        if count == items:
            rate = (count - before) / (time.perf_counter() - began)
    total = pss(*family())
    end.wait()
    for worker in workers:
        worker.join()
    bare_us = statistics.median(bare) * 1e6
    return {"build": build, "alone": alone, "total": total, "received": received, "first": first, "rate": rate, "bare_us": bare_us}


def one(arguments: argparse.Namespace, contender: str, method: str, items: int) -> dict[str, Any]:
    """Returns the results of one run, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:
        options = ["--items", items, "--data", arguments.data, *["--torch"] * arguments.torch]
        found: dict[str, Any] = again(__file__, "--run", contender, method, folder, *options)
    print(f"{method}, {contender}, {items} items", found, file=sys.stderr)
    return found


def middle(rounds: list[dict[str, Any]], what: str) -> float:
    return statistics.median(figures[what] for figures in rounds)


#: Columns of the table: heads, keys of the results, and units.
COLUMNS = [
    ("every worker has it, s", "received", 1.0, 2),
    ("first batch, s", "first", 1.0, 2),
    ("PSS of all processes, MiB", "total", 2.0**-20, 0),
    ("items/s", "rate", 1.0, 0),
    ("one item, us", "bare_us", 1.0, 1),
]


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--data", choices=list(CONTENDERS), default="dicts")
    options.add_argument("--items", type=int)
    options.add_argument("--torch", action="store_true", help="with torch's DataLoader, of dicts")
    options.add_argument("--methods", nargs="+", default=METHODS)
    options.add_argument("--contenders", nargs="+", help="these contenders, the reference first")
    options.add_argument("--skip", nargs="+", default=[])
    options.add_argument("--json", type=Path)
    options.add_argument("--run", nargs=3)
    arguments = options.parse_args()
    if arguments.run:
        contender, method, folder = arguments.run
        found = run_torch if arguments.torch else functools.partial(run, arguments.data)
        # A child of this process, so that its memory counts.
        with daemon(Path(folder)) if contender == "shared" else contextlib.nullcontext():
            print(json.dumps(found(contender, method, arguments.items, folder)))
        return
    items = arguments.items or ITEMS[arguments.data]
    cases = itertools.product(arguments.methods, arguments.contenders or CONTENDERS[arguments.data])
    cases = [(method, contender) for method, contender in cases if f"{method}, {contender}" not in arguments.skip]
    # With few items: the memory of the processes themselves.
    few = 2 * WORKERS * BATCH
    measured = itertools.product(cases, (few, items))
    found = interleaved(measured, arguments.rounds, lambda it: one(arguments, it[0][1], it[0][0], it[1]), warm=0)

    def added(case: tuple[str, str], what: str) -> float:
        return middle(found[case, items], what) - middle(found[case, few], what)

    copy = added(cases[0], "alone")
    print(described(f"{items:,} items", f"{WORKERS} workers", f"medians of {arguments.rounds} runs"))
    print(f"one copy, {cases[0][1]}: {copy / 2**20:.0f} MiB\n")
    columns = [column for column in COLUMNS if column[1] in found[cases[0], items][0]]
    rows = []
    for case in cases:
        method, contender = case
        reference = next((found[other, items] for other in cases if other[0] == method), [])
        cells = [compared(found[case, items], reference, key, unit, digits) for _, key, unit, digits in columns]
        memory = added(case, "total")
        rows.append([f"{method}, {contender}", *cells, f"{memory / 2**20:,.0f}", f"{memory / copy:.2f}"])
    print(markdown(["start, dataset", *(head for head, *_ in columns), "memory of the data, MiB", "in copies"], rows))
    runs_of = {", ".join(case) + ("" if number != few else ", empty"): runs for (case, number), runs in found.items()}
    write(arguments.json, items=items, runs=runs_of)


def compared(runs: list[dict[str, Any]], reference: list[dict[str, Any]], key: str, unit: float, digits: int) -> str:
    """Returns the median with its extremes, and its ratio to the reference."""
    ratio = f", {middle(runs, key) / middle(reference, key):.2f}x" if runs is not reference else ""
    return spread((figures[key] for figures in runs), digits, unit) + ratio


if __name__ == "__main__":
    main()
