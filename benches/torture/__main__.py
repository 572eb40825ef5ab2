"""The crash scoreboard: the same faults against every system that passes tensors through shared memory.

    python benches/torture                                the whole table, in at most 30 minutes
    python benches/torture SYSTEM                         the faults of one system
    python benches/torture SYSTEM FAULT --seed N          one cell
    python benches/torture --seeds 3                      three runs of each cell, as far as the time goes
    python benches/torture --list                         systems and faults

Systems that are not installed are left out. docs/torture.md in the repository explains the faults and the counts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import faults
import report
import schedule
import systems
import world
from cell import Cell

#: Seconds after which a cell of an idle machine is ended from outside, without the time of its start.
CELL_S = 100


def installed(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """The systems that can run here, and why the others cannot."""
    able, missing = [], {}
    for name in names:
        try:
            systems.load(name, Path("/nonexistent")).version()
            able.append(name)
        except Exception as error:
            missing[name] = " ".join(str(error).split())[:200] or type(error).__name__
    return able, missing


def one(system: str, fault: str, seed: int, kills: int, quick: bool, out: Path) -> dict[str, Any]:
    """Runs a cell in a world of its own, and returns its counts."""
    folder = out / "logs" / f"{system}-{fault}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = folder / "result.json"

    def work() -> int:
        os.environ["TORTURE_LOGS"] = str(folder)
        cell = Cell(system, fault, seed, folder, kills, quick)
        cell.system.stage = "older" if faults.ALL[fault].older else ""
        result.write_text(json.dumps(cell.run(faults.ALL[fault].run)))
        return 0

    programs = [os.environ.get(name, "") for name in ("TENSORLEND_BIN_DIR", "TENSORLEND_NEXT_BIN_DIR")]
    keep = world.kept_folders([out, systems.older_packages(), *programs])
    limit_s = (CELL_S + 2 * systems.load(system, out).start_s) * (10 if quick else 4)
    begun = time.monotonic()
    pid = world.inside(work, faults.ALL[fault].shm, keep)
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() - begun > limit_s:
            # The world's process 1 ends with this process, and the others with process 1.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            break
        time.sleep(0.05)
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
    else:
        found = {"system": system, "fault": fault, "seed": seed, "gave up": f"the cell did not end, or broke ({folder})"}
    found["wall_s"] = time.monotonic() - begun
    found["load"] = os.getloadavg()[0]
    return found


def merged(path: Path, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of earlier runs into the same folder, without those that this run has repeated."""
    repeated = {schedule.key(found) for found in fresh}
    earlier = json.loads(path.read_text())["results"] if path.exists() else []
    return [found for found in earlier if schedule.key(found) not in repeated] + fresh


def save(out: Path, fresh: list[dict[str, Any]], missing: dict[str, str]) -> None:
    """Writes the results so far, so that a run that is cut short leaves them."""
    results = merged(out / "torture.json", fresh)
    (out / "torture.json").write_text(json.dumps({"missing": missing, "results": results}, indent=1))
    (out / "torture.md").write_text(report.page(results, missing))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", nargs="?", help="one of --list, or several, separated by commas")
    parser.add_argument("fault", nargs="?", help="one of --list, or several, separated by commas")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1, help="how many runs each cell gets, the first with --seed, the next with the next number")
    parser.add_argument("--kills", type=int, default=3, help="how often kill-producer and kill-consumer kill")
    parser.add_argument("--budget", type=float, default=1750, help="seconds after which no cell begins")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("CARGO_TARGET_DIR", "target")) / "torture")
    parser.add_argument("--older", type=Path, help="a folder with the packages of older.txt, for the fault upgrade; default: OUT/older")
    parser.add_argument("--quick", action="store_true", help="one kill and short waits: a check of this program, not a result")
    parser.add_argument("--list", action="store_true", help="print the names of systems and faults")
    parser.add_argument("--page", action="store_true", help="write torture.md again from torture.json, and run nothing")
    arguments = parser.parse_args()
    if arguments.list:
        print("systems:", *systems.ALL)
        print("faults:", *faults.ALL)
        return 0
    if arguments.page:
        save(arguments.out, [], json.loads((arguments.out / "torture.json").read_text())["missing"])
        return 0
    os.environ["TORTURE_OLDER"] = str((arguments.older or arguments.out / "older").absolute())
    names = arguments.system.split(",") if arguments.system else systems.ALL
    chosen = arguments.fault.split(",") if arguments.fault else list(faults.ALL)
    unknown = [name for name in names if name not in systems.ALL] + [name for name in chosen if name not in faults.ALL]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)} (see --list)")
    why = world.possible()
    if why is not None:
        print(f"cannot run: {why}", file=sys.stderr)
        return 2
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    able, missing = installed(names)
    for name, reason in missing.items():
        print(f"left out: {name}: {reason}", flush=True)
    added = "nothing" not in chosen and not arguments.quick
    if added:
        # The counts of a fault are compared with those of a run without one.
        chosen = ["nothing", *chosen]
    earlier = merged(out / "torture.json", [])
    known = {schedule.key(found) for found in earlier if found["fault"] == "nothing" and added}
    seeds = list(range(arguments.seed, arguments.seed + arguments.seeds))
    runs = [each for each in schedule.plan(able, chosen, seeds) if each not in known]
    fit = sum(1 for at in range(len(runs)) if schedule.seconds(runs[:at], earlier) <= arguments.budget)
    print(f"seeds {seeds[0]} to {seeds[-1]}; {len(runs)} runs of {len(able)} systems, about {schedule.seconds(runs, earlier) / 60:.0f} minutes", flush=True)
    print(f"no run begins after {arguments.budget / 60:.0f} minutes: about {fit} of {len(runs)} will run", flush=True)
    results: list[dict[str, Any]] = []
    begun = time.monotonic()
    for system, fault, seed in runs:
        if time.monotonic() - begun > arguments.budget:
            if seed == seeds[0] and (system, fault, seed) not in {schedule.key(found) for found in earlier}:
                results.append({"system": system, "fault": fault, "seed": seed, "gave up": "left out: no time"})
            continue
        found = one(system, fault, seed, 1 if arguments.quick else arguments.kills, arguments.quick, out)
        results.append(found)
        plain = report.Results(merged(out / "torture.json", results)).plain(found)
        print(f"{system} {fault} {seed} ({found['wall_s']:.0f} s): {report.verdict((found, plain))}", flush=True)
        save(out, results, missing)
    save(out, results, missing)
    print(f"{out / 'torture.md'} after {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
