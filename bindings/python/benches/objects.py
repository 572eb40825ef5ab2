"""A dataset of dicts in eight worker processes: memory of all, time to the first batch, items a second.

The program of https://github.com/pytorch/pytorch/issues/13246: workers read a list[dict] of annotations, collate batches and send them to the trainer.
With a plain list every look at an item writes its reference count, so that a forked worker copies the list page by page.

python benches/objects.py [--items N] [--rounds N] [--torch] [--methods ...] [--contenders ...] [--skip ...] [--json FILE]

The contenders `arrow` (a file of Arrow, mapped into memory) and `datasets` (a dataset of Hugging Face, also mapped) need the
packages pyarrow and datasets, and take part only if named. `--skip "spawn, plain list"` leaves that run out: with 2 GiB of
items, it needs 25 GiB of memory.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import multiprocessing
import os
import pickle
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import machine

WORKERS = 8
BATCH = 64
CONTENDERS = ["plain list", "pickles in an array", "frozen"]
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
    from tensorlend import freeze

    return freeze(source)


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
    alone = pss([os.getpid()])
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
            total = pss(family())
    began = time.perf_counter()
    several = random.Random(0).sample(range(items), min(items, BARE_MAX))
    for index in several:
        count += len(data[index]["caption"])
    bare = (time.perf_counter() - began) / len(several)
    return {"alone": alone, "total": total, "first": first, "rate": rate, "bare_us": bare * 1e6}


def pss(pids: list[int]) -> int:
    """Bytes of memory of these processes; what several share is divided among them."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def family() -> list[int]:
    """This process and all that come from it: workers, the fork server, the resource tracker."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def run(contender: str, method: str, items: int, folder: str) -> dict[str, Any]:
    """One run, in this process."""
    began = time.perf_counter()
    data = made(contender, items, folder)
    gc.collect()
    build = time.perf_counter() - began
    alone = pss([os.getpid()])
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
    total = pss(family())
    end.wait()
    for worker in workers:
        worker.join()
    return {"build": build, "alone": alone, "total": total, "first": first, "rate": rate, "bare_us": statistics.median(bare) * 1e6}


def one(contender: str, method: str, items: int, torch: bool) -> dict[str, Any]:
    """One run, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="objects-") as folder:
        command = [sys.executable, __file__, "--run", contender, method, folder, "--items", str(items), *(["--torch"] if torch else [])]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3000).stdout)


def middle(rounds: list[dict[str, Any]], what: str) -> float:
    return statistics.median(figures[what] for figures in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=150_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", action="store_true", help="with torch's DataLoader")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS)
    parser.add_argument("--skip", nargs="+", default=[])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--run", nargs=3)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps((run_torch if arguments.torch else run)(*arguments.run[:2], arguments.items, arguments.run[2])))
        return
    rounds: dict[str, list[dict[str, Any]]] = {}
    for _ in range(arguments.rounds):
        for method in arguments.methods:
            for contender in arguments.contenders:
                if f"{method}, {contender}" in arguments.skip:
                    continue
                # With few items: what the processes themselves take.
                for items in (2 * WORKERS * BATCH, arguments.items):
                    key = f"{method}, {contender}{'' if items == arguments.items else ', empty'}"
                    rounds.setdefault(key, []).append(one(contender, method, items, arguments.torch))
                    print(key, rounds[key][-1], file=sys.stderr)
    start = arguments.methods[0]
    copy = middle(rounds[f"{start}, plain list"], "alone") - middle(rounds[f"{start}, plain list, empty"], "alone")
    print(f"{machine()['machine']}, Python {machine()['python']}, {arguments.items:,} items, {WORKERS} workers, medians of {arguments.rounds} runs")
    print(f"one copy as a list: {copy / 2**20:.0f} MiB\n")
    print("| start | dataset | memory of the data, all processes | in copies of the list | first batch | items/s | one item |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for method in arguments.methods:
        for contender in arguments.contenders:
            if f"{method}, {contender}" in arguments.skip:
                continue
            runs = rounds[f"{method}, {contender}"]
            memory = middle(runs, "total") - middle(rounds[f"{method}, {contender}, empty"], "total")
            print(
                f"| {method} | {contender} | {memory / 2**20:,.0f} MiB | {memory / copy:.2f} | {middle(runs, 'first'):.2f} s "
                f"| {middle(runs, 'rate'):,.0f} | {middle(runs, 'bare_us'):.1f} us |"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), "items": arguments.items, "runs": rounds}, indent=1))


if __name__ == "__main__":
    main()
