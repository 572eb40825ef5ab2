"""A grid search of scikit-learn over one array, with joblib's memory-mapped files and with leases: time, and memory of all processes at its height.

python benches/search.py [--mib N] [--rounds N]
"""

from __future__ import annotations

import json
import os
import statistics
import threading

import numpy as np
from measure import again, described, family, interleaved, markdown, parser, pss, seconds

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
    alone, highest, ended = pss(os.getpid()), [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            try:
                highest.append(pss(*family()))
            except OSError:
                # A process has ended.
                continue

    watcher = threading.Thread(target=watch)
    watcher.start()
    # One split, so that the workers' own copies of it do not hide the cost of sending the arrays.
    split = [(np.arange(0, len(x), 8), np.arange(1, len(x), 8))]
    search = GridSearchCV(SGDRegressor(max_iter=5, tol=None), {"alpha": [1e-4, 1e-3, 1e-2, 1e-1]}, n_jobs=2, cv=split, refit=False)
    wall = seconds(lambda: search.fit(x, y))
    ended.set()
    watcher.join()
    return {"wall": wall, "more": max(highest) - alone}


def main() -> None:
    options = parser(__doc__, rounds=3)
    options.add_argument("--mib", type=int, default=256)
    options.add_argument("--run")
    arguments = options.parse_args()
    if arguments.run:
        print(json.dumps(run(arguments.run, arguments.mib)))
        return
    runs = interleaved(CONTENDERS, arguments.rounds, lambda it: again(__file__, "--run", it, "--mib", arguments.mib, timeout=600), warm=0)
    print(described(f"{arguments.mib} MiB", "2 workers", f"medians of {arguments.rounds} runs"), end="\n\n")
    rows = []
    for contender, found in runs.items():
        wall, more = (statistics.median(one[what] for one in found) for what in ("wall", "more"))
        rows.append((contender, f"{wall:.1f} s", f"{more / 2**20:,.0f} MiB"))
    print(markdown(["", "time", "memory of all processes at its height, above the program's before"], rows))


if __name__ == "__main__":
    main()
