"""A grid search of scikit-learn over one array, with joblib's memory-mapped files and with leases: time, and memory of all processes at its height.

python benches/search.py [--mib N] [--rounds N]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
from measure import machine
from objects import family, pss

CONTENDERS = ["joblib's files", "leases"]


def run(contender: str, mib: int) -> dict[str, float]:
    """One run, in this process."""
    from sklearn.linear_model import SGDRegressor
    from sklearn.model_selection import GridSearchCV

    if contender == "leases":
        import tensorlend.joblib

        tensorlend.joblib.install()
    x = np.random.default_rng(7).normal(size=(mib << 17 >> 6, 64))
    y = x @ np.arange(64.0)
    alone, highest, ended = pss([os.getpid()]), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            try:
                highest.append(pss(family()))
            except OSError:
                # A process ended meanwhile.
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.perf_counter()
    # One split, so that the workers' own copies of it do not hide what they are sent.
    split = [(np.arange(0, len(x), 8), np.arange(1, len(x), 8))]
    GridSearchCV(SGDRegressor(max_iter=5, tol=None), {"alpha": [1e-4, 1e-3, 1e-2, 1e-1]}, n_jobs=2, cv=split, refit=False).fit(x, y)
    wall = time.perf_counter() - began
    ended.set()
    watcher.join()
    return {"wall": wall, "more": max(highest) - alone}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--run")
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(run(arguments.run, arguments.mib)))
        return
    runs: dict[str, list[Any]] = {contender: [] for contender in CONTENDERS}
    for _ in range(arguments.rounds):
        for contender, found in runs.items():
            command = [sys.executable, __file__, "--run", contender, "--mib", str(arguments.mib)]
            found.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout))
    print(f"{machine()['machine']}, Python {machine()['python']}, {arguments.mib} MiB, 2 workers, medians of {arguments.rounds} runs\n")
    print("| | time | memory of all processes at its height, above the program's before |")
    print("|---|---:|---:|")
    for contender, found in runs.items():
        wall, more = (statistics.median(one[what] for one in found) for what in ("wall", "more"))
        print(f"| {contender} | {wall:.1f} s | {more / 2**20:,.0f} MiB |")


if __name__ == "__main__":
    main()
