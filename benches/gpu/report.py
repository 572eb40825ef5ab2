"""Writes OUT/gpu-DATE.md and its JSON from the logs of the steps of gpu.sh."""

from __future__ import annotations

import argparse
import csv
import json
import re
from pathlib import Path
from typing import Any

#: Steps whose output is Markdown, each with the heading above it.
SHOWN = {
    "facts": None,
    "allocators": "## Allocators: five patterns of allocation, each by many threads",
    "calls": "## What the allocators ask of the driver",
    "handover": "## A tensor handed to another process",
    "engine": "## Weights that outlive an engine and a daemon, both killed",
    "arrays": "## An array handed to another process, by torch, CuPy, jax and numba",
    "cupy": "## Python's array libraries, in place",
}
#: Steps of whose output the report shows single lines.
TESTS = ("driver", "conformance", "python")


def said(logs: Path, name: str) -> str:
    path = logs / f"{name}.txt"
    return path.read_text(errors="replace") if path.exists() else ""


def tests(logs: Path) -> list[str]:
    out = []
    for name in TESTS:
        text = said(logs, name)
        observed = sorted({line.strip() for line in text.splitlines() if "OBSERVED" in line})
        skipped = [line for line in said_err(logs, name).splitlines() if line.startswith("SKIPPED")]
        ends = ("test result", "SKIPPED", "FAILED", "ERROR")
        results = [line for line in text.splitlines() if line.startswith(ends) or re.match(r"\d+ (passed|failed|skipped)", line)]
        out += ["", f"### Tests: {name}", ""]
        out += [f"- {line}" for line in [*results, *skipped, *observed]] or ["- The tests printed nothing."]
    return out


def said_err(logs: Path, name: str) -> str:
    path = logs / f"{name}.err"
    return path.read_text(errors="replace") if path.exists() else ""


def identification(logs: Path) -> str:
    for line in said(logs, "facts").splitlines():
        if line.startswith("| device | nvidia-smi |"):
            return line.split("|")[3].strip()
    return "unknown"


def written(logs: Path, name: str) -> Any:
    path = logs / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--stamp", required=True, help="the date")
    parser.add_argument("--commit", required=True)
    parser.add_argument("--fake", choices=("yes", "no"), required=True)
    arguments = parser.parse_args()
    logs, out, stem = arguments.logs, arguments.out, f"gpu-{arguments.stamp}"

    facts = said(logs, "facts").splitlines()
    device = next((line for line in facts[1:] if line.strip()), "no device answered")
    lines = [f"# On a device: {device}", ""]
    lines.append(f"{identification(logs)}; {arguments.stamp}; commit {arguments.commit}.")
    if arguments.fake == "yes":
        lines += ["", "**On the stand-in for the driver: the run shows that the programs work. Its times mean nothing.**"]
    lines += ["", "Made by `benches/gpu.sh run`. A time is the median of its repetitions, with minimum and maximum. Contenders take turns.", ""]
    with (logs / "steps.tsv").open() as table:
        steps = list(csv.reader(table, delimiter="\t"))
    lines += ["| step | exit status | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {status} | {seconds} |" for name, status, seconds in steps]
    for name, heading in SHOWN.items():
        if name == "calls" and not said(logs, name):
            # Only the stand-in logs its calls.
            continue
        if heading:
            lines += ["", heading]
        elif name == "facts":
            lines += ["", "## What the driver does", "", *facts[3:]]
            lines += tests(logs)
            continue
        text = said(logs, name).strip()
        lines += ["", text or f"The step printed nothing. The end of its error output: {said_err(logs, name).strip()[-400:]}"]
    (out / f"{stem}.md").write_text("\n".join(lines) + "\n")
    parts = {name: written(logs, name) for name in ("allocators", "calls", "handover", "engine", "arrays", "cupy")}
    result = {"device": device, "date": arguments.stamp, "commit": arguments.commit, "fake": arguments.fake == "yes"}
    (out / f"{stem}.json").write_text(json.dumps({**result, **parts}, indent=2) + "\n")
    print(f"written: {out / stem}.md and .json")


if __name__ == "__main__":
    main()
