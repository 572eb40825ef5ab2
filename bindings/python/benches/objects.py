"""A dataset of dicts in eight worker processes: memory of all, time to the first batch, items a second.

The program of https://github.com/pytorch/pytorch/issues/13246: workers read a list[dict] of annotations, collate batches and send them to the trainer.
With a plain list every look at an item writes its reference count, so that a forked worker copies the list page by page.

python benches/objects.py [--items N] [--rounds N] [--torch] [--methods ...] [--contenders ...] [--skip ...] [--json FILE]

The contenders `arrow` (a file of Arrow, mapped into memory) and `datasets` (a dataset of Hugging Face, also mapped) need the
packages pyarrow and datasets, and take part only if named. `--skip "spawn, plain list"` leaves that run out: with 2 GiB of
items, it needs 25 GiB of memory.
"""

from __future__ import annotations

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
from measure import again, described, family, interleaved, parser, pss, write

WORKERS = 8
BATCH = 64
CONTENDERS = ["plain list", "pickles in an array", "shared"]
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


def made(contender: str, items: int, folder: str) -> Any:
    """The dataset. Its files, if it has any, are in the folder."""
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


def work(data: Any, number: int, batches: Any, begin: Any, end: Any) -> None:
    """A worker: its share of the items in random order, by batches. The first batch at once."""
    share = np.random.default_rng(number).permutation(np.arange(number, len(data), WORKERS))
    # As torch's DataLoader does.
    several = getattr(data, "__getitems__", None) or (lambda indices: [data[index] for index in indices])
    for at in range(0, len(share), BATCH):
        rows = several(share[at : at + BATCH].tolist())
        boxes = np.array([row["box"] for row in rows], np.float32)
        labels = np.array([row["label"] for row in rows])
        batches.put((boxes, labels, [len(row["caption"]) for row in rows]))
        if at == 0:
            begin.wait()
    began = time.perf_counter()
    count = 0
    for index in share[:BARE_MAX].tolist():
        count += len(data[index]["caption"])
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
    data = made(contender, items, folder)
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
        count += len(data[index]["caption"])
    bare = (time.perf_counter() - began) / len(several)
    return {"alone": alone, "total": total, "first": first, "rate": rate, "bare_us": bare * 1e6}


def run(contender: str, method: str, items: int, folder: str) -> dict[str, Any]:
    """One run, in this process."""
    began = time.perf_counter()
    data = made(contender, items, folder)
    gc.collect()
    build = time.perf_counter() - began
    alone = pss(os.getpid())
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(["numpy", "tensorlend"])
    batches, begin, end = context.Queue(), context.Barrier(WORKERS + 1), context.Barrier(WORKERS + 1)
    began = time.perf_counter()
    workers = [context.Process(target=work, args=(data, number, batches, begin, end)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    count = len(batches.get()[1])
    first = time.perf_counter() - began
    for _ in range(WORKERS - 1):
        count += len(batches.get()[1])
    begin.wait()
    began = time.perf_counter()
    before = count
    bare, rate = [], 0.0
    while len(bare) < WORKERS:
        message = batches.get()
        if isinstance(message, float):
            bare.append(message)
            continue
        count += len(message[1])
        if count == items:
            rate = (count - before) / (time.perf_counter() - began)
    total = pss(*family())
    end.wait()
    for worker in workers:
        worker.join()
    return {"build": build, "alone": alone, "total": total, "first": first, "rate": rate, "bare_us": statistics.median(bare) * 1e6}


def one(contender: str, method: str, items: int, torch: bool) -> dict[str, Any]:
    """Returns the results of one run, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:
        found: dict[str, Any] = again(__file__, "--run", contender, method, folder, "--items", items, *["--torch"] * torch)
    print(f"{method}, {contender}, {items} items", found, file=sys.stderr)
    return found


def middle(rounds: list[dict[str, Any]], what: str) -> float:
    return statistics.median(figures[what] for figures in rounds)


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--items", type=int, default=150_000)
    options.add_argument("--torch", action="store_true", help="with torch's DataLoader")
    options.add_argument("--methods", nargs="+", default=METHODS)
    options.add_argument("--contenders", nargs="+", default=CONTENDERS)
    options.add_argument("--skip", nargs="+", default=[])
    options.add_argument("--json", type=Path)
    options.add_argument("--run", nargs=3)
    arguments = options.parse_args()
    if arguments.run:
        print(json.dumps((run_torch if arguments.torch else run)(*arguments.run[:2], arguments.items, arguments.run[2])))
        return
    cases = itertools.product(arguments.methods, arguments.contenders)
    cases = [(method, contender) for method, contender in cases if f"{method}, {contender}" not in arguments.skip]
    # With few items: the memory of the processes themselves.
    few = 2 * WORKERS * BATCH
    measured = itertools.product(cases, (few, arguments.items))
    found = interleaved(measured, arguments.rounds, lambda it: one(it[0][1], it[0][0], it[1], arguments.torch), warm=0)

    def added(case: tuple[str, str], what: str) -> float:
        return middle(found[case, arguments.items], what) - middle(found[case, few], what)

    copy = added((arguments.methods[0], "plain list"), "alone")
    print(described(f"{arguments.items:,} items", f"{WORKERS} workers", f"medians of {arguments.rounds} runs"))
    print(f"one copy as a list: {copy / 2**20:.0f} MiB\n")
    print("| start | dataset | memory of the data, all processes | in copies of the list | first batch | items/s | one item |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case in cases:
        method, contender = case
        runs, memory = found[case, arguments.items], added(case, "total")
        print(
            f"| {method} | {contender} | {memory / 2**20:,.0f} MiB | {memory / copy:.2f} | {middle(runs, 'first'):.2f} s "
            f"| {middle(runs, 'rate'):,.0f} | {middle(runs, 'bare_us'):.1f} us |"
        )
    runs_of = {", ".join(case) + ("" if items != few else ", empty"): runs for (case, items), runs in found.items()}
    write(arguments.json, items=arguments.items, runs=runs_of)


if __name__ == "__main__":
    main()
