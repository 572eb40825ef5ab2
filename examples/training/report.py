"""Writes the results as JSON and as a Markdown page."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import loaders
import measures


def stem() -> str:
    """Returns the common prefix of the file names."""
    return time.strftime("%Y-%m-%d-training", time.gmtime())


def save(folder: Path, found: dict[str, Any], torch_version: str) -> None:
    """Writes all files into `folder` and prints the page."""
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    facts = {
        "machine": f"{model}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": sys.version.split()[0],
        "torch": torch_version,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    (folder / f"{stem()}.json").write_text(json.dumps({**facts, **_short(found)}) + "\n")
    text = _page(facts, found)
    (folder / f"{stem()}.md").write_text(text)
    print(text)


def _short(found: dict[str, Any]) -> dict[str, Any]:
    """Shortens the results for the JSON file: the mean loss of each epoch takes the place of the loss of each batch."""

    def run(run: dict[str, Any]) -> dict[str, Any]:
        count = len(run["epochs_s"])
        return {**run, "losses": measures.by_epoch(run["losses"], count), "epochs_s": _rounded(run["epochs_s"])} | (
            {"next_s": _rounded(run["next_s"])} if "next_s" in run else {"loading_s": _rounded(run["loading_s"])}
        )

    # For the thousand epochs of the iris data set, the file contains the median, the minimum and the maximum.
    iris = [
        {**some, "epochs_s": _told(some["epochs_s"], 1e6), "next_s": _told(some["next_s"], 1e6), "losses": some["losses"][::50]}
        for some in found["iris"]
    ]
    study = {**found["study"], "runs": [run(some) for some in found["study"]["runs"]]}
    inits = {name: [float(f"{loss:.5g}") for loss in losses] for name, losses in found["inits"].items()}
    return {
        **found,
        "epochs": [run(some) for some in found["epochs"]],
        "study": study,
        "iris_us": iris,
        "rust": [run(some) for some in found["rust"]],
        "inits": inits,
        "iris": None,
    }


def _rounded(seconds: list[float]) -> list[float]:
    return [float(f"{value:.4g}") for value in seconds]


def _told(values: list[float], unit: float) -> list[float]:
    """Returns the median, the minimum and the maximum."""
    return [float(f"{value * unit:.4g}") for value in (statistics.median(values), min(values), max(values))]


def _page(facts: dict[str, Any], found: dict[str, Any]) -> str:
    load = ", ".join(map(str, facts["load"]))
    parts = [
        "# Training on lent data",
        f"{facts['machine']}; Python {facts['python']}, torch {facts['torch']} with one thread; {facts['date']}; load of the machine at\n"
        f"the end, over 1, 5 and 15 minutes: {load}. Made by `examples/training/experiment.py`; [what this is](../../examples/training/README.md).",
        "A producer published, and ended:",
        "\n".join(f"* {line}" for line in found["published"]),
        _pairs(found["pairs"]),
        _epochs(found["epochs"]),
        _study(found["study"]),
        _iris(found["iris"]),
        _rust(found["rust"]),
        _memory(found["memory"]),
        _flames(found["flames"]),
        _inits(found["inits"]),
        _device(found["device"]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def _pairs(pairs: list[dict[str, Any]]) -> str:
    rows = []
    for some in pairs:
        more, quarter, three = some["more_us"]
        least, most = some["next_us"][1], some["next_us"][2]
        extra = some["next_us"][0] - some["reference_next_us"][0]
        within = extra <= 0.01 * some["reference_us"] if some["batch"] >= 1024 else extra <= 5
        rows.append(
            [
                str(some["batch"]),
                some["loader"],
                f"{some['next_us'][0]:.1f} ({least:.1f} to {most:.0f})",
                f"{some['reference_next_us'][0]:.1f}",
                f"{extra:.1f}",
                f"{extra / some['reference_us']:.2%}",
                "yes" if within else "no",
                f"{some['reference_us']:.0f}",
                f"{more:+.1f} ({quarter:+.0f} to {three:+.0f})",
            ]
        )
    head = [
        "batch",
        "loader",
        "us in `next`",
        "of the reference",
        "more",
        "of the batch",
        "within",
        "whole batch of the reference",
        "whole batch, more",
    ]
    return (
        "## What a loader adds to a batch\n\n"
        "A trainer by reference, who cuts its batches out of a tensor, and one with the loader take batches in turns, each with a network\n"
        "of its own; medians (least to most) of samples that are the means of 16 batches, since some loaders work for several at once.\n"
        "*More* is `next` less `next` of the reference, in us and as a part of the reference's whole batch (`next`, forward, backward, step).\n"
        "*Within*: at most 1 % at 1024 rows, at most 5 us below. The last column compares whole batches: median, and the quartiles; the\n"
        "lines with the reference itself say how far the measurement goes wrong.\n\n" + _table(head, rows)
    )


def _epochs(runs: list[dict[str, Any]]) -> str:
    sizes = list(dict.fromkeys(run["batch"] for run in runs))
    rows = []
    for name in dict.fromkeys(run["loader"] for run in runs):
        row = [name]
        for size in sizes:
            run = next(run for run in runs if (run["batch"], run["loader"]) == (size, name))
            base = next(run for run in runs if (run["batch"], run["loader"]) == (size, loaders.REFERENCE))
            # Leave out the first epoch, in which the workers start.
            median, least, most = _told(run["epochs_s"][1:], 1e3)
            ratio = median / _told(base["epochs_s"][1:], 1e3)[0]
            row.append(f"{median:.0f} ({least:.0f} to {most:.0f}), {ratio:.2f}x")
        rows.append(row)
    same = all(run["same"] for run in runs)
    count = len(runs[0]["epochs_s"])
    said = (
        "the same with every loader, to the last bit"
        if same
        else "NOT the same with: " + ", ".join(f"{run['loader']} at {run['batch']}" for run in runs if not run["same"])
    )
    knows = ", ".join(
        f"{statistics.median(run['accuracy'] for run in runs if run['batch'] == size):.2%} at {size}" for size in sizes
    )
    return (
        f"## Epochs\n\nAn epoch of 60,000 digits, learned, in ms: median (least to most) of {count - 1}, and the ratio to by reference. Loaders take turns\n"
        f"by epochs. Losses of all batches are {said}. After {count} epochs the networks know, of 10,000 digits that they never saw: {knows}.\n\n"
        + _table(["loader", *(f"batches of {size}" for size in sizes)], rows)
    )


def _study(study: dict[str, Any]) -> str:
    base = _told(study["runs"][0]["epochs_s"][1:], 1e3)[0]
    rows = []
    for run in study["runs"]:
        median, least, most = _told(run["epochs_s"][1:], 1e3)
        rows.append(
            [
                run["loader"],
                f"{median:.0f} ({least:.0f} to {most:.0f})",
                f"{median / base:.2f}x",
                f"{_told(run['next_s'][1:], 1e3)[0]:.3f}",
            ]
        )
    rows += [[name, "skipped", "", why] for name, why in study["skipped"].items()]
    same = "the same with all" if all(run["same"] for run in study["runs"]) else "NOT the same with all"
    return (
        "## The study's five\n\nOne batch of 56,000 an epoch, rate 0.1. Losses are "
        + same
        + ".\n\n"
        + _table(["loader", "ms an epoch", "ratio", "ms in `next`"], rows)
    )


def _iris(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        whole, inside = _told(run["epochs_s"][1:], 1e6), _told(run["next_s"][1:], 1e6)
        rows.append(
            [run["loader"], f"{whole[0]:.0f} ({whole[1]:.0f} to {whole[2]:.0f})", f"{inside[0]:.1f}", f"{run['accuracy']:.1%}"]
        )
    same = "the same with all" if all(run["same"] for run in runs) else "NOT the same with all"
    return f"## Irises\n\n4-5-3, all 120 at once, rate 0.01, {len(runs[0]['epochs_s'])} epochs. Losses are {same}.\n\n" + _table(
        ["loader", "us an epoch", "us in `next`", "knows of 30 others"], rows
    )


def _rust(runs: list[dict[str, Any]]) -> str:
    rows = []
    for run in runs:
        batches = len(run["losses"]) / len(run["epochs_s"])
        whole, loading = _told(run["epochs_s"][1:], 1e3), _told(run["loading_s"][1:], 1e6)
        other = next(some for some in runs if some["batch"] == run["batch"] and some["from"] != run["from"])
        rows.append(
            [
                f"{run['from']}, batches of {run['batch']}",
                f"{whole[0]:.0f} ({whole[1]:.0f} to {whole[2]:.0f})",
                f"{loading[0] / batches:.2f}",
                "yes" if run["losses"] == other["losses"] else "NO",
                f"{run['known'][0] / run['known'][1]:.2%}",
            ]
        )
    return "## The trainer in Rust\n\nA process each, one after the other.\n\n" + _table(
        ["samples", "ms an epoch", "us a batch outside the network", "same losses", "knows"], rows
    )


def _memory(shares: list[dict[str, Any]]) -> str:
    rows = []
    for some in shares:
        one = next(other for other in shares if other["loader"] == some["loader"] and other["trainers"] == 1)
        ratio = f"{some['segments'] / one['segments']:.3f}x" if one["segments"] else ""
        rows.append([f"{some['loader']}, {some['trainers']}", f"{some['segments'] / 1e6:.1f}", ratio, f"{some['own'] / 1e6:.0f}"])
    return (
        "## Memory\n\nTrainers that hold all batches of an epoch of 1024: the sum of their shares (PSS) of lent segments, and of everything\n"
        "else, in MB; the latter has torch in it, and for by reference the samples, which were copied once from lent memory.\n\n"
        + _table(["loader, trainers", "segments", "to one trainer", "everything else"], rows)
    )


def _flames(found: dict[str, str | None]) -> str:
    named = {"before": loaders.LOADER_0, "after": loaders.LENT}
    lines = [
        f"* {named[kind]}: " + (f"[{stem()}-flame-{kind}.svg]({stem()}-flame-{kind}.svg)" if why is None else f"skipped: {why}")
        for kind, why in found.items()
    ]
    return "## Flame graphs\n\nA trainer with batches of 1024, by py-spy.\n\n" + "\n".join(lines)


def _inits(curves: dict[str, list[float]]) -> str:
    count = len(next(iter(curves.values())))
    marks = sorted({0, 1, count // 10, count // 2, count - 1})
    rows = [[name, *(f"{losses[mark]:.4g}" for mark in marks)] for name, losses in curves.items()]
    return (
        "## How weights begin\n\nLoss before each epoch of one batch of 56,000, rate 0.1, read from lent memory.\n\n"
        + _table(["weights", *(f"epoch {mark}" for mark in marks)], rows)
    )


def _device(found: dict[str, Any]) -> str:
    if "skipped" in found:
        return f"## On a GPU\n\nSkipped: {found['skipped']}. `examples/training/device.py` counts allocations and synchronisations where there is one."
    kinds = [kind for kind in next(iter(found["ways"].values())) if kind not in ("seconds", "loss")]
    rows = [[way, *(f"{some[kind]:.0f}" for kind in kinds), f"{some['seconds']:.2f}"] for way, some in found["ways"].items()]
    return f"## On a GPU\n\n{found['device']}, {found['epochs']} epochs of one batch of 56,000.\n\n" + _table(
        ["way", *kinds, "seconds"], rows
    )
