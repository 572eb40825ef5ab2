"""The table, and the pages of each fault, in Markdown."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import schedule
import systems

MIB = 1 << 20


def mib(nbytes: float) -> str:
    return f"{nbytes / MIB:.1f} MiB"


def grown(found: dict[str, Any], plain: dict[str, Any], when: str, kinds: tuple[str, ...] = ("shm", "memfd")) -> int:
    """Bytes in use at a time, less those of the run without a fault at the same time."""
    accounts, others = found.get("accounts", {}), plain.get("accounts", {})
    if when not in accounts:
        return 0
    return sum(max(0, accounts[when][kind] - others.get(when, {}).get(kind, 0)) for kind in kinds)


def leaked(found: dict[str, Any], plain: dict[str, Any]) -> tuple[int, int]:
    """Bytes of shared memory left when the application has stopped, and when its broker has stopped too."""
    return grown(found, plain, "stopped"), grown(found, plain, "end")


def lost(found: dict[str, Any]) -> int:
    """Values lost at consumers that were not stopped."""
    return sum(count for name, count in found.get("lost", {}).items() if name != found.get("slow"))


def recovery(found: dict[str, Any]) -> float:
    return max(found.get("recoveries", []), default=0.0)


def seconds(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.2f} s"


def span(values: list[float], form: Callable[[float], str]) -> str:
    """The smallest and the largest of the values, in words."""
    texts = [form(min(values)), form(max(values))]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)


def harms(found: dict[str, Any], plain: dict[str, Any]) -> dict[str, float]:
    """The harm in one run: what happened, and how often or how many bytes."""
    stopped, end = leaked(found, plain)
    leak = "B leaked" if end >= MIB or not found.get("has_broker") else "B held by the broker"
    left = len(found.get("left", [])) - (0 if found is plain else len(plain.get("left", [])))
    kept, child = found.get("kept", "whole"), found.get("child", "whole")
    counts: dict[str, float] = {
        "killed": len(found["killed"]), "stalled": len(found["stalled"]), "torn": found["torn"], "lost": lost(found),
        "waited": len(found.get("waited for the stopped reader", [])), "lost at the stopped reader": found["lost"].get(found.get("slow"), 0),
        f"kept value {kept}": kept != "whole", f"child's value {child}": child != "whole", leak: end if end >= MIB else stopped if stopped >= MIB else 0,
        "processes left": max(0, left),
    }  # fmt: skip
    return {kind: count for kind, count in counts.items() if count}


def verdict(*runs: tuple[dict[str, Any], dict[str, Any]]) -> str:
    """What a cell of the table says of its runs, each with the run without a fault that it is compared with."""
    able = [(found, plain) for found, plain in runs if "gave up" not in found]
    if not able:
        return f"**{runs[0][0]['gave up'].split(';')[0][:70]}**"
    every = [harms(found, plain) for found, plain in able]
    parts = []
    for kind in dict.fromkeys(kind for one in every for kind in one):
        counts = [one[kind] for one in every if kind in one]
        if kind.startswith("B "):
            text = f"{span(counts, mib)} {kind[2:]}"
        elif isinstance(counts[0], bool):
            text = kind
        else:
            text = f"{span(counts, lambda count: str(int(count)))} {kind}"
        parts.append(text if len(counts) == len(runs) else f"{text} ({len(counts)} of {len(runs)})")
    if len(able) < len(runs):
        parts.append(f"{len(runs) - len(able)} of {len(runs)} not run")
    times = [recovery(found) for found, _ in able]
    return (f"**{', '.join(parts)}**" if parts else "ok") + (f"; {span(times, seconds)}" if any(times) else "")


def absent(system: str, fault: str) -> str:
    """What a cell without a result says."""
    driver = systems.load(system, Path())
    if faults.ALL[fault].needs_broker and not driver.has_broker:
        return "does not apply"
    if faults.ALL[fault].older and not driver.only and (why := schedule.without_older(driver)):
        return why
    return "" if driver.only and fault not in driver.only else "not run"


def command(found: dict[str, Any]) -> str:
    return f"`python benches/torture {found['system']} {found['fault']} --seed {found['seed']}`"


def latency(runs: list[dict[str, Any]], when: str) -> str:
    """The medians over the runs of the median, the 99th percentile and the longest gap."""
    values = [found["latency"][when] for found in runs if when in found.get("latency", {})]
    if not values:
        return ""
    median, high, gap = (statistics.median(column) for column in zip(*values, strict=True))
    return f"{median:.1f} / {high:.1f} ms, {gap:.1f} s"


class Results:
    """The runs, by system and fault."""

    def __init__(self, results: list[dict[str, Any]]) -> None:
        self.cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for found in results:
            self.cells.setdefault((found["system"], found["fault"]), []).append(found)
        self.rows = [name for name in systems.ALL if any(system == name for system, _ in self.cells)]
        self.columns = [name for name in faults.ALL if any(fault == name for _, fault in self.cells)]
        self.titles = {found["system"]: found["title"] for found in results if "title" in found}

    def title(self, system: str) -> str:
        return self.titles.get(system, system)

    def plain(self, found: dict[str, Any]) -> dict[str, Any]:
        """The run without a fault that a run is compared with: the one of its seed, or another one, or itself."""
        runs = [each for each in self.cells.get((found["system"], "nothing"), []) if "gave up" not in each]
        return next((each for each in runs if each["seed"] == found["seed"]), runs[0] if runs else found)

    def verdict(self, system: str, fault: str) -> str:
        runs = self.cells.get((system, fault))
        return absent(system, fault) if runs is None else verdict(*[(found, self.plain(found)) for found in runs])


def page(results: list[dict[str, Any]], missing: dict[str, str]) -> str:
    all_ = Results(results)
    versions = {found["system"]: found["version"] for found in results if "version" in found}
    took_s = sum(found.get("wall_s", 0) for found in results)
    loads = sorted(found["load"] for found in results if "load" in found) or [0]
    lines = [f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}; {len(results)} runs in {took_s / 60:.0f} minutes."]
    lines += [f"The load average (1 minute) was between {loads[0]:.1f} and {loads[-1]:.1f}, with a median of {loads[len(loads) // 2]:.1f}.", ""]
    lines += [f"- {all_.title(name)} {versions.get(name, '')}".rstrip() for name in all_.rows]
    lines += [f"- not run: {name} ({why})" for name, why in missing.items()]
    lines += ["", f"| fault | {' | '.join(all_.title(name) for name in all_.rows)} |", f"|---|{'---|' * len(all_.rows)}"]
    for fault in all_.columns:
        lines.append(f"| {faults.ALL[fault].title} | {' | '.join(all_.verdict(name, fault) for name in all_.rows)} |")
    for fault in all_.columns:
        lines += _details(fault, all_)
    return "\n".join(lines) + "\n"


def _details(fault: str, all_: Results) -> list[str]:
    documented = (faults.ALL[fault].run.__doc__ or "").splitlines()[0]
    title = faults.ALL[fault].title
    lines = ["", f"## {title[0].upper()}{title[1:]}", "", documented, ""]
    lines += ["| system | runs | recovery | memory left: application stopped, broker stopped | honest pair before | honest pair during | observations | command |"]
    lines += ["|---|--:|--:|--:|--:|--:|---|---|"]
    for name in all_.rows:
        runs = all_.cells.get((name, fault))
        if runs is None:
            if (why := absent(name, fault)) == "not run":
                lines.append(f"| {all_.title(name)} | 0 | {why} | | | | | |")
            continue
        # The run with the most kinds of harm speaks for the others.
        worst = max(runs, key=lambda found: 99 if "gave up" in found else len(harms(found, all_.plain(found))))
        lefts = [leaked(found, all_.plain(found)) for found in runs]
        memory = ", ".join(mib(max(column)) for column in zip(*lefts, strict=True))
        times = [value for found in runs for value in found.get("recoveries", [])]
        shown = span(times, seconds) if times else ""
        pair = f"{latency(runs, 'before')} | {latency(runs, 'during')}"
        lines.append(f"| {all_.title(name)} | {len(runs)} | {shown} | {memory} | {pair} | {_observations(worst)} | {command(worst)} |")
    return lines


def _observations(found: dict[str, Any]) -> str:
    texts = []
    if "gave up" in found:
        texts.append(found["gave up"])
    if found.get("killed"):
        texts.append("killed: " + ", ".join(found["killed"]))
    if found.get("stalled"):
        texts.append("stalled: " + ", ".join(f"{name} (until: {found['cures'].get(name)})" for name in found["stalled"]))
    if found.get("torn"):
        texts.append(f"torn values: {found['torn']}")
    if found.get("lost"):
        texts.append("lost: " + ", ".join(f"{count} at {name}" for name, count in found["lost"].items()))
    for key in ("upgraded", "attack", "kept", "child", "grown", "without broker", "joined under the limit", "waited for the stopped reader"):
        if key in found:
            value = found[key]
            texts.append(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    if found.get("left"):
        texts.append(f"processes left: {', '.join(found['left'][:6])}")
    texts += found.get("notes", [])
    errors = [f"{name}: {each[0]}" for name, each in found.get("errors", {}).items()]
    texts += errors[:2]
    return "; ".join(texts).replace("|", "/").replace("\n", " ")[:600]
