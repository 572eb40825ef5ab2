"""The table, and the pages of each fault, in Markdown."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Any

import faults
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


def verdict(found: dict[str, Any], plain: dict[str, Any]) -> str:
    """What a cell of the table says."""
    if "gave up" in found:
        return f"**{found['gave up'].split(';')[0][:70]}**"
    parts = []
    if found["killed"]:
        parts.append(f"{len(found['killed'])} killed")
    if found["stalled"]:
        parts.append(f"{len(found['stalled'])} stalled")
    if found["torn"]:
        parts.append(f"{found['torn']} torn")
    if lost(found):
        parts.append(f"{lost(found)} lost")
    if found.get("waited for the stopped reader"):
        parts.append(f"{len(found['waited for the stopped reader'])} waited")
    if "slow" in found and found["lost"].get(found["slow"]):
        parts.append(f"{found['lost'][found['slow']]} lost at the stopped reader")
    if found.get("kept", "whole") != "whole":
        parts.append(f"kept value {found['kept']}")
    if found.get("child", "whole") != "whole":
        parts.append(f"child's value {found['child']}")
    stopped, end = leaked(found, plain)
    if end >= MIB:
        parts.append(f"{mib(end)} leaked")
    elif stopped >= MIB:
        # A broker may keep memory for its next clients.
        parts.append(f"{mib(stopped)} {'held by the broker' if found.get('has_broker') else 'leaked'}")
    left = len(found.get("left", [])) - (0 if found is plain else len(plain.get("left", [])))
    if left > 0:
        parts.append(f"{left} processes left")
    text = ", ".join(parts)
    time = seconds(recovery(found))
    return f"**{text}**; {time}" if text else f"ok; {time}"


def absent(system: str, fault: str) -> str:
    """What a cell without a result says."""
    applies = systems.load(system, Path()).has_broker or not faults.ALL[fault].needs_broker
    return "not run" if applies else "does not apply"


def command(found: dict[str, Any]) -> str:
    return f"`python benches/torture {found['system']} {found['fault']} --seed {found['seed']}`"


def latency(found: dict[str, Any], span: str) -> str:
    values = found.get("latency", {}).get(span)
    return "" if values is None else f"{values[0]:.1f} / {values[1]:.1f} ms, {values[2]:.1f} s"


def page(results: list[dict[str, Any]], missing: dict[str, str]) -> str:
    cells = {(found["system"], found["fault"]): found for found in results}
    rows = [name for name in systems.ALL if any(system == name for system, _ in cells)]
    columns = [name for name in faults.ALL if any(fault == name for _, fault in cells)]
    titles = {found["system"]: found["title"] for found in results if "title" in found}
    versions = {found["system"]: found["version"] for found in results if "version" in found}
    took_s = sum(found.get("wall_s", 0) for found in results)
    loads = [found["load"] for found in results if "load" in found]
    lines = [f"{platform.platform()}, {os.cpu_count()} processors, Python {platform.python_version()}; {len(results)} cells in {took_s / 60:.0f} minutes."]
    lines += [f"The load average (1 minute) was between {min(loads, default=0):.1f} and {max(loads, default=0):.1f}.", ""]
    lines += [f"- {titles.get(name, name)} {versions.get(name, '')}".rstrip() for name in rows]
    lines += [f"- not run: {name} ({why})" for name, why in missing.items()]
    lines += ["", f"| fault | {' | '.join(titles.get(name, name) for name in rows)} |", f"|---|{'---|' * len(rows)}"]
    for fault in columns:
        texts = []
        for name in rows:
            found = cells.get((name, fault))
            plain = cells.get((name, "nothing"))
            texts.append(absent(name, fault) if found is None else verdict(found, plain or found))
        lines.append(f"| {faults.ALL[fault].title} | {' | '.join(texts)} |")
    for fault in columns:
        lines += _details(fault, rows, cells, titles)
    return "\n".join(lines) + "\n"


def _details(fault: str, rows: list[str], cells: dict[tuple[str, str], dict[str, Any]], titles: dict[str, str]) -> list[str]:
    documented = (faults.ALL[fault].run.__doc__ or "").splitlines()[0]
    title = faults.ALL[fault].title
    lines = ["", f"## {title[0].upper()}{title[1:]}", "", documented, ""]
    lines += ["| system | recovery | memory left: application stopped, broker stopped | honest pair before | honest pair during | observations | command |"]
    lines += ["|---|--:|--:|--:|--:|---|---|"]
    for name in rows:
        found = cells.get((name, fault))
        if found is None:
            lines.append(f"| {titles.get(name, name)} | {absent(name, fault)} | | | | | |")
            continue
        plain = cells.get((name, "nothing"), found)
        stopped, end = leaked(found, plain)
        times = ", ".join(seconds(value) for value in found.get("recoveries", []))
        memory = f"{mib(stopped)}, {mib(end)}"
        lines.append(
            f"| {titles.get(name, name)} | {times} | {memory} | {latency(found, 'before')} | {latency(found, 'during')} | {_observations(found)} | {command(found)} |"
        )
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
    for key in ("attack", "kept", "child", "grown", "without broker", "joined under the limit", "waited for the stopped reader"):
        if key in found:
            value = found[key]
            texts.append(f"{key}: {', '.join(value) if isinstance(value, list) else value}")
    if found.get("left"):
        texts.append(f"processes left: {', '.join(found['left'][:6])}")
    texts += found.get("notes", [])
    errors = [f"{name}: {each[0]}" for name, each in found.get("errors", {}).items()]
    texts += errors[:2]
    return "; ".join(texts).replace("|", "/").replace("\n", " ")[:600]
