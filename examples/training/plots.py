"""Draws the results as SVG plots."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measures import by_epoch


def draw_all(folder: Path, stem: str, found: dict[str, Any]) -> dict[str, str]:
    """Draws all plots. Returns their file names by title, or an empty dict if matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no plots: pip install matplotlib", file=sys.stderr)
        return {}
    # With a fixed salt, the same figures give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "training"
    drawn = {}

    def draw(kind: str, title: str, fill: Callable[[Any], None]) -> None:
        figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
        fill(axes)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)
        drawn[title] = f"{stem}-{kind}.svg"
        figure.savefig(folder / drawn[title], metadata={"Date": None})
        plt.close(figure)

    def style(name: str) -> dict[str, Any]:
        return {"linewidth": 2} if name.startswith("tensorlend") else {"linewidth": 1, "linestyle": "--"}

    runs = found["epochs"]
    names = list(dict.fromkeys(run["loader"] for run in runs))

    def times(axes: Any) -> None:
        for name in names:
            points = [(run["batch"], statistics.median(run["epochs_s"][1:]) * 1e3) for run in runs if run["loader"] == name]
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3, label=name, **style(name))
        axes.set(xscale="log", yscale="log", xlabel="rows in a batch", ylabel="ms, median of epochs")

    def losses(axes: Any) -> None:
        size = runs[-1]["batch"]
        for name in names:
            run = next(run for run in runs if (run["batch"], run["loader"]) == (size, name))
            passed, at = 0.0, []
            for seconds in run["epochs_s"][1:]:
                passed += seconds
                at.append(passed)
            means = by_epoch(run["losses"], len(run["epochs_s"]))[1:]
            axes.plot(at, means, marker="o", markersize=3, label=name, **style(name))
        axes.set(xlabel=f"seconds of training, batches of {size}", ylabel="loss, mean of an epoch")

    def inits(axes: Any) -> None:
        for name, curve in found["inits"].items():
            axes.plot(range(len(curve)), curve, label=name)
        axes.set(yscale="log", xlabel="epochs", ylabel="loss")

    draw("time", "An epoch, by loader", times)
    draw("loss", "Loss over time, by loader", losses)
    draw("init", "How weights begin", inits)
    return drawn
