"""Measures how torch passes a CUDA tensor between two processes, through a queue of torch.multiprocessing.

    python torch_ipc.py [--quick] [--out FILE]

Each round is as in `cargo bench --bench handover`. The producer fills a tensor on the device and puts it into the
queue. The consumer adds the tensor to itself into a buffer of its own, copies the last element to the host, and
answers through a pipe. The program measures rounds with a new tensor from torch's allocator for each, and rounds that
fill the same tensor again. Figures are medians of a round, from before the producer makes the tensor until it has the
answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

SIZES = [1 << 10, 1 << 20, 16 << 20, 256 << 20]
QUICK_SIZES = [1 << 10, 1 << 20]


def consume(tensors: Any, answers: Any, largest: int) -> None:
    """The consumer's process: it answers for each tensor in the queue, until it gets None."""
    import torch

    out = torch.empty(largest // 4, dtype=torch.int32, device="cuda:0")
    torch.cuda.synchronize()
    answers.send("ready")
    while True:
        tensor = tensors.get()
        got = time.monotonic_ns()
        if tensor is None:
            return
        into = out[: tensor.numel()]
        torch.add(tensor, tensor, out=into)
        last = int(into[-1].item())
        done = time.monotonic_ns()
        # Torch's producer gets its memory back when the consumer drops the last reference.
        del tensor, into
        answers.send((last, got, done))


def one_round(torch: Any, tensors: Any, answers: Any, number: int, elements: int, reused: Any) -> dict[str, int]:
    begin = time.monotonic_ns()
    if reused is None:
        tensor = torch.full((elements,), number, dtype=torch.int32, device="cuda:0")
    else:
        tensor = reused.fill_(number)
    torch.cuda.current_stream().synchronize()
    tensors.put(tensor)
    published = time.monotonic_ns()
    del tensor
    if not answers.poll(30):
        raise TimeoutError("the consumer does not answer")
    last, got, done = answers.recv()
    seen = time.monotonic_ns()
    if last != 2 * number:
        raise AssertionError(f"what was handed over is not what was made: {last} instead of {2 * number}")
    return {"begin": begin, "published": published, "got": got, "done": done, "seen": seen}


def summary(rounds: list[dict[str, int]]) -> dict[str, float]:
    whole = [r["seen"] - r["begin"] for r in rounds]
    return {
        "p50_ns": statistics.median(whole),
        "min_ns": min(whole),
        "max_ns": max(whole),
        "made_ns": statistics.median(r["published"] - r["begin"] for r in rounds),
        "to_lease_ns": statistics.median(r["got"] - r["published"] for r in rounds),
        "read_ns": statistics.median(r["done"] - r["got"] for r in rounds),
        "rounds": len(rounds),
    }


def measure(quick: bool) -> dict[str, Any]:
    import torch
    import torch.multiprocessing as multiprocessing

    sizes = QUICK_SIZES if quick else SIZES
    context = multiprocessing.get_context("spawn")
    tensors = context.Queue()
    mine, theirs = context.Pipe()
    consumer = context.Process(target=consume, args=(tensors, theirs, max(sizes)), daemon=True)
    consumer.start()
    if not mine.poll(60):
        raise TimeoutError("the consumer does not come up")
    mine.recv()
    figures, number = [], 0
    for nbytes in sizes:
        rounds = 5 if quick else 60 if nbytes > 64 << 20 else 300
        elements = nbytes // 4
        for label in ("new tensor", "same tensor"):
            reused = torch.empty(elements, dtype=torch.int32, device="cuda:0") if label == "same tensor" else None
            found = []
            for _ in range(rounds + 5):
                number += 1
                found.append(one_round(torch, tensors, mine, number, elements, reused))
            # The first rounds allocate memory and open its handles, so the summary leaves them out.
            figures.append({"bytes": nbytes, "way": label, "first_ns": found[0]["seen"] - found[0]["begin"], **summary(found[5:])})
    tensors.put(None)
    consumer.join(20)
    return {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(0),
        "figures": figures,
    }


def missing() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return None


def time_of(ns: float) -> str:
    for unit, limit in (("ns", 1e3), ("us", 1e6), ("ms", 1e9)):
        if abs(ns) < limit:
            return f"{ns / (limit / 1e3):.3g} {unit}"
    return f"{ns / 1e9:.3g} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds of few sizes")
    parser.add_argument("--out", type=Path, help="the figures as JSON")
    arguments = parser.parse_args()
    why = missing()
    result: dict[str, Any] = {"missing": why} if why else measure(arguments.quick)
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    if why:
        print(f"torch.multiprocessing: not measured: {why}")
        return 0
    print(f"\ntorch.multiprocessing.Queue, torch {result['torch']} (CUDA {result['cuda']}), {result['device']}\n")
    print("| bytes | way | round: median (least .. most) | made and put | put to tensor in hand | read | the first |")
    print("|---|---|---|---|---|---|---|")
    for f in result["figures"]:
        nbytes = f"{f['bytes'] >> 20} MB" if f["bytes"] >= 1 << 20 else f"{f['bytes'] >> 10} KB"
        spread = f"{time_of(f['p50_ns'])} ({time_of(f['min_ns'])} .. {time_of(f['max_ns'])})"
        parts = " | ".join(time_of(f[key]) for key in ("made_ns", "to_lease_ns", "read_ns", "first_ns"))
        print(f"| {nbytes} | {f['way']} | {spread} | {parts} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
